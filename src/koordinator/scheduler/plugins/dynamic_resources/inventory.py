"""The devices of all slices: a number per device, columns over the numbers, kept current slice by slice.

Of a pool only the slices of the newest generation count. Devices on one node and those that several nodes reach
are kept apart: the first in a matrix of nodes, the others in groups that say which nodes reach them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.affinity import NodeSelector
from koordinator.api.core import Node
from koordinator.api.dra import DeviceTaint, DeviceTaintRule, ResourceSlice
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.events import newest
from koordinator.scheduler.plugins.dynamic_resources import slice_devices
from koordinator.scheduler.plugins.dynamic_resources.shared_counters import (
    Codes,
    Consumption,
    CounterName,
    PoolCounters,
    PoolError,
    SharedCounters,
    consumption,
    counter_totals,
)
from koordinator.scheduler.plugins.dynamic_resources.slice_devices import (
    DeviceKey,
    DeviceUse,
    SliceDevice,
    check_names,
    entries_of,
    gate_lacking,
    has_conditions,
)
from koordinator.scheduler.table.columns import grown, tally
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper

PoolKey = tuple[str, str]
Numbers = npt.NDArray[np.int32]

FINE, INCOMPLETE, INVALID = 0, 1, 2
"""State of a device's pool: all slices seen; some missing; not to be used."""
NOWHERE = -1
_SIZE_INITIAL = 64


