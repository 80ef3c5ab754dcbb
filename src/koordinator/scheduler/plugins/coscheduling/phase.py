"""The phase of a PodGroup, from how many of its pods are how far. Source: behaviour/gangs 11."""

import enum
from typing import Any

import msgspec

from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.clock import parse_rfc3339

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
    """Who owns the first member: `namespace/name`, of several owners sorted and joined by commas."""

    @property
    def alive(self) -> int:
        """Members that have not ended."""
        return self.total - self.succeeded - self.failed


class QueueReason(enum.Enum):
    """The reason whether a PodGroup is worth a look."""

    OK = "may change"
    OVER = "has finished or failed"
    STALE = "scheduled long ago, and nothing runs"


def worth_a_look(group: PodGroup, tally: MemberCounts | None = None) -> QueueReason:
    """Return whether the status of a PodGroup may change.

    Without a tally the status alone decides, as in the reference. With one, a gang that is over is looked at while
    members are alive or none of those that it counted is gone: its job may have been started again. And one that
    waited for two days is looked at as soon as a member runs.
    """
    status = group.status
    if status.phase in (PodGroupPhase.FINISHED, PodGroupPhase.FAILED):
        counted = status.running + status.succeeded + status.failed
        is_new = tally is not None and (tally.alive > 0 or tally.total >= counted)
        return QueueReason.OK if is_new else QueueReason.OVER
    is_idle = (status.scheduled == group.spec.min_member) and (status.running == 0)
    has_started = tally is not None and tally.running + tally.succeeded + tally.failed > 0
    if is_idle and not has_started and _took_long(group):
        return QueueReason.STALE
    return QueueReason.OK


def _took_long(group: PodGroup) -> bool:
    started, created = group.status.schedule_start_time, group.metadata.creation_timestamp
    if not started or not created:
        return False
    try:
        return parse_rfc3339(started) - parse_rfc3339(created) > STALE_S
    except ValueError:
        return False  # nobody can tell how long it took


def next_of(group: PodGroup, tally: MemberCounts, now: str) -> PodGroupStatus:
    """The status of a PodGroup one step later; itself where nothing has happened. `now` is a timestamp (RFC 3339)."""
    match worth_a_look(group, tally):
        case QueueReason.OK:
            return next_status(group.status, group.spec.min_member, tally, now)
        case QueueReason.OVER:
            # What it counted stays when its pods are cleared away, but nothing runs any more.
            return msgspec.structs.replace(group.status, running=0)
        case QueueReason.STALE:
            return group.status


def next_status(status: PodGroupStatus, minimum: int, tally: MemberCounts, now: str) -> PodGroupStatus:
    """The status one step later; unchanged when nothing has happened. `now` is a timestamp (RFC 3339).

    Without a minimum the gang is as far as all of its members are. In the reference, 0 is reached at once and so the
    gang has finished.
    """
    if not status.phase:
        return msgspec.structs.replace(status, phase=PodGroupPhase.PENDING.value)
    if status.phase == PodGroupPhase.PENDING:
        if minimum <= 0 or tally.total < minimum:
            return status
        occupied_by = tally.occupied_by or status.occupied_by
        return msgspec.structs.replace(
            status, phase=PodGroupPhase.PRE_SCHEDULING.value, occupied_by=occupied_by
        )
    if not tally.total:
        return msgspec.structs.replace(status, phase=PodGroupPhase.PENDING.value)
    needed = minimum if minimum > 0 else tally.total
    return _counted(status, needed, tally, now)


def _counted(status: PodGroupStatus, needed: int, tally: MemberCounts, now: str) -> PodGroupStatus:
    phase, started = PodGroupPhase.SCHEDULED, status.schedule_start_time
    running, succeeded, failed = tally.running, tally.succeeded, tally.failed
    if tally.scheduled < needed:
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
        scheduled=tally.scheduled,
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
