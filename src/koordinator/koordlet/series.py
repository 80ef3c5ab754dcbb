"""Time series in memory: ring buffers of points, queries over a window. Source: behaviour/koordlet-observe 6.

A series holds its newest points, as many as its kind keeps; there is no thinning, so percentiles are exact. Collectors
keep the `Ring` of each series that they fill: appending costs no look-up (a thousand points each second are usual).

`Readings` asks for the newest value, or for a mean over a window (behaviour/koordlet-act 2.5).
"""

import enum
import math
from array import array
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.clock import Clock
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.errors import SampleError
from koordinator.koordlet.metric_kinds import GROUP_KINDS, PROPERTIES

POINTS_MAX = 2_048
"""The longest window of a NodeMetric (30 minutes) at one point per second, and some."""
GROUP_POINTS_MAX = 360
"""The same for series of pods, containers and host applications, of which there are many: 5 minutes, and some."""
GROUP_WINDOW_S_MAX = 3600.0
"""Longest window over which pods are averaged: 100 pods at one point per second take 11 MB then."""
LATE_MS_MAX = 60_000
"""Greatest age of a point against the newest one of its series."""

_POINTS_FIRST = 64  # most series belong to short-lived pods
NO_PROPERTIES: Mapping[str, str] = {}


class Aggregation(enum.Enum):
    """The way in which points become one number; percentiles carry their share."""

    AVG = "avg"
    P50 = 0.5
    P90 = 0.9
    P95 = 0.95
    P99 = 0.99
    LAST = "last"
    COUNT = "count"


class SeriesSample(msgspec.Struct, frozen=True):
    """One point of a series."""

    kind: str
    at_ms: int
    value: float
    properties: Mapping[str, str] = NO_PROPERTIES


class Points(msgspec.Struct, frozen=True, eq=False):
    """The result of a query: times in ms and values, both (points,), in no order."""

    at_ms: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def count(self) -> int:
        """Number of points."""
        return int(self.at_ms.size)

    @property
    def span_ms(self) -> int:
        """Newest minus oldest, 0 without points."""
        return int(self.at_ms.max() - self.at_ms.min()) if self.count else 0

    def aggregate(self, how: Aggregation) -> float | None:
        """Return one number; None without points, except for their count.

        A percentile is the value at index int(n·p) − 1 of the ascending order, without interpolation.
        """
        if how is Aggregation.COUNT:
            return float(self.count)
        if not self.count:
            return None
        if how is Aggregation.LAST:
            newest = self.count - 1 - int(np.argmax(self.at_ms[::-1]))
            return float(self.values[newest])
        return float(aggregated(self.values, how))


def aggregated(values: NDArray[np.float64], how: Aggregation) -> NDArray[np.float64]:
    """Return the mean or a percentile of `values` (points, …) over the points, at least one: shape (…), as
    `Points.aggregate`."""
    if how is Aggregation.AVG:
        # One after the other, as the reference adds: numpy's sum of pairs is now and then another milli-core.
        total = np.add.accumulate(values)[-1] if values.ndim == 1 else values.sum(axis=0)
        return np.asarray(total / len(values))
    index = rank(len(values), how)
    return np.asarray(np.partition(values, index, axis=0)[index])


def rank(count: int, how: Aggregation) -> int:
    """Return which of so many points in order is this percentile."""
    return max(int(count * float(how.value)) - 1, 0)


_EMPTY = Points(np.empty(0, np.int64), np.empty(0, np.float64))


_Key = frozenset[tuple[str, str]]
_LONG_AGO_MS = -(2**62)


class _Kind:
    """All series of one kind; `points_max` is how many points each keeps."""

    __slots__ = ("points_max", "rings")

    def __init__(self, points_max: int) -> None:
        self.points_max = points_max
        self.rings: dict[_Key, Ring] = {}


