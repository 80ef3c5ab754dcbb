"""Measure how long the steps of ElasticQuota take. Source: behaviour/elastic-quota 16."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from koordinator.prometheus import Histogram, exponential
from koordinator.scheduler.plugin.framework import Handle

Ts = TypeVarTuple("Ts")
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

    def of(self, operation: str, function: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
        """The function, measured."""
        observe, now = self._histogram.of(operation).observe, self._now

        def measured(*args: *Ts) -> R:
            began_s = now()
            try:
                return function(*args)
            finally:
                took_s = now() - began_s
                observe(took_s if took_s > 0.0 else 0.0)

        return measured
