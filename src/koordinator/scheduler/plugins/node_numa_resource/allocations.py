"""Keep who holds what on every row of the node table, and the columns that follow from it. Source:
behaviour/numa-cpu 4.

The books of one table are kept once, whatever profiles there are: a CPU that a pod of one profile was given a moment
ago is not free for those of another. Holdings of bound pods are read from their annotations, those of assumed pods are
what Reserve gave them; so the books follow from the objects alone, in whatever order they are heard of.

Columns summarise all nodes, kept row by row: what Filter and Score need to answer for many nodes at once. Arrays end in
the row. A slot is the position of a NUMA node among those of its node, by ascending id; whatever ids there are, slots
are dense.
"""

import logging
from collections.abc import Hashable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import labels
from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.api.core import Node
from koordinator.api.node_labels import NodeCPUBindPolicy
from koordinator.api.pod_labels import stands_for_reservation
from koordinator.api.reservation import RESERVATION_ALLOCATED
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.node_numa_resource import holdings
from koordinator.scheduler.plugins.node_numa_resource.admission import KINDS, NUMAPlacement, kind_of
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import TOPOLOGIES_MAX, Topologies
from koordinator.scheduler.plugins.node_numa_resource.holdings import NO_FACTS, NodeTopologyFacts, facts_of
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NodeAllocation,
    NUMAStatus,
    PodHolding,
)
from koordinator.scheduler.plugins.node_numa_resource.node_view import NUMANodeView
from koordinator.scheduler.plugins.node_numa_resource.reservations import Held, ReservedHoldings
from koordinator.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koordinator.scheduler.table.columns import RowChange, Rows, at
from koordinator.scheduler.table.holdings import ReservableHoldingKeeper
from koordinator.scheduler.table.nodes import NODE_AMOUNT_MAX, SMALL_AMOUNT_MAX, NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

NUMA_POLICIES = {policy: number for number, policy in enumerate(NUMATopologyPolicy)}
RESTRICTED = NUMA_POLICIES[NUMATopologyPolicy.RESTRICTED]
SINGLE_NUMA_NODE = NUMA_POLICIES[NUMATopologyPolicy.SINGLE_NUMA_NODE]

FORCED_KINDS = {policy: kind for kind, policy in enumerate(NodeCPUBindPolicy)}
"""Kinds like `KINDS`: none, whole cores, one CPU of each core."""

STATUSES = {status: number for number, status in enumerate(NUMAStatus)}
SHARED = STATUSES[NUMAStatus.SHARED]

_SLOTS_INITIAL = 2
_RESOURCES_INITIAL = 2


class NUMAColumnSlice:
    """The columns of some rows: what Filter and Score read.

    All numbers that change with pods lie in one array, and all others in a second one, so that gathering rows is one
    operation each. The attributes are parts of these.
    """

    def __init__(self, live: I64, fixed: I64, ratio: npt.NDArray[np.float64], slots: int, width: int) -> None:
        count, kinds = live.shape[-1], len(KINDS)
        cells, by_kind = slots * width, slots * kinds
        take = _Parts(live)
        self.available: I64 = take(cells).reshape(slots, width, count)
        """(slots, resources, rows): what is left of a zone, at least 0."""
        self.used: I64 = take(cells).reshape(slots, width, count)
        """Amounts that pods hold of `available`, bound CPUs amplified."""
        self.usable: I64 = take(by_kind).reshape(kinds, slots, count)
        """(kinds, slots, rows): free CPUs that can serve under a required policy (`KINDS`)."""
        self.usable_total: I64 = take(kinds)
        """(kinds, rows): the same for the whole machine."""
        self.status: I64 = take(slots)
        """(slots, rows): who binds CPUs there (`STATUSES`)."""
        self.pinned_count: I64 = take(1)[0]
        """CPUs that pods bind."""
        self.pinned_milli: I64 = take(1)[0]
        """Amount that these take of the amplified capacity."""
        take = _Parts(fixed)
        self.capacity: I64 = take(cells).reshape(slots, width, count)
        """Amounts that a zone offers, amplified; shaped like `available`."""
        self.offers: I64 = take(width)
        """(resources, rows): 1 where any zone of the node offers it."""
        self.zone_count: I64 = take(1)[0]
        self.cpus_per_core: I64 = take(1)[0]
        """0 where there are no CPUs to bind."""
        self.is_misreported: I64 = take(1)[0]
        """1 where there is a report that names no CPUs."""
        self.is_ratio_bad: I64 = take(1)[0]
        self.forced_kind: I64 = take(1)[0]
        """The kind that the node's own bind policy forces, 0 when it has none."""
        self.numa_policy: I64 = take(1)[0]
        """`NUMA_POLICIES`."""
        self.ratio = ratio
        self.fitting: tuple[object, Any] | None = None
        """The last question of which NUMA nodes fit, and its answer."""

    @property
    def row_count(self) -> int:
        return int(self.ratio.size)

    @property
    def slot_count(self) -> int:
        return len(self.available)