class Ring:
    """The newest points of one series, in order of arrival. Use `SeriesStore.ring`.

    It may be kept as long as the series is of interest: when the store dropped it meanwhile, its next point puts it
    back.
    """

    __slots__ = (
        "_at_ms",
        "_is_full",
        "_key",
        "_kind",
        "_next",
        "_size",
        "_values",
        "newest",
        "newest_ms",
        "only",
    )

    def __init__(self, kind: _Kind, key: _Key) -> None:
        self._kind = kind
        self._key = key
        self.only = next(iter(key))[1] if len(key) == 1 else ""
        """The value of its property, if it has one only."""
        self.clear()

    def clear(self) -> None:
        """Forget all points."""
        self._at_ms: array[int] = array("q")
        self._values: array[float] = array("d")
        self._size = self._next = 0
        self._is_full = False
        self.newest_ms = _LONG_AGO_MS
        """Time of the newest point, long ago without points."""
        self.newest = 0.0
        """Its value."""

    def append(self, at_ms: int, value: float) -> None:
        """Store a point. The value must be finite.

        A point that is much older than the newest one means that the clock was set back: the points after it are
        forgotten, since they are in the future now.
        """
        if at_ms < self.newest_ms - LATE_MS_MAX:
            self.clear()
        index = self._next
        if index == self._size:
            index = self._make_room()
        self._at_ms[index] = at_ms
        self._values[index] = value
        self._next = index + 1
        if at_ms >= self.newest_ms:
            self.newest_ms = at_ms
            self.newest = value

    def between(self, start_ms: int, end_ms: int) -> Points:
        """Points of the window, both ends included, oldest arrival first."""
        if not self._size:
            return _EMPTY
        at_ms, values = np.frombuffer(self._at_ms, np.int64), np.frombuffer(self._values, np.float64)
        if not self._is_full:
            at_ms, values = at_ms[: self._next], values[: self._next]
        elif self._next < self._size:
            at_ms = np.concatenate((at_ms[self._next :], at_ms[: self._next]))
            values = np.concatenate((values[self._next :], values[: self._next]))
        within = (at_ms >= start_ms) & (at_ms <= end_ms)
        return Points(at_ms[within], values[within])

    def latest(self, start_ms: int, end_ms: int) -> float | None:
        """Return the newest value within the window."""
        if self.newest_ms <= end_ms:
            return self.newest if self.newest_ms >= start_ms else None
        return self.between(start_ms, end_ms).aggregate(Aggregation.LAST)  # a clock was set back a little

    def mean(self, start_ms: int, end_ms: int) -> float | None:
        """Return the mean over the window."""
        return (
            None if self.newest_ms < start_ms else self.between(start_ms, end_ms).aggregate(Aggregation.AVG)
        )

    def property(self, name: str) -> str:
        """Return what the series says of a property of its kind. Raises: KeyError when its kind has no such
        property."""
        for key, value in self._key:
            if key == name:
                return value
        raise KeyError(name)

    def _make_room(self) -> int:
        """Make room and return where the next point goes, all places up to the last being taken; in order of age,
        then."""
        if not self._size:
            self._kind.rings[self._key] = self
        points_max = self._kind.points_max
        if self._size >= points_max:
            if self._size > points_max:
                self._resize(self._at_ms[-points_max:], self._values[-points_max:], points_max)
            self._is_full = True
            return 0
        index = self._size
        self._resize(self._at_ms, self._values, min(max(2 * index, _POINTS_FIRST), points_max))
        self._is_full = False
        return index

    def _resize(self, at_ms: "array[int]", values: "array[float]", size: int) -> None:
        zeros = bytes(8 * (size - len(at_ms)))
        self._at_ms = at_ms + array("q", zeros)
        self._values = values + array("d", zeros)
        self._size = size


