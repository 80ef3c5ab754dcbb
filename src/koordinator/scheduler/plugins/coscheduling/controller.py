"""Keeps the statuses of PodGroups: how many of their pods are how far. Source: behaviour/gangs 11.

Members are counted as the events of pods come, so that an event costs the same in a gang of ten thousand, and a
status is worked out from the counts when its turn comes. Pods and counts come from one watch: a count never
speaks of a pod that the cache lacks.
"""

import asyncio
import enum
import math
from collections import Counter
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.clock import parse_rfc3339_or, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.backoff import Rate, TokenBucket
from koordinator.cluster.controller import Controller
from koordinator.scheduler.plugin.capabilities import BackgroundController
from koordinator.scheduler.plugin.framework import Handle, Watch
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.table.columns import tally

STALE_S = 48 * 3600.0
"""A gang that took this long to be scheduled and of which nothing runs is left alone."""


class PodGroupPhase(enum.StrEnum):
    """The progress of a gang."""

    PENDING = "Pending"
    PRE_SCHEDULING = "PreScheduling"
    SCHEDULING = "Scheduling"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    FINISHED = "Finished"
    FAILED = "Failed"


class MemberCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a gang, counted."""

    total: int = 0
    scheduled: int = 0
    """Members that have a node, whatever their phase."""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    occupied_by: str = ""
    """Owner of the first member: `namespace/name`, of several owners sorted and joined by commas."""

    @property
    def alive(self) -> int:
        """Members that have not ended."""
        return self.total - self.succeeded - self.failed


class QueueReason(enum.Enum):
    """The reason whether a PodGroup is worth a look."""

    OK = "may change"
    OVER = "has finished or failed"
    STALE = "scheduled long ago, and nothing runs"


def queue_reason(group: PodGroup, members: MemberCounts | None = None) -> QueueReason:
    """Return whether the status of a PodGroup may change.

    Without counts of members the status alone decides, as in the reference. With them, a gang that is over is looked at
    while members are alive or none of those that it counted is gone: its job may have been started again. And one
    that waited for two days is looked at as soon as a member runs.
    """
    status = group.status
    if status.phase in (PodGroupPhase.FINISHED, PodGroupPhase.FAILED):
        counted = status.running + status.succeeded + status.failed
        is_new = members is not None and (members.alive > 0 or members.total >= counted)
        return QueueReason.OK if is_new else QueueReason.OVER
    is_idle = (status.scheduled == group.spec.min_member) and (status.running == 0)
    has_started = members is not None and members.running + members.succeeded + members.failed > 0
    if is_idle and not has_started and _took_long(group):
        return QueueReason.STALE
    return QueueReason.OK


def _took_long(group: PodGroup) -> bool:
    """False where nobody can tell how long it took."""
    started_s = parse_rfc3339_or(group.status.schedule_start_time, -math.inf)
    return started_s - parse_rfc3339_or(group.metadata.creation_timestamp, math.inf) > STALE_S


def next_of(group: PodGroup, members: MemberCounts, now: str) -> PodGroupStatus:
    """Return the status of a PodGroup one step later; itself where nothing has happened. `now` is a timestamp (RFC
    3339)."""
    match queue_reason(group, members):
        case QueueReason.OK:
            return next_status(group.status, group.spec.min_member, members, now)
        case QueueReason.OVER:
            # What it counted stays when its pods are cleared away, but nothing runs any more.
            return msgspec.structs.replace(group.status, running=0)
        case QueueReason.STALE:
            return group.status


def next_status(status: PodGroupStatus, minimum: int, members: MemberCounts, now: str) -> PodGroupStatus:
    """Return the status one step later; unchanged when nothing has happened. `now` is a timestamp (RFC 3339).

    Without a minimum the gang is as far as all of its members are. In the reference, 0 is reached at once and so the
    gang has finished.
    """
    if not status.phase:
        return msgspec.structs.replace(status, phase=PodGroupPhase.PENDING.value)
    if status.phase == PodGroupPhase.PENDING:
        if minimum <= 0 or members.total < minimum:
            return status
        occupied_by = members.occupied_by or status.occupied_by
        return msgspec.structs.replace(
            status, phase=PodGroupPhase.PRE_SCHEDULING.value, occupied_by=occupied_by
        )
    if not members.total:
        return msgspec.structs.replace(status, phase=PodGroupPhase.PENDING.value)
    needed = minimum if minimum > 0 else members.total
    return _counted(status, needed, members, now)


def _counted(status: PodGroupStatus, needed: int, members: MemberCounts, now: str) -> PodGroupStatus:
    phase, started = PodGroupPhase.SCHEDULED, status.schedule_start_time
    running, succeeded, failed = members.running, members.succeeded, members.failed
    if members.scheduled < needed:
        phase, started = PodGroupPhase.SCHEDULING, started or now
    elif succeeded + running >= needed:
        phase = PodGroupPhase.RUNNING
    if failed and failed + running + succeeded >= needed:
        phase = PodGroupPhase.FAILED
    if succeeded >= needed:
        phase = PodGroupPhase.FINISHED
    return msgspec.structs.replace(
        status,
        phase=phase.value,
        schedule_start_time=started,
        scheduled=members.scheduled,
        running=running,
        succeeded=succeeded,
        failed=failed,
    )


def difference(old: PodGroupStatus, new: PodGroupStatus) -> dict[str, Any]:
    """Return what a merge patch of the status says, by wire name; {} when both are the same."""
    names = zip(PodGroupStatus.__struct_fields__, PodGroupStatus.__struct_encode_fields__, strict=True)
    return {
        wire_name: value for name, wire_name in names if (value := getattr(new, name)) != getattr(old, name)
    }


NAME = "PodGroupController"
COUNTERS_PERIOD_S = 1.0
"""Counters of a gang are written this often at most; a new phase is written at once."""
COUNTERS_RATE = Rate(per_s=50.0, burst=200)
"""Counters of all gangs: the start of a thousand jobs must not crowd out the bindings of others."""


TIMER_S = 1e-3
"""Timers may go off early by less than this: what is due so soon is due."""


class MemberState(msgspec.Struct, frozen=True):
    """The share of a pod in the counts of its gang."""

    gang_id: str
    phase: str
    is_bound: bool
    occupied_by: str = ""

    @classmethod
    def of(cls, pod: Pod) -> "MemberState | None":
        """None for a pod of no gang."""
        gang_id = gang_id_of(pod)
        if not gang_id:
            return None
        meta = pod.metadata
        owners = ",".join(sorted(f"{meta.namespace}/{owner.name}" for owner in meta.owner_references))
        return cls(gang_id, pod.status.phase, bool(pod.spec.node_name), owners)


class GangCount:
    """The members of one gang by phase, node and owners."""

    def __init__(self) -> None:
        self.total = 0
        self._bound = 0
        self._phases: Counter[str] = Counter()
        self._owners: dict[str, int] = {}

    def add(self, member: MemberState, number: int) -> None:
        """One more (1) or one less (-1)."""
        self.total += number
        self._bound += number * member.is_bound
        self._phases[member.phase] += number
        tally(self._owners, member.occupied_by, number)

    def members(self) -> MemberCounts:
        phases = self._phases
        return MemberCounts(
            total=self.total,
            scheduled=self._bound,
            running=phases["Running"],
            succeeded=phases["Succeeded"],
            failed=phases["Failed"],
            occupied_by=next(iter(self._owners), ""),
        )


class PodGroupController:
    """Counts members all the time, writes statuses while it leads."""

    def __init__(self, handle: Handle, workers: int) -> None:
        self._handle = handle
        self._workers = workers
        self._groups: dict[str, PodGroup] = {}
        self._counts: dict[str, GangCount] = {}
        self._wrote_s: dict[str, float] = {}
        """Time at which the status of a gang was written last, in the loop's time."""
        self._due_s: dict[str, float] = {}
        """Time at which it is the turn of a gang whose counters wait to be written."""
        self._turns = TokenBucket(COUNTERS_RATE, 0.0)
        self._is_status_apart = False
        """True when the CRD that is served has a status subresource."""
        self._running: Controller[str] | None = None
        self.background = BackgroundController(NAME, self.run)
        handle.watch(Watch.newest(PodGroup, self._group_set, self._group_gone))
        handle.watch(Watch.changes(Pod, self._pod_changed))

    @classmethod
    def of(cls, handle: Handle, workers: int) -> "PodGroupController":
        """Return the scheduler's one; it has as many workers as its first profile says."""
        return handle.shared(cls, lambda first: cls(first, workers))

    async def run(self) -> None:
        """Write statuses until cancelled."""
        controller = Controller(NAME, self._reconcile, workers=self._workers)
        self._handle.metrics.queues.watch(NAME, controller.queue)
        for gang_id in self._groups:
            controller.queue.add(gang_id)
        self._turns = TokenBucket(COUNTERS_RATE, asyncio.get_running_loop().time())
        self._due_s.clear()
        self._running = controller
        try:
            await controller.run()
        finally:
            self._running = None

    # What happens

    def _group_set(self, group: PodGroup) -> None:
        self._groups[group.key] = group
        self._enqueue(group.key)

    def _group_gone(self, group: PodGroup) -> None:
        self._groups.pop(group.key, None)
        self._wrote_s.pop(group.key, None)
        self._due_s.pop(group.key, None)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before, now = (None if pod is None else MemberState.of(pod) for pod in (old, new))
        if before != now:
            self._count(now, 1)
            self._count(before, -1)

    def _count(self, member: MemberState | None, number: int) -> None:
        if member is None:
            return
        gang_id = member.gang_id
        count = self._counts.get(gang_id)
        if count is None:
            count = self._counts[gang_id] = GangCount()
        count.add(member, number)
        if not count.total:
            del self._counts[gang_id]
        self._enqueue(gang_id)

    def _enqueue(self, gang_id: str) -> None:
        if self._running is not None and gang_id in self._groups:
            self._running.queue.add(gang_id)

    # What is written

    async def _reconcile(self, gang_id: str) -> float | None:
        group = self._groups.get(gang_id)
        if group is None:
            return None
        count = self._counts.get(gang_id)
        members = count.members() if count is not None else MemberCounts()
        wanted = next_of(group, members, rfc3339(self._handle.clock.now()))
        changed = difference(group.status, wanted)
        if not changed:
            return None
        now_s = asyncio.get_running_loop().time()
        if "phase" not in changed and (left_s := self._turn_s(gang_id, now_s) - now_s) > TIMER_S:
            return left_s
        stored = await self._write(group, wanted)
        if stored is not None:
            if self._groups.get(gang_id) is group:  # the watch has brought nothing newer meanwhile
                self._groups[gang_id] = stored
            self._due_s.pop(gang_id, None)
            self._wrote_s[gang_id] = now_s
        return None

    def _turn_s(self, gang_id: str, now_s: float) -> float:
        """Return when the counters of a gang may be written."""
        due_s = self._due_s.get(gang_id)
        if due_s is None:
            due_s = self._due_s[gang_id] = max(
                now_s + self._turns.reserve(now_s), self._wrote_s.get(gang_id, -math.inf) + COUNTERS_PERIOD_S
            )
        return due_s

    async def _write(self, group: PodGroup, wanted: PodGroupStatus) -> PodGroup | None:
        """Return the PodGroup as it is stored then; None when it is gone.

        The CRD of scheduler-plugins keeps the status apart, in a subresource that ours does not have: a write of the
        object then leaves it as it was.

        Raises: ApiError, which brings the gang back after a pause.
        """
        meta, cluster, changed = group.metadata, self._handle.cluster, difference(group.status, wanted)
        body = {"metadata": {"uid": meta.uid}, "status": changed}
        try:
            if not self._is_status_apart:
                stored = await cluster.patch(PodGroup, meta.name, body, meta.namespace)
                if not difference(stored.status, wanted).keys() & changed.keys():
                    return stored
            stored = await cluster.patch(PodGroup, meta.name, body, meta.namespace, subresource="status")
        except errors.NotFound:  # the object, about which the watch will say so, too, or the subresource
            was_apart, self._is_status_apart = self._is_status_apart, False
            return await self._write(group, wanted) if was_apart else None
        self._is_status_apart = True
        return stored