class Inventory(RowKeeper):
    """All devices. `version` grows when what is offered may have changed.

    Columns over numbers (devices,): `node` (number of the node, `NOWHERE` for shared ones), `group` (of those that
    reach several nodes, else `NOWHERE`), `trouble`, `is_used`, and `stamp`, which grows when a number gets
    another device. `is_alive` tells numbers that stand for a device, `is_multi` those that several claims may share,
    `is_last` those of pools with devices that have to be made ready, which come after all others.

    `gates` are set before the first slice comes: without those of dynamic resource allocation, what objects say of a
    feature is ignored.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.version = 0
        self.stamp_now = 0
        self._rules: dict[str, DeviceTaintRule] = {}
        self.entries: list[SliceDevice] = []
        """By number; where that stands for no device any more, the last one that it stood for."""
        self.number_of: dict[DeviceKey, int] = {}
        self.invalid: dict[PoolKey, str] = {}
        """Pools that are not to be used, and why."""
        self._left_out: dict[PoolKey, list[tuple[str, str]]] = {}
        """(node, gate) of slices with devices that are left out; "" is any node."""
        self._free: list[int] = []
        self._slices: dict[str, ResourceSlice] = {}
        self.gates = FeatureGates.of(Component.SCHEDULER)
        self._pools: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._members: dict[PoolKey, list[int]] = {}
        self._dirty: dict[PoolKey, None] = {}
        self.node = np.full(_SIZE_INITIAL, NOWHERE, np.int32)
        self.group = np.full(_SIZE_INITIAL, NOWHERE, np.int32)
        self.trouble = np.zeros(_SIZE_INITIAL, np.int8)
        self.is_used = np.zeros(_SIZE_INITIAL, np.bool_)
        self.is_alive = np.zeros(_SIZE_INITIAL, np.bool_)
        self.is_multi = np.zeros(_SIZE_INITIAL, np.bool_)
        self.is_last = np.zeros(_SIZE_INITIAL, np.bool_)
        self.stamp = np.zeros(_SIZE_INITIAL, np.int64)
        self.used_keys: dict[DeviceKey, int] = {}
        """Times that each device is given away whole."""
        self.shares: dict[DeviceKey, int] = {}
        """Number of shares of each device that are given away."""
        self.consumed: dict[DeviceKey, dict[str, int]] = {}
        """Amount that they take of each capacity, in billionths."""
        self.share_looks = Codes()
        """Devices that several claims may share, by number: alike when they have the same, and as much of it left."""
        self.counters = SharedCounters()
        self._counter_pools: dict[PoolKey, PoolCounters] = {}
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
        """Nodes that each group reaches; None reaches all."""
        self.members: list[list[int]] = []
        """Numbers of each group, in order."""

    # Slices

    def set_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """A slice came, changed or went. Telling it twice does no harm."""
        name = newest(old, new).metadata.name
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

    def set_rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        """A rule came, changed or went: the devices that it is or was about are new to those who judge them."""
        name = newest(old, new).metadata.name
        known = self._rules.pop(name, None)
        if new is not None:
            self._rules[name] = new
        self.refresh()
        self.stamp_now += 1
        for pool, members in self._members.items():
            for rule in (known, new):
                if rule is None or not slice_devices.selects_pool(rule, pool):
                    continue
                for number in members:
                    if slice_devices.selects(rule, self.entries[number].key):
                        self.stamp[number] = self.stamp_now
        self.version += 1

    def taints_of(self, entry: SliceDevice) -> list[DeviceTaint]:
        """Return the taints of a device that count: those of its slice, and those of rules."""
        if not self.gates.is_on("DRADeviceTaints"):
            return []
        rules = (rule for rule in self._rules.values() if slice_devices.selects(rule, entry.key))
        return [*entry.device.taints, *(rule.spec.taint for rule in rules)]

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
        counters = self._counter_pools.pop(pool, None)
        if counters is not None:
            self.counters.remove_pool(counters)
        for number in self._members.pop(pool, ()):
            key, node, group = self.entries[number].key, int(self.node[number]), int(self.group[number])
            if node != NOWHERE:
                self._on_node[node].remove(number)
                touched.add(node)
            else:
                self.members[group].remove(number)
                groups.add(group)
            self.is_alive[number] = self.is_used[number] = False
            self.is_multi[number] = self.is_last[number] = False
            self.counters.remove_device(number)
            self.share_looks.set(number, None)
            self.node[number] = self.group[number] = NOWHERE
            if self.number_of.get(key) == number:
                del self.number_of[key]
            self._free.append(number)

    def _enter(self, pool: PoolKey, touched: set[int], groups: set[int]) -> None:
        self.invalid.pop(pool, None)
        self._left_out.pop(pool, None)
        slices = self._pools.get(pool)
        if not slices:
            self._pools.pop(pool, None)
            return
        newest = max(each.spec.pool.generation for each in slices.values())
        current = [slices[name] for name in sorted(slices) if slices[name].spec.pool.generation == newest]
        entries = [entry for each in current for entry in entries_of(each, self.gates)]
        lacking = [(each.spec.node_name or "", gate_lacking(each, self.gates)) for each in current]
        if left_out := [(node, gate) for node, gate in lacking if gate]:
            self._left_out[pool] = left_out
        trouble = FINE if len(current) == current[0].spec.pool.resource_slice_count else INCOMPLETE
        totals: dict[CounterName, int] = {}
        takes: dict[str, Consumption] = {}
        try:
            check_names(each.name for a_slice in current for each in a_slice.spec.devices)
            if self.gates.is_on("DRAPartitionableDevices") and trouble == FINE:
                totals = counter_totals(current)
                places = {name: place for place, name in enumerate(totals)}
                for a_slice in current:
                    takes.update((each.name, consumption(each, places)) for each in a_slice.spec.devices)
        except PoolError as error:
            self.invalid[pool], trouble = str(error), INVALID
        is_last = self.gates.is_on("DRADeviceBindingConditions") and any(map(has_conditions, current))
        for entry in entries:
            number = self._number_for(entry)
            self.is_last[number] = is_last
            self._members.setdefault(pool, []).append(number)
            self._place(number, entry, touched, groups)
            self.trouble[number] = trouble
        if totals and trouble == FINE:
            self._open_counters(pool, totals, takes)

    def _open_counters(
        self, pool: PoolKey, totals: dict[CounterName, int], takes: dict[str, Consumption]
    ) -> None:
        """Count what the pool's devices take that are given away."""
        members = self._members.get(pool, ())
        nodes = {int(self.node[number]) for number in members}
        book = self._counter_pools[pool] = self.counters.add_pool(
            list(totals.values()), is_of_one_node=len(nodes) == 1 and NOWHERE not in nodes
        )
        for number in members:
            key = self.entries[number].key
            if taken := takes[key[2]]:
                self.counters.add_device(number, book, taken)
                if self._is_given(key):
                    self.counters.take(number, 1)

    def _number_for(self, entry: SliceDevice) -> int:
        if self._free:
            number = self._free.pop()
            self.entries[number] = entry
            return number
        self.entries.append(entry)
        size = len(self.entries)
        if size > (room := self.node.size):
            for name in ("node", "group", "trouble", "is_used", "is_alive", "is_multi", "is_last", "stamp"):
                fill = NOWHERE if name in ("node", "group") else 0
                setattr(self, name, grown(getattr(self, name), 2 * room, fill))
        return size - 1

    def _place(self, number: int, entry: SliceDevice, touched: set[int], groups: set[int]) -> None:
        self.number_of[entry.key] = number
        self.is_alive[number] = True
        self.is_used[number] = entry.key in self.used_keys
        self.stamp[number] = self.stamp_now
        self.is_multi[number] = self.gates.is_on("DRAConsumableCapacity") and bool(
            entry.device.allow_multiple_allocations
        )
        self._look_at_shares(number, entry)
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
        return self.entries[number].order

    # Nodes

    def _node_id(self, name: str) -> int:
        found = self._node_ids.get(name)
        if found is None:
            found = self._node_ids[name] = len(self._on_node)
            self._on_node.append([])
            if found >= self.slots.shape[0]:
                self.slots = grown(self.slots, 2 * found, NOWHERE, axis=0)
            row = self._table.row_of(name)
            if row is not None:
                self._seat(found, row)
        return found

    def _line_up(self, node: int) -> None:
        numbers = self._on_node[node]
        numbers.sort(key=self._order)
        width = self.slots.shape[1]
        if len(numbers) > width:
            self.slots = grown(self.slots, max(len(numbers), 2 * width), NOWHERE)
        self.counters.line_up(numbers)
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
            self.node_at = grown(self.node_at, max(self._table.capacity, row + 1), NOWHERE)

    # Use

    def take(self, uses: Iterable[DeviceUse], count: int) -> None:
        """Devices are given away once more (1), or once less (-1); they need not be known."""
        for use in uses:
            key = use.key
            was_given = self._is_given(key)
            if use.share is None:
                tally(self.used_keys, key, count)
            else:
                tally(self.shares, key, count)
                consumed = self.consumed.setdefault(key, {})
                for name, amount in use.share:
                    tally(consumed, name, count * amount)
                if not consumed:
                    del self.consumed[key]
            number = self.number_of.get(key)
            if number is None:
                continue
            self.is_used[number] = key in self.used_keys
            self._look_at_shares(number, self.entries[number])
            if self._is_given(key) is not was_given:
                self.counters.take(number, count)
        self.version += 1

    def left_out(self, node_name: str) -> str:
        """Return what a node may lack because a gate is off; "" when nothing is left out."""
        for (driver, pool), slices in sorted(self._left_out.items()):
            for node, gate in slices:
                if node in ("", node_name):
                    return f"pool {driver}/{pool} has devices that need the feature gate {gate}"
        return ""

    # Looks

    @property
    def has_looks(self) -> bool:
        """Return whether there are devices that share counters, or that several claims may share."""
        return bool(self.counters.looks or self.share_looks)

    @property
    def takes_counters(self) -> npt.NDArray[np.bool_]:
        """Return which devices share counters with others of their pool: (devices,)."""
        return self.counters.has(self.node.size)

    def looks(self) -> Iterator[I64]:
        """Yield columns of numbers, (devices,): devices that are equal in all of them have as much left."""
        size = self.node.size
        if self.share_looks:
            yield self.share_looks.column(size)
        if self.counters.looks:
            yield self.counters.looks.column(size)
            yield self.counters.states_of(size)

    def room(self, numbers: Iterable[int]) -> list[list[int] | None]:
        """Return what is left of each capacity of the devices that several claims may share, in the order of the names;
        None for the others."""
        return [self._left(number) if self.is_multi[number] else None for number in numbers]

    def _left(self, number: int) -> list[int]:
        entry = self.entries[number]
        try:
            terms = entry.capacity_terms
        except QuantityError:
            return []  # no selection has the device
        consumed = self.consumed.get(entry.key, {})
        return [each.value.nanos - consumed.get(name, 0) for name, each in terms.items()]

    def is_shared(self, numbers: Iterable[int]) -> list[bool]:
        """Return whether some claim has a share of each device."""
        return [self.entries[number].key in self.shares for number in numbers]

    def _is_given(self, key: DeviceKey) -> bool:
        """Return whether somebody has the device, or a share of it."""
        return key in self.used_keys or key in self.shares

    def _look_at_shares(self, number: int, entry: SliceDevice) -> None:
        if not self.is_multi[number]:
            return
        consumed = tuple(sorted(self.consumed.get(entry.key, {}).items()))
        self.share_looks.set(number, (entry.capacity_text, consumed, entry.key in self.shares))
