"""Resource lists as integer vectors: each resource has a column, in one unit for the whole cluster.

cpu is counted in milli-cores, as batch-cpu and mid-cpu are by definition; memory in bytes; all others in
their own units. Amounts are rounded up, and saturate at `AMOUNT_MAX` so that sums stay within 64 bits.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from koordinator.api import quantity, readable, resources
from koordinator.api.quantity import Family, Quantity, RawQuantity, ResourceList

I64 = npt.NDArray[np.int64]

AMOUNT_MAX = 1 << 58
"""256 PiB of memory; more is as good as infinite ("no limit" is often written as 2^63−1)."""

_CACHE_MAX = 1 << 14

FIRST_RESOURCES = (
    resources.CPU,
    resources.MEMORY,
    resources.EPHEMERAL_STORAGE,
    resources.PODS,
    *resources.BATCH_RESOURCES,
    *resources.MID_RESOURCES,
)
"""The columns that every registry starts with, in this order."""

CPU_COLUMN = FIRST_RESOURCES.index(resources.CPU)
MEMORY_COLUMN = FIRST_RESOURCES.index(resources.MEMORY)


@lru_cache(_CACHE_MAX, typed=True)
def amount(name: str, raw: RawQuantity) -> int:
    """Return the integer that stands for `raw` in the column of resource `name`. Raises: QuantityError."""
    return max(-AMOUNT_MAX, min(exact_amount(name, raw), AMOUNT_MAX))


def exact_amount(name: str, raw: RawQuantity) -> int:
    """Return the same, however large it is. Raises: QuantityError."""
    return quantity.milli(raw) if name == resources.CPU else quantity.value(raw)


def measured(name: str) -> Callable[[RawQuantity], int]:
    """Return what reads measured amounts of a resource, as `amount` does; CPU is remembered apart from what pods and
    nodes ask for."""
    return _measured_cpu if name == resources.CPU else partial(amount, name)


@lru_cache(_CACHE_MAX, typed=True)
def _measured_cpu(raw: RawQuantity) -> int:
    return max(-AMOUNT_MAX, min(quantity.measured_milli(raw), AMOUNT_MAX))


def amount_text(name: str, number: int) -> str:
    """Canonical quantity text of a column's integer."""
    return quantity_of(name, number).text


def quantity_of(name: str, number: int) -> Quantity:
    """Return the amount that a column's integer stands for."""
    if name == resources.CPU:
        return Quantity.of_milli(number)
    return Quantity.of_value(number, Family.BINARY if readable.is_bytes(name) else Family.DECIMAL)


def integers(wire: Mapping[str, RawQuantity]) -> dict[str, int]:
    """Return the integers of a list, by name. Raises: QuantityError."""
    return {name: amount(name, raw) for name, raw in wire.items()}


def texts(amounts: Mapping[str, int]) -> ResourceList:
    """Return integers by name as on the wire."""
    return {name: amount_text(name, number) for name, number in amounts.items()}


def add_in_place(total: dict[str, int], more: Mapping[str, int], sign: int = 1) -> None:
    """Add integers by name to `total`, or take them away."""
    for name, number in more.items():
        total[name] = total.get(name, 0) + sign * number


def less(amounts: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """Return what is left of each of `amounts`, at least zero."""
    return {name: max(0, number - used.get(name, 0)) for name, number in amounts.items()}


def readable_amount(name: str, number: int) -> str:
    """Return a column's integer for people, with its unit: `97.5 cores`."""
    return readable.amount(name, quantity_of(name, number))


def readable_cell(name: str, number: int) -> str:
    """Return a column's integer for people, where the resource is named beside it: `97.5`."""
    return readable.cell(name, quantity_of(name, number))


def readable_lot(name: str, number: int) -> str:
    """Return a column's integer for people, with what it is of: `2.5 GiB of memory`."""
    return readable.lot(name, quantity_of(name, number))


class ResourceRegistry:
    """Resource name → column. Grows when a new name is met, never shrinks or reorders.

    Arrays made earlier are narrower than `len(registry)` then; `widen` brings them up.
    """

    def __init__(self, names: Iterable[str] = FIRST_RESOURCES) -> None:
        self._names: list[str] = []
        self._columns: dict[str, int] = {}
        for name in names:
            self.column(name)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each column."""
        return tuple(self._names)

    def column(self, name: str) -> int:
        """Return the column of a resource, a new one if it is met for the first time."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = len(self._names)
            self._names.append(name)
        return column

    def find(self, name: str) -> int | None:
        """Return the column of a resource if it has one."""
        return self._columns.get(name)

    def vector(self, amounts: Mapping[str, RawQuantity]) -> I64:
        """Return the list as a new vector of shape (len(self),), zero where it has no entry. Raises: QuantityError."""
        cells = [(self.column(name), amount(name, raw)) for name, raw in amounts.items()]
        vector = np.zeros(len(self._names), np.int64)
        for column, number in cells:
            vector[column] = number
        return vector

    def widen(self, array: I64) -> I64:
        """Return `array` (…, columns) with its last axis padded with zeros to the registry's width; itself if wide
        enough."""
        missing = len(self._names) - array.shape[-1]
        if missing <= 0:
            return array
        return np.concatenate([array, np.zeros((*array.shape[:-1], missing), array.dtype)], axis=-1)

    def amounts(self, vector: I64) -> dict[str, int]:
        """Return name → integer of the entries of `vector` (columns,) that are not zero."""
        return {self._names[column]: int(vector[column]) for column in np.flatnonzero(vector)}

    def named(self, amounts: Iterable[tuple[int, int]]) -> dict[str, int]:
        """Return name → integer of (column, integer)."""
        return {self._names[column]: number for column, number in amounts}

    def to_wire(self, vector: I64) -> ResourceList:
        """Return the entries of `vector` (columns,) that are not zero as quantity texts."""
        return texts(self.amounts(vector))
