"""Coscheduling in the scheduling loop: at the gate of the queue, when the next pod is chosen, when an attempt begins
or finds no node, and in Permit, where placed members wait until their whole group may be bound.

`GangRounds` decides, `RunningGangs` carries it out. Source: behaviour/gangs 5 to 8.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.api.reservation import Reservation
from koordinator.clock import Clock
from koordinator.scheduler.config.default_plugins import CoschedulingArgs
from koordinator.scheduler.plugin.capabilities import (
    ApiAnswer,
    ApiProvider,
    ApiRequest,
    AttemptPlugin,
    BackgroundController,
    ControllerProvider,
    Endpoint,
    FindOneNodePlugin,
    FoundNode,
    JobRefusal,
    JobRoomPlugin,
    NextPodPlugin,
    PlacementPlan,
    PostFilterTransformer,
    Quorum,
    SharedFailure,
)
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Handle,
    Outlook,
    PermitPlugin,
    PermitResult,
    PostBindPlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReservePlugin,
    ScorePlugin,
    Scores,
)
from koordinator.scheduler.plugin.reservation_capabilities import (
    ReservationPreBindPlugin,
)
from koordinator.scheduler.plugin.status import (
    SKIP,
    SUCCESS,
    Code,
    PodPatch,
    Status,
    fit_error,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.plugins.coscheduling.controller import PodGroupController
from koordinator.scheduler.plugins.coscheduling.early_refusal import EarlyRefusals
from koordinator.scheduler.plugins.coscheduling.events import GangGate, GateReason, Next, PermitReason
from koordinator.scheduler.plugins.coscheduling.gangs import Gang, GangCache, GangGroup
from koordinator.scheduler.plugins.coscheduling.planning import GangPlanning
from koordinator.scheduler.plugins.coscheduling.preemption import GangPreemption
from koordinator.scheduler.plugins.coscheduling.running import NAME, RunningGangs
from koordinator.scheduler.plugins.network_topology.slots import selector_of
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo

NANOS = 1_000_000_000
NEVER = "0001-01-01T00:00:00Z"
"""Upstream's text for a time that is not set."""


def endpoints(cache: GangCache) -> tuple[Endpoint, ...]:
    """`GET gang/{namespace}/{name}`, and `GET gangs`: all by their ids."""

    def one(request: ApiRequest) -> ApiAnswer:
        gang_id = f"{request.path['namespace']}/{request.path['name']}"
        gang = cache.get(gang_id)
        return ApiAnswer(described(gang)) if gang else ApiAnswer(f"cannot find gang {gang_id}", 404)

    def many(_: ApiRequest) -> ApiAnswer:
        return ApiAnswer({gang_id: described(gang) for gang_id, gang in sorted(cache.gangs().items())})

    return Endpoint("gang/{namespace}/{name}", one), Endpoint("gangs", many)


def described(gang: Gang) -> dict[str, Any]:
    """Return a gang as it stands, with the field names of upstream; sets are objects with empty values."""
    config = gang.config
    return {
        "name": gang.gang_id,
        "waitTime": round(config.wait_s * NANOS),
        "createTime": config.created or NEVER,
        "mode": config.mode.value,
        "gangMatchPolicy": config.match_policy.value,
        "minRequiredNumber": config.minimum,
        "totalChildrenNum": config.total,
        "gangGroup": list(config.group),
        "children": _set(gang.children),
        "pendingChildren": _set(gang.pending),
        "waitingForBindChildren": _set(gang.waiting),
        "boundChildren": _set(gang.bound),
        "onceResourceSatisfied": gang.group.once_satisfied,
        "gangGroupInfo": _described_group(gang.group, is_initialised=config.is_initialised),
        "gangFrom": config.source.value,
        "hasGangInit": config.is_initialised,
    }


def _described_group(group: GangGroup, *, is_initialised: bool) -> dict[str, Any]:
    return {
        "Initialized": is_initialised,
        "GangGroupId": group.group_id,
        "GangGroup": list(group.ids),
        "OnceResourceSatisfied": group.once_satisfied,
        "WaitingGangIDs": _set(group.waiting_gangs),
        "RepresentativePodKey": group.representative,
        "BindingMemberPods": _set(group.binding),
    }


