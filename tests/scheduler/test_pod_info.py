"""A pod as the scheduler counts it."""

from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.table.pod_info import PodInfo, annotations

MI = 1 << 20


@pytest.mark.parametrize(
    ("whole", "overhead", "counts_for"),
    [
        pytest.param(None, {}, (100 + 100, 200 * MI * 2), id="containers without requests"),
        pytest.param(None, {"memory": "10Mi"}, (200, 410 * MI), id="overhead stands in for no container"),
        pytest.param({"cpu": "1"}, {}, (1000, 200 * MI * 2), id="cpu of the whole pod"),
        pytest.param({"cpu": "1"}, {"memory": "10Mi"}, (1000, 10 * MI), id="and overhead that names memory"),
        pytest.param({"cpu": "1", "memory": "1Mi"}, {}, (1000, MI), id="all of the whole pod"),
        pytest.param({"hugepages-2Mi": "2Mi"}, {}, (200, 400 * MI), id="nothing that counts in scores"),
    ],
)
def test_scores_count_defaults_only_for_what_nobody_names(
    whole: Any, overhead: dict[str, str], counts_for: tuple[int, int]
) -> None:
    spec: dict[str, Any] = {"containers": [{"name": "a"}, {"name": "b"}], "overhead": overhead}
    if whole is not None:
        spec["resources"] = {"requests": whole}
    pod = from_builtins({"metadata": {"name": "p"}, "spec": spec}, Pod)
    assert PodInfo.of(pod, ResourceRegistry()).nonzero_amounts == counts_for


@pytest.mark.parametrize(("uid", "found"), [("u-1", "u-1"), ("", "default/p")])
def test_a_pod_is_known_by_its_uid_and_by_its_name_where_it_has_none(uid: str, found: str) -> None:
    pod = from_builtins({"metadata": {"name": "p", "namespace": "default", "uid": uid}}, Pod)
    registry = ResourceRegistry()
    info = PodInfo.of(pod, registry)
    assert info.uid == found
    assert info.updated(pod, registry).request_key is info.request_key


def test_annotations_that_nobody_asks_for_make_no_difference() -> None:
    tells, registry = annotations("asked", "asked-too"), ResourceRegistry()
    bare, other, asked = (
        PodInfo.of(from_builtins({"metadata": {"name": "p", "annotations": own}}, Pod), registry)
        for own in ({}, {"network-topology-index": "3"}, {"asked": "x"})
    )
    assert tells(bare) == tells(other) != tells(asked)


def test_a_pod_in_a_new_state_keeps_its_amounts_unless_they_or_its_labels_changed() -> None:
    registry = ResourceRegistry()

    def info_of(cpu: str, labels: Any) -> PodInfo:
        return PodInfo.of(pod_of(cpu, labels), registry)

    def pod_of(cpu: str, labels: Any, priority: int | None = None) -> Pod:
        container = {
            "name": "c",
            "resources": {"requests": {"cpu": cpu}},
            "ports": [
                {"hostPort": 80},
                {"containerPort": 1},
                {"hostPort": 53, "protocol": "UDP", "hostIP": "::"},
            ],
        }
        spec = {"containers": [container], "priority": priority}
        return from_builtins({"metadata": {"name": "p", "labels": labels}, "spec": spec}, Pod)

    old = info_of("1", {"a": "b"})
    same = old.updated(pod_of("1", {"a": "b"}, priority=7), registry)
    assert same.asks_like(old)
    assert (same.priority, old.priority) == (7, 0)
    assert same.labelled == old.labelled
    assert same.host_ports == (("0.0.0.0", "TCP", 80), ("::", "UDP", 53))
    other = old.updated(pod_of("2", {}), registry)
    assert not other.asks_like(old)
    assert other.requests == ((0, 2000),)
    assert old.updated(pod_of("1", {}), registry).labelled == info_of("1", {}).labelled != old.labelled
    held = old.holding({0: 500, 1: 0})
    assert (held.requests, held.nonzero_amounts) == (((0, 500),), old.nonzero_amounts)
    assert held.asks_like(old.holding({0: 500}))
    assert not held.asks_like(old)


def test_amounts_saturate_and_pods_is_no_resource_of_a_pod() -> None:
    body = {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [
                {"name": "c", "resources": {"requests": {"memory": "5Pi", "pods": "3", "x.io/y": 0}}}
            ]
        },
    }
    info = PodInfo.of(from_builtins(body, Pod), ResourceRegistry())
    assert info.requests == ((1, 1 << 52),)
    assert info.nonzero_amounts == (100, 1 << 52)


@pytest.mark.parametrize(
    ("phase", "is_terminal"), [("Succeeded", True), ("Failed", True), ("Running", False), ("", False)]
)
def test_a_pod_that_has_ended_holds_nothing(phase: str, is_terminal: bool) -> None:
    pod = from_builtins({"metadata": {"name": "p"}, "status": {"phase": phase}}, Pod)
    assert PodInfo.of(pod, ResourceRegistry()).is_terminal is is_terminal
