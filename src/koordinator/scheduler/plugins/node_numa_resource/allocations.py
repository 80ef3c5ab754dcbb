"""Keep who holds what on every row of the node table, and the columns that follow from it. Source:
behaviour/numa-cpu 4.

The books of one table are kept once, whatever profiles there are: a CPU that a pod of one profile was given a
moment ago is not free for those of another. Holdings of bound pods are read from their annotations, those of
assumed pods are what Reserve gave them; so the books follow from the objects alone, in whatever order they are
heard of.
"""

import logging
from collections.abc import Hashable

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.scheduler.plugins.node_numa_resource import holdings, node_view
from koordinator.scheduler.plugins.node_numa_resource.admission import NUMAPlacement
from koordinator.scheduler.plugins.node_numa_resource.columns import NUMAColumns
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import Topologies
from koordinator.scheduler.plugins.node_numa_resource.holdings import NO_FACTS, NodeTopologyFacts, facts_of
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation, PodHolding
from koordinator.scheduler.plugins.node_numa_resource.node_view import NUMANodeView
from koordinator.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koordinator.scheduler.table.changes import RowChange
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

_NO_KIND: Hashable = node_view.kind_of(NO_FACTS)
_KEYS = (labels.RESOURCE_STATUS, labels.RESOURCE_SPEC)


class NodeNUMARecord:
    """A row: what the node is like, and what its pods hold. The latter may be known first."""

    def __init__(self) -> None:
        self.facts: NodeTopologyFacts = NO_FACTS
        self.kind: Hashable = _NO_KIND
        self.node_allocation = NodeAllocation()
        self.view = NUMANodeView()
        """Both of it, as of the last `NUMAAllocations.sync`."""


