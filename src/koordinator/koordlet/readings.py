"""Ask the series for the newest value, or for a mean over a window. Source: behaviour/koordlet-act 2.5."""

from collections.abc import Mapping

import msgspec

from koordinator.clock import Clock
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.series import NO_PROPERTIES, Aggregation, SeriesStore

LATEST_INTERVALS = 2
"""How many collect intervals old the newest sample may be."""


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
        none.
        """
        end_ms = int(self._clock.now() * 1000)
        start_ms = end_ms - int(LATEST_INTERVALS * self.collect_interval_s * 1000)
        return self._store.latest(kind, start_ms, end_ms, properties)

    def average(self, kind: str, window_s: float, properties: Mapping[str, str] = NO_PROPERTIES) -> Average:
        """Return the mean over the last `window_s` seconds."""
        end_ms = int(self._clock.now() * 1000)
        points = self._store.query(kind, end_ms - int(window_s * 1000), end_ms, properties)
        return Average(points.aggregate(Aggregation.AVG), points.count)

    def latest_by(self, kind: str, name: str) -> dict[str, float]:
        """Return the newest value of each series of a kind with one property, by that property; without those too
        old.
        """
        end_ms = int(self._clock.now() * 1000)
        start_ms = end_ms - int(LATEST_INTERVALS * self.collect_interval_s * 1000)
        return self._store.latest_by(kind, name, start_ms, end_ms)

    def average_by(self, kind: str, name: str, window_s: float) -> dict[str, float]:
        """Return the mean of each series of a kind with one property, by that property."""
        end_ms = int(self._clock.now() * 1000)
        return self._store.average_by(kind, name, end_ms - int(window_s * 1000), end_ms)

    def pods(self, kind: str = kinds.POD_CPU) -> dict[str, float]:
        """Return the newest values of all pods, by UID."""
        return self.latest_by(kind, kinds.POD_UID)

    def containers(self, kind: str) -> dict[str, float]:
        """Return the newest values of all containers, by full container id."""
        return self.latest_by(kind, kinds.CONTAINER_ID)

    def host_applications(self, kind: str = kinds.HOST_APP_CPU) -> dict[str, float]:
        """Return the newest values of all host applications, by name."""
        return self.latest_by(kind, kinds.HOST_APP_NAME)
