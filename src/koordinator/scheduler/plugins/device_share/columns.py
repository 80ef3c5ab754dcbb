"""Columns of the node table for devices: what each of them offers, and what is left. Source: behaviour/devices 5.1.

Arrays end in the row. A slot is the position of a device among those of its type on its node, by ascending minor; slots
without a device are not healthy and offer nothing. Amounts are in base units (percent, bytes, cores), and only those
that a pod can ask for.
"""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.annotations.device import DeviceType
from koordinator.scheduler.plugins.device_share.inventory import DeviceEntry, NodeDevices
from koordinator.scheduler.plugins.device_share.request import NAMES_BY_TYPE, is_owned
from koordinator.scheduler.table.columns import ColumnSpec, TableColumn
from koordinator.scheduler.table.nodes import NODE_AMOUNT_MAX, NodeTable

V = TypeVar("V")

Layout = Mapping[str, Mapping[int, DeviceEntry]]
"""Devices by type and minor, ascending."""

UNUSED_MIN = 64
"""Numbers without a row at which it pays to look for them, at least."""


class Numbered(Generic[V]):
    """Values by number, so that what follows from one is worked out once for all nodes that have it; `column` (rows,)
    has the number of each row, -1 of rows without one.

    A kind is what a node and its Device say beside the devices, a layout the devices as they are when nobody uses any,
    whatever their virtual functions are called. Numbers that no row has any more are given out anew from time to time:
    `version` grows when they change their meaning.
    """

    def __init__(self, column: TableColumn) -> None:
        self.values: list[V] = []
        self.version = 0
        self._column = column
        self._number_of: dict[bytes, int] = {}

    def set(self, row: int, key: bytes, value: V) -> None:
        """Enter what a row has; `key` is equal for equal values."""
        number = self._number_of.get(key)
        if number is None:
            if len(self.values) >= UNUSED_MIN:
                self._drop_unused()
            number = self._number_of[key] = len(self.values)
            self.values.append(value)
        self._column.values[row] = number

    def _drop_unused(self) -> None:
        """Drop numbers that no row has, if these are most."""
        numbers = self._column.values
        is_used = np.zeros(len(self.values), np.bool_)
        is_used[numbers[numbers >= 0]] = True
        used = int(np.count_nonzero(is_used))
        if len(self.values) < 2 * used + UNUSED_MIN:
            return
        new: npt.NDArray[np.int32] = np.where(is_used, is_used.cumsum() - 1, -1).astype(np.int32)
        numbers[numbers >= 0] = new[numbers[numbers >= 0]]
        self.values = [value for value, is_kept in zip(self.values, is_used.tolist(), strict=True) if is_kept]
        self._number_of = {
            key: int(new[number]) for key, number in self._number_of.items() if is_used[number]
        }
        self.version += 1


def layout_key(devices: Layout) -> bytes:
    """Return what is equal for nodes where equal use of the devices leaves equal answers."""
    return msgspec.json.encode(
        {
            device_type: [
                (
                    msgspec.structs.replace(entry, vf_groups=()),
                    [(group.labels, len(group.vfs)) for group in entry.vf_groups],
                )
                for entry in of_type.values()
            ]
            for device_type, of_type in devices.items()
        },
        order="sorted",
    )


SLOTS_MAX = 64
"""Devices of a type on one node that have a slot; what lies beyond counts in sums, and `common` says nothing there."""


class DeviceAmounts(msgspec.Struct, frozen=True, eq=False):
    """The amounts of one resource that devices offer: `total` and `free` (slots, rows), and their sums over all devices
    of a node (rows,). What is free is at least 0, also where more is used than there is."""

    total: TableColumn
    free: TableColumn
    total_sum: TableColumn
    free_sum: TableColumn
    bit: int
    """In `DeviceTypeColumns.common`."""


