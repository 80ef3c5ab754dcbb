"""Measure the steps of admission handlers (`koord_manager_webhook_webhook_duration_milliseconds`)."""

import time
from collections.abc import Callable

from koordinator.manager.metrics import ALLOWED, REJECTED, ManagerMetrics
from koordinator.manager.webhooks.review import AdmissionRequest, AdmissionVerdict, Handler
from koordinator.prometheus import HistogramSeries

Timer = Callable[[], float]
"""Seconds since some moment; only differences count. A loop's own time may stand still between two turns."""

MUTATE, VALIDATE = "mutate", "validate"


class Steps:
    """The steps (`plugin_name`) of one handler, for one `webhook_type` and `object_type`."""

    def __init__(
        self,
        metrics: ManagerMetrics,
        webhook_type: str,
        object_type: str,
        timer: Timer = time.perf_counter,
    ) -> None:
        self._durations = metrics.webhook_durations
        self._webhook_type = webhook_type
        self._object_type = object_type
        self._timer = timer
        self._series: dict[tuple[str, str, bool], HistogramSeries] = {}

    def start(self) -> float:
        """Return the moment when a first step begins."""
        return self._timer()

    def done(self, operation: str, plugin: str, began_s: float, *, allowed: bool = True) -> float:
        """A step that began then is over; the moment when the next one begins."""
        now_s = self._timer()
        self.took(operation, plugin, now_s - began_s, allowed=allowed)
        return now_s

    def took(self, operation: str, plugin: str, duration_s: float, *, allowed: bool) -> None:
        """A step is over. `operation` as the API server says it (`CREATE`)."""
        key = operation, plugin, allowed
        series = self._series.get(key)
        if series is None:
            status = ALLOWED if allowed else REJECTED
            series = self._durations.of(self._webhook_type, self._object_type, operation, plugin, status)
            self._series[key] = series
        series.observe(duration_s * 1000)


def timed(handler: Handler, steps: Steps, plugin: str) -> Handler:
    """Return a handler of one step, timed as a whole; a step that raises is a rejected one."""

    async def ask(request: AdmissionRequest) -> AdmissionVerdict:
        began_s, allowed = steps.start(), False
        try:
            verdict = await handler(request)
            allowed = verdict.allowed
            return verdict
        finally:
            steps.done(request.operation, plugin, began_s, allowed=allowed)

    return ask
