"""Amounts per NUMA node: zone id → resource → integer (cpu in milli-cores, others in base units)."""

from collections.abc import Iterable, Mapping

from koordinator.api import amplification, resource_vector
from koordinator.api.quantity import RawQuantity

Amounts = dict[str, int]
"""Resource → amount: cpu in milli-cores, others in base units."""

Zones = dict[int, Amounts]
"""NUMA node id → what it has, or what is used or free of it."""

CPU_MILLI = 1_000
"""One CPU."""


def amounts_of(wire: Mapping[str, RawQuantity]) -> Amounts:
    """Return a resource list in integers.

    Raises: QuantityError when an amount is no quantity.
    """
    return {name: resource_vector.amount(name, raw) for name, raw in wire.items()}


def amplified(amounts: Mapping[str, int], ratios: Mapping[str, float]) -> Amounts:
    """Return the amounts with those that have a ratio above 1 multiplied by it, rounded up."""
    return {name: amplification.amplify(amount, ratios.get(name, 1.0)) for name, amount in amounts.items()}


def total(lists: Iterable[Mapping[str, int]]) -> Amounts:
    """Return the sum of all."""
    summed: Amounts = {}
    for amounts in lists:
        for name, amount in amounts.items():
            summed[name] = summed.get(name, 0) + amount
    return summed


def less(amounts: Mapping[str, int], others: Mapping[str, int]) -> Amounts:
    """Return what is left of each amount, at least zero."""
    return {name: max(0, amount - others.get(name, 0)) for name, amount in amounts.items()}
