"""TidalPools that nobody could read are refused, with the field and the reason."""

import asyncio
from typing import Any

import pytest

from koordinator.manager.webhooks.config_validating import TidalPoolValidatingHandler
from koordinator.manager.webhooks.review import AdmissionRequest, GroupVersionResource

RESOURCE = GroupVersionResource("scheduling.koordinator.sh", "v1alpha1", "tidalpools")


def refusal(spec: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    def pool(spec: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": "night"}, "spec": {"nodeSelector": {}, **spec}}

    request = AdmissionRequest(
        resource=RESOURCE,
        name="night",
        operation="CREATE" if old is None else "UPDATE",
        object=pool(spec),
        old_object=None if old is None else pool(old),
    )
    verdict = asyncio.run(TidalPoolValidatingHandler()(request))
    return "" if verdict.allowed else verdict.message


WINDOW = {"start": "30 0 * * *", "duration": "6h", "batchNodes": "50%"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {"schedule": [WINDOW | {"start": "99 * * * *"}]}, "spec.schedule[0].start", id="no cron"
        ),
        pytest.param({"schedule": [WINDOW | {"duration": "0s"}]}, "spec.schedule[0].duration", id="no time"),
        pytest.param(
            {"schedule": [WINDOW | {"batchNodes": "half"}]}, "spec.schedule[0].batchNodes", id="share"
        ),
        pytest.param(
            {"schedule": [WINDOW], "timeZone": "Mars/Base"}, "unknown time zone Mars/Base", id="zone"
        ),
        pytest.param({"leadTime": "soon"}, "spec.leadTime", id="no duration"),
        pytest.param(
            {"load": {"scaleInBelowPercent": 70, "scaleOutAbovePercent": 60}}, "must be below", id="marks"
        ),
        pytest.param(
            {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
            "spec.nodeSelector",
            id="selector",
        ),
    ],
)
def test_a_pool_that_cannot_be_read_is_refused(spec: dict[str, Any], said: str) -> None:
    assert refusal(spec).startswith("TidalPool night: ") and said in refusal(spec)


def test_a_pool_that_can_be_read_and_one_that_is_only_touched_pass() -> None:
    assert refusal({"schedule": [WINDOW], "timeZone": "Asia/Shanghai"}) == ""
    assert refusal({"leadTime": "soon"}, old={"leadTime": "soon"}) == ""
