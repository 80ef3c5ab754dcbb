"""The node table: a row per node, a NumPy column per fact, kept current in place.

Rows of vanished nodes are reused. A row also stands for a node that is only known from pods on it; such a row is
not alive. Changes are logged row by row, so that a cached evaluation can be brought up to date without looking at
the other rows.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import resource_vector, resources
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_vector import I64, ResourceRegistry
from koordinator.scheduler.table.columns import (
    AnswerPatterns,
    ChangeLog,
    ColumnSpec,
    LeastFree,
    NodeAspect,
    RowChange,
    Rows,
    TableColumn,
    aspects_of,
    at,
)
from koordinator.scheduler.table.pod_info import PodInfo

SMALL_AMOUNT_MAX = 1 << 46
"""Up to here (64 TiB of memory) 64-bit floating point computes percentages of amounts exactly, several times
as fast as integers: a hundred times the amount, and a quotient's distance from the next integer, fit 53 bits."""

NODE_AMOUNT_MAX = 1 << 56
"""Allocatable saturates here (64 PiB of memory): a hundred times it still fits 64 bits in score formulas."""

_ROWS_INITIAL = 64
_NONZERO_COLUMNS = (resource_vector.CPU_COLUMN, resource_vector.MEMORY_COLUMN)
assert _NONZERO_COLUMNS == (0, 1), "slices of columns rely on it"

F64 = npt.NDArray[np.float64]


class RowKeeper:
    """Keeps facts of its own in step with the table. Called after the table's own columns were updated.

    A keeper that looks at pods overrides `pod_assigned`.

    `in_trials`: whether pods that only a trial adds or takes away are told, too. A keeper of more than counts
    (times, usage) says no, and judges trials by how things are. Of pods that a rehearsal adds all are told;
    `in_takes`: of those that it takes away, too.
    """

    in_trials: ClassVar[bool] = True
    in_takes: ClassVar[bool] = True

    def tied_rows(self) -> Iterable[int]:
        """Return rows where what a pod holds depends on which others are there."""
        return ()

    def node_changed(self, row: int, node: Node) -> None:
        """Note that a node came, or its object changed in more than conditions."""

    def row_freed(self, row: int) -> None:
        """Neither node nor pods are left; columns are cleared by the table."""

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        """Note that a pod counts on the row from now on, assumed or confirmed."""

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        """Note that the object of a pod on the row changed."""

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        """Note that a pod counts on the row no more."""


K = TypeVar("K", bound=RowKeeper)


class PodLocation(msgspec.Struct):
    """The row where a pod counts. `assumed`: we decided it, the API has not confirmed yet."""

    row: int
    pod: PodInfo
    assumed: bool


