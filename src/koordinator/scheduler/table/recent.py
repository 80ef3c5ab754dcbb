"""A bounded memory of computed values: what was not asked for longest goes first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """At most `size_max` values by key."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the remembered value, made when there is none."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
            return found
        found = self._values[key] = make()
        if len(self._values) > self._size_max:
            self._values.popitem(last=False)
        return found

    def clear(self) -> None:
        self._values.clear()
