"""Record what happened to a workload, and find what of that is odd. Pure. Source: behaviour/scheduler C13 and G.

The reference names records, findings and limits; how a finding follows from records is told at `step`.
"""

import enum

import msgspec

from koordinator.scheduler.plugin.handle import RecordKind

RECORDS_MAX = 16
"""Records kept per workload, for the log."""


TURNS = frozenset(
    (
        RecordKind.SCHEDULED,
        RecordKind.PREEMPT_NOMINATED,
        RecordKind.PREEMPT_FAILED,
        RecordKind.VICTIM_DELETING,
        RecordKind.VICTIMS_DELETED,
        RecordKind.EVICTED,
        RecordKind.GONE,
        RecordKind.MIN_SATISFIED,
        RecordKind.ALL_TRIED,
    )
)
"""After these a gang is not where it was: what happened before may happen again."""


class AuditRecord(msgspec.Struct, frozen=True):
    """One happening; `node` where it is about one, `room` the node where room had been made for a pod that is
    placed now."""

    kind: RecordKind
    at_s: float
    node: str = ""
    room: str = ""


class WorkloadHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A workload so far. `nominated_s` is when room was made for it, None when it waits for none (any more);
    `evicted_s` when it lost a pod to others and has not been scheduled since."""

    records: tuple[AuditRecord, ...] = ()
    event_count: int = 0
    """Since the last outcome."""
    nominated_s: float | None = None
    deleting_retry_count: int = 0
    """Attempts in vain while victims were being deleted."""
    evicted_s: float | None = None


class AuditLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of what is still ordinary."""

    victim_reschedule_s: float = 10.0
    """A victim that has a node again sooner need not have been evicted."""
    victim_deletion_s: float = 30.0
    deleting_retries: int = 3
    event_interval_s: float = 300.0


class AuditFinding(enum.StrEnum):
    """The quantity that is measured, by the name of the metric."""

    REPEATED_PREEMPTION = "repeated_preemptions_total"
    PREEMPTION_INVALIDATED = "preemption_invalidations_total"
    VICTIM_RESCHEDULED = "victim_reschedule_duration_seconds"
    DELETING_RETRIES = "preemption_victim_deleting_retries"
    VICTIMS_DELETED = "preemption_to_victim_deleted_seconds"
    CYCLE_INTERRUPTED = "preemption_cycle_interrupted_seconds"
    EVENTS_BEFORE_OUTCOME = "scheduling_events_before_outcome"
    EVENT_INTERVAL = "scheduling_event_interval_seconds"


class MeasuredFinding(msgspec.Struct, frozen=True):
    """A finding with its number; `is_odd` when it is beyond the limit, or should not happen at all."""

    finding: AuditFinding
    amount: float
    is_odd: bool = False


def is_new(history: WorkloadHistory, kind: RecordKind) -> bool:
    """Return whether a record of one member tells something of the gang: what all its members go through is told once,
    until the gang takes a turn."""
    for record in reversed(history.records):
        if record.kind is kind:
            return False
        if record.kind in TURNS:
            return True
    return True


def step(
    history: WorkloadHistory, record: AuditRecord, limits: AuditLimits
) -> tuple[WorkloadHistory, list[MeasuredFinding]]:
    """Return the history with one more record, and what it tells.

    A gang has one history for all its members: it is scheduled when the first of them is, and room that was made for it
    counts as used when that one goes where its own room is.

    * Room made again for a workload that has not been scheduled since the last time: a repeated preemption.
    * Room that is given up, or a pod that goes to another node than the one where it was made: an invalidated
      preemption; the time since the nomination is that of an interrupted cycle. So is it when the workload goes.
    """
    found: list[MeasuredFinding] = []
    if history.records:
        gap_s = max(0.0, record.at_s - history.records[-1].at_s)
        found.append(MeasuredFinding(AuditFinding.EVENT_INTERVAL, gap_s, gap_s > limits.event_interval_s))
    seen = msgspec.structs.replace(
        history, records=(*history.records, record)[-RECORDS_MAX:], event_count=history.event_count + 1
    )
    replace = msgspec.structs.replace
    match record.kind:
        case RecordKind.PREEMPT_NOMINATED:
            if history.nominated_s is not None:
                found.append(MeasuredFinding(AuditFinding.REPEATED_PREEMPTION, 1, is_odd=True))
            seen = replace(seen, nominated_s=record.at_s, deleting_retry_count=0)
        case RecordKind.VICTIM_DELETING:
            seen = replace(seen, deleting_retry_count=history.deleting_retry_count + 1)
        case RecordKind.VICTIMS_DELETED if history.nominated_s is not None:
            found += _deleted(history, record.at_s - history.nominated_s, limits)
        case RecordKind.PREEMPT_FAILED:
            found += _invalidated(history, record.at_s)
            seen = replace(seen, nominated_s=None, deleting_retry_count=0)
        case RecordKind.SCHEDULED:
            found += _scheduled(history, record, limits)
            seen = WorkloadHistory(records=seen.records)
        case RecordKind.EVICTED:
            seen = replace(seen, evicted_s=record.at_s)
        case RecordKind.GONE:
            found.append(MeasuredFinding(AuditFinding.EVENTS_BEFORE_OUTCOME, history.event_count))
            found += _interrupted(history, record.at_s)
            # A victim comes back under the same name or in the same gang: that is still to be told.
            seen = WorkloadHistory(records=seen.records, evicted_s=history.evicted_s)
    return seen, found


def _deleted(history: WorkloadHistory, seconds: float, limits: AuditLimits) -> list[MeasuredFinding]:
    retries = history.deleting_retry_count
    return [
        MeasuredFinding(AuditFinding.VICTIMS_DELETED, max(0.0, seconds), seconds > limits.victim_deletion_s),
        MeasuredFinding(AuditFinding.DELETING_RETRIES, retries, retries >= limits.deleting_retries),
    ]


def _interrupted(history: WorkloadHistory, now_s: float) -> list[MeasuredFinding]:
    if history.nominated_s is None:
        return []
    return [MeasuredFinding(AuditFinding.CYCLE_INTERRUPTED, max(0.0, now_s - history.nominated_s))]


def _invalidated(history: WorkloadHistory, now_s: float) -> list[MeasuredFinding]:
    if history.nominated_s is None:
        return []
    return [
        MeasuredFinding(AuditFinding.PREEMPTION_INVALIDATED, 1, is_odd=True),
        *_interrupted(history, now_s),
    ]


def _scheduled(history: WorkloadHistory, record: AuditRecord, limits: AuditLimits) -> list[MeasuredFinding]:
    found = [MeasuredFinding(AuditFinding.EVENTS_BEFORE_OUTCOME, history.event_count)]
    if record.room and record.room != record.node:
        found += _invalidated(history, record.at_s)
    if history.evicted_s is not None:
        seconds = max(0.0, record.at_s - history.evicted_s)
        found.append(
            MeasuredFinding(AuditFinding.VICTIM_RESCHEDULED, seconds, seconds < limits.victim_reschedule_s)
        )
    return found
