"""Durations of admission steps, as Prometheus sees them."""

import pytest

from koordinator.clock import FixedClock
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.webhooks import review
from koordinator.manager.webhooks.review import (
    MUTATE,
    VALIDATE,
    AdmissionRequest,
    AdmissionVerdict,
    Steps,
    timed,
)

NAME = "koord_manager_webhook_webhook_duration_milliseconds"


def test_a_step_is_counted_with_its_outcome() -> None:
    metrics = ManagerMetrics(FixedClock())

    Steps(metrics, MUTATE, "pod").took("CREATE", "ClusterColocationProfile", 0.003, allowed=True)

    labels = (
        'webhook_type="mutate",object_type="pod",operation="CREATE",'
        'plugin_name="ClusterColocationProfile",status="allowed"'
    )
    text = metrics.internal.text()
    assert f'{NAME}_bucket{{{labels},le="2.048"}} 0' in text
    assert f'{NAME}_bucket{{{labels},le="4.096"}} 1' in text
    assert f"{NAME}_count{{{labels}}} 1" in text


@pytest.mark.parametrize("verdict", [review.denied("no"), None], ids=["a refusal", "a handler that fails"])
async def test_a_handler_that_does_not_allow_is_counted_as_rejected(verdict: AdmissionVerdict | None) -> None:
    metrics = ManagerMetrics(FixedClock())

    async def handler(_: AdmissionRequest) -> AdmissionVerdict:
        if verdict is None:
            raise RuntimeError("broken")
        return verdict

    ask = timed(handler, Steps(metrics, VALIDATE, "node"), "NodeValidating")
    if verdict is None:
        with pytest.raises(RuntimeError):
            await ask(AdmissionRequest(operation="UPDATE"))
    else:
        assert await ask(AdmissionRequest(operation="UPDATE")) is verdict

    assert 'operation="UPDATE",plugin_name="NodeValidating",status="rejected"} 1' in metrics.internal.text()
