"""The devices of all slices: a number per device, columns over the numbers, kept current slice by slice.

Of a pool only the slices of the newest generation count. Devices on one node and those that several nodes reach
are kept apart: the first in a matrix of nodes, the others in groups that say which nodes reach them.
"""

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import quantity
from koordinator.api.affinity import NodeSelector
from koordinator.api.core import Node
from koordinator.api.dra import Device, DeviceAttribute, ResourceSlice
from koordinator.api.quantity import QuantityError
from koordinator.cel.values import EvaluationError, Semver
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper

DeviceKey = tuple[str, str, str]
"""(driver, pool, device): a device's name in the cluster."""
PoolKey = tuple[str, str]
Numbers = npt.NDArray[np.int32]

FINE, INCOMPLETE, INVALID = 0, 1, 2
"""State of a device's pool: all slices seen; some missing; not to be used."""
NOWHERE = -1
_SIZE_INITIAL = 64


class SliceDevice(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A device and where it comes from. `reach` is None for a device of one node."""

    key: DeviceKey
    device: Device
    node_name: str
    reach: NodeSelector | None
    order: tuple[Any, ...]

    @functools.cached_property
    def as_seen(self) -> dict[str, Any]:
        """The variable `device` of selectors. Raises: EvaluationError when a value is none of its type."""
        driver = self.key[0]
        attributes, capacity = _Domains(), _Domains()
        for name, attribute in self.device.attributes.items():
            domain, _, local = name.rpartition("/")
            attributes.setdefault(domain or driver, {})[local] = _attribute(attribute)
        for name, amount in self.device.capacity.items():
            domain, _, local = name.rpartition("/")
            try:
                capacity.setdefault(domain or driver, {})[local] = quantity.of(amount.value)
            except QuantityError as error:
                raise EvaluationError(str(error)) from error
        return {
            "driver": driver,
            "attributes": attributes,
            "capacity": capacity,
            "allowMultipleAllocations": bool(self.device.allow_multiple_allocations),
        }

    def attribute(self, name: str) -> tuple[str, Any] | None:
        """(type, value) of an attribute by its full name; those without a domain are the driver's."""
        found = self.device.attributes.get(name)
        domain, _, local = name.rpartition("/")
        if found is None and domain == self.key[0]:
            found = self.device.attributes.get(local)
        return None if found is None else _typed(found)


class _Domains(dict[str, dict[str, Any]]):
    """Attributes by domain; other domains have none, which is no error."""

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}


def _attribute(attribute: DeviceAttribute) -> Any:
    kind, value = _typed(attribute)
    return Semver.of(value) if kind == "version" else value


def _typed(attribute: DeviceAttribute) -> tuple[str, Any]:
    for kind, value in (
        ("int", attribute.int_),
        ("bool", attribute.bool_),
        ("string", attribute.string),
        ("version", attribute.version),
    ):
        if value is not None:
            return kind, value
    return "", None


