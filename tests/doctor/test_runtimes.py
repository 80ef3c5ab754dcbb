"""Checks of the ways on which hooks reach containers."""

import json

import msgspec
import pytest

from koordinator.api.apps import DaemonSet
from koordinator.api.core import Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import FindingSeverity
from tests.doctor import builders
from tests.doctor.builders import findings, healthy, only, snapshot


def with_runtime(version: str) -> Node:
    node = builders.node()
    info = msgspec.structs.replace(node.status.node_info, container_runtime_version=version)
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, node_info=info))


@pytest.mark.parametrize(
    ("version", "is_told"),
    [
        ("containerd://1.6.20", True),
        ("containerd://1.7.2", False),
        ("containerd://2.2.9+unknown", False),
        ("containerd://v1.5.0-rc.2", True),
        ("cri-o://1.25.1", True),
        ("cri-o://1.30.0", False),
        ("docker://24.0.7", True),
        ("sandbox://0.1", False),
        ("", False),
    ],
)
def test_a_runtime_without_nri_is_worth_knowing(version: str, is_told: bool) -> None:
    objects = healthy()
    objects[Node] = [with_runtime(version)]

    found = examine(snapshot(objects), ["runtimes"]).findings

    assert [each.severity for each in found] == [FindingSeverity.NOTICE] * is_told
    assert all(version in each.problem for each in found)


@pytest.mark.parametrize(
    ("version", "modes", "is_told"),
    [
        ("containerd://1.7.2", {"nri": False, "proxy": False, "reconciler": True}, True),
        ("containerd://1.7.2", {"nri": True, "proxy": False, "reconciler": True}, False),
        ("containerd://1.7.2", {"nri": False, "proxy": True, "reconciler": True}, False),
        ("cri-o://1.30.0", {"nri": False, "proxy": False}, True),
        ("sandbox://0.1", {"nri": False, "proxy": False, "reconciler": True}, False),
        ("containerd://1.7.2", {"reconciler": True}, False),
        ("containerd://1.7.2", "broken", False),
    ],
)
def test_a_runtime_with_nri_that_does_not_ask_the_agent_is_worth_knowing(
    version: str, modes: object, is_told: bool
) -> None:
    objects = healthy()
    objects[Node] = [with_runtime(version)]
    (metric,) = objects[NodeMetric]
    status = msgspec.structs.replace(metric.status, extensions={"hookDelivery": {"BatchResource": modes}})
    objects[NodeMetric] = [msgspec.structs.replace(metric, status=status)]

    found = examine(snapshot(objects), ["runtimes"]).findings

    assert [each.severity for each in found] == [FindingSeverity.NOTICE] * is_told


@pytest.mark.parametrize(
    ("gates", "is_told"), [("RDMADeviceInject=true", True), ("GPUEnvInject=true", False)]
)
def test_hooks_that_only_nri_carries_need_it(gates: str, is_told: bool) -> None:
    objects = healthy()
    koordlet = builders.koordlet()
    args = [f"--feature-gates={gates}", "--enable-nri-runtime-hook=false"]
    koordlet.spec.template["spec"]["containers"][0]["args"] = args
    objects[DaemonSet] = [koordlet]
    objects[Node] = [with_runtime("docker://24.0.7")]

    found = snapshot(objects)

    if is_told:
        assert only("runtimes", found).severity is FindingSeverity.ERROR
    else:
        assert findings("runtimes", found) == [], "the proxy is in use"


def with_annotations(pod: Pod, given: dict[str, str]) -> Pod:
    meta = msgspec.structs.replace(pod.metadata, annotations=given)
    return msgspec.structs.replace(pod, metadata=meta)


@pytest.mark.parametrize(("gates", "is_told"), [("Accelerators=true", True), ("GPUEnvInject=true", False)])
def test_pods_whose_cards_no_agent_hands_over_are_worth_knowing(gates: str, is_told: bool) -> None:
    objects = healthy()
    koordlet = builders.koordlet()
    koordlet.spec.template["spec"]["containers"][0]["args"] = [f"--feature-gates={gates}"]
    objects[DaemonSet] = [koordlet]
    card = {"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "50"}}]}
    given = {"scheduling.koordinator.sh/device-allocated": json.dumps(card)}
    objects[Pod] = [
        with_annotations(builders.pod("half"), given),
        with_annotations(builders.pod("ended", phase="Succeeded"), given),
        builders.pod("plain"),
    ]

    found = examine(snapshot(objects), ["runtimes"]).findings

    assert [each.object for each in found] == ["Pod default/half"] * is_told
