"""Autoscalers are stored as v2 and served as v1, too; neither client loses what the other one wrote."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordinator.clock import FixedClock
from koordinator.cluster.backend import ListOptions
from koordinator.local import registry
from koordinator.local.registry.conversion import to_v1, to_v2
from tests.local.registry_builders import NOW_S, create

PLURAL = "horizontalpodautoscalers"
TARGET = {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}


def cpu(percent: int) -> dict[str, Any]:
    aim = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": aim}}


MEMORY = {
    "type": "Resource",
    "resource": {"name": "memory", "target": {"type": "Value", "averageValue": "1Gi"}},
}


async def test_what_autoscale_of_kubectl_creates_is_a_v2_object_with_a_cpu_metric() -> None:
    api = registry.in_memory(FixedClock(NOW_S))
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 5, "targetCPUUtilizationPercentage": 80}

    record = await create(
        api, PLURAL, {"metadata": {"name": "web"}, "spec": spec}, "default", "autoscaling/v1"
    )

    assert record.obj["apiVersion"] == "autoscaling/v1"
    assert record.obj["spec"] == {**spec, "minReplicas": 1}
    newer = api.get(api.resolve("autoscaling", "v2", PLURAL), "default", "web")
    assert newer.obj["spec"]["metrics"] == [cpu(80)]
    assert "targetCPUUtilizationPercentage" not in newer.obj["spec"]
    older = api.resolve("autoscaling", "v1", PLURAL)
    (listed,) = api.list(older, "", ListOptions()).records
    assert listed.obj["apiVersion"] == "autoscaling/v1"


def test_other_metrics_travel_through_v1_in_annotations() -> None:
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 5, "metrics": [cpu(50), MEMORY]}
    obj = {"metadata": {"name": "web"}, "spec": {**spec, "behavior": {"scaleDown": {"policies": []}}}}

    older = to_v1(obj)

    assert older["spec"] == {
        "scaleTargetRef": TARGET,
        "maxReplicas": 5,
        "targetCPUUtilizationPercentage": 50,
    }
    assert set(older["metadata"]["annotations"]) == {
        "autoscaling.alpha.kubernetes.io/metrics",
        "autoscaling.alpha.kubernetes.io/behavior",
    }
    assert to_v2(older)["spec"] == obj["spec"]
    assert to_v2(older)["metadata"] == obj["metadata"]


def test_an_annotation_that_is_no_json_is_dropped() -> None:
    meta = {"name": "web", "annotations": {"autoscaling.alpha.kubernetes.io/metrics": "{", "kept": "1"}}

    newer = to_v2({"metadata": meta, "spec": {"maxReplicas": 2}})

    assert newer == {"metadata": {"name": "web", "annotations": {"kept": "1"}}, "spec": {"maxReplicas": 2}}


@given(
    percent=st.none() | st.integers(1, 200),
    current=st.none() | st.integers(0, 200),
    others=st.lists(st.just(MEMORY), max_size=2),
    behavior=st.none() | st.just({"scaleUp": {"stabilizationWindowSeconds": 3}}),
)
def test_a_client_of_v1_that_writes_back_what_it_read_changes_nothing(
    percent: int | None, current: int | None, others: list[dict[str, Any]], behavior: dict[str, Any] | None
) -> None:
    metrics = [*([] if percent is None else [cpu(percent)]), *others]
    spec: dict[str, Any] = {"maxReplicas": 5}
    status: dict[str, Any] = {"currentReplicas": 1, "desiredReplicas": 2}
    if metrics:
        spec["metrics"] = metrics
    if behavior is not None:
        spec["behavior"] = behavior
    if current is not None:
        measured = {"name": "cpu", "current": {"averageUtilization": current}}
        status["currentMetrics"] = [{"type": "Resource", "resource": measured}]
    obj = {"metadata": {"name": "web", "annotations": {"a": "b"}}, "spec": spec, "status": status}

    assert to_v2(to_v1(obj)) == obj
