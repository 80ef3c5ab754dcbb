"""Telling people why a node has what it has: events on the Node and the log, once per change, never in floods."""

import asyncio
import logging
from collections.abc import Iterable

from koordinator.clock import Clock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.rate_limit import Rate, TokenBucket
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.rows import NodeRow
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
        self._told: dict[str, frozenset[str]] = {}
        self._since_s: dict[str, dict[str, float]] = {}

    def tell(self, row: NodeRow, notes: Iterable[Note]) -> None:
        """`notes` are all that hold for the node now; what is not told yet, is, as far as the rate allows."""
        name = row.name
        current = {note.reason: note for note in notes}
        if not current and name not in self._told:
            self._since_s.pop(name, None)
            return
        told = self._told.get(name, frozenset())
        kept = told & current.keys()
        now_s = self._clock.now()
        before = self._since_s.get(name, {})
        since_s = self._since_s[name] = {reason: before.get(reason, now_s) for reason in current}
        for reason, note in current.items():
            if reason in kept or (note.is_patient and now_s - since_s[reason] < PATIENCE_S):
                continue
            if self._may_tell():
                kept |= {reason}
                self._record(row, note)
        if told & _DEGRADED and row.withdrawal is Withdrawal.NONE and self._may_tell():
            message = "the node agent's reports are in order again: Batch and Mid resources are back"
            self._record(row, Note(RESTORED, message, is_warning=False))
        if kept:
            self._told[name] = kept
        else:
            self._told.pop(name, None)

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._told.pop(name, None)
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
