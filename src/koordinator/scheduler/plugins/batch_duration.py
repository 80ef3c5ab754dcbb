"""BatchDuration: pods that say how long they run go where what is lent lasts that long. Not in the reference.

A pod says so by the annotation `koordinator.sh/expected-duration` ("3h") or by `activeDeadlineSeconds`; nodes say it by
`node.koordinator.sh/batch-durations`, which the manager writes (`manager.noderesource.hours`).
"""

import logging
import math
from typing import Any

import msgspec
import numpy as np

from koordinator.api import duration, labels, resources
from koordinator.api.annotations.node import BATCH_DURATIONS, BatchDurations
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.resource_vector import I64
from koordinator.api.scalars import ScalarError
from koordinator.scheduler.plugin.framework import SCORE_MAX, Handle, PreScorePlugin, ScorePlugin, Scores
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status
from koordinator.scheduler.table.columns import ColumnSpec, RowChange, Rows, at
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import REQUESTS, PodInfo, annotations

log = logging.getLogger(__name__)

STEPS = 8
"""Durations that are kept of a node at most."""
UNKNOWN_SCORE = SCORE_MAX // 2
"""Nodes that say nothing are neither preferred nor avoided."""
_NEVER_H = int(np.iinfo(np.int32).max)
_COLUMNS = ("lasting_hours", "lasting_cpu", "lasting_memory")


def _deadline(pod: PodInfo) -> int | None:
    return pod.pod.spec.active_deadline_seconds


class DurationState(msgspec.Struct, frozen=True):
    """The pod's request of lent milli-cores and bytes, the table's columns of both, and how long it runs."""

    amounts: tuple[int, int]
    columns: tuple[int, int]
    hours: float


class BatchDuration(PreScorePlugin[DurationState | None], ScorePlugin[DurationState | None], RowKeeper):
    """The state is None for pods that do not say how long they run, or ask for nothing that is lent."""

    name = "BatchDuration"
    keyed_by = (REQUESTS, annotations(labels.EXPECTED_DURATION), _deadline)
    reads = RowChange.NODE | RowChange.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._known: set[int] = set()

    @classmethod
    def columns_of(cls, args: Any) -> tuple[ColumnSpec, ...]:
        return (
            ColumnSpec(_COLUMNS[0], np.int64, width=STEPS, fill=_NEVER_H),
            *(ColumnSpec(name, np.int64, width=STEPS) for name in _COLUMNS[1:]),
        )

    def node_changed(self, row: int, node: Node) -> None:
        said = _durations_of(node)
        count = len(said.hours)
        if not count and row not in self._known:
            return  # most nodes never say anything
        columns = self.handle.columns
        for name, amounts in zip(_COLUMNS, (said.hours, said.cpu_milli, said.memory_bytes), strict=True):
            columns[name].clear(row)
            columns[name].values[:count, row] = amounts
        (self._known.add if count else self._known.discard)(row)

    def row_freed(self, row: int) -> None:
        self._known.discard(row)

    def prepare(self, pod: PodInfo) -> DurationState | None:
        hours = _hours_of(pod)
        registry = self.handle.table.registry
        columns = registry.column(resources.BATCH_CPU), registry.column(resources.BATCH_MEMORY)
        asked = dict(pod.requests)
        amounts = asked.get(columns[0], 0), asked.get(columns[1], 0)
        if hours is None or not any(amounts):
            return None
        self.handle.table.widen()
        return DurationState(amounts, columns, hours)

    def pre_score(self, state: DurationState | None) -> Status:
        return SKIP if state is None or not self._known else SUCCESS

    def foresees(self, state: DurationState | None) -> bool:
        return True

    def score(self, state: DurationState | None, rows: Rows) -> Scores:
        return self.score_ahead(state, rows, 0)

    def score_ahead(self, state: DurationState | None, rows: Rows, ahead: int | I64) -> Scores:
        assert state is not None
        requested = self.handle.table.requested
        wanted = [
            at(requested[column], rows) + amount * (ahead + 1)
            for column, amount in zip(state.columns, state.amounts, strict=True)
        ]
        hours, cpu, memory = (at(self.handle.columns[name].values, rows) for name in _COLUMNS)
        return duration_scores(hours, cpu, memory, np.stack(np.broadcast_arrays(*wanted)), state.hours)


def duration_scores(hours: I64, cpu: I64, memory: I64, wanted: I64, needed_hours: float) -> Scores:
    """Return scores (rows,): 100 where what is lent for `needed_hours` holds all that is `wanted` (2, rows), less in
    proportion where it lasts shorter, 50 where nothing is said.

    `hours` ascend along the first axis, (steps, rows); `cpu` and `memory`, of that shape, are what is lent so long.
    """
    is_said = hours < _NEVER_H
    holds = is_said & (cpu >= wanted[0]) & (memory >= wanted[1])
    lasts = np.where(holds, hours, 0).max(axis=0)
    # Longer than the longest that nodes speak of counts as that.
    most = np.where(is_said, hours, 0).max(axis=0)
    needed = np.maximum(np.minimum(math.ceil(needed_hours), most), 1)
    scores = np.minimum(SCORE_MAX * lasts // needed, SCORE_MAX)
    return np.where(most > 0, scores, UNKNOWN_SCORE).astype(np.int64)


def _durations_of(node: Node) -> BatchDurations:
    """Return what a node says, nothing when it cannot be read."""
    try:
        said = (
            BATCH_DURATIONS.read(node.metadata.annotations, f"Node {node.metadata.name}") or BatchDurations()
        )
    except ProtocolError as error:
        log.warning("durations of lent resources ignored", extra={"error": str(error)})
        return BatchDurations()
    fits = len(said.hours) == len(said.cpu_milli) == len(said.memory_bytes) <= STEPS
    if not fits or sorted(said.hours) != said.hours or any(not 0 < hour < _NEVER_H for hour in said.hours):
        log.warning("durations of lent resources ignored", extra={"node": node.metadata.name})
        return BatchDurations()
    return said


def _hours_of(pod: PodInfo) -> float | None:
    """Return for how long a pod runs, None when it does not say; text that is no duration says nothing."""
    text = pod.pod.metadata.annotations.get(labels.EXPECTED_DURATION, "")
    if text:
        try:
            return duration.parse(text) / 3_600
        except ScalarError as error:
            log.warning("expected duration ignored", extra={"pod": pod.key, "error": str(error)})
    seconds = pod.pod.spec.active_deadline_seconds
    return None if seconds is None else seconds / 3_600