class _Parts:
    """Gives out an array part by part."""

    def __init__(self, values: I64) -> None:
        self._values, self._start = values, 0

    def __call__(self, count: int) -> I64:
        start, self._start = self._start, self._start + count
        return self._values[start : self._start]


_FIXED = 6


class Traits(msgspec.Struct, frozen=True):
    """The traits that some node of the table has; nobody needs to look for the others."""

    has_forced: bool
    """A bind policy of a node."""
    has_ratio: bool
    """Amplified CPU, or a ratio that cannot be read."""
    has_policy: bool
    """A NUMA policy of a node."""
    is_small: bool
    """Whether percentages of all capacities are exact in floating point (`percent`)."""


class NUMAColumns:
    """The arrays. `resources` maps the names that any zone offers to their index.

    They are kept twice: by number, where neighbouring rows are to be read, and by row, to gather single rows without
    touching as many places in memory as there are numbers.
    """

    def __init__(self, capacity: int) -> None:
        self.resources: dict[str, int] = {}
        self._traits: Traits | None = None
        self._shape(_SLOTS_INITIAL, _RESOURCES_INITIAL, capacity)

    def _shape(self, slots: int, width: int, rows: int) -> None:
        """Empty arrays of that size."""
        cells, kinds = slots * width, len(KINDS)
        self._slots, self._width = slots, width
        self._live: I64 = np.zeros((2 * cells + kinds * (slots + 1) + slots + 2, rows), np.int64)
        self._fixed: I64 = np.zeros((cells + width + _FIXED, rows), np.int64)
        self._live_of: I64 = np.zeros((rows, len(self._live)), np.int64)
        self._fixed_of: I64 = np.zeros((rows, len(self._fixed)), np.int64)
        self._ratio: npt.NDArray[np.float64] = np.ones(rows)
        self.all = NUMAColumnSlice(self._live, self._fixed, self._ratio, slots, width)
        """Every row."""
        self._changed()

    def _changed(self) -> None:
        self._last: tuple[Rows, NUMAColumnSlice] | None = None

    def at(self, rows: Rows) -> NUMAColumnSlice:
        """Return the columns of `rows` (rows,), to be read before anything is written; the last answer is
        remembered."""
        if self._last is not None and self._last[0] is rows:
            return self._last[1]
        ratio = at(self._ratio, rows)
        if ratio.base is self._ratio:  # neighbours
            live, fixed = at(self._live, rows), at(self._fixed, rows)
        else:
            live = np.ascontiguousarray(self._live_of.take(rows, axis=0).T)
            fixed = np.ascontiguousarray(self._fixed_of.take(rows, axis=0).T)
        window = NUMAColumnSlice(live, fixed, ratio, self._slots, self._width)
        self._last = rows, window
        return window

    @property
    def traits(self) -> Traits:
        """Return what the nodes of the table have."""
        if self._traits is None:
            every = self.all
            self._traits = Traits(
                has_forced=bool(every.forced_kind.any()),
                has_ratio=bool((every.ratio > 1).any() or every.is_ratio_bad.any()),
                has_policy=bool(every.numa_policy.any()),
                is_small=int(every.capacity.max(initial=0)) <= SMALL_AMOUNT_MAX,
            )
        return self._traits

    # Shape

    def reserve(self, rows: int) -> None:
        """Make room for rows of nodes of which there is nothing to tell."""
        self._fit(rows, 0)

    def _fit(self, rows: int, slots: int) -> None:
        """Make room; capacity of rows doubles, as the table's does."""
        capacity = self.all.row_count
        while capacity < rows:
            capacity *= 2
        slots, width = max(slots, self._slots), max(len(self.resources), self._width)
        if (slots, width, capacity) == (self._slots, self._width, self.all.row_count):
            return
        old = self.all
        self._shape(slots, width, capacity)
        for name, values in vars(old).items():
            if isinstance(values, np.ndarray):
                getattr(self.all, name)[tuple(slice(size) for size in values.shape)] = values
        self._live_of[:], self._fixed_of[:] = self._live.T, self._fixed.T

    # Writing

    def set_facts(self, row: int, facts: NodeTopologyFacts) -> None:
        """Set what stays when pods come and go; `set_view` has to follow."""
        for zone in facts.zones.values():
            for name in zone:
                self.resources.setdefault(name, len(self.resources))
        self._fit(row + 1, len(facts.zones))
        self._changed()
        self._traits = None
        topology, every = facts.options.cpus, self.all
        self._fixed[:, row] = 0
        for slot, zone in enumerate(facts.zones.values()):
            for name, amount in zone.items():
                every.capacity[slot, self.resources[name], row] = min(amount, NODE_AMOUNT_MAX)
                every.offers[self.resources[name], row] = 1
        every.zone_count[row] = len(facts.zones)
        every.cpus_per_core[row] = topology.cpus_per_core if topology.is_valid else 0
        every.is_misreported[row] = facts.has_report and not topology.is_valid
        every.ratio[row] = facts.cpu_ratio
        every.is_ratio_bad[row] = not facts.is_ratio_readable
        every.forced_kind[row] = FORCED_KINDS[facts.bind_policy]
        every.numa_policy[row] = NUMA_POLICIES[facts.numa_policy]
        self._fixed_of[row] = self._fixed[:, row]

    def set_view(self, row: int, view: NUMANodeView) -> None:
        """Set what pods hold and leave."""
        self._changed()
        zones, slots, width = view.facts.zones, self._slots, self._width
        index_of = self.resources
        available, used = [0] * (slots * width), [0] * (slots * width)
        for slot, (numa, zone) in enumerate(zones.items()):
            for name, amount in zone.items():
                available[slot * width + index_of[name]] = min(amount, NODE_AMOUNT_MAX)
            held = view.allocated.get(numa)
            if held is None:
                continue
            left = view.available[numa]
            for name, amount in held.items():
                index = index_of.get(name)
                if index is not None:
                    used[slot * width + index] = min(amount, NODE_AMOUNT_MAX)
                    available[slot * width + index] = min(left[name], NODE_AMOUNT_MAX)
        gap = (0,) * (slots - len(zones))
        any_cpu, whole, single = view.usable_counts
        self._live_of[row] = (
            *available, *used,
            *any_cpu, *gap, *whole, *gap, *single, *gap,
            *(cpus.bit_count() for cpus in view.usable),
            *(STATUSES[view.statuses.get(numa, NUMAStatus.IDLE)] for numa in zones), *gap,
            view.pinned_count, view.pinned_milli,
        )  # fmt: skip
        self._live[:, row] = self._live_of[row]

    def signature(self, row: int, facts: NodeTopologyFacts) -> bytes:
        """Equal for rows on which every pod is judged alike, as long as CPU is not amplified; needs
        `NUMAAllocations.sync`."""
        parts = (
            np.array((*facts.zones, -1)),
            self._live[:, row],
            self._fixed[:, row],
            self._ratio[row : row + 1],
        )
        return b"|".join(part.tobytes() for part in parts)


