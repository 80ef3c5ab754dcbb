"""What a class of pods will find on a row after one more pod of it was placed there, and two more, ...

Placing a pod makes the row fuller by what the class asks for, so its next score is known beforehand. Scores of
many rows are worked out at once; a placement then costs a look into a table. A prediction holds as long as
nothing else happens to its row: `Evaluation` takes it only when the placement is the one change there was.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.changes import Change
from koordinator.scheduler.columns import Rows
from koordinator.scheduler.framework import FilterPlugin, ScorePlugin, Scores
from koordinator.scheduler.pick import NOT_FEASIBLE, Top, Totals

STATES_MAX = 8_192
"""Rows × pods foreseen at once: as much as a block of a full scan."""
DEPTH_MAX = 64
ROWS_MAX = 32_768
"""Rows with predictions at most: about 5 MB per class that places many pods in a row."""
_WIDTH_FIRST, _DEPTH_FIRST = 32, 4

BY_PLACEMENT = int(Change.PODS | Change.USAGE)
"""Kinds of changes that placing a pod on a row is."""

LocalFilter = tuple[int, FilterPlugin[Any], Any, int]
"""Position, plugin, state, kinds of changes that it reads."""
LocalScorer = tuple[ScorePlugin[Any], Any, int, int]
"""Plugin, state, weight, kinds of changes that it reads."""


class Lookahead:
    """Predictions of one class: per row the folded scores of its next states, `NOT_FEASIBLE` for the first
    that does not pass the filters.

    How many rows and how many pods on each are foreseen at once follows from what was missing: classes that
    spread want more rows, classes that pack want more pods.
    """

    def __init__(self, capacity: int) -> None:
        self.top = Top()
        self._next: dict[int, list[int]] = {}
        self._left: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self._width, self.depth = _WIDTH_FIRST, _DEPTH_FIRST

    @property
    def size_bytes(self) -> int:
        """Memory, about."""
        return self._left.size + (150 + 8 * self.depth) * len(self._next)

    def take(self, row: int) -> int | None:
        """The folded score after one more pod, `NOT_FEASIBLE` when the row is full then; None when it has to be
        worked out."""
        states = self._next.get(row)
        if not states:
            return None
        self._left[row] -= 1
        return states.pop()

    def drop(self, rows: Iterable[int]) -> None:
        """Something else happened to these rows."""
        for row in rows:
            if self._next.pop(row, None) is not None:
                self._left[row] = 0

    def choose(self, row: int, totals: Totals | Scores) -> Rows:
        """The rows to look at next, ascending: `row`, which had no prediction left, and the best of those that
        have at most one."""
        if row in self._next:
            self.depth = min(2 * self.depth, DEPTH_MAX)
            self._width = min(self._width, STATES_MAX // self.depth)
        else:
            self._width = min(2 * self._width, STATES_MAX // 2)
            self.depth = min(self.depth, STATES_MAX // self._width)
        if len(self._next) + self._width > ROWS_MAX:
            self._next.clear()
            self._left[:] = 0
        rows = np.flatnonzero((self._left <= 1) & (totals != NOT_FEASIBLE))
        if rows.size > self._width:
            candidates = totals[rows]
            candidates[rows.searchsorted(row)] = np.iinfo(candidates.dtype).max
            rows = np.sort(rows[candidates.argpartition(rows.size - self._width)[-self._width :]])
        return rows

    def keep(self, rows: Rows, states: Scores) -> None:
        """Remember the predictions (rows, depth) of rows."""
        self._left[rows] = self.depth
        self._next.update(zip(rows.tolist(), states[:, ::-1].tolist(), strict=True))


def foresee(filters: Sequence[LocalFilter], scorers: Sequence[LocalScorer], rows: Rows, ahead: I64) -> Scores:
    """Folded scores of rows with `ahead` more pods on each, `NOT_FEASIBLE` where a filter refuses.

    Shapes: both (n,), returns (n,). The rows descend, repeat, and pass all filters as they are.
    """
    is_refused = np.zeros(rows.size, np.bool_)
    for _, plugin, state, reads in filters:
        if reads & BY_PLACEMENT:
            is_refused |= plugin.filter_ahead(state, rows, ahead) != 0
    total: Scores = np.zeros(rows.size, np.int64)
    for scorer, state, weight, _ in scorers:
        total += weight * scorer.score_ahead(state, rows, ahead)
    total[is_refused] = NOT_FEASIBLE
    return total
