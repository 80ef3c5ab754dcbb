"""Choose one of the best nodes, and how many nodes to look at; and foresee what a class of pods will find on a row
after one more pod of it was placed there, and two more, ... Pure. Source: behaviour/scheduler B2 and B3.

Placing a pod makes the row fuller by what the class asks for, so its next score is known beforehand. Scores of
many rows are worked out at once; a placement then costs a look into a table. A prediction holds as long as
nothing else happens to its row: `Evaluation` takes it only when the placement is the one change there was.
"""

import bisect
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from koordinator.api.core import Node
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import FilterPlugin, ScorePlugin, Scores, is_pass
from koordinator.scheduler.table.columns import BY_PLACEMENT, NOT_FEASIBLE, Rows
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper

Totals = npt.NDArray[np.int32]
"""Weighted sums of final scores; 32 bits hold them, as weights are limited (`profile.WEIGHT_SUM_MAX`)."""

SAMPLE_MIN = 100
_PERCENT_MIN = 5


def best(totals: Totals | Scores, chance: int) -> int | None:
    """Return the position of the highest of `totals` (rows,); among equals, `chance` decides. None when there are none
    but `NOT_FEASIBLE` ones."""
    highest = totals.max(initial=NOT_FEASIBLE)
    if highest == NOT_FEASIBLE:
        return None
    ties = (totals == highest).nonzero()[0]
    return int(ties[chance % ties.size])


class Top:
    """The rows with the highest total, kept while single totals change: finding them looks at all rows."""

    __slots__ = ("_highest", "_rows")

    def __init__(self) -> None:
        self._highest = NOT_FEASIBLE
        self._rows: list[int] = []

    def forget(self) -> None:
        """Many totals changed."""
        self._rows = []

    def choose(self, totals: Totals, chance: int) -> int | None:
        """Choose as `best` does from `totals` (capacity,)."""
        if not self._rows:
            self._highest = int(totals.max(initial=NOT_FEASIBLE))
            if self._highest == NOT_FEASIBLE:
                return None
            self._rows = (totals == self._highest).nonzero()[0].tolist()
        return self._rows[chance % len(self._rows)]

    def changed(self, row: int, total: int) -> None:
        """Note that the total of one row is another one now."""
        position = bisect.bisect_left(self._rows, row)
        is_in = position < len(self._rows) and self._rows[position] == row
        if total > self._highest or (total == self._highest and not is_in):
            self.forget()
        elif total < self._highest and is_in:
            del self._rows[position]


def chance_of(seed: int, uid: str, attempt: int) -> int:
    """Return a number that looks random and is the same whenever the seed, pod and attempt are."""
    mixed = zlib.crc32(f"{seed}/{uid}/{attempt}".encode())
    # crc32 is linear: the multiplications keep similar names from getting similar numbers.
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)


