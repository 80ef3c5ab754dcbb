"""Count how many members of a gang each node takes, and find the rows of the nodes of the tree. Source: behaviour/gangs
15, step 3.

Members that are alike share one evaluation. Filters that can foresee what members on a node mean for the next one
are asked about all nodes at once; where a filter cannot, members are counted on the node in a trial.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.view import Foresight, Prospects, View
from koordinator.scheduler.plugin.framework import Handle, ReasonCodes
from koordinator.scheduler.plugin.status import SUCCESS, Status, count_reasons, fit_error
from koordinator.scheduler.plugin.topology_tree import Indices, TopologyTree
from koordinator.scheduler.table.columns import Rows, tally
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of


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
        self._counts: dict[str, dict[int, int]] = {}
        self._versions: dict[str, int] = {}
        self._changes = 0

    def version(self, selector: str) -> int:
        """Changes when pods with the selector come or go; 0 while there are none."""
        return self._versions.get(selector, 0)

    def by_row(self, selector: str) -> I64:
        """(capacity,)"""
        found = np.zeros(self._table.capacity, np.int64)
        there = self._counts.get(selector, {})
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
        counts = self._counts.setdefault(selector, {})
        tally(counts, row, number)
        self._changes += 1
        self._versions[selector] = self._changes
        if not counts:
            del self._counts[selector], self._versions[selector]


def selector_of(pod: Pod) -> str:
    """Return the text that makes pods attract each other; empty for none."""
    return pod.metadata.annotations.get(labels.NETWORK_TOPOLOGY_SELECTOR, "")


class Slots(msgspec.Struct, frozen=True, eq=False):
    """`counts` (capacity,) per row, up to `wanted`; `tried` tells why rows that had to be tried take no more."""

    evaluation: Evaluation
    counts: I64
    wanted: int
    foresight: Foresight = Foresight([], frozenset())
    tried: Mapping[int, Status] = {}

    @property
    def looks_around(self) -> bool:
        """Return whether a member on one node may matter to those on others, which `counts` do not know."""
        return not self.foresight.is_complete

    def status_of(self, row: int) -> Status:
        """Return why the row does not take all members; success where it does."""
        if row in self.tried:
            return self.tried[row]
        if not self.evaluation.is_feasible(row):
            return self.evaluation.status_of(row)
        if self.counts[row] >= self.wanted:
            return SUCCESS
        rows = np.array([row], np.intp)
        for plugin, state in self.foresight.foreseen:
            code = int(plugin.filter_ahead(state, rows, self.counts[rows])[0])
            if code:
                return plugin.refusal(state, code).by(plugin.name)
        return SUCCESS

    def refusals(self, rows: Rows) -> list[tuple[Status, int]]:
        """Return each distinct reason why nodes among the feasible `rows` take no more, with the number of nodes."""
        counts: Counter[Status] = Counter(self.tried[row] for row in rows.tolist() if row in self.tried)
        if self.tried:
            rows = rows[~np.isin(rows, list(self.tried))]
        rows = rows[self.counts[rows] < self.wanted]
        for plugin, state in self.foresight.foreseen:
            if not rows.size:
                break
            codes: ReasonCodes = plugin.filter_ahead(state, rows, self.counts[rows])
            for code, count in zip(*np.unique(codes[codes != 0], return_counts=True), strict=True):
                counts[plugin.refusal(state, int(code)).by(plugin.name)] += int(count)
            rows = rows[codes == 0]
        return list(counts.items())

    def fit_error(self, node_count: int) -> str:
        """`0/8 nodes are available: 8 Insufficient cpu.`: what nodes that do not take all members lack."""
        if not self.evaluation.status.is_success:
            return self.evaluation.fit_error()
        return fit_error(node_count, self.reason_counts())

    def reason_counts(self) -> dict[str, int]:
        """Return nodes that do not take all members, by reason."""
        return count_reasons(self.refusals(self.evaluation.feasible) + self.evaluation.refusals())

    def rejected_by(self) -> frozenset[str]:
        """Plugins whose events can mean more slots."""
        found = self.refusals(self.evaluation.feasible) if self.evaluation.status.is_success else []
        return self.evaluation.rejected_by() | {status.plugin for status, _ in found if status.plugin}


def count(
    handle: Handle, prospects: Prospects, members: Sequence[PodInfo], wanted: int | None = None
) -> Slots:
    """Return how many of `members`, who are alike and have no place, each node takes by itself; `wanted`: how many pods
    like them to count at most, where no trial with these pods is needed."""
    pod, wanted = members[0], len(members) if wanted is None else wanted
    evaluation = prospects.evaluate(pod)
    counts = np.zeros(handle.table.capacity, np.int64)
    if evaluation.failure is not None or not evaluation.status.is_success:
        return Slots(evaluation, counts, wanted)
    rows = evaluation.feasible
    foresight = prospects.foresight(evaluation)
    counts[rows] = _counts_ahead(foresight, rows, wanted)
    tried: dict[int, Status] = {}
    shared = prospects.nominated_beside(pod)
    if not foresight.is_complete:
        view = prospects.view(pod, foresight.blind)
        for row in rows[counts[rows] > 1].tolist():
            most = min(int(counts[row]), len(members))
            counts[row], status = _try(handle, view, members, row, most)
            if not status.is_success:
                tried[row] = status
    for row in shared:  # members must leave room there, too
        most = min(int(counts[row]), len(members))
        counts[row], tried[row] = _try(handle, prospects.view(pod), members, row, most, is_open=False)
    return Slots(evaluation, counts, wanted, foresight, tried)


def bound(handle: Handle, prospects: Prospects, evaluation: Evaluation, wanted: int) -> Slots | None:
    """Count as `count` does for pods of that class, without trials: nodes take no more than that, and perhaps fewer,
    whatever other pods there are. None where nobody can tell."""
    if evaluation.failure is not None or not evaluation.status.is_success:
        return None
    foresight = prospects.foresight(evaluation)
    if foresight.may_yield is None:
        return None
    counts = np.zeros(handle.table.capacity, np.int64)
    rows = evaluation.feasible
    counts[rows] = _counts_ahead(foresight, rows, wanted)
    if foresight.may_yield:
        rows = prospects.refused_by(evaluation, foresight.may_yield)
        for plugin, state in foresight.foreseen:
            rows = rows[plugin.filter(state, rows) == 0]
        counts[rows] = _counts_ahead(foresight, rows, wanted)
    return Slots(evaluation, counts, wanted, foresight)


def count_again(
    handle: Handle, prospects: Prospects, before: Slots, members: Sequence[PodInfo], rows: Rows
) -> I64:
    """(rows,): how many members the rows take in the trial that runs, which only added pods to them."""
    if before.looks_around or before.tried:
        view = prospects.view(members[0])
        found = [
            _try(handle, view, members, row, min(len(members), int(before.counts[row])), is_open=False)[0]
            for row in rows.tolist()
        ]
        return np.array(found, np.int64)
    passes = np.ones(rows.size, np.bool_)
    for plugin, state in before.foresight.foreseen:
        passes &= plugin.filter(state, rows) == 0
    counts = np.zeros(rows.size, np.int64)
    counts[passes] = _counts_ahead(before.foresight, rows[passes], len(members))
    return counts


def _counts_ahead(foresight: Foresight, rows: Rows, wanted: int) -> I64:
    """(rows,): how many members the filters that foresee let onto each row, which takes one at least."""
    most = np.full(rows.size, wanted, np.int64)
    for plugin, state in foresight.foreseen if rows.size else ():
        least = np.ones(rows.size, np.int64)
        while (is_open := least < most).any():
            middle = (least + most + 1) // 2
            passes = plugin.filter_ahead(state, rows, middle - 1) == 0
            least = np.where(is_open & passes, middle, least)
            most = np.where(is_open & ~passes, middle - 1, most)
    return most


def _try(
    handle: Handle, view: View, members: Sequence[PodInfo], row: int, most: int, *, is_open: bool = True
) -> tuple[int, Status]:
    """Return how many members the row takes one after the other, up to `most`, and why no more. `is_open`: it takes the
    first one."""
    name = handle.table.name_of(row)
    with trial_of(handle.table) as what_if:
        for number, member in enumerate(members[:most]):
            status = view.check(row) if number or not is_open else SUCCESS
            if not status.is_success:
                return number, status
            what_if.add(member, name)
        if most < len(members):
            return most, view.check(row)
    return most, SUCCESS
