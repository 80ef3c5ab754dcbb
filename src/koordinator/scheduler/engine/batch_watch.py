"""Measure what plans of several pods cost, and how their bindings end: the metrics of inline batch scheduling.

Source: behaviour/scheduler C9 and G; behaviour/gangs 17.
"""

import contextlib
from collections.abc import Callable, Iterator

from koordinator.scheduler.plugin.metrics import Metrics
from koordinator.scheduler.plugin.status import Status

SUCCESS, FAILURE = "success", "failure"


class BatchWatch:
    """`tick` gives seconds."""

    def __init__(self, metrics: Metrics, tick: Callable[[], float]) -> None:
        self._metrics = metrics
        self._tick = tick

    @contextlib.contextmanager
    def node(self) -> Iterator[None]:
        """The pods of one node are filtered, counted and reserved."""
        with self._timing(self._metrics.batch_by_node.of().observe):
            yield

    @contextlib.contextmanager
    def pod(self) -> Iterator[None]:
        """So is one pod."""
        with self._timing(self._metrics.batch_by_pod.of().observe):
            yield

    @contextlib.contextmanager
    def _timing(self, observe: Callable[[float], None]) -> Iterator[None]:
        began_s = self._tick()
        try:
            yield
        finally:
            observe(max(0.0, self._tick() - began_s))

    def began(self) -> float:
        return self._tick()

    def ended(self, began_s: float, refusal: Status | None) -> None:
        """A plan was carried out up to Permit, or given up."""
        result = SUCCESS if refusal is None else FAILURE
        self._metrics.batch_duration.of(result).observe(max(0.0, self._tick() - began_s))

    def cleaned_up(self, pod_count: int, reason: str) -> None:
        """Placements were undone."""
        if pod_count:
            self._metrics.batch_cleanups.inc(reason, by=pod_count)


class BatchBinding:
    """The bindings of one plan: whether only some of its pods were bound is known when the last one ended."""

    __slots__ = ("_failed_count", "_left_count", "_metrics", "_placed_count")

    def __init__(self, metrics: Metrics, pod_count: int) -> None:
        self._metrics = metrics
        self._left_count = pod_count
        self._placed_count = 0
        self._failed_count = 0

    def ended(self, outcome: Status, phase: str) -> None:
        """One of the bindings ended; `phase` is the extension point that failed."""
        self._left_count -= 1
        if outcome.is_success:
            self._placed_count += 1
        else:
            self._failed_count += 1
            self._metrics.batch_bind_failures.inc(outcome.plugin or outcome.code.word, phase)
            self._metrics.batch_cleanups.inc("bind failure")
        if self._left_count == 0 and self._failed_count and self._placed_count:
            self._metrics.batch_partial_jobs.inc()
            self._metrics.batch_partial_pods.inc(SUCCESS, by=self._placed_count)
            self._metrics.batch_partial_pods.inc(FAILURE, by=self._failed_count)