def nodes_to_find(node_count: int, percent: int) -> int:
    """Return how many feasible nodes the stock scheduler looks for; `percent` 0 means adaptive.

    Few nodes are all looked at; the adaptive percentage falls from 50 to 5 as clusters grow.
    """
    if node_count < SAMPLE_MIN:
        return node_count
    if percent == 0:
        percent = max(_PERCENT_MIN, 50 - node_count // 125)
    return max(SAMPLE_MIN, node_count * percent // 100)


def sample_percent(global_percent: int | None, profile_percent: int | None) -> int | None:
    """Return the profile's percentage when it is set (0 counts as set), else the global one; None: all nodes."""
    return profile_percent if profile_percent is not None else global_percent


def sample(feasible: Rows, order: Rows, start: int, wanted: int) -> tuple[Rows, int]:
    """Return the first `wanted` of the `feasible` rows (feasible rows,) from position `start` of `order` (rows,) on,
    ascending, and how many nodes were looked at to find them; `order` has all rows that come into question."""
    if feasible.size <= wanted:
        return feasible, int(order.size)
    position_of = np.empty(int(order.max()) + 1, np.intp)
    position_of[order] = np.arange(order.size)
    positions = (position_of[feasible] - start) % order.size
    nearest = np.argsort(positions, kind="stable")[:wanted]
    return np.sort(feasible[nearest]), int(positions[nearest[-1]]) + 1


ZONE_KEYS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
REGION_KEYS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")


def zone_of(labels: dict[str, str]) -> tuple[str, str]:
    """Region and zone of a node, each "" when it does not say."""
    region = next((labels[key] for key in REGION_KEYS if key in labels), "")
    return region, next((labels[key] for key in ZONE_KEYS if key in labels), "")


def interleaved(rows: Rows, zones: list[tuple[str, str]]) -> Rows:
    """Return `rows` (rows,) in turns: the first node of each zone, then the second of each, and so on; zones in order
    of their first node."""
    turns: dict[tuple[str, str], int] = {}
    keys = []
    for zone in zones:
        turn = turns[zone] = turns.get(zone, -1) + 1
        keys.append(turn)
    number = {zone: index for index, zone in enumerate(turns)}
    return rows[np.lexsort(([number[zone] for zone in zones], keys))]


class ZoneOrder(RowKeeper):
    """The order of all nodes, worked out anew when nodes come, go or move.

    Zone by zone in turn. Source: behaviour/scheduler B3 (5).
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._zones: dict[int, tuple[str, str]] = {}
        self._order: Rows | None = None
        self._membership = -1

    def node_changed(self, row: int, node: Node) -> None:
        zone = zone_of(node.metadata.labels)
        if self._zones.get(row) != zone:
            self._zones[row] = zone
            self._order = None

    def row_freed(self, row: int) -> None:
        self._zones.pop(row, None)
        self._order = None

    def of(self, rows: Rows) -> Rows:
        """Return `rows` (rows,), which are of existing nodes, in this order."""
        if self._order is None or self._membership != self._table.membership:
            everywhere = self._table.rows
            self._order = interleaved(everywhere, [self._zones[row] for row in everywhere.tolist()])
            self._membership = self._table.membership
        return self._order if rows.size == self._order.size else self._order[np.isin(self._order, rows)]


STATES_MAX = 8_192
"""Rows × pods foreseen at once: as much as a block of a full scan."""
DEPTH_MAX = 64
KEPT_MIN = 4 * STATES_MAX
"""Predictions that a class keeps at most, or one per row if those are more: 4 bytes each."""
TIES_PER_MISS = 2_048
"""Rows foreseen at once for each placement that went without: what asking about one row again costs."""
_WIDTH_FIRST, _DEPTH_FIRST = 32, 4
_NONE = -1
_NO_ROWS: Rows = np.empty(0, np.intp)

LocalFilter = tuple[int, FilterPlugin[Any], Any, int]
"""Position, plugin, state, kinds of changes that it reads."""
LocalScorer = tuple[ScorePlugin[Any], Any, int, int]
"""Plugin, state, weight, kinds of changes that it reads."""


class Lookahead:
    """Predictions of one class: per row the folded scores of its next states, `NOT_FEASIBLE` for the first
    that does not pass the filters.

    How many rows and how many pods on each are foreseen at once follows from what was missing: classes that spread want
    more rows, classes that pack want more pods, and where many rows are equally good, any of them may be the next.
    """

    def __init__(self, capacity: int) -> None:
        self.top = Top()
        self._states: Totals = np.empty(max(KEPT_MIN, capacity), np.int32)
        self._used = 0
        self._ends: npt.NDArray[np.int32] = np.full(capacity, _NONE, np.int32)
        """(rows,): the place behind a row's last state; `_NONE` if it has none."""
        self._left: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self._width, self.depth = _WIDTH_FIRST, _DEPTH_FIRST

    @property
    def size_bytes(self) -> int:
        """Memory, about."""
        return self._left.nbytes + self._ends.nbytes + self._states.itemsize * self._used

    def take(self, row: int) -> int | None:
        """Return the folded score after one more pod, `NOT_FEASIBLE` when the row is full then; None when it has to be
        worked out."""
        left = self._left.item(row)
        if not left:
            return None
        self._left[row] = left - 1
        return self._states.item(self._ends.item(row) - left)

    def drop(self, rows: Rows) -> None:
        """Drop the predictions of `rows` (rows,): something else happened to them."""
        self._left[rows] = 0
        self._ends[rows] = _NONE

    def choose(self, row: int, totals: Totals | Scores, misses: int) -> Rows:
        """Return the rows to look at next, ascending, (chosen rows,): `row`, which had no prediction left, and all that
        are as good as the best or, where these are few, the best of those that have at most one. None of them while the
        ties are so many that it does not pay for a class of which `misses` pods went without a prediction."""
        is_wanted = (totals == totals.max()) & (self._left == 0)
        is_wanted[row] = True
        ties = int(np.count_nonzero(is_wanted))
        if ties > self._width:
            # `best` draws among equals: unless all of them are foreseen, most placements would go without.
            if ties > TIES_PER_MISS * misses:
                return _NO_ROWS
            self.depth = max(1, min(self.depth, STATES_MAX // ties))
            return np.flatnonzero(is_wanted)
        # A row used up its states: the class packs, so look deeper. A row that had none: it spreads, so look wider.
        if self._ends[row] != _NONE:
            self.depth = min(2 * self.depth, DEPTH_MAX)
            self._width = min(self._width, STATES_MAX // self.depth)
        else:
            self._width = min(2 * self._width, STATES_MAX // 2)
            self.depth = min(self.depth, STATES_MAX // self._width)
        rows = np.flatnonzero((self._left < min(self.depth, 2)) & (totals != NOT_FEASIBLE))
        if rows.size > self._width:
            candidates = totals[rows]
            candidates[rows.searchsorted(row)] = np.iinfo(candidates.dtype).max
            rows = np.sort(rows[candidates.argpartition(rows.size - self._width)[-self._width :]])
        return rows

    def keep(self, rows: Rows, states: Totals) -> None:
        """Remember the predictions (rows, depth) of rows."""
        # Full: forget everything, as finding the holes of used-up predictions would cost more than foreseeing anew.
        if self._used + states.size > self._states.size:
            self._left.fill(0)
            self._ends.fill(_NONE)
            self._used = 0
        start = self._used
        self._used += states.size
        self._states[start : self._used] = states.reshape(-1)
        self._ends[rows] = np.arange(start + self.depth, self._used + 1, self.depth)
        self._left[rows] = self.depth


def foresee(
    filters: Sequence[LocalFilter], scorers: Sequence[LocalScorer], rows: Rows, row: int, depth: int
) -> Totals:
    """Folded scores of rows with 1 to `depth` more pods on each, `NOT_FEASIBLE` where a filter refuses; of `row`, on
    which such a pod was placed just now, with 0 to `depth` - 1 more.

    Shapes: (n,), returns (n, depth). The rows pass all filters as they are.
    """
    found = np.empty((rows.size, depth), np.int32)
    for start in range(0, rows.size, STATES_MAX):  # several times only where the depth is 1
        block = rows[start : start + STATES_MAX]
        ahead = np.repeat(np.arange(1, depth + 1)[np.newaxis], block.size, axis=0)
        ahead[block == row] -= 1
        if depth == 1:
            found[start : start + STATES_MAX, 0] = folded(filters, scorers, block, ahead.reshape(-1))
        else:
            # Descending: `at` must not take rows that repeat for neighbours.
            repeated = block.repeat(depth)[::-1].copy()
            states = folded(filters, scorers, repeated, ahead.reshape(-1)[::-1].copy())
            found[start : start + STATES_MAX] = states[::-1].reshape(ahead.shape)
    return found


def folded(filters: Sequence[LocalFilter], scorers: Sequence[LocalScorer], rows: Rows, ahead: I64) -> Scores:
    """Folded scores of rows with `ahead` more pods on each, `NOT_FEASIBLE` where a filter refuses; both (n,). The rows
    ascend, each once, or they descend and come several times."""
    is_refused = np.zeros(rows.size, np.bool_)
    for _, plugin, state, reads in filters:
        if reads & BY_PLACEMENT:
            codes = plugin.filter_ahead(state, rows, ahead)
            if not is_pass(codes):
                is_refused |= codes != 0
    total: Scores = np.zeros(rows.size, np.int64)
    for scorer, state, weight, _ in scorers:
        score = scorer.score_ahead(state, rows, ahead)
        total += score if weight == 1 else weight * score
    total[is_refused] = NOT_FEASIBLE
    return total