class NUMAAllocations(RowKeeper):
    """Records by row, and reports by node name. Columns are brought up to date by `sync`, as late as possible:
    trials move many pods before somebody looks."""

    def __init__(self, table: NodeTable) -> None:
        self.columns = NUMAColumns(table.capacity)
        self.topologies = Topologies()
        self.special_count = 0
        """Nodes that ordinary pods have to be checked against."""
        self._table = table
        self._records: dict[int, NodeNUMARecord] = {}
        self._reports: dict[str, TopologyOptions] = {}
        self._dirty: set[int] = set()
        self._reserved: dict[str, NUMAPlacement] = {}
        self._aside: dict[str, PodHolding] = {}

    # Reading

    def at(self, row: int) -> NodeNUMARecord:
        """Return the record of a row, an empty one if nothing was heard of it."""
        record = self._records.get(row)
        if record is None:
            record = self._records[row] = NodeNUMARecord()
        return record

    def placement_of(self, uid: str) -> NUMAPlacement | None:
        """Return what Reserve gave a pod that is not yet known to be bound."""
        return self._reserved.get(uid)

    def sync(self) -> None:
        """Bring the columns up to date."""
        if self._dirty:
            for row in self._dirty:
                record = self.at(row)
                record.view = NUMANodeView.of(record.facts, record.node_allocation)
                self.columns.set_view(row, record.view)
            self._dirty.clear()

    def signature(self, row: int) -> bytes:
        """Equal for rows that columns cannot tell apart; needs `sync`."""
        return self.columns.signature(row, self.at(row).facts)

    # Nodes

    def set_report(self, name: str, options: TopologyOptions | None) -> bool:
        """Keep what was reported on a node, None when nothing is any more; return whether that changes a node that
        we know.

        A report may come before its node, and stay when the node goes.
        """
        if options is None:
            self._reports.pop(name, None)
        else:
            self._reports[name] = options
        row = self._table.row_of(name)
        node = self._table.node_at(row) if row is not None else None
        if row is None or node is None or not self._set_node(row, node):
            return False
        self._table.changes.add(row, RowChange.NODE)
        return True

    def node_changed(self, row: int, node: Node) -> None:
        self._set_node(row, node)

    def _set_node(self, row: int, node: Node) -> bool:
        self.columns.reserve(row + 1)
        record = self.at(row)
        facts = facts_of(node, self._reports.get(node.metadata.name))
        if facts == record.facts:
            return False
        for problem in facts.problems:
            if problem not in record.facts.problems:
                log.warning("node setting ignored: %s", problem, extra={"node": node.metadata.name})
        self._set_facts(row, record, facts)
        return True

    def _set_facts(self, row: int, record: NodeNUMARecord, facts: NodeTopologyFacts) -> None:
        had_special = self.special_count > 0
        self.special_count += record.facts.is_plain - facts.is_plain
        if had_special != (self.special_count > 0):
            self._table.start_over()  # ordinary pods skip Filter as long as there is no such node
        record.facts, record.kind = facts, node_view.kind_of(facts)
        self.columns.set_facts(row, facts)
        self._dirty.add(row)

    def row_freed(self, row: int) -> None:
        record = self._records.get(row)
        if record is not None:
            assert not record.node_allocation.holdings, record.node_allocation.holdings
            self._set_facts(row, record, NO_FACTS)
            self.sync()
            del self._records[row]

    # Pods

    def reserve(self, row: int, uid: str, placement: NUMAPlacement, exclusive: str) -> None:
        """Give an assumed pod what was found for it."""
        held = holdings.held(uid, placement.allocation, exclusive)
        if held is not None:
            self._hold(row, held)
        self._reserved[uid] = placement

    def unreserve(self, uid: str) -> None:
        """Undo `reserve`; nothing when there is nothing to undo."""
        if self._reserved.pop(uid, None) is not None:
            place = self._table.place_of(uid)
            if place is not None:
                self._release(place.row, uid)

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if self._table.is_trial:
            held = self._aside.pop(pod.uid, None)
            if held is not None:
                self._hold(row, held)
        elif not self._is_assumed(
            pod.uid
        ):  # else Reserve says what it gets; annotations are of earlier attempts
            self._hold_as_annotated(row, pod)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if self._is_assumed(new.uid):
            return
        was_reserved = self._reserved.pop(new.uid, None) is not None
        before, after = old.pod.metadata.annotations, new.pod.metadata.annotations
        if was_reserved or any(before.get(key) != after.get(key) for key in _KEYS):
            self._hold_as_annotated(row, new)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if not self._table.is_trial:
            self._reserved.pop(pod.uid, None)
        elif (held := self._held(row, pod.uid)) is not None:
            self._aside[pod.uid] = held
        self._release(row, pod.uid)

    def _is_assumed(self, uid: str) -> bool:
        place = self._table.place_of(uid)
        return place is not None and place.assumed

    def _hold_as_annotated(self, row: int, pod: PodInfo) -> None:
        held = None
        if labels.RESOURCE_STATUS in pod.pod.metadata.annotations:
            try:
                held = holdings.holding_of(pod.pod, pod.uid)
            except ProtocolError as problem:
                log.warning("pod holds no CPUs that we know of: %s", problem, extra={"pod": pod.key})
        changed = self._release(row, pod.uid) if held is None else self._hold(row, held)
        if changed:
            self._table.changes.add(row, RowChange.PODS)

    def _held(self, row: int, uid: str) -> PodHolding | None:
        record = self._records.get(row)
        return record.node_allocation.holdings.get(uid) if record is not None else None

    def _hold(self, row: int, holding: PodHolding) -> bool:
        """Book what the pod holds; return whether that is news."""
        node_allocation = self.at(row).node_allocation
        if node_allocation.holdings.get(holding.uid) == holding:
            return False
        node_allocation.update(holding)
        self._dirty.add(row)
        return True

    def _release(self, row: int, uid: str) -> bool:
        """Drop what the pod holds; return whether it held anything."""
        record = self._records.get(row)
        if record is None or uid not in record.node_allocation.holdings:
            return False
        record.node_allocation.remove(uid)
        self._dirty.add(row)
        return True
