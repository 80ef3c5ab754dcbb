"""How long the steps of ElasticQuota take. Source: spec 06, section 16."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from koordinator.prometheus import Histogram, exponential
from koordinator.scheduler.framework import Handle

P = ParamSpec("P")
R = TypeVar("R")


class Latencies:
    """Measures calls under the names that upstream gives them."""

    def __init__(self, handle: Handle) -> None:
        self._now = handle.clock.now
        self._histogram = handle.metrics.registry.shared(
            Histogram(
                "scheduler_elastic_quota_process_latency",
                "How long operations on quotas take.",
                exponential(1e-5, 2, 24),
                ("operation",),
            )
        )

    def of(self, operation: str, function: Callable[P, R]) -> Callable[P, R]:
        """The function, measured."""
        series, now = self._histogram.of(operation), self._now

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            began_s = now()
            try:
                return function(*args, **kwargs)
            finally:
                series.observe(max(now() - began_s, 0.0))

        return measured
