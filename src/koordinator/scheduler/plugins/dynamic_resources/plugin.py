"""DynamicResources: the extension points. Source: behaviour/scheduler B1; upstream's plugin with structured
parameters."""

import itertools
from collections.abc import Hashable, Iterator

import msgspec
import numpy as np

from koordinator.api import duration
from koordinator.api.affinity import NodeSelector
from koordinator.api.core import Pod
from koordinator.api.dra import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from koordinator.cluster.informer import key_of
from koordinator.scheduler.config.default_plugins import DynamicResourcesArgs
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent, newest
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    FilterPlugin,
    Handle,
    Mask,
    Outlook,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    QueueingHintIndex,
    ReasonCodes,
    ReservePlugin,
    ScorePlugin,
    Scores,
    Watch,
    default_normalize,
)
from koordinator.scheduler.plugin.status import (
    SKIP,
    SUCCESS,
    PodPatch,
    Reason,
    Status,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.plugins.dynamic_resources import (
    binding_conditions,
    claim_allocations,
    demand,
    supply,
)
from koordinator.scheduler.plugins.dynamic_resources.allocator import AllocationOutcome
from koordinator.scheduler.plugins.dynamic_resources.claim_allocations import (
    ClaimAllocations,
    ClaimError,
    ClaimInUse,
    ClaimKey,
    ClaimWriter,
    claim_names,
)
from koordinator.scheduler.plugins.dynamic_resources.demand import ClaimDemand, DemandError, DeviceSelections
from koordinator.scheduler.plugins.dynamic_resources.supply import Supply
from koordinator.scheduler.table.columns import Rows, discard
from koordinator.scheduler.table.label_columns import LabelColumns
from koordinator.scheduler.table.pod_info import PodInfo

CLAIM_EVENTS = (
    ClusterEvent.RESOURCE_CLAIM_ADDED,
    ClusterEvent.RESOURCE_CLAIM_UPDATED,
    ClusterEvent.RESOURCE_CLAIM_DELETED,
)
SLICE_EVENTS = (ClusterEvent.RESOURCE_SLICE_ADDED, ClusterEvent.RESOURCE_SLICE_UPDATED)
CLASS_EVENTS = (ClusterEvent.DEVICE_CLASS_ADDED, ClusterEvent.DEVICE_CLASS_UPDATED)


def keys_of(pod: Pod) -> frozenset[ClaimKey]:
    """Claims that the pod names, as far as they are known."""
    namespace = pod.metadata.namespace
    return frozenset((namespace, name) for _, name in claim_names(pod) if name is not None)


def gives_back(event: QueueingEvent) -> bool:
    """Return whether devices became free: a claim lost them, or went, or a promise was taken back."""
    old, new = event.old, event.new
    if old is None and new is None:
        return True
    had = isinstance(old, ResourceClaim) and old.status.allocation is not None
    has = isinstance(new, ResourceClaim) and new.status.allocation is not None
    return had and not has


def helps(event: QueueingEvent, pod: Pod) -> bool:
    """Return whether a change of a claim can help a pod: its own claim came or has another status, or devices became
    free."""
    if gives_back(event):
        return True
    old, new = event.old, event.new
    if new is None or key_of(new) not in keys_of(pod):
        return False
    return old is None or old.status != new.status or old.metadata.uid != new.metadata.uid


class ClaimIndex(QueueingHintIndex):
    """Pods by the claims that they wait for: most changes of claims concern one pod of thousands."""

    def __init__(self) -> None:
        self._slots: dict[ClaimKey, set[int]] = {}
        self._keys: dict[int, frozenset[ClaimKey]] = {}

    def put(self, slot: int, pod: PodInfo) -> None:
        keys = self._keys[slot] = keys_of(pod.pod)
        for key in keys:
            self._slots.setdefault(key, set()).add(slot)

    def clear(self, slot: int) -> None:
        for key in self._keys.pop(slot, ()):
            discard(self._slots, key, slot)

    def may_wake(self, event: QueueingEvent, slot_count: int) -> Mask:
        if event.kind not in CLAIM_EVENTS or gives_back(event):
            return np.ones(slot_count, np.bool_)
        found = np.zeros(slot_count, np.bool_)
        meta = newest(event.old, event.new).metadata
        found[list(self._slots.get((meta.namespace, meta.name), ()))] = True
        return found


STEPS_PER_S = 100_000
"""Devices tried per second of `filterTimeout`: a bound on a search that does not depend on the machine's load."""

NOTHING_TO_DEALLOCATE = "no new claims to deallocate"


class ClaimReason(Reason):
    """The numbers of outcomes, and one for claims that have their devices."""

    OK = AllocationOutcome.FOUND, SUCCESS
    NO_DEVICES = AllocationOutcome.NOT_FOUND, unresolvable("cannot allocate all claims")
    TOO_MANY_STEPS = AllocationOutcome.TOO_MANY_STEPS, unresolvable("timed out trying to allocate devices")
    UPDATING = (
        AllocationOutcome.UPDATING,
        unresolvable("asks for all devices, but a resource pool is currently being updated"),
    )
    INVALID_POOL = AllocationOutcome.INVALID_POOL, unresolvable("invalid resource pools were encountered")
    ELSEWHERE = len(AllocationOutcome), unresolvable("resourceclaim not available on the node")


class ClaimState(msgspec.Struct, frozen=True, eq=False):
    """A pod's claims. `demand` is what those without devices ask for, None when all have theirs; `lost` are those
    whose devices did not get ready."""

    keys: tuple[ClaimKey, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    lost: tuple[ResourceClaim, ...] = ()
    demand: ClaimDemand | None = None
    refusal: Status = SUCCESS

    def selectors(self) -> Iterator[tuple[ResourceClaim, NodeSelector]]:
        """Claims that have devices, with the nodes where these can be used, unless that is all nodes."""
        for claim in self.claims:
            if claim.status.allocation is not None and claim.status.allocation.node_selector is not None:
                yield claim, claim.status.allocation.node_selector


NO_CLAIMS = ClaimState()


class DynamicResources(
    PreEnqueuePlugin[ClaimState],
    PreFilterPlugin[ClaimState],
    FilterPlugin[ClaimState],
    ScorePlugin[ClaimState],
    PostFilterPlugin[ClaimState],
    ReservePlugin[ClaimState],
    PreBindPlugin[ClaimState],
):
    name = "DynamicResources"
    args = DynamicResourcesArgs
    reasons = ClaimReason
    fewer_pods_help = True
    wakes_for_row = True
    normalizes = normalizes_by_highest = True
    wakes_on = (
        *CLAIM_EVENTS,
        *SLICE_EVENTS,
        *CLASS_EVENTS,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._books = handle.table.shared(ClaimAllocations)
        self._labels = handle.table.shared(LabelColumns)
        self._books.inventory.gates = handle.gates
        self._selections = DeviceSelections(self._books.inventory)
        steps_max = int(duration.parse(args.filter_timeout) * STEPS_PER_S)
        self._supply = Supply(self._books.inventory, self._labels, steps_max)
        self._binding_timeout_s = duration.parse(args.binding_timeout)
        self._writer = ClaimWriter(handle, self._books, self._binding_timeout_s)
        if not handle.gates.is_on("DisableDynamicResourceAllocationInformer"):
            handle.watch(Watch.changes(ResourceClaim, self._claim_set))
            handle.watch(Watch.changes(DeviceClass, self._class_set))
            handle.watch(Watch.changes(ResourceSlice, self._slice_set))
            if handle.gates.is_on("DRADeviceTaints") and handle.gates.is_on("DRADeviceTaintRules"):
                handle.watch(Watch.changes(DeviceTaintRule, self._rule_set))

    # What comes in

    def _claim_set(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        key = key_of(newest(old, new))
        self._books.set_claim(key, new)
        self._writer.claim_changed(key)
        self.handle.changed(CLAIM_EVENTS, old, new)

    def _class_set(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        self._books.set_class(newest(old, new).metadata.name, new)
        self.handle.changed(CLASS_EVENTS, old, new)

    def _slice_set(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        self._books.inventory.set_slice(old, new)
        self.handle.changed(SLICE_EVENTS, old, new)

    def _rule_set(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        self._books.inventory.set_rule(old, new)
        # To pods it is as if the slices had other taints.
        self.handle.happened(QueueingEvent(ClusterEvent.RESOURCE_SLICE_UPDATED))

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        if not pod.pod.spec.resource_claims:
            return ()
        return (pod.uid, claim_allocations.claim_names(pod.pod))

    def prepare(self, pod: PodInfo) -> ClaimState:
        if not pod.pod.spec.resource_claims:
            return NO_CLAIMS
        keys = tuple(sorted(keys_of(pod.pod)))
        try:
            claims = claim_allocations.claims_of(pod.pod, self._books.claim)
            found = list({claim.metadata.uid: claim for claim in claims}.values())
            for claim in found:
                self._check(pod, claim)
            lost = tuple(claim for claim in found if self._is_lost(claim))
            missing = [claim for claim in found if claim.status.allocation is None]
            if not missing:
                return ClaimState(keys, tuple(found), lost)
            wanted = demand.read(missing, self._books.device_class, self._selections)
            return ClaimState(keys, tuple(found), lost, wanted)
        except (ClaimError, DemandError) as problem:
            return ClaimState(keys, refusal=unresolvable(str(problem)))

    def _is_lost(self, claim: ResourceClaim) -> bool:
        """Return whether the claim's devices failed to get ready, or take too long."""
        if not self.handle.gates.is_on("DRADeviceBindingConditions") or claim.status.allocation is None:
            return False
        now_s = self.handle.clock.now()
        return binding_conditions.readiness(claim, self._binding_timeout_s, now_s).is_lost

    def _check(self, pod: PodInfo, claim: ResourceClaim) -> None:
        """Raises: ClaimError when others use the claim, or are about to."""
        if claim.status.allocation is None:
            if self._books.is_promised(claim.metadata.uid):
                raise ClaimError(f"resource claim {claim.key} is in the process of being allocated")
        elif not claim_allocations.can_be_reserved(claim) and not claim_allocations.is_reserved_for(
            claim, pod.uid
        ):
            raise ClaimError("resourceclaim in use")

    def epoch(self, state: ClaimState) -> Hashable:
        if state is NO_CLAIMS:
            return None
        return (self._books.version, self._books.inventory.version, self._labels.version)

    def foresees(self, state: ClaimState) -> bool:
        return state is NO_CLAIMS

    def pre_enqueue(self, pod: PodInfo) -> Status:
        if not pod.pod.spec.resource_claims:
            return SUCCESS
        objection = claim_allocations.objection(pod.pod, self._books.claim)
        return unresolvable(objection) if objection else SUCCESS

    def pre_filter(self, state: ClaimState) -> PreFilterResult:
        if not state.refusal.is_success:
            return PreFilterResult(state.refusal)
        return PreFilterResult() if state.claims else PreFilterResult(SKIP)

    # Nodes

    def filter(self, state: ClaimState, rows: Rows) -> ReasonCodes:
        codes = np.zeros(rows.size, np.uint16)
        if state.demand is not None:
            codes = self._supply.outcomes(state.demand, rows).astype(np.uint16)
        for _, selector in state.selectors():
            codes[(codes == 0) & ~self._reaches(selector, rows)] = ClaimReason.ELSEWHERE
        if state.lost:
            codes[codes == 0] = ClaimReason.ELSEWHERE
        return codes

    def _reaches(self, selector: NodeSelector, rows: Rows) -> Mask:
        return self._labels.match_terms(selector.node_selector_terms, rows)

    def pods_matter(self, state: ClaimState, rows: Rows) -> Mask:
        return np.zeros(rows.size, np.bool_)

    def facts(self, state: ClaimState, row: int) -> tuple[str, ...]:
        if state.demand is None:
            return ()
        failure = self._supply.failure(state.demand, row, self.handle.table.name_of(row))
        return (failure,) if failure else ()

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        if claim_allocations.objection(pod.pod, self._books.claim):
            return False
        if event.kind in CLAIM_EVENTS:
            return helps(event, pod.pod)
        if event.row is None:
            return True
        return self.prepare(pod).refusal.is_success and super().wakes(event, pod)

    def wake_index(self) -> QueueingHintIndex:
        return ClaimIndex()

    def scores(self, state: ClaimState) -> bool:
        return state.demand is not None and state.demand.has_alternatives

    def score(self, state: ClaimState, rows: Rows) -> Scores:
        assert state.demand is not None, "else it does not score"
        return self._supply.points(state.demand, rows)

    def normalize(self, state: ClaimState, scores: Scores) -> Scores:
        return default_normalize(scores)

    # When no node is left

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        """A claim that nobody else uses, with devices on the wrong nodes, gives them back."""
        state = self.prepare(pod)
        claim = self._misplaced(state, pod)
        if claim is not None:
            self.handle.actions.spawn(self._writer.deallocate(claim), f"deallocating claim {claim.key}")
        return _would_answer(state, claim)

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        state = self.prepare(pod)
        return Outlook(_would_answer(state, self._misplaced(state, pod)))

    def _misplaced(self, state: ClaimState, pod: PodInfo) -> ResourceClaim | None:
        """A claim of the pod alone with devices that did not get ready, or that some nodes do not reach."""
        rows = self.handle.table.rows
        far = (claim for claim, selector in state.selectors() if not self._reaches(selector, rows).all())
        for claim in itertools.chain(state.lost, far):
            if all(user.uid == pod.uid for user in claim.status.reserved_for):
                return claim
        return None

    # On a node

    def reserves(self, state: ClaimState) -> bool:
        return bool(state.claims)

    def reserve(self, state: ClaimState, pod: PodInfo, row: int) -> Status:
        if not state.claims:
            return SUCCESS
        booked = [
            ClaimInUse(key_of(claim), claim.metadata.uid, None)
            for claim in state.claims
            if claim.status.allocation is not None
        ]
        if state.demand is not None:
            answer, numbers = self._supply.answer(state.demand, row)
            if answer.outcome is not AllocationOutcome.FOUND:
                return ClaimReason(answer.outcome).status
            inventory, node_name = self._books.inventory, self.handle.table.name_of(row)
            for grant in supply.grants(state.demand, answer, numbers, inventory, node_name):
                promise = self._books.promise(grant.claim, grant.devices, grant.allocation)
                booked.append(ClaimInUse(key_of(grant.claim), grant.claim.metadata.uid, promise))
        self._writer.book(pod, booked)
        return SUCCESS

    def unreserve(self, state: ClaimState, pod: PodInfo, node_name: str) -> None:
        if state.claims and self._writer.take_back(pod, state.keys):
            # Pods that share a claim, or want the same devices, may wait for it.
            self.handle.happened(QueueingEvent(ClusterEvent.RESOURCE_CLAIM_UPDATED))

    def is_slow(self, state: ClaimState, pod: PodInfo) -> bool:
        return bool(state.claims)

    async def pre_bind(self, state: ClaimState, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        if not state.claims:
            return SUCCESS
        status = await self._writer.write(pod)
        if status.is_success and self.handle.gates.is_on("DRADeviceBindingConditions"):
            status = await self._writer.wait_for_devices(pod, state.keys, node_name)
        return status


def _would_answer(state: ClaimState, misplaced: ResourceClaim | None) -> PostFilterResult:
    if not state.claims:
        return PostFilterResult(unschedulable(NOTHING_TO_DEALLOCATE))
    if misplaced is None:
        return PostFilterResult(unschedulable("still not schedulable"))
    return PostFilterResult(unschedulable("deallocation of ResourceClaim completed"))
