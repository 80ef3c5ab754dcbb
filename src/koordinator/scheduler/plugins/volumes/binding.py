"""VolumeBinding: pods go where their volumes are or can be made, and get them bound. Source: behaviour/scheduler B1 and
B9."""

from collections.abc import Hashable
from typing import Annotated

import msgspec
import numpy as np

from koordinator.api.affinity import LabelSelector, NodeSelectorRequirement, NodeSelectorTerm
from koordinator.api.meta import is_controlled_by
from koordinator.api.storage import (
    CSIDriver,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from koordinator.scheduler.plugin.framework import (
    Handle,
    Mask,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReasonCodes,
    ReservePlugin,
    ScorePlugin,
    Scores,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, PodPatch, Status, unresolvable
from koordinator.scheduler.plugins.node_resources_fit import (
    ShapePoint,
    check_shape,
    piecewise_linear,
    scaled_shape,
)
from koordinator.scheduler.plugins.volumes import catalog
from koordinator.scheduler.plugins.volumes.catalog import (
    WAIT_FOR_FIRST_CONSUMER,
    AssumedClaims,
    AssumedVolumes,
    PodVolumes,
    VolumeClaimUse,
    VolumeReachPlugin,
    claims_of,
    class_of,
    is_bound,
    not_found,
    not_owned,
)
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import F64
from koordinator.scheduler.table.pod_info import PodInfo

# Bits of a reason code, in the order in which users read the reasons.
_REASONS = (
    (1, "node(s) didn't match PersistentVolume's node affinity"),
    (2, "node(s) didn't find available persistent volumes to bind"),
    (4, "node(s) did not have enough free storage"),
    (8, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
)
_AFFINITY, _UNBOUND, _NO_SPACE, _NO_VOLUME = (bit for bit, _ in _REASONS)

Claims = tuple[PersistentVolumeClaim, ...]


class VolumeBindingArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`bind_timeout_seconds`: how long a pod waits for its volumes once it has a node. With a `shape`, nodes are
    scored by how much of the volumes that the pod would get there it asks for."""

    bind_timeout_seconds: Annotated[int, msgspec.Meta(ge=0)] = 600
    shape: list[ShapePoint] = []

    def __post_init__(self) -> None:
        check_shape("shape", self.shape)


class BindingState(msgspec.Struct, frozen=True):
    """A pod's claims, those without a volume by size."""

    bound: Claims
    unbound: Claims
    refusal: Status


_NO_CLAIMS = BindingState((), (), SUCCESS)


class VolumeBinding(
    PreFilterPlugin[BindingState],
    VolumeReachPlugin[BindingState],
    ReservePlugin[BindingState],
    PreBindPlugin[BindingState],
    PreScorePlugin[BindingState],
    ScorePlugin[BindingState],
):
    name = "VolumeBinding"
    kinds = (PersistentVolumeClaim, PersistentVolume, StorageClass, CSIDriver, CSIStorageCapacity)
    args = VolumeBindingArgs

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._promises = handle.table.shared(AssumedClaims)
        self._commitments = AssumedVolumes(handle, self._catalog, self._promises, args.bind_timeout_seconds)
        self._shape = scaled_shape(args.shape)

    # A pod

    def prepare(self, pod: PodInfo) -> BindingState:
        uses = claims_of(pod.pod)
        if not uses:
            return _NO_CLAIMS
        bound: list[PersistentVolumeClaim] = []
        unbound: list[PersistentVolumeClaim] = []
        is_immediate = False
        for use in uses:
            claim = self._catalog.claim(use.key)
            objection = _objection(use, claim, pod)
            if claim is None or objection:
                return BindingState((), (), unresolvable(objection))
            if is_bound(claim):
                bound.append(claim)
            elif claim.spec.volume_name or not self._waits_for_consumer(claim):
                is_immediate = True
            else:
                unbound.append(claim)
        refusal = SUCCESS
        if is_immediate:
            refusal = unresolvable("pod has unbound immediate PersistentVolumeClaims")
        unbound.sort(key=catalog.wanted_size)
        return BindingState(tuple(bound), tuple(unbound), refusal)

    def _waits_for_consumer(self, claim: PersistentVolumeClaim) -> bool:
        storage_class = self._catalog.storage_class(class_of(claim))
        return storage_class is not None and storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER

    def epoch(self, state: BindingState) -> Hashable:
        if state is _NO_CLAIMS:
            return None
        return (self._catalog.version, self._labels.version, self._promises.version)

    def pre_filter(self, state: BindingState) -> PreFilterResult:
        return PreFilterResult(SKIP if state is _NO_CLAIMS else state.refusal)

    # Filter

    def filter(self, state: BindingState, rows: Rows) -> ReasonCodes:
        codes = np.zeros(rows.size, np.uint16)
        for claim in state.bound:
            volume = self._catalog.volume(claim.spec.volume_name)
            if volume is None:
                codes[codes == 0] = _NO_VOLUME
                break
            codes[~self._reaches(volume, rows)] = _AFFINITY
        is_unbound, is_short = self._plan(state.unbound, rows, PodVolumes())
        codes[is_unbound] |= _UNBOUND
        codes[is_short & ~is_unbound] |= _NO_SPACE
        return codes

    def refusal(self, state: BindingState, code: int) -> Status:
        return unresolvable(*(text for bit, text in _REASONS if code & bit))

    def facts(self, state: BindingState, row: int) -> tuple[str, ...]:
        rows = np.array([row], np.intp)
        lines = []
        for claim in state.bound:
            name = claim.spec.volume_name
            volume = self._catalog.volume(name)
            if volume is None:
                lines.append(f"claim {claim.key} is bound to volume {name}, which does not exist")
            else:
                reach = "reaches" if self._reaches(volume, rows)[0] else "does not reach"
                lines.append(f"claim {claim.key} is bound to volume {name}, which {reach} this node")
        for claim in state.unbound:
            is_unbound, is_short = self._plan((claim,), rows, PodVolumes())
            found = "no volume for it here" if is_unbound[0] else "a volume can be had here"
            if is_short[0] and not is_unbound[0]:
                found = "not enough storage to make one here"
            size = claim.spec.resources.requests.get(catalog.STORAGE, "0")
            lines.append(f"claim {claim.key} ({size} of class {class_of(claim) or 'none'}): {found}")
        return tuple(lines)

    def _plan(
        self,
        claims: Claims,
        rows: Rows,
        plan: PodVolumes,
        fillings: "dict[str, StorageUtilization] | None" = None,
    ) -> tuple[Mask, Mask]:
        """For each claim in turn, a volume of those left or a new one. Rows where a volume is missing, and rows where
        there is no space for one: the first claim that lacks something decides, those whose node is chosen already
        before the others. For a single row, the work goes into `plan`; requests of existing volumes go into
        `fillings`, by class."""
        is_unbound = np.zeros(rows.size, np.bool_)
        is_short = np.zeros(rows.size, np.bool_)
        taken: dict[str, Mask] = {}
        for claim in sorted(claims, key=lambda claim: not self._commitments.selected_node(claim)):
            filling = None
            if fillings is not None:
                filling = fillings.setdefault(class_of(claim), StorageUtilization.none(rows.size))
            is_served = self._serve(claim, rows, taken, is_unbound, plan, filling)
            if is_served.all():
                continue
            can_make, has_space = self._provision(claim, rows)
            is_open = ~is_served & ~is_short
            is_short |= is_open & ~is_unbound & can_make & ~has_space
            is_unbound |= is_open & ~can_make
            plan.dynamic.append(claim)
        return is_unbound, is_short

    def _serve(
        self,
        claim: PersistentVolumeClaim,
        rows: Rows,
        taken: dict[str, Mask],
        is_unbound: Mask,
        plan: PodVolumes,
        filling: "StorageUtilization | None",
    ) -> Mask:
        """Return rows where a volume that exists becomes the claim's."""
        is_served = np.zeros(rows.size, np.bool_)
        selected = self._commitments.selected_node(claim)
        if selected:
            # Its volume is being made for that node, and nothing else matters on others.
            is_unbound |= rows != self.handle.table.row_of(selected)
            return is_served
        for volume in self._commitments.meant_for(claim):
            if catalog.class_of_volume(volume) != class_of(claim):
                continue  # the volume controller may still give it
            if catalog.is_meant_for(volume, claim) and catalog.could_serve(volume, claim):
                is_served = self._reaches(volume, rows)
                _note(plan, claim, volume, is_served, filling)
                return is_served  # elsewhere one can be made at most
        for volume in catalog.free_volumes(claim, self._commitments.free_volumes(class_of(claim))):
            name = volume.metadata.name
            takes = ~is_served & self._reaches(volume, rows)
            if name in taken:
                takes &= ~taken[name]
            taken[name] = taken[name] | takes if name in taken else takes
            _note(plan, claim, volume, takes, filling)
            is_served |= takes
            if is_served.all():
                break
        return is_served

    def _reaches(self, volume: PersistentVolume, rows: Rows) -> Mask:
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return np.ones(rows.size, np.bool_)
        return self._labels.match_terms(affinity.required.node_selector_terms, rows)

    def _provision(self, claim: PersistentVolumeClaim, rows: Rows) -> tuple[Mask, Mask]:
        """Return rows where a volume for the claim can be made, and where the driver has space for it."""
        storage_class = self._catalog.storage_class(class_of(claim))
        if storage_class is None or not catalog.can_provision(storage_class):
            return np.zeros(rows.size, np.bool_), np.ones(rows.size, np.bool_)
        can_make = self._is_allowed(storage_class, rows)
        driver = self._catalog.find(CSIDriver, storage_class.provisioner)
        if driver is None or not driver.spec.storage_capacity:
            return can_make, np.ones(rows.size, np.bool_)
        has_space = np.zeros(rows.size, np.bool_)
        for capacity in self._catalog.all(CSIStorageCapacity):
            if catalog.has_room(capacity, storage_class, claim) and capacity.node_topology is not None:
                has_space |= self._matches(capacity.node_topology, rows)
        return can_make, has_space

    def _is_allowed(self, storage_class: StorageClass, rows: Rows) -> Mask:
        if not storage_class.allowed_topologies:
            return np.ones(rows.size, np.bool_)
        mask = np.zeros(rows.size, np.bool_)
        for term in storage_class.allowed_topologies:
            matches = np.ones(rows.size, np.bool_)
            for each in term.match_label_expressions:
                column = self._labels.column(each.key)
                matches &= np.isin(self._labels.ids(each.key, rows), column.numbers_of(each.values))
            mask |= matches
        return mask

    def _matches(self, selector: LabelSelector, rows: Rows) -> Mask:
        """Return nodes with the labels; an empty selector matches all."""
        mask = self._labels.match_labels(selector.match_labels.items(), rows)
        if selector.match_expressions:
            requirements = [
                NodeSelectorRequirement(key=each.key, operator=each.operator, values=each.values)
                for each in selector.match_expressions
            ]
            mask &= self._labels.match_term(NodeSelectorTerm(match_expressions=requirements), rows)
        return mask

    # Score

    def pre_score(self, state: BindingState) -> Status:
        return SUCCESS if self._shape and state.unbound else SKIP

    def score(self, state: BindingState, rows: Rows) -> Scores:
        """Mean over storage classes of the shape at what is asked of the volumes found there."""
        fillings: dict[str, StorageUtilization] = {}
        self._plan(state.unbound, rows, PodVolumes(), fillings)
        sums = np.zeros(rows.size)
        counts = np.zeros(rows.size, np.int64)
        for filling in fillings.values():
            is_used = filling.capacity > 0
            percent = (filling.asked * 100 // np.where(is_used, filling.capacity, 1)).astype(np.int64)
            sums += np.where(is_used, piecewise_linear(percent, self._shape), 0)
            counts += is_used
        return np.rint(sums / np.maximum(counts, 1)).astype(np.int64)

    # Reserve and bind

    def reserves(self, state: BindingState) -> bool:
        return bool(state.unbound)

    def reserve(self, state: BindingState, pod: PodInfo, row: int) -> Status:
        if not state.unbound:
            return SUCCESS
        plan = PodVolumes()
        is_unbound, is_short = self._plan(state.unbound, np.array([row], np.intp), plan)
        if is_unbound.any() or is_short.any():
            return self.refusal(state, _UNBOUND if is_unbound.any() else _NO_SPACE)
        self._commitments.make(pod.uid, plan, self.handle.table.name_of(row))
        return SUCCESS

    def unreserve(self, state: BindingState, pod: PodInfo, node_name: str) -> None:
        self._commitments.withdraw(pod.uid)

    def is_slow(self, state: BindingState, pod: PodInfo) -> bool:
        return bool(state.unbound)

    async def pre_bind(self, state: BindingState, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        if not state.unbound:
            return SUCCESS
        return await self._commitments.fulfil(pod, [claim.metadata for claim in state.unbound], node_name)


def _objection(use: VolumeClaimUse, claim: PersistentVolumeClaim | None, pod: PodInfo) -> str:
    """Return why a claim cannot be used; "" when it can."""
    name = use.key[1]
    if claim is None and use.is_ephemeral:
        return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
    if claim is None:
        return not_found(name)
    if claim.status.phase == "Lost":
        volume = claim.spec.volume_name
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if use.is_ephemeral and not is_controlled_by(claim, pod.pod):
        return not_owned(claim, pod.pod)
    return ""


def _note(
    plan: PodVolumes,
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
    takes: Mask,
    filling: "StorageUtilization | None",
) -> None:
    """Plans are made for one row; over several, nobody asks for them."""
    if takes.size == 1 and takes[0]:
        plan.static.append((claim, volume))
    if filling is not None:
        filling.asked[takes] += catalog.wanted_size(claim).value
        filling.capacity[takes] += catalog.size_of(volume).value


class StorageUtilization(msgspec.Struct, frozen=True):
    """The volumes of one class that a pod would get: bytes asked of them and their size, each (rows,)."""

    asked: F64
    capacity: F64

    @classmethod
    def none(cls, row_count: int) -> "StorageUtilization":
        return cls(np.zeros(row_count), np.zeros(row_count))