class SeriesStore:
    """All series of the agent, by kind and properties."""

    def __init__(self, points_max: int = POINTS_MAX, group_points_max: int = GROUP_POINTS_MAX) -> None:
        self._kinds = {
            kind: _Kind(group_points_max if kind in GROUP_KINDS else points_max) for kind in PROPERTIES
        }

    def retain(self, kinds: Iterable[str], points_max: int) -> None:
        """Keep so many points of each series of these kinds; those that hold more shrink with their next points."""
        for kind in kinds:
            self._of(kind).points_max = max(points_max, 1)

    def ring(self, kind: str, properties: Mapping[str, str] = NO_PROPERTIES) -> Ring:
        """Return the series of these properties, to be kept and appended to.

        Raises: SampleError when the kind is unknown, or these are not its properties.
        """
        key = _key(kind, properties)
        rings = self._of(kind).rings
        found = rings.get(key)
        if found is None:
            found = rings[key] = Ring(self._kinds[kind], key)
        return found

    def append(self, samples: Iterable[SeriesSample]) -> None:
        """Store a batch of samples, all or none.

        Raises: SampleError when one has the wrong properties, is no number or comes too late.
        """
        batch = [(self.ring(sample.kind, sample.properties), sample) for sample in samples]
        for ring, sample in batch:
            if not math.isfinite(sample.value):
                raise SampleError(sample.kind, f"{sample.value} is not a finite number")
            if sample.at_ms < ring.newest_ms - LATE_MS_MAX:
                raise SampleError(sample.kind, f"point is {ring.newest_ms - sample.at_ms} ms late")
        for ring, sample in batch:
            ring.append(sample.at_ms, sample.value)

    def query(
        self, kind: str, start_ms: int, end_ms: int, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> Points:
        """Points of all series of the kind that have these properties, both ends of the window included.

        Raises: SampleError when the kind or a property is unknown.
        """
        rings = self._of(kind).rings
        unknown = properties.keys() - PROPERTIES[kind]
        if unknown:
            raise SampleError(kind, f"unknown property {min(unknown)}")
        wanted = frozenset(properties.items())
        if len(wanted) == len(PROPERTIES[kind]):
            ring = rings.get(wanted)
            return ring.between(start_ms, end_ms) if ring is not None else _EMPTY
        found = [ring.between(start_ms, end_ms) for key, ring in rings.items() if wanted <= key]
        if not found:
            return _EMPTY
        at_ms = np.concatenate([points.at_ms for points in found])
        return Points(at_ms, np.concatenate([points.values for points in found]))

    def latest(
        self, kind: str, start_ms: int, end_ms: int, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> float | None:
        """Return the newest value within the window of the series with exactly these properties.

        Raises: SampleError when the kind is unknown.
        """
        ring = self._of(kind).rings.get(frozenset(properties.items()))
        return None if ring is None else ring.latest(start_ms, end_ms)

    def latest_by(self, kind: str, name: str, start_ms: int, end_ms: int) -> dict[str, float]:
        """Return the newest value within the window of each series of the kind, by its property `name`."""
        found: dict[str, float] = {}
        rings = self._of(kind).rings
        is_only = PROPERTIES[kind] == {name}
        for ring in rings.values():
            newest_ms = ring.newest_ms
            if newest_ms < start_ms:
                continue
            value = ring.newest if newest_ms <= end_ms else ring.latest(start_ms, end_ms)
            if value is not None:
                found[ring.only if is_only else ring.property(name)] = value
        return found

    def average_by(self, kind: str, name: str, start_ms: int, end_ms: int) -> dict[str, float]:
        """Return the mean over the window of each series of the kind, by its property `name`."""
        found: dict[str, float] = {}
        for ring in self._of(kind).rings.values():
            value = ring.mean(start_ms, end_ms)
            if value is not None:
                found[ring.property(name)] = value
        return found

    def expire(self, before_ms: int, kinds: Iterable[str] = PROPERTIES) -> int:
        """Drop series of these kinds whose newest point is older; returns how many."""
        dropped = 0
        for kind in kinds:
            rings = self._of(kind).rings
            old = [key for key, ring in rings.items() if ring.newest_ms < before_ms]
            dropped += len(old)
            for key in old:
                rings.pop(key).clear()
        return dropped

    def _of(self, kind: str) -> _Kind:
        found = self._kinds.get(kind)
        if found is None:
            raise SampleError(kind, "unknown kind")
        return found


def _key(kind: str, properties: Mapping[str, str]) -> _Key:
    wanted = PROPERTIES.get(kind)
    if wanted is None:
        raise SampleError(kind, "unknown kind")
    if properties.keys() != wanted:
        names = ", ".join(sorted(wanted)) or "none"
        raise SampleError(kind, f"properties {sorted(properties)}, expected {names}")
    return frozenset(properties.items())


LATEST_INTERVALS = 2
"""Greatest age of the newest sample, in collect intervals."""
CONTAINER_ROUNDS = 5
"""Collect intervals between two points of a container for which nobody waits (collect/group_usage.py)."""


class Average(msgspec.Struct, frozen=True):
    """A mean and how many samples it is of; None without any."""

    value: float | None
    count: int


class Readings:
    """Queries relative to now."""

    def __init__(self, store: SeriesStore, clock: Clock, collect_interval_s: float) -> None:
        self._store = store
        self._clock = clock
        self.collect_interval_s = collect_interval_s

    def latest(self, kind: str, properties: Mapping[str, str] = NO_PROPERTIES) -> float | None:
        """Return the newest value of the series with exactly these properties, None when it is too old or there is
        none."""
        end_ms = int(self._clock.now() * 1000)
        start_ms = end_ms - int(LATEST_INTERVALS * self.collect_interval_s * 1000)
        return self._store.latest(kind, start_ms, end_ms, properties)

    def average(self, kind: str, window_s: float, properties: Mapping[str, str] = NO_PROPERTIES) -> Average:
        """Return the mean over the last `window_s` seconds."""
        end_ms = int(self._clock.now() * 1000)
        points = self._store.query(kind, end_ms - int(window_s * 1000), end_ms, properties)
        return Average(points.aggregate(Aggregation.AVG), points.count)

    def latest_by(self, kind: str, name: str, intervals: int = LATEST_INTERVALS) -> dict[str, float]:
        """Return the newest value of each series of a kind with one property, by that property; without those older
        than so many collect intervals."""
        end_ms = int(self._clock.now() * 1000)
        start_ms = end_ms - int(intervals * self.collect_interval_s * 1000)
        return self._store.latest_by(kind, name, start_ms, end_ms)

    def average_by(self, kind: str, name: str, window_s: float) -> dict[str, float]:
        """Return the mean of each series of a kind with one property, by that property."""
        end_ms = int(self._clock.now() * 1000)
        return self._store.average_by(kind, name, end_ms - int(window_s * 1000), end_ms)

    def pods(self, kind: str = kinds.POD_CPU) -> dict[str, float]:
        """Return the newest values of all pods, by UID."""
        return self.latest_by(kind, kinds.POD_UID)

    def containers(self, kind: str, intervals: int = LATEST_INTERVALS) -> dict[str, float]:
        """Return the newest values of all containers, by full container id; without those older than so many collect
        intervals."""
        return self.latest_by(kind, kinds.CONTAINER_ID, intervals)

    def host_applications(self, kind: str = kinds.HOST_APP_CPU) -> dict[str, float]:
        """Return the newest values of all host applications, by name."""
        return self.latest_by(kind, kinds.HOST_APP_NAME)
