"""Add to `api.resource_list` what quotas need of resource lists. Source: behaviour/elastic-quota 4.

Trees count in plain integers (`Nanos`), exactly, at a tenth of what `Amounts` cost; those are for specs, for
decisions that people read, and for the wire.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from koordinator.api import quantity, resources
from koordinator.api.quantity import NANO, Family, Quantity
from koordinator.api.resource_list import Amounts, add

Nanos = dict[str, int]
"""Resource name → exact amount in 10^-9. A missing name is not the same as zero."""

_NANOS_PER_UNIT = {resources.CPU: NANO // 1000}
_WRITTEN_BINARY = frozenset(
    (resources.MEMORY, resources.BATCH_MEMORY, resources.MID_MEMORY, resources.EPHEMERAL_STORAGE)
)


def nanos_of(amounts: Amounts) -> Nanos:
    """Return the same list to count with."""
    return {name: amount.nanos for name, amount in amounts.items()}


def amounts_of(nanos: Mapping[str, int], like: Mapping[str, Quantity] | None = None) -> Amounts:
    """Return the same list for people and the wire: written as amounts of that name in `like`, else memory in
    powers of 1024.
    """
    known = like or {}
    return {
        name: Quantity(number, known[name].family if name in known else _family(name))
        for name, number in nanos.items()
    }


def _family(name: str) -> Family:
    return Family.BINARY if name in _WRITTEN_BINARY else Family.DECIMAL


def nanos_per_unit(name: str) -> int:
    """Return how many 10^-9 the unit has that shares are computed in: milli-cores, else whole units."""
    return _NANOS_PER_UNIT.get(name, NANO)


def to_units(nanos: int, per_unit: int) -> int:
    """Return the integer that shares are computed with, rounded away from zero."""
    return -(-nanos // per_unit) if nanos > 0 else nanos // per_unit


def accumulate_in_place(total: Nanos, delta: Mapping[str, int]) -> None:
    """Adds `delta` to `total` in place; no entry falls below zero."""
    for name, number in delta.items():
        number += total.get(name, 0)
        total[name] = number if number > 0 else 0


def accumulate_in_each(totals: Iterable[Nanos], delta: Mapping[str, int]) -> None:
    """`accumulate_in_place` for many totals."""
    for total in totals:
        for name, number in delta.items():
            number += total.get(name, 0)
            total[name] = number if number > 0 else 0


def masked(nanos: Mapping[str, int], names: Collection[str]) -> Nanos:
    """Only the entries of these names."""
    return {name: number for name, number in nanos.items() if name in names}


def negated(nanos: Mapping[str, int]) -> Nanos:
    """Return the same amounts with the other sign."""
    return {name: -number for name, number in nanos.items()}


def grown(after: Mapping[str, int], before: Mapping[str, int]) -> Nanos:
    """Return what was added between two lists: entries that are the same are left out."""
    changes = {name: number - before.get(name, 0) for name, number in after.items()}
    changes.update((name, -number) for name, number in before.items() if name not in after)
    return {name: number for name, number in changes.items() if number}


def larger(a: Nanos, b: Nanos) -> Nanos:
    """Union of names, the larger amount; a name on one side only is copied."""
    return {**a, **{name: number for name, number in b.items() if name not in a or number > a[name]}}


def above(nanos: Mapping[str, int], limit: Mapping[str, int]) -> bool:
    """Return whether any entry is above the limit. A name that `limit` lacks is not limited."""
    return any(number > limit[name] for name, number in nanos.items() if name in limit)


def accumulate(total: Amounts, delta: Amounts) -> Amounts:
    """`total` + `delta`, where an entry never falls below zero."""
    return {
        name: amount if amount >= quantity.ZERO else quantity.ZERO
        for name, amount in add(total, delta).items()
    }


def exceeding(amounts: Amounts, limit: Amounts) -> tuple[str, ...]:
    """Return names whose amount is above the limit, sorted. A name that `limit` lacks is not limited."""
    return tuple(sorted(name for name, amount in amounts.items() if name in limit and amount > limit[name]))


def text(amounts: Amounts) -> str:
    """Return the list for people: `cpu:2,memory:4Gi`, or `<empty>`."""
    return ",".join(f"{name}:{amounts[name].text}" for name in sorted(amounts)) or "<empty>"


class SharedNames:
    """The number of quotas that count each resource. Source: behaviour/elastic-quota 6.3."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sorted: tuple[str, ...] | None = ()

    def count(self, names: Iterable[str], sign: int) -> None:
        """A quota that counts these came (1) or went (-1)."""
        for name in names:
            self._counts[name] += sign
        self._sorted = None

    def names(self) -> tuple[str, ...]:
        """Return the names that any quota counts, sorted."""
        if self._sorted is None:
            self._sorted = tuple(sorted(name for name, count in self._counts.items() if count))
        return self._sorted
