"""Metrics as plain numbers, and their text for Prometheus (exposition format 0.0.4).

Written here because some are counted for every pod that is scheduled: a bound histogram takes one `bisect` and
two additions (0.2 µs), a tenth of what the client library's locks and label look-ups cost.
"""

import abc
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Read = Callable[[], Mapping[Any, float]]
"""Keys are `Labels`."""


F = TypeVar("F", bound="MetricFamily")


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """`count` bucket bounds, each `factor` times the one before."""
    return tuple(start * factor**power for power in range(count))


class MetricFamily(abc.ABC):
    """All samples of one name. `kind` is counter, gauge or histogram; `labels` are the names, in the order in which
    values are given."""

    kind: str

    def __init__(self, name: str, description: str, labels: Sequence[str]) -> None:
        self.name = name
        self.description = description
        self.labels = tuple(labels)

    def head(self) -> tuple[str, str]:
        """HELP and TYPE."""
        return f"# HELP {self.name} {self.description}", f"# TYPE {self.name} {self.kind}"

    def line(self, number: float, *values: str) -> str:
        """One sample."""
        return f"{self.name}{_labels(self.labels, values)} {_number(number)}"

    @abc.abstractmethod
    def lines(self) -> Iterator[str]:
        """Yield the text, with HELP and TYPE."""


class Counter(MetricFamily):
    """Only grows."""

    kind = "counter"

    def __init__(self, name: str, description: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, description, labels)
        self.values: dict[Labels, float] = {}

    def inc(self, *values: str, by: float = 1) -> None:
        assert len(values) == len(self.labels), (self.name, values)
        self.values[values] = self.values.get(values, 0) + by

    def lines(self) -> Iterator[str]:
        yield from self.head()
        for values, number in sorted(self.values.items()):
            yield self.line(number, *values)


class Gauge(Counter):
    """Goes up and down."""

    kind = "gauge"

    def set(self, number: float, *values: str) -> None:
        assert len(values) == len(self.labels), (self.name, values)
        self.values[values] = number


class ExpiringGauge(Gauge):
    """A gauge whose series go when nobody touched them for `expires_s`; None keeps them."""

    def __init__(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        now: Callable[[], float],
        expires_s: float | None,
    ) -> None:
        super().__init__(name, description, labels)
        self._now, self._expires_s = now, expires_s
        self._touched_s: dict[Labels, float] = {}

    def set(self, number: float, *values: str) -> None:
        super().set(number, *values)
        self._touch(values)

    def inc(self, *values: str, by: float = 1) -> None:
        super().inc(*values, by=by)
        self._touch(values)

    def expire(self) -> None:
        """Drop series that nobody touched for a while; to be called now and then."""
        if self._expires_s is None:
            return
        oldest_s = self._now() - self._expires_s
        for values in [values for values, at_s in self._touched_s.items() if at_s < oldest_s]:
            del self._touched_s[values]
            self.values.pop(values, None)

    def _touch(self, values: Labels) -> None:
        if self._expires_s is not None:
            self._touched_s[values] = self._now()


class GaugeReading(MetricFamily):
    """A gauge (or counter) that is read when somebody asks: costs nothing in between."""

    def __init__(
        self, name: str, description: str, labels: Sequence[str], read: Read, *, kind: str = "gauge"
    ) -> None:
        super().__init__(name, description, labels)
        self.kind = kind
        self._read = read

    def lines(self) -> Iterator[str]:
        yield from self.head()
        for values, number in sorted(self._read().items()):
            yield self.line(number, *values)


Samples = Iterable[tuple[Labels, float]]


class GaugeOfObjects(Gauge):
    """A gauge with samples of many objects: the text of each is kept, and written anew when the object has changed
    since somebody last asked. `read` gives the samples of an object by its key; none when it is gone."""

    def __init__(
        self, name: str, description: str, labels: Sequence[str], read: Callable[[str], Samples]
    ) -> None:
        super().__init__(name, description, labels)
        self._read = read
        self._changed: set[str] = set()
        self._texts: dict[str, str] = {}

    def changed(self, keys: Iterable[str]) -> None:
        """These objects have come, changed or gone."""
        self._changed.update(keys)

    def gone(self, key: str) -> None:
        """Note that the object is gone: nothing of it is kept."""
        self._changed.discard(key)
        self._texts.pop(key, None)

    def lines(self) -> Iterator[str]:
        """HELP, TYPE, and all lines of an object at once."""
        for key in self._changed:
            samples = sorted(self._read(key))
            if samples:
                self._texts[key] = "\n".join(self.line(number, *values) for values, number in samples)
            else:
                self._texts.pop(key, None)
        self._changed.clear()
        yield from self.head()
        for key in sorted(self._texts):
            yield self._texts[key]


class HistogramSeries:
    """One histogram with its labels fixed; keep it where it is used often."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, number: float) -> None:
        self.counts[bisect_left(self._bounds, number)] += 1
        self.total += number


class Histogram(MetricFamily):
    """Counts per bucket; `bounds` are upper ones, ascending, without infinity."""

    kind = "histogram"

    def __init__(
        self, name: str, description: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, description, labels)
        self._bounds = tuple(bounds)
        self._series: dict[Labels, HistogramSeries] = {}

    def of(self, *values: str) -> HistogramSeries:
        """Return the series with these label values, made when it is asked for first."""
        found = self._series.get(values)
        if found is None:
            assert len(values) == len(self.labels), (self.name, values)
            found = self._series[values] = HistogramSeries(self._bounds)
        return found

    def lines(self) -> Iterator[str]:
        yield from self.head()
        bounds = [*map(_number, self._bounds), "+Inf"]
        for values, series in sorted(self._series.items()):
            count = 0
            for bound, more in zip(bounds, series.counts, strict=True):
                count += more
                labels = _labels((*self.labels, "le"), (*values, bound))
                yield f"{self.name}_bucket{labels} {count}"
            labels = _labels(self.labels, values)
            yield f"{self.name}_sum{labels} {_number(series.total)}"
            yield f"{self.name}_count{labels} {count}"


class MetricsRegistry:
    """Families in order of their names; a name can be there only once."""

    def __init__(self, families: Iterable[MetricFamily] = ()) -> None:
        self._families: dict[str, MetricFamily] = {}
        self.add(*families)

    def __contains__(self, name: str) -> bool:
        return name in self._families

    def shared(self, family: F) -> F:
        """Return the family of that name that is there already, else this one (plugins have several instances)."""
        found = self._families.setdefault(family.name, family)
        assert isinstance(found, type(family)), f"metric {family.name} is there as something else"
        return found

    def remove(self, name: str) -> bool:
        """Leave a metric out; whether there was one."""
        return self._families.pop(name, None) is not None

    def add(self, *families: MetricFamily) -> None:
        for family in families:
            assert family.name not in self._families, f"metric {family.name} is there already"
            self._families[family.name] = family

    def families(self) -> list[MetricFamily]:
        """Return all families, by name."""
        return [self._families[name] for name in sorted(self._families)]

    def text(self) -> str:
        """Return all metrics."""
        lines = (line for family in self.families() for line in family.lines())
        return "\n".join(lines) + "\n"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def escaped(value: str) -> str:
    """Return the value of a label as it stands between quotes."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(number: float) -> str:
    if number == int(number) and abs(number) < 1e15:
        return str(int(number))
    return repr(float(number))
