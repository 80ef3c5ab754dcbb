"""Amounts of nodes and reservations as integers: cpu in milli-cores, all else in base units, rounded up. Pure."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.quantity import RawQuantity

Ints = Mapping[str, int]
"""Resource name → milli-cores, bytes or units; missing is zero."""

NATIVE = (resources.CPU, resources.MEMORY, resources.EPHEMERAL_STORAGE)
"""Always compared, whatever the plugin's arguments ignore."""


class Ignored(msgspec.Struct, frozen=True):
    """Extended resources that are left to other plugins: by name, or by the text before the first `/`."""

    names: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        group, slash, _ = name.partition("/")
        return name in self.names or bool(slash and group and group in self.groups)


NOTHING_IGNORED = Ignored()


class ReservationAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation as far as amounts go.

    `names` is what it accounts for (`objects.restricted_names`), `kept` what owners may not use, `pods` how many
    owners it has, `preemptible` what victims inside it would free (with `pods`).
    """

    name: str = ""
    is_restricted: bool = False
    allocatable: Ints = {}
    allocated: Ints = {}
    kept: Ints = {}
    names: tuple[str, ...] = ()
    pods: int = 0
    preemptible: Ints = {}

    @property
    def available(self) -> dict[str, int]:
        """Return what owners may still use, never below zero."""
        return {
            name: max(amount - self.allocated.get(name, 0) - self.kept.get(name, 0), 0)
            for name, amount in self.allocatable.items()
        }


class ReservationNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node before matched reservations are given back.

    `requested` counts everything on it, reserve pods too, without what owners of unmatched reservations use of
    them; `matched_allocated` is what owners use of the matched ones; `pods` counts reserve pods, too.
    """

    allocatable: Ints
    requested: Ints
    matched_allocated: Ints = {}
    pods: int = 0
    matched: int = 0
    preemptible: Ints = {}


def amount(name: str, raw: RawQuantity) -> int:
    """Return the integer of an amount. Raises: QuantityError."""
    return quantity.milli(raw) if name == resources.CPU else quantity.value(raw)


def ints(wire: Mapping[str, RawQuantity]) -> dict[str, int]:
    """Return the integers of a resource list. Raises: QuantityError."""
    return {name: amount(name, raw) for name, raw in wire.items()}


def added(*parts: Ints) -> dict[str, int]:
    """Return the sum by name."""
    total: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


def masked(amounts: Ints, names: Collection[str]) -> dict[str, int]:
    """Only what is accounted for."""
    return {name: number for name, number in amounts.items() if name in names}


def short_on_node(
    request: Ints, node: ReservationNodeView, given_back: Iterable[Ints], ignored: Ignored
) -> list[str]:
    """Return names that the node lacks for the request when all of `given_back` is free again; `pods` first."""
    short = []
    if node.pods - node.matched + 1 > node.allocatable.get(resources.PODS, 0):
        short.append(resources.PODS)
    back = added(node.matched_allocated, node.preemptible, *given_back)
    for name, wanted in request.items():
        if name == resources.PODS or (name not in NATIVE and ignored.has(name)):
            continue
        free = node.allocatable.get(name, 0) - node.requested.get(name, 0) + back.get(name, 0)
        if wanted > max(free, 0):
            short.append(name)
    return short