class Inventory(RowKeeper):
    """All devices. `version` grows when what is offered may have changed.

    Columns over numbers (devices,): `node` (number of the node, `NOWHERE` for shared ones), `group` (of those that
    reach several nodes, else `NOWHERE`), `trouble`, `is_used`, and `stamp`, which grows when a number gets
    another device. `is_alive` tells numbers that stand for a device.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.version = 0
        self.stamp_now = 0
        self.entries: list[SliceDevice | None] = []
        self.number_of: dict[DeviceKey, int] = {}
        self.invalid: dict[PoolKey, str] = {}
        """Pools that are not to be used, and why."""
        self._free: list[int] = []
        self._slices: dict[str, ResourceSlice] = {}
        self._pools: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._members: dict[PoolKey, list[int]] = {}
        self._dirty: dict[PoolKey, None] = {}
        self.node = np.full(_SIZE_INITIAL, NOWHERE, np.int32)
        self.group = np.full(_SIZE_INITIAL, NOWHERE, np.int32)
        self.trouble = np.zeros(_SIZE_INITIAL, np.int8)
        self.is_used = np.zeros(_SIZE_INITIAL, np.bool_)
        self.is_alive = np.zeros(_SIZE_INITIAL, np.bool_)
        self.stamp = np.zeros(_SIZE_INITIAL, np.int64)
        self.used_keys: dict[DeviceKey, int] = {}
        """How often each device is given away."""
        # Nodes by number: they get one when a slice names them.
        self._node_ids: dict[str, int] = {}
        self._on_node: list[list[int]] = []
        self.slots: Numbers = np.full((_SIZE_INITIAL, 8), NOWHERE, np.int32)
        """(nodes, most devices of one): numbers of a node's devices in order, `NOWHERE` beyond the last."""
        self.node_at: Numbers = np.full(table.capacity, NOWHERE, np.int32)
        """(rows,): number of the node on each row."""
        self._row_of: dict[int, int] = {}
        # Groups of shared devices by what they reach.
        self._groups: dict[bytes, int] = {}
        self.reaches: list[NodeSelector | None] = []
        """Of each group; None reaches all nodes."""
        self.members: list[list[int]] = []
        """Numbers of each group, in order."""

    # Slices

    def set_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """A slice came, changed or went. Telling it twice does no harm."""
        name = (new if new is not None else old).metadata.name  # type: ignore[union-attr]
        known = self._slices.get(name)
        if known is new:
            return
        for each in (known, new):
            if each is not None:
                pool = (each.spec.driver, each.spec.pool.name)
                self._dirty[pool] = None
                if each is known:
                    self._pools[pool].pop(name, None)
        if new is None:
            self._slices.pop(name, None)
        else:
            self._slices[name] = new
            self._pools.setdefault((new.spec.driver, new.spec.pool.name), {})[name] = new
        self.version += 1

    def refresh(self) -> None:
        """Bring the columns up to date with the slices: costs as much as the pools that changed are large."""
        if not self._dirty:
            return
        self.stamp_now += 1
        touched: set[int] = set()
        groups: set[int] = set()
        for pool in self._dirty:
            self._retire(pool, touched, groups)
            self._enter(pool, touched, groups)
        self._dirty.clear()
        for node in touched:
            self._line_up(node)
        for group in groups:
            self.members[group].sort(key=self._order)

    def _retire(self, pool: PoolKey, touched: set[int], groups: set[int]) -> None:
        for number in self._members.pop(pool, ()):
            entry = self.entries[number]
            assert entry is not None, number
            node, group = int(self.node[number]), int(self.group[number])
            if node != NOWHERE:
                self._on_node[node].remove(number)
                touched.add(node)
            else:
                self.members[group].remove(number)
                groups.add(group)
            self.entries[number] = None
            self.is_alive[number] = self.is_used[number] = False
            self.node[number] = self.group[number] = NOWHERE
            if self.number_of.get(entry.key) == number:
                del self.number_of[entry.key]
            self._free.append(number)

    def _enter(self, pool: PoolKey, touched: set[int], groups: set[int]) -> None:
        self.invalid.pop(pool, None)
        slices = self._pools.get(pool)
        if not slices:
            self._pools.pop(pool, None)
            return
        newest = max(each.spec.pool.generation for each in slices.values())
        current = [slices[name] for name in sorted(slices) if slices[name].spec.pool.generation == newest]
        entries = [entry for each in current for entry in entries_of(each)]
        trouble = FINE if len(current) == current[0].spec.pool.resource_slice_count else INCOMPLETE
        double = _first_double(each.name for a_slice in current for each in a_slice.spec.devices)
        if double:
            self.invalid[pool] = f"duplicate device name {double}"
            trouble = INVALID
        for entry in entries:
            number = self._number()
            self._members.setdefault(pool, []).append(number)
            self._place(number, entry, touched, groups)
            self.trouble[number] = trouble

    def _number(self) -> int:
        if self._free:
            return self._free.pop()
        self.entries.append(None)
        size = len(self.entries)
        if size > self.node.size:
            for name in ("node", "group", "trouble", "is_used", "is_alive", "stamp"):
                values = getattr(self, name)
                more = np.full(values.size, NOWHERE if name in ("node", "group") else 0, values.dtype)
                setattr(self, name, np.concatenate([values, more]))
        return size - 1

    def _place(self, number: int, entry: SliceDevice, touched: set[int], groups: set[int]) -> None:
        self.entries[number] = entry
        self.number_of[entry.key] = number
        self.is_alive[number] = True
        self.is_used[number] = entry.key in self.used_keys
        self.stamp[number] = self.stamp_now
        if entry.node_name:
            node = self._node_id(entry.node_name)
            self.node[number] = node
            self._on_node[node].append(number)
            touched.add(node)
        else:
            group = self._group_id(entry.reach)
            self.group[number] = group
            self.members[group].append(number)
            groups.add(group)

    def _group_id(self, reach: NodeSelector | None) -> int:
        key = msgspec.json.encode(reach)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = len(self.reaches)
            self.reaches.append(reach)
            self.members.append([])
        return found

    def _order(self, number: int) -> tuple[Any, ...]:
        entry = self.entries[number]
        assert entry is not None, number
        return entry.order

    # Nodes

    def _node_id(self, name: str) -> int:
        found = self._node_ids.get(name)
        if found is None:
            found = self._node_ids[name] = len(self._on_node)
            self._on_node.append([])
            if found >= self.slots.shape[0]:
                self.slots = np.concatenate([self.slots, np.full_like(self.slots, NOWHERE)])
            row = self._table.row_of(name)
            if row is not None:
                self._seat(found, row)
        return found

    def _line_up(self, node: int) -> None:
        numbers = self._on_node[node]
        numbers.sort(key=self._order)
        missing = len(numbers) - self.slots.shape[1]
        if missing > 0:
            more = np.full((self.slots.shape[0], max(missing, self.slots.shape[1])), NOWHERE, np.int32)
            self.slots = np.concatenate([self.slots, more], axis=1)
        self.slots[node] = NOWHERE
        self.slots[node, : len(numbers)] = numbers

    def _seat(self, node: int, row: int) -> None:
        self._seat_more(row)
        self.node_at[row] = node
        self._row_of[node] = row

    def node_changed(self, row: int, node: Node) -> None:
        found = self._node_ids.get(node.metadata.name)
        if found is not None:
            self._seat(found, row)
        elif row < self.node_at.size:
            self.node_at[row] = NOWHERE

    def row_freed(self, row: int) -> None:
        if row < self.node_at.size:
            self.node_at[row] = NOWHERE

    def nodes_of(self, rows: npt.NDArray[np.intp]) -> Numbers:
        """Return number of the node on each of the rows, `NOWHERE` for those without devices of their own."""
        self._seat_more(int(rows[-1]) if rows.size else -1)
        return self.node_at[rows]

    def _seat_more(self, row: int) -> None:
        if row >= self.node_at.size:
            more = np.full(max(self._table.capacity, row + 1) - self.node_at.size, NOWHERE, np.int32)
            self.node_at = np.concatenate([self.node_at, more])

    # Use

    def take(self, keys: Iterable[DeviceKey], count: int) -> None:
        """Devices are given away once more (1), or once less (-1); they need not be known."""
        for key in keys:
            left = self.used_keys.get(key, 0) + count
            if left > 0:
                self.used_keys[key] = left
            else:
                self.used_keys.pop(key, None)
            number = self.number_of.get(key)
            if number is not None:
                self.is_used[number] = left > 0
        self.version += 1


def entries_of(a_slice: ResourceSlice) -> list[SliceDevice]:
    """Devices of a slice that can be given away whole: not those that are parts of others, or that have to be
    attached to a node first."""
    spec = a_slice.spec
    if spec.per_device_node_selection:
        return []
    reach = None if spec.node_name or spec.all_nodes else spec.node_selector
    if not (spec.node_name or spec.all_nodes or reach is not None):
        return []
    found = []
    for index, device in enumerate(spec.devices):
        if device.consumes_counters or device.binding_conditions:
            continue
        key = (spec.driver, spec.pool.name, device.name)
        order = (spec.driver, spec.pool.name, a_slice.metadata.name, index)
        found.append(SliceDevice(key, device, spec.node_name or "", reach, order))
    return found


def _first_double(names: Iterable[str]) -> str:
    counts = itertools.groupby(sorted(names))
    return next((name for name, group in counts if len(list(group)) > 1), "")
