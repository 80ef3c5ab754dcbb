"""Number what many nodes have in common, so that what follows from it is worked out once for all of them.

A kind is what a node and its Device say beside the devices, a layout the devices as they are when nobody uses any,
whatever their virtual functions are called. Numbers that no row has any more are given out anew from time to time.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.scheduler.plugins.device_share.inventory import DeviceEntry
from koordinator.scheduler.table.columns import TableColumn

V = TypeVar("V")

Layout = Mapping[str, Mapping[int, DeviceEntry]]
"""Devices by type and minor, ascending."""

UNUSED_MIN = 64
"""Numbers without a row at which it pays to look for them, at least."""


class Numbered(Generic[V]):
    """Values by number; `column` (rows,) has the number of each row, -1 of rows without one.

    `version` grows when numbers change their meaning.
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
                    *(
                        entry.minor,
                        entry.total,
                        entry.labels,
                        entry.has_topology,
                        entry.numa_node,
                        entry.pcie,
                    ),
                    [(group.labels, len(group.vfs)) for group in entry.vf_groups],
                )
                for entry in of_type.values()
            ]
            for device_type, of_type in devices.items()
        },
        order="sorted",
    )
