"""Metrics of work queues and of the time that keys stay in them, under client-go's names (`workqueue_*`), and of
requests to the API server, under the names of upstream's clients (`rest_client_*`)."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from koordinator.cluster.controller import WorkQueue
from koordinator.prometheus import (
    Counter,
    GaugeReading,
    Histogram,
    HistogramSeries,
    Labels,
    MetricsRegistry,
    exponential,
)

if TYPE_CHECKING:  # aiohttp takes a while to import, which a command's --help does not need
    from koordinator.cluster.transport import Transport

_SECONDS = exponential(1e-8, 10, 10)


class QueueMetrics:
    """The families of all queues of a process; `watch` adds a queue under a name."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._watched: dict[str, tuple[WorkQueue[Any], _Observer]] = {}
        self._adds = Counter("workqueue_adds_total", "Total number of adds handled by workqueue", ("name",))
        self._retries = Counter(
            "workqueue_retries_total", "Total number of retries handled by workqueue", ("name",)
        )
        self._waits = Histogram(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested",
            _SECONDS,
            ("name",),
        )
        self._works = Histogram(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes.",
            _SECONDS,
            ("name",),
        )
        registry.add(
            self._adds,
            self._retries,
            self._waits,
            self._works,
            self._reading("workqueue_depth", "Current depth of workqueue", lambda queue, _: len(queue)),
            self._reading(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has been done that is in progress and hasn't been observed by "
                "work_duration.",
                lambda _, seen: sum(seen.working_s()),
            ),
            self._reading(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running.",
                lambda _, seen: max(seen.working_s(), default=0.0),
            ),
        )

    def watch(self, name: str, queue: WorkQueue[Any]) -> None:
        """Count what happens to `queue`; a queue that had the name before is counted no longer."""
        observer = _Observer(name, self._adds, self._retries, self._waits.of(name), self._works.of(name))
        self._watched[name] = (queue, observer)
        queue.observer = observer

    def _reading(
        self, name: str, description: str, read: "Callable[[WorkQueue[Any], _Observer], float]"
    ) -> GaugeReading:
        def of_all() -> Mapping[Labels, float]:
            return {(each,): read(*watched) for each, watched in self._watched.items()}

        return GaugeReading(name, description, ("name",), of_all)


class _Observer:
    """Notes since when each key waits or is worked on."""

    def __init__(
        self, name: str, adds: Counter, retries: Counter, waits: HistogramSeries, works: HistogramSeries
    ) -> None:
        self._name = name
        self._adds, self._retries = adds, retries
        self._waits, self._works = waits, works
        self._added_s: dict[Any, float] = {}
        self._taken_s: dict[Any, float] = {}

    def added(self, key: Any) -> None:
        self._adds.inc(self._name)
        self._added_s[key] = asyncio.get_running_loop().time()

    def taken(self, key: Any) -> None:
        now_s = asyncio.get_running_loop().time()
        self._waits.observe(now_s - self._added_s.pop(key, now_s))
        self._taken_s[key] = now_s

    def done(self, key: Any) -> None:
        now_s = asyncio.get_running_loop().time()
        self._works.observe(now_s - self._taken_s.pop(key, now_s))

    def retried(self, key: Any) -> None:
        self._retries.inc(self._name)

    def working_s(self) -> list[float]:
        """For how long each key that a worker holds has been held."""
        now_s = asyncio.get_running_loop().time()
        return [now_s - taken_s for taken_s in self._taken_s.values()]


_REQUEST_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class ClientMetrics:
    """The families of all clients of a process; `count` connects them to one client."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self.requests = Counter(
            "rest_client_requests_total",
            "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
            ("code", "host", "method"),
        )
        self.request_duration = Histogram(
            "rest_client_request_duration_seconds",
            "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
            _REQUEST_S,
            ("verb", "host"),
        )
        self.rate_limiter = Histogram(
            "rest_client_rate_limiter_duration_seconds",
            "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
            _REQUEST_S,
            ("verb", "host"),
        )
        self.request_retries = Counter(
            "rest_client_request_retries_total",
            "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
            ("code", "verb", "host"),
        )
        registry.add(self.requests, self.request_duration, self.rate_limiter, self.request_retries)

    def count(self, transport: "Transport", server: str) -> None:
        """Count what goes through `transport`, which speaks to `server` (a URL)."""
        host = server.partition("://")[2]

        def answered(method: str, code: str, seconds: float) -> None:
            self.requests.inc(code, host, method)
            self.request_duration.of(method, host).observe(seconds)

        transport.on_answer = answered
        transport.on_limited = lambda method, seconds: self.rate_limiter.of(method, host).observe(seconds)
        transport.on_retry = lambda method, code: self.request_retries.inc(code, method, host)
