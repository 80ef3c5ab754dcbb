"""Between the nodes of the tree and the rows of the node table."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.topology_tree import Indices, TopologyTree
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo


class TreeRows(RowKeeper):
    """The rows of a tree's nodes, and the other way round; -1 for none.

    Worked out once per tree and set of nodes. A keeper only to be the table's one.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._tree: TopologyTree | None = None
        self._membership = -1
        self._rows: Rows = np.empty(0, np.intp)
        self._leaves: Indices = np.empty(0, np.intp)

    def rows(self, tree: TopologyTree) -> Rows:
        """(nodes of the tree,)"""
        self._refresh(tree)
        return self._rows

    def leaves(self, tree: TopologyTree) -> Indices:
        """(capacity,)"""
        self._refresh(tree)
        return self._leaves

    def by_leaf(self, tree: TopologyTree, by_row: I64) -> I64:
        """(nodes of the tree,) from (capacity,); 0 for nodes without a row."""
        rows = self.rows(tree)
        found: I64 = by_row[rows]
        found[rows < 0] = 0
        return found

    def _refresh(self, tree: TopologyTree) -> None:
        if tree is self._tree and self._membership == self._table.membership:
            return
        row_of = self._table.row_of
        rows = [row_of(name) for name in tree.levels[-1].names]
        self._rows = np.array([-1 if row is None else row for row in rows], np.intp)
        self._leaves = np.full(self._table.capacity, -1, np.intp)
        leaves = np.flatnonzero(self._rows >= 0)
        self._leaves[self._rows[leaves]] = leaves
        self._tree, self._membership = tree, self._table.membership


class Attraction(RowKeeper):
    """Pods with a network-topology-selector, counted per selector and row."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._counts: dict[str, Counter[int]] = {}
        self._versions: dict[str, int] = {}
        self._changes = 0

    def version(self, selector: str) -> int:
        """Changes when pods with the selector come or go; 0 while there are none."""
        return self._versions.get(selector, 0)

    def of(self, selector: str) -> Mapping[int, int]:
        """Row → pods with the selector; nothing for an empty one."""
        return self._counts.get(selector, {})

    def by_row(self, selector: str) -> I64:
        """(capacity,)"""
        found = np.zeros(self._table.capacity, np.int64)
        there = self.of(selector)
        found[list(there)] = list(there.values())
        return found

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if selector := selector_of(pod.pod):
            self._count(selector, row, 1)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if selector := selector_of(pod.pod):
            self._count(selector, row, -1)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if selector_of(old.pod) != selector_of(new.pod):
            self.pod_unassigned(row, old)
            self.pod_assigned(row, new)

    def _count(self, selector: str, row: int, number: int) -> None:
        counts = self._counts.setdefault(selector, Counter())
        counts[row] += number
        if not counts[row]:
            del counts[row]
        self._changes += 1
        self._versions[selector] = self._changes
        if not counts:
            del self._counts[selector], self._versions[selector]


def selector_of(pod: Pod) -> str:
    """Return the text that makes pods attract each other; empty for none."""
    return pod.metadata.annotations.get(labels.NETWORK_TOPOLOGY_SELECTOR, "")
