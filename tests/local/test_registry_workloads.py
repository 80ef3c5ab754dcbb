"""What the API server writes into workloads: labels of Jobs, how often the template of a DaemonSet changed."""

from typing import Any

from koordinator.clock import FixedClock
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import NOW_S, create, merge

COUNT = "deprecated.daemonset.template.generation"
UID, NAME = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"


def checked() -> ObjectRegistry:
    return registry.in_memory(FixedClock(NOW_S))


def workload(labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "c", "image": "i:1"}], **spec}
    return {"metadata": {"name": "web"}, "spec": {"template": {"metadata": {"labels": labels}, "spec": pod}}}


async def job(**meta: Any) -> dict[str, Any]:
    body = workload({"app": "web"}, restartPolicy="Never")
    body["metadata"] |= meta
    return (await create(checked(), "jobs", body, "default", "batch/v1")).obj["metadata"]


async def test_a_job_without_labels_has_those_of_its_pods() -> None:
    meta = await job()

    assert meta["labels"]["app"] == "web"
    assert (meta["labels"][UID], meta["labels"][NAME]) == (meta["uid"], "web")


async def test_a_job_with_a_generated_name_has_the_given_labels_only() -> None:
    assert (await job(name="", generateName="web-"))["labels"] == {"app": "web"}


async def test_a_job_with_labels_keeps_them() -> None:
    assert (await job(labels={"app": "web"}))["labels"] == {"app": "web"}


async def test_a_daemon_set_counts_its_templates() -> None:
    api = checked()
    body = workload({"a": "b"})
    body["spec"]["selector"] = {"matchLabels": {"a": "b"}}
    made = await create(api, "daemonsets", body, "default", "apps/v1")
    counts = [made.obj["metadata"]["annotations"][COUNT]]
    for change in (
        {"spec": {"minReadySeconds": 3}},
        {"spec": {"template": {"metadata": {"annotations": {"x": "y"}}}}},
        {"metadata": {"annotations": {COUNT: "9"}}},
    ):
        found = await merge(api, "daemonsets", "web", change, "default", api_version="apps/v1")
        counts.append(found.obj["metadata"]["annotations"][COUNT])

    assert counts == ["1", "1", "2", "2"]


async def test_a_slice_shows_that_it_has_no_endpoints() -> None:
    body = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [], "ports": []}
    made = await create(checked(), "endpointslices", body, "default", "discovery.k8s.io/v1")

    assert (made.obj["endpoints"], made.obj["ports"]) == ([], [])
