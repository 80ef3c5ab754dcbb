"""The order in which the stock scheduler looks at nodes when it looks at some only: zone by zone in turn.

Source: behaviour/scheduler B3 (5).
"""

import numpy as np

from koordinator.api.core import Node
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper

ZONE_KEYS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
REGION_KEYS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")


def zone_of(labels: dict[str, str]) -> tuple[str, str]:
    """Region and zone of a node, each "" when it does not say."""
    region = next((labels[key] for key in REGION_KEYS if key in labels), "")
    zone = next((labels[key] for key in ZONE_KEYS if key in labels), "")
    return region, zone


def interleaved(rows: Rows, zones: list[tuple[str, str]]) -> Rows:
    """The first node of each zone, then the second of each, and so on; zones in order of their first node."""
    turns: dict[tuple[str, str], int] = {}
    keys = []
    for zone in zones:
        turn = turns[zone] = turns.get(zone, -1) + 1
        keys.append(turn)
    number = {zone: index for index, zone in enumerate(turns)}
    order = np.lexsort(([number[zone] for zone in zones], keys))
    return rows[order]


class ZoneOrder(RowKeeper):
    """The order of all nodes, worked out anew when nodes come, go or move."""

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
        """`rows` (of existing nodes) in this order."""
        if self._order is None or self._membership != self._table.membership:
            everywhere = self._table.rows
            self._order = interleaved(everywhere, [self._zones[row] for row in everywhere.tolist()])
            self._membership = self._table.membership
        if rows.size == self._order.size:
            return self._order
        return self._order[np.isin(self._order, rows)]
