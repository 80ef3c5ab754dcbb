"""Tells people why a node lends what it lends, or nothing: events on the Node and the log, once per change."""

import asyncio
import logging
from collections.abc import Iterable

from koordinator.api import duration, resources
from koordinator.clock import Clock
from koordinator.cluster.backoff import Rate, TokenBucket
from koordinator.cluster.events import EventRecorder
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.rows import CLOCK_SKEW_S, NodeRow
from koordinator.manager.noderesource.target import Note

log = logging.getLogger(__name__)


EVENT_RATE = Rate(per_s=1.0, burst=50)
"""A change of the whole cluster is told of some nodes at once, of the others over minutes while it lasts."""
PATIENCE_S = 300.0
"""How long a patient note must hold before it is told."""
RESTORED = "NodeResourceRestored"

_DEGRADED = frozenset(
    reason.value for reason in Withdrawal if reason not in (Withdrawal.NONE, Withdrawal.DISABLED)
)


class NodeEventRecorder:
    """Remembers what was told of each node."""

    def __init__(self, events: EventRecorder, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._bucket: TokenBucket | None = None
        self._reported: dict[str, frozenset[str]] = {}
        self._since_s: dict[str, dict[str, float]] = {}

    def tell(self, row: NodeRow, notes: Iterable[Note]) -> None:
        """`notes` are all that hold for the node now; what is not told yet, is, as far as the rate allows."""
        name = row.name
        current = {note.reason: note for note in notes}
        if not current and name not in self._reported:
            self._since_s.pop(name, None)
            return
        reported = self._reported.get(name, frozenset())
        kept = reported & current.keys()
        now_s = self._clock.now()
        before = self._since_s.get(name, {})
        since_s = self._since_s[name] = {reason: before.get(reason, now_s) for reason in current}
        for reason, note in current.items():
            if reason in kept or (note.is_patient and now_s - since_s[reason] < PATIENCE_S):
                continue
            if self._may_tell():
                kept |= {reason}
                self._record(row, note)
        if reported & _DEGRADED and row.withdrawal is Withdrawal.NONE and self._may_tell():
            message = "the node agent's reports are in order again: Batch and Mid resources are back"
            self._record(row, Note(RESTORED, message, is_warning=False))
        if kept:
            self._reported[name] = kept
        else:
            self._reported.pop(name, None)

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._reported.pop(name, None)
        self._since_s.pop(name, None)

    def _may_tell(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if self._bucket is None:
            self._bucket = TokenBucket(EVENT_RATE, now_s)
        return self._bucket.try_take(now_s)

    def _record(self, row: NodeRow, note: Note) -> None:
        assert row.node is not None
        level = logging.WARNING if note.is_warning else logging.INFO
        log.log(level, "node %s: %s", row.name, note.message, extra={"node": row.name, "reason": note.reason})
        if note.is_warning:
            self._events.warning(row.node, note.reason, note.message)
        else:
            self._events.normal(row.node, note.reason, note.message)


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