class DeviceTypeColumns:
    """The devices of one type on all nodes."""

    def __init__(self, table: NodeTable, device_type: str) -> None:
        self._table, self._type = table, device_type
        self._names = frozenset(NAMES_BY_TYPE[device_type])
        self.amounts: dict[str, DeviceAmounts] = {}
        """By resource, of those of which some device ever offered something."""
        self._bits: dict[tuple[str, ...], int] = {}
        self._slots = 1
        self.count = self._add("count", np.int32, is_per_slot=False)
        """(rows,): devices, whether healthy or not."""
        self.common = self._add("common", np.int64, is_per_slot=False, fill=-1)
        """(rows,): the resources of which each healthy device has some, as bits (`bits_of`)."""
        self.has_places = self._add("hasPlaces", np.bool_, is_per_slot=False, fill=True)
        """(rows,): whether all devices say to which PCIe switch they belong."""
        self.is_healthy = self._add("isHealthy", np.bool_)
        """(slots, rows)"""
        self.is_used = self._add("isUsed", np.bool_)
        """(slots, rows): whether any pod has a part of the device that is not lent only."""
        self.free_vfs = self._add("freeVFs", np.int32)
        """(slots, rows): virtual functions that nobody holds."""

    # Reading

    def bits_of(self, names: tuple[str, ...]) -> int | None:
        """Return a set of resources in the terms of `common`; None when no device offers one of them."""
        bits = self._bits.get(names)
        if bits is None and all(name in self.amounts for name in names):
            bits = self._bits[names] = sum(1 << self.amounts[name].bit for name in names)
        return bits

    # Writing

    def set_devices(self, row: int, devices: Mapping[int, DeviceEntry]) -> None:
        """Enter what a node has, ascending by minor, as if nobody used any."""
        for column in self._columns():
            column.clear(row)
        while self._slots < min(len(devices), SLOTS_MAX):
            self._slots *= 2
            for column in self._per_slot():
                column.widen(self._slots)
        healthy = [entry for entry in devices.values() if entry.total]
        self.count.values[row] = len(devices)
        self.has_places.values[row] = all(entry.has_topology for entry in devices.values())
        for slot, entry in enumerate(devices.values()):
            if slot < SLOTS_MAX:
                self.is_healthy.values[slot, row] = bool(entry.total)
                self.free_vfs.values[slot, row] = sum(len(group.vfs) for group in entry.vf_groups)
            for name, offered in self._offered(entry):
                amounts = self._of(name)
                amounts.total_sum.values[row] += offered
                amounts.free_sum.values[row] += offered
                if slot < SLOTS_MAX:
                    amounts.total.values[slot, row] = amounts.free.values[slot, row] = offered
        if len(devices) > SLOTS_MAX:
            self.common.values[row] = 0
        elif healthy:
            self.common.values[row] = sum(
                1 << amounts.bit
                for name, amounts in self.amounts.items()
                if all(entry.total.get(name, 0) > 0 for entry in healthy)
            )

    def set_used(
        self, row: int, slot: int, entry: DeviceEntry, before: Mapping[str, int], used: Mapping[str, int]
    ) -> None:
        """Enter what pods use of one device, of which they used `before` until now."""
        if slot < SLOTS_MAX:
            self.is_used.values[slot, row] = is_owned(used)
        for name, offered in self._offered(entry):
            free = max(0, offered - used.get(name, 0))
            more = free - max(0, offered - before.get(name, 0))
            if more:
                amounts = self.amounts[name]
                amounts.free_sum.values[row] += more
                if slot < SLOTS_MAX:
                    amounts.free.values[slot, row] = free

    def set_free_vfs(self, row: int, slot: int, count: int) -> None:
        """Enter how many virtual functions of a device nobody holds."""
        if slot < SLOTS_MAX:
            self.free_vfs.values[slot, row] = count

    def _offered(self, entry: DeviceEntry) -> Iterator[tuple[str, int]]:
        return (
            (name, max(0, min(amount, NODE_AMOUNT_MAX)))
            for name, amount in entry.total.items()
            if name in self._names
        )

    def _of(self, name: str) -> DeviceAmounts:
        found = self.amounts.get(name)
        if found is None:
            found = self.amounts[name] = DeviceAmounts(
                self._add(f"total/{name}", np.int64),
                self._add(f"free/{name}", np.int64),
                self._add(f"totalSum/{name}", np.int64, is_per_slot=False),
                self._add(f"freeSum/{name}", np.int64, is_per_slot=False),
                len(self.amounts),
            )
        return found

    def _add(
        self, name: str, dtype: npt.DTypeLike, *, is_per_slot: bool = True, fill: int | bool = 0
    ) -> TableColumn:
        width = self._slots if is_per_slot else 0
        return self._table.add_column(ColumnSpec(f"device/{self._type}/{name}", dtype, width, fill))

    def _columns(self) -> list[TableColumn]:
        own = [self.count, self.common, self.has_places]
        sums = [column for each in self.amounts.values() for column in (each.total_sum, each.free_sum)]
        return [*own, *sums, *self._per_slot()]

    def _per_slot(self) -> list[TableColumn]:
        amounts = [column for each in self.amounts.values() for column in (each.total, each.free)]
        return [self.is_healthy, self.is_used, self.free_vfs, *amounts]


class DeviceColumns:
    """The devices of all nodes, by type."""

    def __init__(self, table: NodeTable) -> None:
        self.is_reported = table.add_column(ColumnSpec("device/isReported", np.bool_))
        """(rows,): whether there is, or was, a Device object."""
        self.kind = table.add_column(ColumnSpec("device/kind", np.int32, fill=-1))
        """(rows,): number of what the node and its Device say beside the devices, in `kinds`."""
        self.layout = table.add_column(ColumnSpec("device/layout", np.int32, fill=-1))
        """(rows,): number of how the devices are laid out, in `layouts`."""
        self.kinds: Numbered[NodeDevices] = Numbered(self.kind)
        self.layouts: Numbered[Layout] = Numbered(self.layout)
        self.holders = table.add_column(ColumnSpec("device/holders", np.int32))
        """(rows,): pods that hold devices."""
        self.by_type: dict[str, DeviceTypeColumns] = {
            device_type: DeviceTypeColumns(table, device_type) for device_type in DeviceType
        }

    def set_devices(self, row: int, kind: NodeDevices, devices: Layout) -> None:
        """Enter what a reported node has, as if nobody used any; `kind` without its devices."""
        self.is_reported.values[row] = True
        self.kinds.set(row, msgspec.json.encode(kind, order="sorted"), kind)
        self.layouts.set(row, layout_key(devices), devices)
        for device_type, columns in self.by_type.items():
            columns.set_devices(row, devices.get(device_type, {}))
