"""How long the steps of admission handlers take (`koord_manager_webhook_webhook_duration_milliseconds`)."""

import asyncio

from koordinator.manager.metrics import ALLOWED, REJECTED, ManagerMetrics
from koordinator.manager.webhooks.review import AdmissionRequest, Handler, Verdict

MUTATE, VALIDATE = "mutate", "validate"


class Steps:
    """The steps (`plugin_name`) of one handler, for one `webhook_type` and `object_type`."""

    def __init__(self, metrics: ManagerMetrics, webhook_type: str, object_type: str) -> None:
        self._durations = metrics.webhook_durations
        self._webhook_type = webhook_type
        self._object_type = object_type

    def took(self, operation: str, plugin: str, duration_s: float, *, allowed: bool) -> None:
        """A step is over. `operation` as the API server says it (`CREATE`)."""
        status = ALLOWED if allowed else REJECTED
        series = self._durations.of(self._webhook_type, self._object_type, operation, plugin, status)
        series.observe(duration_s * 1000)


def timed(handler: Handler, steps: Steps, plugin: str) -> Handler:
    """A handler of one step, timed as a whole; a step that raises is a rejected one."""

    async def ask(request: AdmissionRequest) -> Verdict:
        loop = asyncio.get_running_loop()
        started_s, allowed = loop.time(), False
        try:
            verdict = await handler(request)
            allowed = verdict.allowed
            return verdict
        finally:
            steps.took(request.operation, plugin, loop.time() - started_s, allowed=allowed)

    return ask
