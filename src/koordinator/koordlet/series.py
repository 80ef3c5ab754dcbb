"""Time series in memory: ring buffers of points, queries over a window. Source: spec 10, section 6.

A series holds its newest `points_max` points; there is no thinning, so percentiles are exact.
"""

import enum
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.koordlet.errors import SampleError
from koordinator.koordlet.metric_kinds import PROPERTIES

POINTS_MAX = 2_048
"""The longest window of a NodeMetric (30 minutes) at one point per second, and some."""
LATE_MS_MAX = 60_000
"""How much older than the newest point of its series a point may be."""

_POINTS_FIRST = 64  # most series belong to short-lived pods
NO_PROPERTIES: Mapping[str, str] = {}


class Aggregation(enum.Enum):
    """How points become one number; percentiles carry their share."""

    AVG = "avg"
    P50 = 0.5
    P90 = 0.9
    P95 = 0.95
    P99 = 0.99
    LAST = "last"
    COUNT = "count"


_BY_NAME = {aggregation.name.lower(): aggregation for aggregation in Aggregation}


def aggregation_of(name: str) -> Aggregation:
    """The aggregation of that name in any case; any other name means the average."""
    return _BY_NAME.get(name.lower(), Aggregation.AVG)


class Sample(msgspec.Struct, frozen=True):
    """One point of a series."""

    kind: str
    at_ms: int
    value: float
    properties: Mapping[str, str] = NO_PROPERTIES


class Points(msgspec.Struct, frozen=True, eq=False):
    """What a query found: times in ms and values, both (points,), in no order."""

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
        """One number; None without points, except for their count.

        A percentile is the value at index int(n·p) − 1 of the ascending order, without interpolation.
        """
        if how is Aggregation.COUNT:
            return float(self.count)
        if not self.count:
            return None
        if how is Aggregation.LAST:
            newest = self.count - 1 - int(np.argmax(self.at_ms[::-1]))
            return float(self.values[newest])
        if how is Aggregation.AVG:
            return float(self.values.mean())
        index = max(int(self.count * float(how.value)) - 1, 0)
        return float(np.partition(self.values, index)[index])


_EMPTY = Points(np.empty(0, np.int64), np.empty(0, np.float64))


_Number = TypeVar("_Number", np.int64, np.float64)


class _Ring:
    """The newest points of one series, in order of arrival."""

    __slots__ = ("_at_ms", "_count", "_next", "_points_max", "_values", "newest_ms")

    def __init__(self, points_max: int) -> None:
        self._points_max = points_max
        first = min(points_max, _POINTS_FIRST)
        self._at_ms = np.empty(first, np.int64)
        self._values = np.empty(first, np.float64)
        self._next = 0
        self._count = 0
        self.newest_ms = -(2**62)

    def append(self, at_ms: int, value: float) -> None:
        if self._next == self._at_ms.size:
            self._grow_or_wrap()
        self._at_ms[self._next] = at_ms
        self._values[self._next] = value
        self._next += 1
        self._count = max(self._count, self._next)
        self.newest_ms = max(self.newest_ms, at_ms)

    def between(self, start_ms: int, end_ms: int) -> Points:
        """Points of the window, both ends included, oldest arrival first."""
        at_ms, values = self._in_order(self._at_ms), self._in_order(self._values)
        within = (at_ms >= start_ms) & (at_ms <= end_ms)
        return Points(at_ms[within], values[within])

    def _in_order(self, column: NDArray[_Number]) -> NDArray[_Number]:
        newest = column[: self._next]
        return (
            np.concatenate((column[self._next : self._count], newest)) if self._count > self._next else newest
        )

    def _grow_or_wrap(self) -> None:
        if self._at_ms.size == self._points_max:
            self._next = 0
            return
        size = min(2 * self._at_ms.size, self._points_max)
        self._at_ms = np.resize(self._at_ms, size)
        self._values = np.resize(self._values, size)


_Key = frozenset[tuple[str, str]]


class SeriesStore:
    """All series of the agent, by kind and properties."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._rings: dict[str, dict[_Key, _Ring]] = {kind: {} for kind in PROPERTIES}

    def append(self, samples: Iterable[Sample]) -> None:
        """Store a batch of samples, all or none.

        Raises: SampleError when one has the wrong properties, is no number or comes too late.
        """
        batch = [(self._rings_of(sample.kind), _key(sample), sample) for sample in samples]
        for rings, key, sample in batch:
            ring = rings.get(key)
            if ring is not None and sample.at_ms < ring.newest_ms - LATE_MS_MAX:
                raise SampleError(sample.kind, f"point is {ring.newest_ms - sample.at_ms} ms late")
        for rings, key, sample in batch:
            ring = rings.get(key)
            if ring is None:
                ring = rings[key] = _Ring(self._points_max)
            ring.append(sample.at_ms, sample.value)

    def query(
        self, kind: str, start_ms: int, end_ms: int, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> Points:
        """Points of all series of the kind that have these properties, both ends of the window included.

        Raises: SampleError when the kind or a property is unknown.
        """
        rings = self._rings_of(kind)
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

    def latest_by(self, kind: str, name: str, start_ms: int, end_ms: int) -> dict[str, float]:
        """The newest value within the window of each series of the kind, by its property `name`."""
        found: dict[str, float] = {}
        for key, ring in self._rings_of(kind).items():
            value = ring.between(start_ms, end_ms).aggregate(Aggregation.LAST)
            if value is not None:
                found[dict(key)[name]] = value
        return found

    def average_by(self, kind: str, name: str, start_ms: int, end_ms: int) -> dict[str, float]:
        """The mean over the window of each series of the kind, by its property `name`."""
        found: dict[str, float] = {}
        for key, ring in self._rings_of(kind).items():
            value = ring.between(start_ms, end_ms).aggregate(Aggregation.AVG)
            if value is not None:
                found[dict(key)[name]] = value
        return found

    def expire(self, before_ms: int) -> int:
        """Drop series whose newest point is older; returns how many."""
        dropped = 0
        for rings in self._rings.values():
            old = [key for key, ring in rings.items() if ring.newest_ms < before_ms]
            dropped += len(old)
            for key in old:
                del rings[key]
        return dropped

    def _rings_of(self, kind: str) -> dict[_Key, _Ring]:
        rings = self._rings.get(kind)
        if rings is None:
            raise SampleError(kind, "unknown kind")
        return rings


def _key(sample: Sample) -> _Key:
    if sample.properties.keys() != PROPERTIES[sample.kind]:
        wanted = ", ".join(sorted(PROPERTIES[sample.kind])) or "none"
        raise SampleError(sample.kind, f"properties {sorted(sample.properties)}, expected {wanted}")
    if not math.isfinite(sample.value):
        raise SampleError(sample.kind, f"{sample.value} is not a finite number")
    return frozenset(sample.properties.items())
