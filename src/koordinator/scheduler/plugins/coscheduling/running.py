"""The gangs of a running scheduler: events reach `GangRounds`, and what it decides is carried out.

There is one of these per scheduler, however many profiles run Coscheduling: a gang may have members of several.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice

from koordinator.api import duration, gang_labels, labels, pod_labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.gang_labels import GangMatchPolicy
from koordinator.api.sigs import PodGroup
from koordinator.prometheus import GaugeReading, Histogram
from koordinator.scheduler.config.default_plugins import CoschedulingArgs
from koordinator.scheduler.plugin.framework import Handle, Watch
from koordinator.scheduler.plugin.handle import JOB_REJECT, RecordKind
from koordinator.scheduler.plugin.reservation_capabilities import (
    ReservePods,
)
from koordinator.scheduler.plugin.status import PodPatch
from koordinator.scheduler.plugins.coscheduling import config
from koordinator.scheduler.plugins.coscheduling.config import (
    GangDefaults,
    GangSource,
    gang_id_of,
    is_of_reservations,
)
from koordinator.scheduler.plugins.coscheduling.events import (
    Begin,
    Effect,
    EndReason,
    GangGate,
    GangRound,
    GateReason,
    Next,
    Permit,
    PermitReason,
)
from koordinator.scheduler.plugins.coscheduling.gangs import GangGroup, uid_of
from koordinator.scheduler.plugins.coscheduling.rounds import GangRounds
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

NAME = "Coscheduling"
NOTHING = Effect()
COMPLAINT_DELAY_S = 2.0
"""PodGroups may be seen after their pods."""
COMPLAINTS_MAX = 1_000
REST_S = 10.0
_CYCLE_S = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)
JOB_SIZE_MAX = 1000
JOB_SIZE_STEP = 100


class RunningGangs:
    """`rounds` decides. Members are told apart by `namespace/name`; here are the pods behind these keys."""

    def __init__(self, handle: Handle, args: CoschedulingArgs) -> None:
        self._handle = handle
        self.args = args
        self.rounds = GangRounds(
            defaults_of(args),
            patches_conditions=handle.gates.is_on("GangPendingPodsConditionPatch"),
            is_in_line=self._is_in_line,
        )
        self._complaints: dict[tuple[str, str], Pod | PodGroup] = {}
        """Gang and what is wrong with its description → where it says so, to be told."""
        self._has_complaints = asyncio.Event()
        self._infos: dict[str, PodInfo] = {}
        self._pod_groups: dict[str, PodGroup] = {}
        self._tired: set[str] = set()
        """Groups whose members waited in vain until their time was up: without a rest they would take the room back
        that they gave to others."""
        self._round_began_s = 0.0
        handle.watch(Watch(Pod, self._pod_added, self._pod_updated, self._pod_deleted))
        handle.watch(Watch(PodGroup, partial(self._group_set, None), self._group_set, self._group_deleted))
        ReservePods.of(handle).follow(self._reserve_pod_set, self._reserve_pod_gone)
        self._cycle_duration = Histogram(
            "scheduler_gang_schedule_cycle_duration_seconds",
            "How long gang groups were tried member by member, by how it ended and how many were tried.",
            _CYCLE_S,
            ("reason", "job_size"),
        )
        waiting = GaugeReading(
            "scheduler_waiting_gang_group_number",
            "Gang groups that hold places for members which are not complete yet.",
            (),
            lambda: {(): float(self.rounds.cache.waiting_group_count)},
        )
        handle.metrics.registry.add(self._cycle_duration, waiting)

    @classmethod
    def of(cls, handle: Handle, args: CoschedulingArgs) -> "RunningGangs":
        """Return the scheduler's one. Time-outs and policies of gangs that give none are those of its first profile."""
        found = handle.shared(cls, lambda first: cls(first, args))
        if defaults_of(args) != defaults_of(found.args):
            log.warning(
                "Coscheduling: defaultTimeout and defaultMatchPolicy of the first profile apply to all profiles"
            )
        return found

    # Who is who

    def pod(self, key: str) -> Pod | None:
        """Return a member as the API said last."""
        return self.rounds.cache.pods.get(key)

    def info(self, key: str) -> PodInfo | None:
        """Return a member with its requests; None when it is gone or they cannot be read."""
        pod = self.pod(key)
        if pod is None:
            return None
        known = self._infos.get(key)
        if known is not None and known.pod is pod:
            return known
        queued = self._handle.actions.queued(uid_of(pod))
        if queued is not None and queued.pod is pod:
            return queued
        registry = self._handle.table.registry
        try:
            found = known.updated(pod, registry) if known is not None else PodInfo.of(pod, registry)
        except ProtocolError:
            return None  # the queue does not take it either, and says why
        self._infos[key] = found
        return found

    def pending_of(self, group: GangGroup) -> list[PodInfo]:
        """Return members of all gangs of the group that have no place, in planning order: by their
        network-topology-index, then by name."""
        keys = [key for gang in self.rounds.cache.members_of(group) for key in gang.startable()]
        found = [info for info in map(self.info, keys) if info is not None]
        found.sort(key=_planning_order)
        return found

    def needed_with(self, pod: Pod) -> list[PodInfo]:
        """Return the pod and as many other members without a place as its group lacks to start."""
        group = self.group_of(pod)
        keys = dict.fromkeys((pod.key,))
        for gang in self.rounds.cache.members_of(group) if group is not None else ():
            lacking = self.rounds.lacking(gang) - (gang.gang_id == gang_id_of(pod))
            others = (key for key in gang.startable() if key not in keys)
            keys.update(dict.fromkeys(islice(others, max(0, lacking))))
        return [info for info in map(self.info, keys) if info is not None]

    def waiting_of(self, group: GangGroup) -> list[tuple[PodInfo, str]]:
        """Return members that wait in Permit or are being bound, with their nodes, in planning order."""
        table = self._handle.table
        found: list[tuple[PodInfo, str]] = []
        for gang in self.rounds.cache.members_of(group):
            for key in gang.waiting:
                info = self.info(key)
                place = table.place_of(info.uid) if info is not None else None
                if info is not None and place is not None:
                    found.append((info, table.name_of(place.row)))
        found.sort(key=lambda each: _planning_order(each[0]))
        return found

    def group_of(self, pod: Pod) -> GangGroup | None:
        """Return the gang group of a pod; None for a pod of no known gang."""
        gang = self.rounds.cache.get(gang_id_of(pod))
        return gang.group if gang is not None else None

    def round_of(self, pod: Pod) -> GangRound | None:
        """Return the round under way, if it is that of the pod's group."""
        now, group = self.rounds.round, self.group_of(pod)
        return now if now is not None and group is not None and now.group_id == group.group_id else None

    # What happens

    def _pod_added(self, pod: Pod) -> None:
        gang_id = gang_id_of(pod)
        if not gang_id:
            return
        was_complete = self._is_complete(gang_id)
        self._carry_out(self.rounds.on_pod_add(pod))
        self._record_completion(gang_id, was_complete)
        self._check_labels(pod)

    def _pod_updated(self, old: Pod, pod: Pod) -> None:
        gang_id = gang_id_of(pod)
        if gang_id_of(old) != gang_id:
            self._pod_deleted(old)
            self._pod_added(pod)
            return
        if not gang_id:
            return
        self._carry_out(self.rounds.on_pod_update(pod))
        if old.metadata.annotations != pod.metadata.annotations:
            self._check_labels(pod)

    def _pod_deleted(self, pod: Pod) -> None:
        self._infos.pop(pod.key, None)
        self._carry_out(self.rounds.on_pod_delete(pod))

    def _reserve_pod_set(self, pod: Pod) -> None:
        gang_id = gang_id_of(pod)
        if gang_id and self.rounds.cache.get(gang_id) is None:
            group = self._pod_groups.get(gang_id.removesuffix(config.OF_RESERVATIONS))
            if group is not None:
                self._describe(config.for_reservations(group), self.rounds.on_pod_group_add)
        old = self.pod(pod.key)
        if old is None:
            self._pod_added(pod)
        else:
            self._pod_updated(old, pod)

    def _reserve_pod_gone(self, pod: Pod) -> None:
        self._pod_deleted(self.pod(pod.key) or pod)

    def _of_reservations(self, group: PodGroup) -> PodGroup | None:
        """Return the description of the Reservations for a PodGroup's gang; None when there are none."""
        found = config.for_reservations(group)
        return found if self.rounds.cache.get(found.key) is not None else None

    def _group_deleted(self, group: PodGroup) -> None:
        self._pod_groups.pop(group.key, None)
        self._carry_out(self.rounds.on_pod_group_delete(group))
        if (reservations := self._of_reservations(group)) is not None:
            self._carry_out(self.rounds.on_pod_group_delete(reservations))

    def _group_set(self, old: PodGroup | None, group: PodGroup) -> None:
        self._pod_groups[group.key] = group
        handle = self.rounds.on_pod_group_add if old is None else self.rounds.on_pod_group_update
        self._describe(group, handle)
        if (reservations := self._of_reservations(group)) is not None:
            self._describe(reservations, handle)
        if old is None or old.metadata.annotations != group.metadata.annotations:
            self._complain(group.key, group, config.problems_of_group(group))

    def _describe(self, group: PodGroup, handle: Callable[[PodGroup], Effect]) -> None:
        was_complete = self._is_complete(group.key)
        self._carry_out(handle(group))
        self._record_completion(group.key, was_complete)

    def _is_complete(self, gang_id: str) -> bool:
        gang = self.rounds.cache.get(gang_id)
        return gang is not None and gang.is_complete

    def _record_completion(self, gang_id: str, was_complete: bool) -> None:
        if not was_complete and self._is_complete(gang_id):
            self._record((gang_id,), RecordKind.MIN_SATISFIED)

    def _record(self, gang_ids: Iterable[str], kind: RecordKind) -> None:
        """Tell who keeps records what happened to whole gangs."""
        for gang_id in gang_ids:
            gang = self.rounds.cache.get(gang_id)
            pod = self.pod(next(iter(gang.children), "")) if gang is not None else None
            if pod is not None:
                self._handle.actions.gang_record(pod, kind)

    # What is wrong

    def _check_labels(self, pod: Pod) -> None:
        """Look whether the pod's gang is described well, by this pod or by another one; tell users if it is not."""
        gang_id = gang_id_of(pod)
        gang = self.rounds.cache.get(gang_id)
        if is_of_reservations(gang_id):
            return  # a reserve pod is no object that could be told
        if gang is not None and (gang.config.source is GangSource.NOBODY or len(gang.children) == 1):
            self._complain(gang_id, pod, config.problems_of(pod))

    def _complain(self, gang_id: str, obj: Pod | PodGroup, problems: Iterable[str]) -> None:
        gang = self.rounds.cache.get(gang_id)
        for problem in problems:
            if gang is not None and problem not in gang.reported_problems:
                gang.reported_problems.add(problem)
                self._complaints[gang_id, problem] = obj
                self._has_complaints.set()
        while len(self._complaints) > COMPLAINTS_MAX:  # nobody tells them before this scheduler leads
            del self._complaints[next(iter(self._complaints))]

    async def report_problems(self) -> None:
        """Tell what is wrong, until cancelled."""
        while True:
            await self._has_complaints.wait()
            await asyncio.sleep(COMPLAINT_DELAY_S)
            self._has_complaints.clear()
            complaints, self._complaints = self._complaints, {}
            for (gang_id, problem), obj in complaints.items():
                gang = self.rounds.cache.get(gang_id)
                is_outdone = gang is None or gang.config.source is GangSource.POD_GROUP
                if not (is_outdone and isinstance(obj, Pod)):
                    self._handle.actions.event("", obj, "Warning", "InvalidGang", problem)

    # What is done

    def pre_enqueue(self, pod: Pod) -> GangGate:
        """Return whether a member may enter the queue."""
        return self._resting(pod) or self.rounds.pre_enqueue(pod)

    def look(self, pod: Pod) -> GangGate:
        """Return the same without that anything follows from it."""
        return self._resting(pod) or self.rounds.look(pod)

    def _resting(self, pod: Pod) -> GangGate | None:
        group = self.group_of(pod) if self._tired else None
        if group is None or group.group_id not in self._tired:
            return None
        return GangGate(
            GateReason.RESTING, f"gangGroup {group.group_id} gave its places back, others have a go"
        )

    def next_pod(self) -> str | None:
        """uid of the member that must be tried next."""
        if self.rounds.round is None and not self.rounds.cache.begun:
            return None
        while True:
            now, found = self.rounds.round, self.rounds.next_pod()
            self._ended(found)
            if now is not None and found.ended is EndReason.ALL_TRIED:
                self._record(now.gangs, RecordKind.ALL_TRIED)
            if not found.pod:
                return None
            if (uid := self._uid(found.pod)) is not None:
                return uid

    def begin(self, pod: Pod, *, has_topology: bool = True) -> Begin:
        """Note that a member is about to be tried; `has_topology`: whether gangs that ask for one can be planned."""
        begin = self.rounds.begin(pod, has_topology=has_topology)
        self._ended(begin.ended)
        if begin.has_started:
            self._round_began_s = self._handle.clock.now()
        return begin

    def permit(self, pod: Pod) -> Permit:
        """Note that a member has a place: with enough of them, all go."""
        permit = self.rounds.permit(pod)
        if permit.reason is PermitReason.WAIT:
            return permit
        self.allow(permit.allowed)
        self._ended(permit.ended)
        return permit

    def _carry_out(self, effect: Effect) -> None:
        if effect == NOTHING:
            return
        self.allow(effect.allowed)
        self.reject(effect.rejected, effect.message)
        self.activate(effect.activate)
        self.activate_one(effect.one_of)

    def unreserve(self, pod: Pod) -> None:
        """Note that a member lost its place."""
        effect = self.rounds.unreserve(pod)
        self._carry_out(effect)
        group = self.group_of(pod)
        if effect.is_tired and group is not None and group.group_id not in self._tired:
            self._tired.add(group.group_id)
            name, group_id = f"rest of gang group {group.group_id}", group.group_id
            if not self._handle.actions.spawn(
                self._rest(group_id), name, lambda: self._tired.discard(group_id)
            ):
                self._tired.discard(group_id)

    async def _rest(self, group_id: str) -> None:
        await asyncio.sleep(REST_S)
        self._tired.discard(group_id)
        group = self.rounds.cache.group(group_id)
        if group is not None:
            self.activate_one(self.rounds.cache.candidates(group))

    def bound(self, pod: Pod) -> None:
        """Note that a member was bound."""
        self._carry_out(self.rounds.post_bind(pod))

    def mark(self, pod: Pod, annotations: Mapping[str, str], patch: PodPatch) -> None:
        """Write on a member, or the Reservation that it stands for, with which others it is bound; `annotations` are
        those that it has."""
        group_id, count = self.rounds.binding_mark(pod) if gang_id_of(pod) else ("", 0)
        for key, value in (
            (labels.BIND_GANG_GROUP_ID, group_id),
            (labels.DEPRECATED_BIND_GANG_GROUP_ID, group_id),
            (labels.BIND_GANG_MEMBER_COUNT, str(count)),
            (labels.DEPRECATED_BIND_GANG_MEMBER_COUNT, str(count)),
        ):
            if group_id or key in annotations:
                patch.annotations[key] = value if group_id else None

    def activate(self, keys: Iterable[str]) -> None:
        """Have these members tried at once, where the queue lets them."""
        if uids := [uid for key in keys if (uid := self._uid(key)) is not None]:
            self._handle.actions.activate(uids)

    def activate_one(self, keys: Iterable[str]) -> None:
        """The same for the first of these that nothing holds back."""
        for key in keys:
            self.activate((key,))
            if self._is_in_line(key):
                return

    def allow(self, keys: Iterable[str]) -> None:
        """Let waiting members be bound."""
        for key in keys:
            if (uid := self._uid(key)) is not None:
                self._handle.actions.allow_waiting(uid, NAME)

    def reject(self, keys: Iterable[str], message: str) -> None:
        """Have waiting members give their places back."""
        for key in keys:
            if (uid := self._uid(key)) is not None:
                self._handle.actions.reject_waiting(uid, JOB_REJECT, message)

    def report_unscheduled(self, keys: Iterable[str], message: str) -> None:
        """Say in the status of members why they are not scheduled."""
        for key in keys:
            pod = self.pod(key)  # a reserve pod is no object that could be told
            if pod is not None and not pod_labels.is_reserve_pod(pod.metadata.annotations):
                self._handle.actions.report_unscheduled(pod, message)

    def _uid(self, key: str) -> str | None:
        pod = self.pod(key)
        return uid_of(pod) if pod is not None else None

    def _is_in_line(self, key: str) -> bool:
        uid = self._uid(key)
        return uid is not None and self._handle.actions.is_in_line(uid)

    def _ended(self, found: Next) -> None:
        if found.ended is not None:
            self.reject(found.rejected, found.ended.value)
            took_s = max(0.0, self._handle.clock.now() - self._round_began_s)
            self._cycle_duration.of(found.ended.value, job_size(found.tried_count)).observe(took_s)
        self.activate_one(found.one_of)


def job_size(tried_count: int) -> str:
    """Return the metric's label: `0`, `1-100`, … `901-1000`, `1000+`. Source: behaviour/gangs 18."""
    if tried_count > JOB_SIZE_MAX:
        return f"{JOB_SIZE_MAX}+"
    below = (tried_count - 1) // JOB_SIZE_STEP * JOB_SIZE_STEP
    return f"{below + 1}-{below + JOB_SIZE_STEP}" if tried_count else "0"


def defaults_of(args: CoschedulingArgs) -> GangDefaults:
    """Return the defaults that the arguments give to gangs; an unknown match policy counts as none."""
    known = {policy.value: policy for policy in GangMatchPolicy}
    policy = known.get(args.default_match_policy, GangMatchPolicy.ONCE_SATISFIED)
    return GangDefaults(duration.parse(args.default_timeout), policy)


def _planning_order(info: PodInfo) -> tuple[tuple[bool, int, str], str]:
    meta = info.pod.metadata
    return gang_labels.topology_order(meta.name, meta.annotations), meta.namespace
