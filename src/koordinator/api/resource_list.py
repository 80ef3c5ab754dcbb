"""Arithmetic and comparison of resource lists.

`Amounts` (name → `Quantity`) is the form to calculate in; `ResourceList` the form on the wire. A name
that is missing is not the same as zero unless a function says so. Source: behaviour/api 5.6; behaviour/manager 1.
"""

import math
from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

from koordinator.api import quantity
from koordinator.api.quantity import NANO, Quantity, RawQuantity, ResourceList

Amounts = dict[str, Quantity]
"""Resource name → exact amount."""

Number = TypeVar("Number", int, Quantity)
"""Some count in integers of one unit (`resource_vector`)."""
_NANO_PER_MILLI = NANO // 1000


def of(wire: Mapping[str, RawQuantity | None]) -> Amounts:
    """Return the amounts of a list as on the wire. Raises: QuantityError."""
    return {name: quantity.of(raw) for name, raw in wire.items()}


def to_wire(amounts: Mapping[str, Quantity]) -> ResourceList:
    """Return the list as written on the wire: canonical texts, names sorted."""
    return {name: amounts[name].text for name in sorted(amounts)}


def add(a: Amounts, b: Amounts) -> Amounts:
    """Union of names, missing is zero."""
    total = dict(a)
    for name, amount in b.items():
        total[name] = total[name] + amount if name in total else amount
    return total


def sub(a: Amounts, b: Amounts) -> Amounts:
    """`a` − `b`: union of names, missing is zero (a name only in `b` becomes negative)."""
    left = dict(a)
    for name, amount in b.items():
        left[name] = left[name] - amount if name in left else -amount
    return left


def sum_of(lists: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """Sum of all lists, missing is zero."""
    total: dict[str, Number] = {}
    for amounts in lists:
        for name, amount in amounts.items():
            total[name] = total[name] + amount if name in total else amount
    return total


def maximum(a: Mapping[str, Number], b: Mapping[str, Number]) -> dict[str, Number]:
    """Union of names, the larger amount; a name on one side only is copied."""
    return {**a, **{name: amount for name, amount in b.items() if name not in a or amount > a[name]}}


def minimum(a: Amounts, b: Amounts) -> Amounts:
    """Common names only, the smaller amount."""
    return {name: min(a[name], b[name]) for name in a if name in b}


def mask(amounts: Mapping[str, Number], names: Container[str]) -> dict[str, Number]:
    """Only the entries of these names."""
    return {name: amount for name, amount in amounts.items() if name in names}


def without_zeros(amounts: Amounts) -> Amounts:
    """Only the entries that are not zero."""
    return {name: amount for name, amount in amounts.items() if amount}


def is_equal_ignoring_zeros(a: Amounts, b: Amounts) -> bool:
    """Return whether both hold the same amounts, zero entries left out. (Equality proper is `a == b`.)"""
    return without_zeros(a) == without_zeros(b)


def is_zero(amounts: Amounts) -> bool:
    """Return whether no entry is other than zero."""
    return not any(amounts.values())


def fits_completely(a: Amounts, b: Amounts) -> bool:
    """Return whether `a` ≤ `b` for all names of both, missing is zero."""
    zero = quantity.ZERO
    return all(a.get(name, zero) <= b.get(name, zero) for name in a.keys() | b.keys())


def multiply_units(amount: Quantity, factor: float) -> Quantity:
    """Whole units × `factor` in binary floating point, cut off; keeps the family."""
    return Quantity(math.trunc(amount.value * factor) * NANO, amount.family)


def multiply_milli(amount: Quantity, factor: float) -> Quantity:
    """Thousandths × `factor` in binary floating point, cut off; keeps the family."""
    return Quantity(math.trunc(amount.milli * factor) * _NANO_PER_MILLI, amount.family)
