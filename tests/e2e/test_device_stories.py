"""Cards of hollow nodes given out with kubectl: shared, whole, with a NIC of the same switch, and asked back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=120)

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node of four GPUs and two NICs; the manager sums them on the node."""
    found = started(tmp_path_factory.mktemp("devices"), "--nodes", "1", "--gpus", "4", "--rdma", "2")
    until(
        lambda: "koordinator.sh/gpu-core" in found.get("node", "node-0")["status"]["allocatable"],
        60,
        found.process,
    )
    yield found
    found.stop()


def pod(name: str, limits: dict[str, str], annotations: dict[str, str] | None = None) -> str:
    container = {
        "name": "main",
        "image": "train",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", **limits}},
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [container],
                "terminationGracePeriodSeconds": 0,
            },
        }
    )


def share(percent: int) -> dict[str, str]:
    return {"koordinator.sh/gpu-core": str(percent), "koordinator.sh/gpu-memory-ratio": str(percent)}


def create(cluster: Cluster, body: str) -> None:
    """The pod is created, with the warning that no container gets a device by itself yet."""
    done = cluster.run("create", "-f", "-", text=body)
    assert done.returncode == 0 and "does not put devices into containers yet" in done.stderr, done.stderr


def allocated(cluster: Cluster, name: str) -> Any:
    """The devices written on the pod once it is bound."""

    def annotations() -> Any:
        found = cluster.get("pod", name)
        return found["metadata"].get("annotations", {}) if found["spec"].get("nodeName") else {}

    until(lambda: ALLOCATED in annotations(), 30, cluster.process)
    return json.loads(annotations()[ALLOCATED])


def minors(cluster: Cluster, name: str, device_type: str = "gpu") -> list[int]:
    return [each["minor"] for each in allocated(cluster, name)[device_type]]


def test_a_card_is_shared_whole_ones_are_not_and_a_pod_waits_for_one(cluster: Cluster) -> None:
    for number in range(4):
        create(cluster, pod(f"share-{number}", share(60)))
    assert sorted(minor for n in range(4) for minor in minors(cluster, f"share-{n}")) == [0, 1, 2, 3]
    create(cluster, pod("beside", share(40)))
    assert len(minors(cluster, "beside")) == 1

    create(cluster, pod("whole", share(100)))
    until(
        lambda: "Insufficient GPU Devices" in cluster.koordinator("explain", "pod", "whole").stdout,
        30,
        cluster.process,
    )
    explained = cluster.koordinator("explain", "pod", "whole").stdout
    assert "DeviceShare" in explained, explained

    freed = next(n for n in range(4) if minors(cluster, f"share-{n}") != minors(cluster, "beside"))
    expected = minors(cluster, f"share-{freed}")
    cluster.kubectl("delete", "pod", f"share-{freed}", "--wait=true")
    assert minors(cluster, "whole") == expected
    cluster.kubectl("delete", "pods", "--all", "--wait=true")


def test_two_cards_come_with_the_nic_of_their_switch(cluster: Cluster) -> None:
    joint = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
    limits = {**share(200), "koordinator.sh/rdma": "10"}
    create(cluster, pod("joint", limits, joint))

    devices = cluster.get("device", "node-0")["spec"]["devices"]
    switch_of = {(each["type"], each.get("minor", 0)): each["topology"]["pcieID"] for each in devices}
    switches = {
        kind: {switch_of[kind, n] for n in minors(cluster, "joint", kind)} for kind in ("gpu", "rdma")
    }
    assert switches["gpu"] == switches["rdma"], switches
    cluster.kubectl("delete", "pods", "--all", "--wait=true")
