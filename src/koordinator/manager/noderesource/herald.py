"""Tells people why a node lends what it lends, or nothing: events on the Node and the log, once per change."""

from koordinator.api import duration, resources
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.rows import CLOCK_SKEW_S, NodeRow
from koordinator.manager.noderesource.target import Note

DEGRADED = "degrade node resource because of abnormal nodeMetric, reason: degradedByBatchResource"
SKEWED = "NodeClockSkewed"

_LENT = (*resources.BATCH_RESOURCES, *resources.MID_RESOURCES)


def report_notes(row: NodeRow, now_s: float) -> list[Note]:
    """Return the notes about the node's report."""
    found = []
    if note := _withdrawal_note(row, now_s):
        found.append(note)
    if row.skew_s > CLOCK_SKEW_S and row.is_enabled:
        ahead = duration.text_of(round(row.skew_s))
        message = (
            f"the NodeMetric is dated {ahead} ahead of its arrival and counts as made then: "
            "mind the clock of the node (or of koord-manager)"
        )
        found.append(Note(SKEWED, message))
    return found


def _withdrawal_note(row: NodeRow, now_s: float) -> Note | None:
    reason = row.withdrawal
    match reason:
        case Withdrawal.NONE:
            return None
        case Withdrawal.DISABLED:
            if not any(name in row.have for name in _LENT):
                return None
            message = "Batch and Mid resources are withdrawn: colocation is disabled for the node (colocation-config)"
            return Note(reason.value, message, is_warning=False)
        case Withdrawal.MISSING:
            why = "there is no report in NodeMetric.status: does koordlet run on the node?"
            return Note(reason.value, f"{DEGRADED}: {why}", is_patient=not row.have)
        case Withdrawal.EXPIRED:
            assert row.reported_s is not None and row.strategy is not None
            age, limit = (
                duration.text_of(round(now_s - row.reported_s)),
                duration.text_of(row.strategy.degrade_s),
            )
            why = f"the last report is {age} old, degradeTimeMinutes allows {limit}"
            if row.reading.updated_s is not None and row.skew_s > CLOCK_SKEW_S:
                why += " (it was dated ahead of its arrival)"
            return Note(reason.value, f"{DEGRADED}: {why}")
        case Withdrawal.REJECTED:
            return Note(reason.value, f"{DEGRADED}: the report cannot be true, {row.reading.problem}")
        case Withdrawal.EMPTY:
            why = "status.nodeMetric of the report is empty"
            return Note(reason.value, f"{DEGRADED}: {why}", is_patient=not row.have)
    raise AssertionError(reason)
