"""Objects as everyone sees them."""

from typing import Any

import pytest

from koordinator.api import decode, labels, resources
from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.normalization import (
    PodSteps,
    by_view,
    normalize_device,
    normalize_node,
    normalize_pod,
)
from koordinator.api.resources import rename
from koordinator.api.sigs import ElasticQuota

ALL_STEPS = PodSteps(replace_resources=True, priority=True, preemption_policy=True)


def pod(requests: dict[str, Any], *, annotations: dict[str, str] | None = None, **spec: Any) -> Pod:
    containers = [{"name": "c", "resources": {"requests": requests}}]
    metadata = {"name": "p", "annotations": annotations or {}, "labels": spec.pop("labels", {})}
    return decode.from_builtins({"metadata": metadata, "spec": {"containers": containers, **spec}}, Pod)


def test_old_names_are_renamed_where_only_the_capacity_has_them() -> None:
    body = {"status": {"allocatable": {"cpu": "4"}, "capacity": {"koordinator.sh/batch-cpu": "1k"}}}
    node = normalize_node(decode.from_builtins(body, Node))
    assert node.status.allocatable == {"cpu": "4"}
    assert node.status.capacity == {resources.BATCH_CPU: "1k"}


@pytest.mark.parametrize(
    "obj",
    [
        pod({"koordinator.sh/batch-cpu": 1, "kubernetes.io/gpu": 2}),
        pod({"cpu": "1500m"}, annotations={labels.REPLACE_RESOURCES: "cpu:x.io/cpu,memory:"}),
        pod({}, labels={labels.SCHEDULER_NAME: "other"}, schedulerName="default-scheduler"),
        pod(
            {},
            annotations={
                labels.DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":1}}]}'
            },
        ),
    ],
)
def test_doing_it_again_changes_nothing(obj: Pod) -> None:
    once = normalize_pod(obj, ALL_STEPS)
    assert once != obj
    assert normalize_pod(once, ALL_STEPS) == once


def test_an_object_that_needs_no_change_comes_back_as_it_is() -> None:
    plain = pod({"cpu": 1, "kubernetes.io/batch-cpu": 500})
    assert normalize_pod(plain, PodSteps()) is plain
    node = decode.from_builtins({"status": {"allocatable": {"cpu": 4}, "capacity": {"cpu": 4}}}, Node)
    assert normalize_node(node) is node
    device = decode.from_builtins(
        {"spec": {"devices": [{"resources": {"koordinator.sh/gpu-core": 100}}]}}, Device
    )
    assert normalize_device(device) is device


def test_the_original_scheduler_is_remembered() -> None:
    asked = pod({}, labels={labels.SCHEDULER_NAME: ""}, schedulerName="default-scheduler")
    seen = normalize_pod(asked, PodSteps())
    assert seen.spec.scheduler_name == ""
    assert seen.metadata.annotations[labels.ORIGINAL_SCHEDULER_NAME] == "default-scheduler"


def test_a_step_runs_only_when_one_of_the_registries_has_its_gate_on() -> None:
    scheduler = FeatureGates.of(Component.SCHEDULER)
    assert PodSteps.of(scheduler) == PodSteps()
    manager = FeatureGates.of(Component.MANAGER, "PriorityTransformer=true")
    assert PodSteps.of(scheduler, manager) == PodSteps(priority=True)


def test_cpu_that_is_renamed_is_counted_in_milli_cores() -> None:
    assert rename({"cpu": "1.5"}, "cpu", "x.io/cpu") == {"x.io/cpu": "1500"}
    assert rename({"memory": "1Gi", "x.io/m": 1}, "memory", "x.io/m") == {"memory": "1Gi", "x.io/m": 1}


def test_a_reservation_takes_from_allocatable_and_adds_no_resources() -> None:
    annotations = {labels.NODE_RESERVATION: '{"resources":{"cpu":"6","memory":"1Gi","x.io/y":"1"}}'}
    body = {
        "metadata": {"annotations": annotations},
        "status": {"allocatable": {"cpu": "4", "memory": "4Gi"}, "capacity": {"cpu": "4"}},
    }
    node = normalize_node(decode.from_builtins(body, Node))
    assert node.status.allocatable == {"cpu": "0", "memory": "3Gi"}
    assert node.status.capacity == {"cpu": "4"}


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(
            decode.from_builtins(
                {
                    "metadata": {"annotations": {labels.NODE_RESERVATION: '{"resources":{"cpu":"1"}}'}},
                    "status": {"allocatable": {"cpu": "many"}},
                },
                Node,
            ),
            id="a node's allocatable",
        ),
        pytest.param(
            pod({"cpu": "many"}, annotations={labels.REPLACE_RESOURCES: "cpu:x.io/cpu"}), id="a pod's request"
        ),
    ],
)
def test_what_is_no_quantity_stays_for_whoever_reports_it(obj: Any) -> None:
    normalize = by_view(ALL_STEPS)[type(obj)]
    seen = normalize(obj)
    if isinstance(seen, Node):
        assert seen is obj
    else:
        assert seen.spec.containers[0].resources.requests == {"cpu": "many"}


def test_every_view_with_old_names_has_its_transform() -> None:
    transforms = by_view(PodSteps())
    quota = {"spec": {"min": {"koordinator.sh/batch-cpu": 1}, "max": {"koordinator.sh/batch-cpu": 2}}}
    seen = transforms[ElasticQuota](decode.from_builtins(quota, ElasticQuota))
    assert (seen.spec.min, seen.spec.max) == ({"kubernetes.io/batch-cpu": 1}, {"kubernetes.io/batch-cpu": 2})
    device = {"spec": {"devices": [{"resources": {"kubernetes.io/gpu-core": 100}}]}}
    seen = transforms[Device](decode.from_builtins(device, Device))
    assert seen.spec.devices[0].resources == {"koordinator.sh/gpu-core": 100}