log = logging.getLogger(__name__)

_NO_KIND: Hashable = kind_of(NO_FACTS)


class NodeNUMARecord:
    """A row: what the node is like, and what its pods hold. The latter may be known first."""

    def __init__(self) -> None:
        self.facts: NodeTopologyFacts = NO_FACTS
        self.kind: Hashable = _NO_KIND
        self.node_allocation = NodeAllocation()
        self.held = ReservedHoldings(self.node_allocation)
        self.view = NUMANodeView()
        """Both of it, as of the last `NUMAAllocations.sync`."""


class NUMAAllocations(ReservableHoldingKeeper[Held, NUMAPlacement]):
    """Records by row, and reports by node name. Columns are brought up to date by `sync`, as late as possible:
    trials move many pods before somebody looks."""

    annotations = (labels.RESOURCE_STATUS, labels.RESOURCE_SPEC, labels.RESERVATION_ALLOCATED)

    def __init__(self, table: NodeTable) -> None:
        super().__init__(table)
        self.columns = NUMAColumns(table.capacity)
        self.topologies = Topologies(TOPOLOGIES_MAX)
        self.special_count = 0
        """Nodes that ordinary pods have to be checked against."""
        self._records: dict[int, NodeNUMARecord] = {}
        self._reports: dict[str, TopologyOptions] = {}
        self._dirty: set[int] = set()

    # Reading

    def at(self, row: int) -> NodeNUMARecord:
        """Return the record of a row, an empty one if nothing was heard of it."""
        record = self._records.get(row)
        if record is None:
            record = self._records[row] = NodeNUMARecord()
        return record

    def sync(self) -> None:
        """Bring the columns up to date."""
        if self._dirty:
            for row in self._dirty:
                record = self.at(row)
                record.view = NUMANodeView.of(record.facts, record.node_allocation)
                self.columns.set_view(row, record.view)
            self._dirty.clear()

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
        record.facts, record.kind = facts, kind_of(facts)
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

    def reserve(
        self, row: int, pod: PodInfo, placement: NUMAPlacement, exclusive: str, reservation: str = ""
    ) -> None:
        """Give an assumed pod what was found for it, out of the Reservation with this uid if there is one."""
        holding = holdings.held(pod.uid, placement.allocation, exclusive)
        if holding is not None:
            self._hold(row, pod.uid, Held(holding, reservation, stands_for_reservation(pod.pod.metadata)))
        self._chosen[pod.uid] = placement

    def reserved_by(self, row: int, uid: str) -> tuple[NodeAllocation, PodHolding] | None:
        """Return what is left of a Reservation on a row, and the allocation of the node with it: also when a trial took
        the reserve pod away. None when it holds nothing of ours."""
        record = self.at(row)
        held = record.held.held(uid)
        if held is not None:
            return record.node_allocation, record.node_allocation.holdings[uid]
        aside = self._aside.get(uid)
        if aside is None or aside[0] != row:
            return None
        whole = self.with_reservations(row)
        return whole, whole.holdings[uid]

    def with_reservations(self, row: int) -> NodeAllocation:
        """Return the allocation of a node with the Reservations that a trial took from it."""
        record = self.at(row)
        away = [each for each in self._aside_at.get(row, {}).values() if each.is_reservation]
        if not away:
            return record.node_allocation
        whole = NodeAllocation()
        rests = (record.held.rest(each.holding) for each in away)
        for holding in (*record.node_allocation.holdings.values(), *rests):
            whole.add(holding)
        return whole

    def _written(self, pod: PodInfo) -> Held | None:
        annotations = pod.pod.metadata.annotations
        if labels.RESOURCE_STATUS not in annotations:
            return None
        allocated = RESERVATION_ALLOCATED.read(annotations, f"Pod {pod.key}")
        holding = holdings.holding_of(pod.pod, pod.uid)
        if holding is None:
            return None
        uid = allocated.uid if allocated is not None else ""
        return Held(holding, uid, stands_for_reservation(pod.pod.metadata))

    def _held(self, row: int, pod: PodInfo) -> Held | None:
        record = self._records.get(row)
        return record.held.held(pod.uid) if record is not None else None

    def _hold(self, row: int, uid: str, held: Held) -> bool:
        if not self.at(row).held.hold(held):
            return False
        self._dirty.add(row)
        return True

    def _release(self, row: int, uid: str) -> bool:
        record = self._records.get(row)
        if record is None or not record.held.release(uid):
            return False
        self._dirty.add(row)
        return True