def _set(members: Iterable[str]) -> dict[str, dict[str, str]]:
    return {key: {} for key in sorted(members)}


REPORTED_S = 240.0
"""Then everybody is told again, before the queue tries sleepers on its own: a condition may not have been written."""
GROUPS_MAX = 10_000
"""Groups that fail for ever and are gone some day: who was not told of for longest is forgotten."""


class _ReportedFailure(msgspec.Struct):
    text: str
    since_s: float
    members: dict[str, str] = {}
    """By `namespace/name`, with their uids."""


class ReportedFailures:
    """The last failure of each gang group, and which members know of it.

    When a round fails for the same reason again, there is nothing new to tell, and the members need not be tried.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: OrderedDict[str, _ReportedFailure] = OrderedDict()

    def add(self, group_id: str, text: str, key: str, uid: str) -> None:
        """Note that a failure was reported to a member."""
        found = self._groups.get(group_id)
        if found is None or found.text != text or self._is_old(found):
            found = self._groups[group_id] = _ReportedFailure(text, self._clock.now())
            self._groups.move_to_end(group_id)
            if len(self._groups) > GROUPS_MAX:
                self._groups.popitem(last=False)
        found.members[key] = uid

    def informed_members(self, group_id: str, text: str) -> dict[str, str]:
        """Return the members that were told exactly this failure, with their uids."""
        found = self._groups.get(group_id)
        return found.members if found is not None and found.text == text and not self._is_old(found) else {}

    def forget(self, group_id: str) -> None:
        """Forget what was reported: members were told something else."""
        self._groups.pop(group_id, None)

    def _is_old(self, failure: _ReportedFailure) -> bool:
        return not 0.0 <= self._clock.now() - failure.since_s < REPORTED_S


def whole_group(gangs: RunningGangs, pod: PodInfo, *, falls_back: bool = False) -> PlacementPlan | None:
    """Return all members that have no place, the pod first, then in the order of a round. None unless the pod
    starts a round, and for groups that cannot be planned: those of a topology have planners of their own, and
    members of several schedulers or profiles are tried one by one.

    All gangs of the group need their minimum; members beyond it are placed as far as there is room. Where each goes is
    left to the engine.
    """
    key, now, group = pod.key, gangs.round_of(pod.pod), gangs.group_of(pod.pod)
    if now is None or group is None or now.first != key or now.failure:
        return None
    members, quorums = [pod], []
    for gang in gangs.rounds.cache.members_of(group):
        if gang.config.topology is not None:
            return None
        found = [info for each in sorted(gang.startable()) if (info := gangs.info(each)) is not None]
        if any(info.pod.spec.scheduler_name != pod.pod.spec.scheduler_name for info in found):
            return None
        members += [info for info in found if info.uid != pod.uid]
        quorums.append(Quorum(frozenset(info.uid for info in found), max(0, gangs.rounds.lacking(gang))))
    if len(members) == 1:
        return None
    return PlacementPlan(tuple(members), quorums=tuple(quorums), falls_back=falls_back)


KEPT_S = 60.0
"""Some of the longest backoffs of a member that is tried again."""
KEPT_LONGEST_S = 600.0
"""An API server that refuses a binding for longer is not about to take it."""


class GangState(msgspec.Struct, frozen=True):
    """The state of pods that others attract, or that may have to be planned with their gang."""

    selector: str = ""
    is_planned: bool = False


class RetainedPlace(msgspec.Struct):
    """Room of a member whose binding failed; times on the loop's clock."""

    first_s: float
    last_s: float
    """Times at which its binding failed first and last."""
    node_name: str


