"""A sum of resource lists that come and go: adding or taking one costs what that one has, not what all have."""

from collections.abc import Mapping

from koordinator.api.quantity import Family, Quantity
from koordinator.api.resource_list import Amounts


class RunningTotal:
    """The sum. A name is in it as long as a list that counts has it, even with zero."""

    __slots__ = ("_families", "_lists", "_nanos")

    def __init__(self) -> None:
        self._nanos: dict[str, int] = {}
        self._lists: dict[str, int] = {}
        self._families: dict[str, Family] = {}

    def add(self, amounts: Mapping[str, Quantity]) -> None:
        """Count a list."""
        for name, amount in amounts.items():
            if name in self._nanos:
                self._nanos[name] += amount.nanos
                self._lists[name] += 1
            else:
                self._nanos[name] = amount.nanos
                self._lists[name] = 1
                self._families[name] = amount.family

    def take(self, amounts: Mapping[str, Quantity]) -> None:
        """Count a list no longer that was added before."""
        for name, amount in amounts.items():
            if self._lists[name] > 1:
                self._nanos[name] -= amount.nanos
                self._lists[name] -= 1
            else:
                del self._nanos[name], self._lists[name], self._families[name]

    def amounts(self) -> Amounts:
        """Return the sum as it is now, written as the first list that had the name wrote it."""
        families = self._families
        return {name: Quantity(nanos, families[name]) for name, nanos in self._nanos.items()}
