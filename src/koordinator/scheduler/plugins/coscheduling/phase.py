"""The phase of a PodGroup, from the phases of its pods. Source: spec 05, section 11."""

import enum
from collections.abc import Sequence

import msgspec

from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.clock import parse_rfc3339

STALE_S = 48 * 3600.0
"""A gang that took this long to be scheduled and of which nothing runs is left alone."""


class Phase(enum.StrEnum):
    """How far a gang is."""

    PENDING = "Pending"
    PRE_SCHEDULING = "PreScheduling"
    SCHEDULING = "Scheduling"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    FINISHED = "Finished"
    FAILED = "Failed"


class Member(msgspec.Struct, frozen=True):
    """A pod of the gang."""

    namespace: str
    phase: str
    is_bound: bool
    owners: tuple[str, ...] = ()
    """Names of its owners."""


class QueueReason(enum.Enum):
    """Whether a PodGroup is worth a look."""

    OK = "may change"
    OVER = "has finished or failed"
    STALE = "scheduled long ago, and nothing runs"


def worth_a_look(group: PodGroup) -> QueueReason:
    """Whether an event about the PodGroup puts it on the work queue.

    Raises: ValueError when one of its times cannot be read.
    """
    status = group.status
    if status.phase in (Phase.FINISHED, Phase.FAILED):
        return QueueReason.OVER
    started, created = status.schedule_start_time, group.metadata.creation_timestamp
    is_idle = (status.scheduled == group.spec.min_member) and (status.running == 0)
    if is_idle and started and created and parse_rfc3339(started) - parse_rfc3339(created) > STALE_S:
        return QueueReason.STALE
    return QueueReason.OK


def next_status(status: PodGroupStatus, minimum: int, members: Sequence[Member], now: str) -> PodGroupStatus:
    """The status one step later; unchanged when nothing has happened. `now` is a timestamp (RFC 3339)."""
    if not status.phase:
        return msgspec.structs.replace(status, phase=Phase.PENDING.value)
    if status.phase == Phase.PENDING:
        if minimum <= 0 or len(members) < minimum:
            return status
        owners = sorted(f"{members[0].namespace}/{owner}" for owner in members[0].owners)
        occupied_by = ",".join(owners) or status.occupied_by
        return msgspec.structs.replace(status, phase=Phase.PRE_SCHEDULING.value, occupied_by=occupied_by)
    if not members:
        return msgspec.structs.replace(status, phase=Phase.PENDING.value)
    return _counted(status, minimum, members, now)


def _counted(status: PodGroupStatus, minimum: int, members: Sequence[Member], now: str) -> PodGroupStatus:
    phases = [member.phase for member in members]
    running, succeeded, failed = (phases.count(each) for each in ("Running", "Succeeded", "Failed"))
    scheduled = sum(member.is_bound for member in members)
    phase, started = Phase.SCHEDULED, status.schedule_start_time
    if scheduled < minimum:
        phase, started = Phase.SCHEDULING, started or now
    elif succeeded + running >= minimum:
        phase = Phase.RUNNING
    if failed and failed + running + succeeded >= minimum:
        phase = Phase.FAILED
    if succeeded >= minimum:
        phase = Phase.FINISHED
    return msgspec.structs.replace(
        status,
        phase=phase.value,
        schedule_start_time=started,
        scheduled=scheduled,
        running=running,
        succeeded=succeeded,
        failed=failed,
    )