class NodeTable:
    """All nodes and the pods that count on them."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self.registry = registry
        self.capacity = _ROWS_INITIAL
        self.changes = ChangeLog(self.capacity)
        self.membership = 0
        """Grows when a node comes or goes, or the table itself grows: cached row sets are void."""
        self._patterns: AnswerPatterns | None = None
        self._columns: dict[str, TableColumn] = {}
        self._keepers: list[RowKeeper] = []
        self._node_keepers: list[RowKeeper] = []
        self._pod_keepers: list[RowKeeper] = []
        self.is_trial = False
        """True while pods are only for a moment where they are (`trial.trial`)."""
        self._row_of: dict[str, int] = {}
        self._free_rows: list[int] = []
        self._row_count = 0
        self._names: list[str] = []
        self._nodes: list[Node | None] = []
        self._pods: list[dict[str, PodInfo]] = []
        self._places: dict[str, PodLocation] = {}
        self.assumed_count = 0
        """Pods that count on nodes without the API having said so."""
        self._alive_rows: Rows | None = None

        width = len(registry)
        self._allocatable = self.add_column(ColumnSpec("allocatable", np.int64, width))
        self._requested = self.add_column(ColumnSpec("requested", np.int64, width))
        self._nonzero = self.add_column(ColumnSpec("nonzeroRequested", np.int64, 2))
        self._pod_count = self.add_column(ColumnSpec("podCount", np.int64))
        self._pods_max = self.add_column(ColumnSpec("allocatablePods", np.int64))
        self._free = self.add_column(ColumnSpec("free", np.int64, width))
        self._free_pods = self.add_column(ColumnSpec("freePods", np.int64))
        self._free_hundredths = self.add_column(ColumnSpec("freeHundredths", np.float64, 2))
        self._nonzero_free_hundredths = self.add_column(ColumnSpec("nonzeroFreeHundredths", np.float64, 2))
        self._used = self.add_column(ColumnSpec("used", np.float64, 2))
        self._divisor = self.add_column(ColumnSpec("divisor", np.float64, width, fill=1.0))
        self.least_free = LeastFree()
        self.has_small_amounts = True
        """True while no allocatable amount was ever above `SMALL_AMOUNT_MAX`."""
        self._everywhere: dict[int, bool] = {}
        self._is_alive = self.add_column(ColumnSpec("isAlive", np.bool_, fill=False))
        self._is_unschedulable = self.add_column(ColumnSpec("isUnschedulable", np.bool_, fill=False))

    # Columns

    @property
    def allocatable(self) -> I64:
        """(resources, rows), in the units of `api.resource_vector`."""
        return self._allocatable.values

    @property
    def requested(self) -> I64:
        """(resources, rows): sum of what the pods of each node request."""
        return self._requested.values

    @property
    def nonzero_requested(self) -> I64:
        """(2, rows): milli-cores and bytes with the defaults for containers that do not say."""
        return self._nonzero.values

    @property
    def pod_count(self) -> I64:
        """(rows,)"""
        return self._pod_count.values

    @property
    def pods_max(self) -> I64:
        """(rows,): allocatable `pods`."""
        return self._pods_max.values

    @property
    def free(self) -> I64:
        """(resources, rows): `allocatable` - `requested`."""
        return self._free.values

    @property
    def free_pods(self) -> I64:
        """(rows,): `pods_max` - `pod_count`."""
        return self._free_pods.values

    @property
    def free_hundredths(self) -> F64:
        """(2, rows): 100 times `free` of milli-cores and bytes, in floating point."""
        return self._free_hundredths.values

    @property
    def nonzero_free_hundredths(self) -> F64:
        """(2, rows): the same of allocatable milli-cores and bytes less `nonzero_requested`."""
        return self._nonzero_free_hundredths.values

    @property
    def divisor(self) -> F64:
        """(resources, rows): `allocatable`, but 1 where there is none."""
        return self._divisor.values

    @property
    def used(self) -> F64:
        """(2, rows): `requested` of the same two resources, in floating point."""
        return self._used.values

    @property
    def nonzero_divisor(self) -> F64:
        """(2, rows): `divisor` of milli-cores and bytes."""
        return self._divisor.values[: len(_NONZERO_COLUMNS)]

    def is_everywhere(self, column: int) -> bool:
        """Return whether all nodes have something of a resource."""
        found = self._everywhere.get(column)
        if found is None:
            found = self._everywhere[column] = bool(self.allocatable[column].take(self.rows).all())
        return found

    @property
    def is_unschedulable(self) -> npt.NDArray[np.bool_]:
        """(rows,): `spec.unschedulable`."""
        return self._is_unschedulable.values

    def add_column(self, spec: ColumnSpec) -> TableColumn:
        """Return a column that grows with the table and is cleared when a row is freed; one per name."""
        assert spec.name not in self._columns, spec.name
        column = self._columns[spec.name] = TableColumn(spec, self.capacity)
        return column

    def add_keeper(self, keeper: RowKeeper) -> None:
        """Tell `keeper` about all later changes, and about everything there is already."""
        self._keepers.append(keeper)
        if type(keeper).node_changed is not RowKeeper.node_changed:
            self._node_keepers.append(keeper)
        if type(keeper).pod_assigned is not RowKeeper.pod_assigned:
            self._pod_keepers.append(keeper)  # not everybody looks at pods, and they come often
        for row, node in enumerate(self._nodes):
            if node is not None:
                keeper.node_changed(row, node)
        for place in self._places.values():
            keeper.pod_assigned(place.row, place.pod)

    def shared(self, kind: Callable[["NodeTable"], K]) -> K:
        """Return the table's one keeper of a kind that several plugins read; made when first asked for."""
        found = next((each for each in self._keepers if type(each) is kind), None)
        if found is None:
            found = kind(self)
            self.add_keeper(found)
        return cast(K, found)

    def tied_rows(self) -> set[int]:
        """Return rows where more changes than its own amounts when a pod leaves."""
        return {row for keeper in self._keepers for row in keeper.tied_rows()}

    def start_over(self) -> None:
        """Make all evaluations void: something changed that PreFilter goes by."""
        self.membership += 1

    # Reading

    @property
    def patterns(self) -> AnswerPatterns:
        """Return what evaluations share as long as no node comes or goes."""
        found = self._patterns
        if found is None or found.membership != self.membership:
            found = self._patterns = AnswerPatterns.of(self.rows, self.capacity, self.membership)
        return found

    @property
    def rows(self) -> Rows:
        """Return the rows of all nodes that exist, ascending: (nodes,)."""
        if self._alive_rows is None:
            self._alive_rows = np.flatnonzero(self._is_alive.values)
            self._alive_rows.setflags(write=False)
        return self._alive_rows

    @property
    def node_count(self) -> int:
        return int(self.rows.size)

    def row_of(self, name: str) -> int | None:
        """Return the row of an existing node."""
        row = self._row_of.get(name)
        return row if row is not None and self._nodes[row] is not None else None

    def name_of(self, row: int) -> str:
        return self._names[row]

    def node_at(self, row: int) -> Node | None:
        """Return the node object; None when only its pods are known."""
        return self._nodes[row] if row < len(self._nodes) else None

    def pods_at(self, row: int) -> Mapping[str, PodInfo]:
        """Return pods that count on a row, by uid."""
        return self._pods[row]

    def places(self) -> Iterable[PodLocation]:
        """Return where all pods count."""
        return self._places.values()

    def place_of(self, uid: str) -> PodLocation | None:
        return self._places.get(uid)

    # Nodes

    def set_node(self, node: Node) -> NodeAspect:
        """Enter a node or its new state; what differs from before. Raises: ProtocolError when an allocatable amount is
        no quantity (the row keeps its last state)."""
        name = node.metadata.name
        allocatable, pods_max = self._read_allocatable(node)
        row = self._row_for(name)
        old = self._nodes[row]
        aspect = aspects_of(old, node)
        self._nodes[row] = node
        if old is None:
            self._is_alive.values[row] = True
            self._alive_rows = None
            self.membership += 1
        if aspect is NodeAspect.NONE or aspect is NodeAspect.CONDITIONS:
            return aspect
        self.widen()
        amounts = [allocatable.get(column, 0) for column in range(len(self._allocatable.values))]
        self._allocatable.values[:, row] = amounts
        self._free.values[:, row] = self._allocatable.values[:, row] - self._requested.values[:, row]
        self._divisor.values[:, row] = [amount or 1 for amount in amounts]
        self._pods_max.values[row] = pods_max
        self._is_unschedulable.values[row] = node.spec.unschedulable
        self._free_pods.values[row] = free_pods = pods_max - self._pod_count.values.item(row)
        self.least_free.pods = min(self.least_free.pods, free_pods)
        for column in _NONZERO_COLUMNS:
            free = self._free.values.item(column, row)
            left = amounts[column] - self._nonzero.values.item(column, row)
            self._free_hundredths.values[column, row] = 100 * free
            self._nonzero_free_hundredths.values[column, row] = 100 * left
            self.least_free.note(column, free, left)
        self._everywhere.clear()
        if max(allocatable.values(), default=0) > SMALL_AMOUNT_MAX:
            self.has_small_amounts = False
        for keeper in self._node_keepers:
            keeper.node_changed(row, node)
        self.changes.add(row, RowChange.NODE)
        return aspect

    def remove_node(self, name: str) -> None:
        """Forget a node; its row stays while pods are known to be on it."""
        row = self.row_of(name)
        if row is None:
            return
        self._nodes[row] = None
        self._is_alive.values[row] = False
        self._alive_rows = None
        self._everywhere.clear()
        self.membership += 1
        self.changes.add(row, RowChange.NODE)
        self._free_if_unused(row)

    # Pods

    def assign(self, pod: PodInfo, node_name: str, *, assumed: bool = False) -> int:
        """Count a pod on a node; the row. Counting it there again brings it up to date."""
        place = self._places.get(pod.uid)
        if place is not None:
            if self._names[place.row] == node_name:
                self._refresh(place, pod, assumed)
                return place.row
            self.unassign(pod.uid)
        self.widen()
        row = self._row_for(node_name)
        self._places[pod.uid] = PodLocation(row, pod, assumed)
        self.assumed_count += assumed
        self._pods[row][pod.uid] = pod
        self._count(row, pod, 1)
        for keeper in self._pod_keepers:
            keeper.pod_assigned(row, pod)
        self.changes.add(row, RowChange.PODS)
        return row

    def unassign(self, uid: str) -> int | None:
        """Count a pod no longer; the row where it was."""
        place = self._places.pop(uid, None)
        if place is None:
            return None
        self.assumed_count -= place.assumed
        row = place.row
        del self._pods[row][uid]
        self._count(row, place.pod, -1)
        for keeper in self._pod_keepers:
            keeper.pod_unassigned(row, place.pod)
        self.changes.add(row, RowChange.PODS)
        self._free_if_unused(row)
        return row

    @contextlib.contextmanager
    def notifying(self, wanted: Callable[[RowKeeper], bool]) -> Iterator[None]:
        """Within: only these keepers are told of pods."""
        keepers, self._pod_keepers = self._pod_keepers, [each for each in self._pod_keepers if wanted(each)]
        try:
            yield
        finally:
            self._pod_keepers = keepers

    def _refresh(self, place: PodLocation, pod: PodInfo, assumed: bool) -> None:
        """Replace a pod on its node by the same pod, perhaps with other contents."""
        self.assumed_count += assumed - place.assumed
        old, place.pod, place.assumed = place.pod, pod, assumed
        self._pods[place.row][pod.uid] = pod
        if not old.asks_like(pod) or old.host_ports != pod.host_ports:
            self.widen()
            self._count(place.row, old, -1)
            self._count(place.row, pod, 1)
            self.changes.add(place.row, RowChange.PODS)
        for keeper in self._pod_keepers:
            keeper.pod_changed(place.row, old, pod)

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        # One number after the other: for so few, an operation on arrays costs several times as much.
        requested, free, used = self._requested.values, self._free.values, self._used.values
        free_hundredths, least = self._free_hundredths.values, self.least_free
        for column, amount in pod.requests:
            total = requested.item(column, row) + sign * amount
            left = free.item(column, row) - sign * amount
            requested[column, row], free[column, row] = total, left
            if column < 2:  # of _NONZERO_COLUMNS
                used[column, row], free_hundredths[column, row] = total, 100 * left
                if left < least.amounts[column]:
                    least.amounts[column] = left
        nonzero, allocatable = self._nonzero.values, self._allocatable.values
        nonzero_free_hundredths = self._nonzero_free_hundredths.values
        for index, amount in enumerate(pod.nonzero_amounts):
            total = nonzero.item(index, row) + sign * amount
            nonzero[index, row] = total
            left = allocatable.item(index, row) - total
            nonzero_free_hundredths[index, row] = 100 * left
            if left < least.nonzero[index]:
                least.nonzero[index] = left
        count, free_pods = self._pod_count.values, self._free_pods.values
        count[row] = count.item(row) + sign
        free_pods[row] = left = free_pods.item(row) - sign
        if left < least.pods:
            least.pods = left

    def look_at_least(self) -> None:
        """Work out `least_free` anew."""
        nonzero_free = self.allocatable[:2] - self.nonzero_requested
        self.least_free.look(*(at(each, self.rows) for each in (self.free_pods, self.free[:2], nonzero_free)))

    # Rows

    def _row_for(self, name: str) -> int:
        row = self._row_of.get(name)
        if row is not None:
            return row
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = self._row_count
            self._row_count += 1
            self._names.append("")
            self._nodes.append(None)
            self._pods.append({})
            if self._row_count > self.capacity:
                self._grow()
        self._row_of[name] = row
        self._names[row] = name
        return row

    def _grow(self) -> None:
        self.capacity *= 2
        for column in self._columns.values():
            column.grow(self.capacity)
        self.changes.grow(self.capacity)
        self.membership += 1

    def widen(self) -> None:
        """Give each resource that the registry knows a column."""
        if len(self.registry) > self._allocatable.values.shape[0]:
            self._allocatable.widen(len(self.registry))
            self._requested.widen(len(self.registry))
            self._free.widen(len(self.registry))
            self._divisor.widen(len(self.registry))

    def restore_order(self, row: int, pods: Mapping[str, PodInfo]) -> None:
        """Put the pods on a row into another order."""
        assert self._pods[row].keys() == pods.keys()
        self._pods[row] = dict(pods)

    def _free_if_unused(self, row: int) -> None:
        if self.is_trial or self._nodes[row] is not None or self._pods[row]:
            return  # what a trial takes away comes back
        for keeper in self._keepers:
            keeper.row_freed(row)
        for column in self._columns.values():
            column.clear(row)
        del self._row_of[self._names[row]]
        self._names[row] = ""
        self._free_rows.append(row)

    def _read_allocatable(self, node: Node) -> tuple[dict[int, int], int]:
        """Column → amount, and how many pods the node takes."""
        amounts: dict[int, int] = {}
        pods_max = 0
        for name, raw in node.status.allocatable.items():
            try:
                number = max(0, min(resource_vector.amount(name, raw), NODE_AMOUNT_MAX))
            except QuantityError as error:
                field = f"status.allocatable[{name}]"
                raise ProtocolError(f"Node {node.metadata.name}", field, str(error)) from error
            if name == resources.PODS:
                pods_max = number
            amounts[self.registry.column(name)] = number
        return amounts, pods_max
