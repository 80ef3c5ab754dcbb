"""Choosing one of the best nodes, and how many nodes to look at. Pure. Source: behaviour/scheduler B2 and B3."""

import bisect
import zlib

import numpy as np
import numpy.typing as npt

from koordinator.api.core import Node
from koordinator.scheduler.plugin.framework import Scores
from koordinator.scheduler.table.columns import NOT_FEASIBLE, Rows
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper

Totals = npt.NDArray[np.int32]
"""Weighted sums of final scores; 32 bits hold them, as weights are limited (`profile.WEIGHT_SUM_MAX`)."""

SAMPLE_MIN = 100
_PERCENT_MIN = 5


def pick(rows: Rows, totals: Totals | Scores, chance: int) -> int | None:
    """Return a row with the highest total; among equals, `chance` decides. None when there are no rows.

    Shapes: `rows` (n,), `totals` (n,) of these rows.
    """
    position = best(totals, chance)
    return None if position is None else int(rows[position])


def best(totals: Totals | Scores, chance: int) -> int | None:
    """Return the position in `totals` (rows,) that `pick` chooses; `NOT_FEASIBLE` entries are out of the question."""
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
        """The total of one row is another one now."""
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
    """Return the first `wanted` of the `feasible` rows (feasible rows,) from position `start` of `order` (rows,)
    on, ascending, and how many nodes were looked at to find them; `order` has all rows that come into question.
    """
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
    zone = next((labels[key] for key in ZONE_KEYS if key in labels), "")
    return region, zone


def interleaved(rows: Rows, zones: list[tuple[str, str]]) -> Rows:
    """Return `rows` (rows,) in turns: the first node of each zone, then the second of each, and so on; zones in
    order of their first node.
    """
    turns: dict[tuple[str, str], int] = {}
    keys = []
    for zone in zones:
        turn = turns[zone] = turns.get(zone, -1) + 1
        keys.append(turn)
    number = {zone: index for index, zone in enumerate(turns)}
    order = np.lexsort(([number[zone] for zone in zones], keys))
    return rows[order]


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
        if rows.size == self._order.size:
            return self._order
        return self._order[np.isin(self._order, rows)]
