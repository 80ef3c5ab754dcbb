"""What quotas need of resource lists beyond `api.resource_list`. Source: spec 06, section 4."""

from collections.abc import Iterable

from koordinator.api import quantity, resources
from koordinator.api.quantity import Family, Quantity
from koordinator.api.resource_list import Amounts, add


def accumulate(total: Amounts, delta: Amounts) -> Amounts:
    """`total` + `delta`, where an entry never falls below zero."""
    return {
        name: amount if amount >= quantity.ZERO else quantity.ZERO
        for name, amount in add(total, delta).items()
    }


def limited(amounts: Amounts, ceiling: Amounts) -> Amounts:
    """Each entry at most that of `ceiling`; an entry that `ceiling` lacks is not limited."""
    return {
        name: min(amount, ceiling[name]) if name in ceiling else amount for name, amount in amounts.items()
    }


def exceeding(amounts: Amounts, limit: Amounts) -> tuple[str, ...]:
    """Names whose amount is above the limit, sorted. A name that `limit` lacks is not limited."""
    return tuple(sorted(name for name, amount in amounts.items() if name in limit and amount > limit[name]))


def units(name: str, amounts: Amounts) -> int:
    """The integer that shares are computed with: milli-cores or whole units, 0 for a missing entry."""
    amount = amounts.get(name)
    if amount is None:
        return 0
    return amount.milli if name == resources.CPU else amount.value


def of_units(name: str, number: int) -> Quantity:
    """The amount of an integer that shares are computed with."""
    if name == resources.CPU:
        return Quantity.of_milli(number)
    family = Family.BINARY if name == resources.MEMORY else Family.DECIMAL
    return Quantity.of_value(number, family)


def names_of(lists: Iterable[Amounts]) -> frozenset[str]:
    """Names that occur in any of the lists."""
    return frozenset(name for amounts in lists for name in amounts)


def text(amounts: Amounts) -> str:
    """The list for people: `cpu:2,memory:4Gi`, or `<empty>`."""
    return ",".join(f"{name}:{amounts[name].text}" for name in sorted(amounts)) or "<empty>"
