"""Counters that the devices of a pool share (partitionable devices): what each device takes of them, what is left.

A device takes its counters while somebody has it, once, however many share it. Source: KEP-4815.
"""

from collections.abc import Hashable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import quantity
from koordinator.api.dra import Counter, Device, ResourceSlice
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_vector import I64
from koordinator.scheduler.table.columns import grown

CounterName = tuple[str, str]
"""(counter set, counter)"""
Consumption = tuple[tuple[int, int], ...]
"""(counter, amount) pairs: the counter's place in its pool, the amount in billionths."""

KEYS_MAX = 1 << 14
"""Keys that `Codes` knows before it forgets those that no slot has any more; at least twice as many as slots have."""


class PoolError(Exception):
    """The slices of a pool contradict each other: none of its devices can be used."""


class PoolCounters(msgspec.Struct, eq=False):
    """`left` may be below zero when a driver takes back what is given away."""

    number: int
    is_of_one_node: bool
    left: list[int]


def counter_totals(slices: Iterable[ResourceSlice]) -> dict[CounterName, int]:
    """Return the amount of each counter in billionths, in the order of their names. Raises: PoolError."""
    totals: dict[CounterName, int] = {}
    sets: set[str] = set()
    for a_slice in slices:
        for each in a_slice.spec.shared_counters:
            if each.name in sets:
                raise PoolError(f"duplicate counter set name {each.name}")
            sets.add(each.name)
            for name, counter in each.counters.items():
                totals[each.name, name] = _amount(each.name, name, counter)
    return dict(sorted(totals.items()))


def consumption(device: Device, places: dict[CounterName, int]) -> Consumption:
    """Return what a device takes while it is given away; `places` are those of its pool's counters.

    Raises: PoolError.
    """
    found: dict[int, int] = {}
    known = {counter_set for counter_set, _ in places}
    for each in device.consumes_counters:
        if each.counter_set not in known:
            raise PoolError(f"counter set {each.counter_set} not found")
        for name, counter in each.counters.items():
            place = places.get((each.counter_set, name))
            if place is None:
                raise PoolError(f"counter {name} not found in counter set {each.counter_set}")
            found[place] = found.get(place, 0) + _amount(each.counter_set, name, counter)
    return tuple(sorted(found.items()))


def _amount(counter_set: str, name: str, counter: Counter) -> int:
    try:
        nanos = quantity.of(counter.value).nanos
    except QuantityError as error:
        raise PoolError(f"counter {name} of counter set {counter_set}: {error}") from error
    if nanos < 0:
        raise PoolError(f"counter {name} of counter set {counter_set} is negative")
    return nanos


class Codes:
    """A number per slot, equal for slots with equal keys; 0 for slots without a key."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._values: I64 = np.zeros(64, np.int64)
        self._keys: dict[int, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def set(self, slot: int, key: Hashable | None) -> None:
        """Give a slot another key, or (None) none."""
        if key is None:
            if self._keys.pop(slot, None) is not None:
                self._values[slot] = 0
            return
        self._keys[slot] = key
        if key not in self._numbers and len(self._numbers) >= max(self._keys_max, 2 * len(self._keys)):
            self._numbers.clear()
            for each, old in self._keys.items():
                if each < self._values.size:
                    self._values[each] = self._number(old)
        self.column(slot + 1)[slot] = self._number(key)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def column(self, size: int) -> I64:
        """Return the numbers of the first `size` slots: (size,), to be read at once."""
        if size > self._values.size:
            self._values = grown(self._values, 2 * size)
        return self._values[:size]


class SharedCounters:
    """The books of all pools. `looks` (by number of a device) tells devices apart by what they take and by which of
    their node's pools they are of; `states` (by number of a pool) pools by what is left."""

    def __init__(self) -> None:
        self.looks, self.states = Codes(), Codes()
        self._takers: dict[int, tuple[PoolCounters, Consumption]] = {}
        """Pool of each device that takes counters, by its number, and what it takes."""
        self._pool_of = np.full(64, -1, np.int32)
        """(devices,): the number of each device's pool, -1 for those that take nothing."""
        self._free: list[int] = []
        self._pool_count = 0

    def add_pool(self, totals: Sequence[int], *, is_of_one_node: bool) -> PoolCounters:
        """A pool came with nothing given away."""
        if self._free:
            number = self._free.pop()
        else:
            number, self._pool_count = self._pool_count, self._pool_count + 1
        pool = PoolCounters(number, is_of_one_node, list(totals))
        self._show(pool)
        return pool

    def remove_pool(self, pool: PoolCounters) -> None:
        self.states.set(pool.number, None)
        self._free.append(pool.number)

    def add_device(self, device: int, pool: PoolCounters, consumption: Consumption) -> None:
        self._takers[device] = pool, consumption
        self.looks.set(device, (consumption, 0))
        self._grow(device + 1)
        self._pool_of[device] = pool.number

    def remove_device(self, device: int) -> None:
        if self._takers.pop(device, None) is not None:
            self._pool_of[device] = -1
            self.looks.set(device, None)

    def line_up(self, devices: Iterable[int]) -> None:
        """These are the devices of a node, in order: which of its pools each belongs to is seen from outside."""
        places: dict[int, int] = {}
        for device in devices:
            if device in self._takers:
                pool, consumption = self._takers[device]
                place = places.setdefault(pool.number, len(places))
                self.looks.set(device, (consumption, place))

    def take(self, device: int, count: int) -> None:
        """Somebody has the device now (1), or nobody any more (-1)."""
        if device in self._takers:
            pool, consumption = self._takers[device]
            for place, amount in consumption:
                pool.left[place] -= count * amount
            self._show(pool)

    def pool_of(self, device: int) -> PoolCounters | None:
        """Return the pool whose counters a device takes."""
        taker = self._takers.get(device)
        return None if taker is None else taker[0]

    def has(self, size: int) -> npt.NDArray[np.bool_]:
        """Return which of the first `size` devices take counters: (devices,)."""
        self._grow(size)
        return self._pool_of[:size] >= 0

    def states_of(self, size: int) -> I64:
        """Return what is left in the pool of each of the first `size` devices, as a number: (devices,)."""
        states = np.append(
            self.states.column(self._pool_count), 0
        )  # the last one is for devices without a pool
        self._grow(size)
        found: I64 = states[self._pool_of[:size]]
        return found

    def _grow(self, size: int) -> None:
        if size > self._pool_of.size:
            self._pool_of = grown(self._pool_of, 2 * size, -1)

    def stock(self, devices: Sequence[int]) -> tuple[list[int], list[Consumption]]:
        """Return what is left of the counters that some devices draw from, and what each of them takes, by place in
        that list."""
        left: list[int] = []
        starts: dict[int, int] = {}
        takes: list[Consumption] = []
        for device in devices:
            if device not in self._takers:
                takes.append(())
                continue
            pool, consumption = self._takers[device]
            if pool.number not in starts:
                starts[pool.number] = len(left)
                left += pool.left
            start = starts[pool.number]
            takes.append(tuple((start + place, amount) for place, amount in consumption))
        return left, takes

    def _show(self, pool: PoolCounters) -> None:
        # What several nodes draw from is not the same as another pool that happens to look the same.
        self.states.set(pool.number, tuple(pool.left) if pool.is_of_one_node else ("pool", pool.number))