class Coscheduling(
    PreEnqueuePlugin[GangState | None],
    NextPodPlugin[GangState | None],
    AttemptPlugin[GangState | None],
    PreFilterPlugin[GangState | None],
    PostFilterPlugin[GangState | None],
    PostFilterTransformer[GangState | None],
    PreScorePlugin[GangState | None],
    ScorePlugin[GangState | None],
    ReservePlugin[GangState | None],
    PermitPlugin[GangState | None],
    PreBindPlugin[GangState | None],
    ReservationPreBindPlugin[GangState | None],
    PostBindPlugin[GangState | None],
    ControllerProvider[GangState | None],
    ApiProvider[GangState | None],
    FindOneNodePlugin[GangState | None],
):
    """Binds the pods of a gang together, or none of them."""

    name = NAME
    args = CoschedulingArgs
    normalizes = True
    wakes_on = (ClusterEvent.NETWORK_TOPOLOGY, ClusterEvent.ASSIGNED_POD_DELETED)
    per_profile = True

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.gangs = RunningGangs.of(handle, args)
        self.rounds = self.gangs.rounds
        self._plans_groups = handle.gates.is_on("EnableInlineBatchSchedule")
        self.planning = GangPlanning(handle, self.gangs, is_aware=args.aware_network_topology)
        self.preemption = GangPreemption(args, handle, self.gangs, self.planning.placer)
        is_for_jobs = self.preemption.is_for_jobs
        self.early = EarlyRefusals(
            handle, self.gangs, is_aware=self.planning.is_aware, is_for_jobs=is_for_jobs
        )
        self._pod_groups = PodGroupController.of(handle, args.controller_workers)
        self._kept: dict[str, RetainedPlace] = {}
        """Rooms of members whose binding failed, by uid."""
        self._reported = ReportedFailures(handle.clock)
        self._refused_as_a_whole = ""
        """The pod whose attempt under way failed because limits, or nodes, have no room for its group."""
        self._eviction: PostFilterResult | None = None
        """Result that is known already of evictions for it."""

    def class_key(self, pod: PodInfo) -> Hashable:
        return self.prepare(pod)

    def prepare(self, pod: PodInfo) -> GangState | None:
        plans = self.planning.is_aware or self._plans_groups
        selector, is_planned = selector_of(pod.pod), plans and bool(gang_id_of(pod.pod))
        return GangState(selector, is_planned) if selector or is_planned else None

    # The way into the queue, and the start of an attempt. Most pods are of no gang: nothing is asked about them.

    def pre_enqueue(self, pod: PodInfo) -> Status:
        return self._gated(pod, self.gangs.pre_enqueue) if gang_id_of(pod.pod) else SUCCESS

    def look(self, pod: PodInfo) -> Status:
        return self._gated(pod, self.gangs.look)

    def _gated(self, pod: PodInfo, ask: Callable[[Pod], GangGate]) -> Status:
        busy = self.preemption.pre_enqueue(pod)
        if not busy.is_success:
            return busy
        gate = ask(pod.pod)
        return SUCCESS if gate.is_open else unresolvable(gate.message)

    def next_pod(self) -> str | None:
        return self.gangs.next_pod()

    def brings_others(self, pod: PodInfo) -> bool:
        return self.gangs.rounds.is_tried_as_a_whole(pod.pod)

    def begin_attempt(self, pod: PodInfo) -> Status | JobRefusal | SharedFailure:
        self._refused_as_a_whole, self._eviction = "", None
        if not gang_id_of(pod.pod):
            return SUCCESS
        begin = self.gangs.begin(pod.pod, has_topology=not self.planning.is_tree_missing())
        gate = begin.gate
        if begin.has_started:
            self.preemption.round_began()
        if gate.is_open:
            return self._objection(pod, begin.ended) if begin.has_started else SUCCESS
        if gate.reason is GateReason.ROUND_FAILED:
            return self._shared_failure(pod, gate.message)
        return unresolvable(gate.message)

    def _shared_failure(self, pod: PodInfo, message: str) -> SharedFailure:
        """Return the failure of a pod that fails because another member did."""
        now = self.gangs.round_of(pod.pod)
        assert now is not None, pod.key
        post_filter_text = self.preemption.post_filter_text(now)
        failure = self.rounds.filter_failed(pod.pod, message, is_root_cause=False)
        self.gangs.reject(failure.rejected, failure.group_message)
        if failure.condition_patches:
            count = self.handle.table.node_count
            self.gangs.report_unscheduled(
                failure.condition_patches, fit_error(count, {}, message, post_filter_text)
            )
        found = SharedFailure(message, NAME, post_filter_text, now.suggestion)
        self._reported.add(now.group_id, f"{message} {found.post_filter_text}", pod.key, pod.uid)
        return found

    def _objection(self, pod: PodInfo, ended: Next) -> Status | JobRefusal:
        """Return why the round that a pod begins is in vain. `ended` is the round before: the places that it gives back
        count until this attempt is over."""
        status = self._room_for(pod)
        shortage = self.early.shortage(pod) if status.is_success and not ended.rejected else None
        if shortage is None:
            return status
        if not self.preemption.is_for_jobs:
            self._refused_as_a_whole = pod.uid
            self._eviction = shortage.eviction
        return shortage.refusal_of(pod, is_for_jobs=self.preemption.is_for_jobs)

    def _room_for(self, pod: PodInfo) -> Status:
        """Return whether limits that members meet together (quotas) have room for as many as it takes. Asked while the
        round holds nothing: one that gives back places is not to be woken by the room that it makes."""
        knowing = self.handle.companions(JobRoomPlugin)  # type: ignore[type-abstract]
        if not knowing:
            return SUCCESS
        needed = self.gangs.needed_with(pod.pod)
        for plugin in knowing:
            status = plugin.room_for(needed)
            if status.is_rejected and self.preemption.is_for_jobs:
                return unschedulable(*status.reasons).by(plugin.name)
            if status.is_rejected:
                self._refused_as_a_whole = pod.uid
                return unresolvable(*status.reasons).by(plugin.name)
            if not status.is_success:
                return status.by(plugin.name)
        return SUCCESS

    def pre_filter(self, state: GangState | None) -> PreFilterResult:
        return PreFilterResult(SKIP)

    def find_one_node(self, state: GangState | None, pod: PodInfo, result: PreFilterResult) -> FoundNode:
        found = self.planning.find(pod)
        if self._plans_groups and found.status.is_skip:
            # A plan that fails makes no room for itself: where that is wanted, members are then tried one by one.
            group = whole_group(self.gangs, pod, falls_back=self.gangs.args.enable_preemption)
            return FoundNode(SUCCESS, plan=group) if group is not None else found
        return found

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        if event.kind is ClusterEvent.ASSIGNED_POD_DELETED:
            return self.preemption.wakes(event, pod)
        return self.planning.wakes(pod.pod)

    # No node

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        self.rounds.fail_round(pod.pod, diagnosis.fit_error(""))
        result = self.preemption.post_filter(pod, diagnosis)
        is_whole = self._refused_as_a_whole == pod.uid or self.planning.asks(pod.pod)
        if result.status.code is Code.UNSCHEDULABLE and is_whole:
            # Room for this one pod would not be room for the gang.
            return self._eviction or msgspec.structs.replace(
                result, status=unresolvable(*result.status.reasons)
            )
        return result

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        return self.preemption.outlook(pod, diagnosis)

    def after_post_filter(self, pod: PodInfo, diagnosis: Diagnosis, status: Status) -> None:
        now = self.gangs.round_of(pod.pod)
        if now is not None:
            now.suggestion = now.suggestion or diagnosis.suggestion
            if not status.is_success:
                now.preemption_message = now.preemption_message or status.message
        failure = self.rounds.filter_failed(pod.pod, diagnosis.fit_error(""), is_root_cause=True)
        self.gangs.reject(failure.rejected, failure.group_message)
        if now is not None and failure.rejected:
            self._reported.forget(now.group_id)
        elif now is not None and now.failure:
            shared = SharedFailure(now.failure, NAME, self.preemption.post_filter_text(now), now.suggestion)
            self.rounds.spare(
                self._reported.informed_members(now.group_id, f"{now.failure} {shared.post_filter_text}")
            )

    # Score

    def pre_score(self, state: GangState | None) -> Status:
        return SUCCESS if state is not None and state.selector else SKIP

    def normal_epoch(self, state: GangState | None) -> Hashable:
        return self.planning.score_epoch(state.selector) if state is not None else None

    def score(self, state: GangState | None, rows: Rows) -> Scores:
        return np.zeros(rows.size, np.int64)  # who is how near to others only shows among all feasible nodes

    def normalize_at(self, state: GangState | None, scores: Scores, rows: Rows) -> Scores:
        assert state is not None, "left out by pre_score"
        return self.planning.scores(state.selector, rows)

    # A place

    def unreserve(self, state: GangState | None, pod: PodInfo, node_name: str) -> None:
        if self.rounds.is_released(pod.pod):  # its binding failed, others of the gang were or will be bound
            self._keep(pod, node_name)
        self.gangs.unreserve(pod.pod)

    def _keep(self, pod: PodInfo, node_name: str) -> None:
        """Keep the room of a member whose binding failed for its next attempt."""
        now_s, kept = asyncio.get_running_loop().time(), self._kept.get(pod.uid)
        if kept is None:
            kept = self._kept[pod.uid] = RetainedPlace(now_s, now_s, node_name)
            if not self.handle.actions.spawn(self._let_go(pod, kept), "room of a gang"):
                del self._kept[pod.uid]
                return
        kept.last_s, kept.node_name = now_s, node_name
        if now_s < kept.first_s + KEPT_LONGEST_S:
            self.handle.nominations.set(pod, node_name)

    async def _let_go(self, pod: PodInfo, kept: RetainedPlace) -> None:
        """Room that was kept is for all some time after the last attempt: the member may never come back."""
        loop = asyncio.get_running_loop()
        try:
            while (wait_s := kept.last_s + KEPT_S - loop.time()) > 0:  # noqa: ASYNC110 - a failure may put it off
                await asyncio.sleep(wait_s)
        finally:
            del self._kept[pod.uid]
        nominations, row = self.handle.nominations, self.handle.table.row_of(kept.node_name)
        if nominations.node_of(pod.uid) == kept.node_name and nominations.remove(pod.uid) and row is not None:
            self.handle.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, pod, None))

    def permit(self, state: GangState | None, pod: PodInfo, node_name: str) -> PermitResult:
        if not gang_id_of(pod.pod):
            return PermitResult()
        permit = self.gangs.permit(pod.pod)
        match permit.reason:
            case PermitReason.GANG_UNKNOWN:
                return PermitResult(unschedulable(permit.reason.value))
            case PermitReason.WAIT if permit.wait_s > 0:
                return PermitResult(timeout_s=permit.wait_s)
            case PermitReason.WAIT:
                return PermitResult(unschedulable("the gang is not described, so nobody waits for it"))
        return PermitResult()

    async def pre_bind(
        self, state: GangState | None, pod: PodInfo, node_name: str, patch: PodPatch
    ) -> Status:
        self.gangs.mark(pod.pod, pod.pod.metadata.annotations, patch)
        return SUCCESS

    async def pre_bind_reservation(
        self, state: GangState | None, reservation: Reservation, node_name: str, patch: PodPatch
    ) -> Status:
        place = self.handle.table.place_of(reservation.metadata.uid)
        if place is not None:
            self.gangs.mark(place.pod.pod, reservation.metadata.annotations, patch)
        return SUCCESS

    def post_bind(self, pod: PodInfo, node_name: str) -> None:
        if gang_id_of(pod.pod):
            self.gangs.bound(pod.pod)

    # Beside scheduling

    def endpoints(self) -> Sequence[Endpoint]:
        return endpoints(self.rounds.cache)

    def controllers(self) -> Sequence[BackgroundController]:
        reporter = BackgroundController("descriptions of gangs", self.gangs.report_problems)
        return self._pod_groups.background, reporter
