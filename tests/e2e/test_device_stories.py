"""Cards of hollow nodes given out with kubectl: shared, whole, joined by NVSwitches, with NICs of the same switches and
CPUs of the same NUMA node; broken, deleted, and asked back by pods that matter more."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, scheduler_config, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=120)

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node of four GPUs and two NICs, where pods that matter more may take the place of others."""
    folder = tmp_path_factory.mktemp("devices")
    config = scheduler_config(folder, enablePreemption="true")
    yield from with_cards(folder, "--gpus", "4", "--rdma", "2", "--scheduler-config", str(config))


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node of eight GPUs that NVSwitches join, and eight NICs."""
    folder = tmp_path_factory.mktemp("joined")
    yield from with_cards(folder, "--gpus", "8:H100", "--rdma", "8", "--partitions")


def with_cards(folder: Path, *arguments: str) -> Iterator[Cluster]:
    """A cluster of one node once the manager has summed its cards there."""
    found = started(folder, "--nodes", "1", *arguments)
    until(
        lambda: "koordinator.sh/gpu-core" in found.get("node", "node-0")["status"]["allocatable"],
        60,
        found.process,
    )
    yield found
    found.stop()


def pod(
    name: str,
    limits: dict[str, str],
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> str:
    container = {
        "name": "main",
        "image": "train",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", **limits}},
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations or {}, "labels": labels or {}},
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [container],
                "terminationGracePeriodSeconds": 0,
                **spec,
            },
        }
    )


def share(percent: int) -> dict[str, str]:
    return {"koordinator.sh/gpu-core": str(percent), "koordinator.sh/gpu-memory-ratio": str(percent)}


def create(cluster: Cluster, body: str) -> None:
    cluster.kubectl("create", "-f", "-", text=body)


def allocated(cluster: Cluster, name: str) -> Any:
    """The devices written on the pod once it is bound."""

    def annotations() -> Any:
        found = cluster.get("pod", name)
        return found["metadata"].get("annotations", {}) if found["spec"].get("nodeName") else {}

    until(lambda: ALLOCATED in annotations(), 30, cluster.process)
    return json.loads(annotations()[ALLOCATED])


def minors(cluster: Cluster, name: str, device_type: str = "gpu") -> list[int]:
    return [each["minor"] for each in allocated(cluster, name)[device_type]]


def explained(cluster: Cluster, name: str, *words: str) -> str:
    """The explanation of a pod that waits, once it has these words."""
    said = ""

    def tells() -> bool:
        nonlocal said
        said = cluster.koordinator("explain", "pod", name).stdout
        return all(word in said for word in words)

    try:
        until(tells, 30, cluster.process)
    except AssertionError as error:
        raise AssertionError(f"{words} not in\n{said}") from error
    return said


def annotate(cluster: Cluster, *texts: str) -> None:
    names = [f"simulation.koordinator.sh/{text}" for text in texts]
    cluster.kubectl("annotate", "--overwrite", "node", "node-0", *names)


def away(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pods", "--all", "--wait=true")


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
    away(cluster)


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
    away(cluster)


def test_two_halves_share_the_card_that_is_left_and_a_third_reads_why_it_waits(cluster: Cluster) -> None:
    create(cluster, pod("three", share(300)))
    (left,) = {0, 1, 2, 3} - set(minors(cluster, "three"))
    create(cluster, pod("first", share(50)))
    create(cluster, pod("second", share(50)))
    assert minors(cluster, "first") == minors(cluster, "second") == [left]

    create(cluster, pod("third", share(50)))
    explained(cluster, "third", "DeviceShare", f"gpu {left} gpu-core 0")
    away(cluster)


def test_a_card_breaks_while_a_pod_waits_for_it_and_comes_back(cluster: Cluster) -> None:
    create(cluster, pod("three", share(300)))
    (left,) = {0, 1, 2, 3} - set(minors(cluster, "three"))
    annotate(cluster, f"unhealthy-devices=gpu/{left}")
    until(lambda: not cluster.get("device", "node-0")["spec"]["devices"][left]["health"], 30, cluster.process)
    create(cluster, pod("waits", share(100)))
    explained(cluster, "waits", f"gpu {left} is not healthy")

    annotate(cluster, "unhealthy-devices-")
    assert minors(cluster, "waits") == [left]
    away(cluster)


def test_without_its_device_object_a_node_gives_out_nothing_more(cluster: Cluster) -> None:
    create(cluster, pod("before", share(100)))
    held = minors(cluster, "before")
    annotate(cluster, "device-reports=off")
    cluster.kubectl("delete", "device", "node-0")
    create(cluster, pod("waits", share(100)))
    explained(cluster, "waits", "gpu 0 is not healthy", "gpu 1 is not healthy")

    annotate(cluster, "device-reports-")
    assert set(minors(cluster, "waits")).isdisjoint(held), "what a pod holds stays booked"
    away(cluster)


def test_a_pod_that_matters_more_takes_the_card_of_another(cluster: Cluster) -> None:
    create(cluster, pod("three", share(300), priorityClassName="koord-prod"))
    create(cluster, pod("little", share(100), priorityClassName="koord-batch"))
    card = minors(cluster, "little")
    create(cluster, pod("waits", share(100), priorityClassName="koord-batch"))
    explained(cluster, "waits", f"gpu {card[0]} gpu-core 0")

    create(cluster, pod("much", share(100), priorityClassName="koord-prod"))
    assert minors(cluster, "much") == card
    assert "little" not in cluster.kubectl("get", "pods", "-o", "name")
    away(cluster)


def test_a_card_that_is_kept_for_others_is_refused_and_the_pod_reads_by_which_reservation(
    cluster: Cluster,
) -> None:
    create(cluster, pod("three", share(300)))
    (left,) = {0, 1, 2, 3} - set(minors(cluster, "three"))
    template = {"spec": json.loads(pod("template", share(100)))["spec"]}
    resources = template["spec"]["containers"][0]["resources"]
    resources["requests"] = resources["limits"]  # the API server fills that in for pods only
    body = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "next-training"},
        "spec": {
            "template": template,
            "owners": [{"labelSelector": {"matchLabels": {"app": "train"}}}],
            "ttl": "1h",
        },
    }
    done = cluster.run("create", "-f", "-", text=json.dumps(body))
    assert done.returncode == 0, done.stderr
    until(
        lambda: cluster.get("reservation", "next-training").get("status", {}).get("phase") == "Available",
        30,
        cluster.process,
    )

    create(cluster, pod("stranger", share(50)))
    explained(
        cluster,
        "stranger",
        f"gpu {left} gpu-core 0",
        f"Reservation next-training keeps gpu {left} gpu-core 100",
    )
    create(cluster, pod("owner", share(100), labels={"app": "train"}))
    assert minors(cluster, "owner") == [left]
    explained(cluster, "stranger", f"gpu {left} gpu-core 0")
    cluster.kubectl("delete", "reservation", "next-training")
    away(cluster)


def test_cards_cpus_and_memory_come_from_one_numa_node(cluster: Cluster) -> None:
    numa = {"scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'}
    bound: dict[str, Any] = {"labels": {"koordinator.sh/qosClass": "LSR"}, "priorityClassName": "koord-prod"}
    create(cluster, pod("aligned", {**share(200), "cpu": "4"}, numa, **bound))
    devices = cluster.get("device", "node-0")["spec"]["devices"]
    of_card = {one.get("minor", 0): one["topology"]["nodeID"] for one in devices if one["type"] == "gpu"}
    nodes = {of_card[minor] for minor in minors(cluster, "aligned")}
    status = json.loads(
        cluster.get("pod", "aligned")["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"]
    )
    assert nodes == {each["node"] for each in status["numaNodeResources"]}
    assert len(status["cpuset"]) >= len("0-3")

    create(cluster, pod("too-wide", {**share(300), "cpu": "4"}, numa, **bound))
    free = "left: gpu 0 gpu-core 0" if 0 in minors(cluster, "aligned") else "left: gpu 0 gpu-core 100"
    explained(cluster, "too-wide", "SingleNUMANode", free)
    away(cluster)


def test_eight_cards_come_with_functions_of_the_nics_of_their_switches(joined: Cluster) -> None:
    wishes = {
        JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}),
        HINT: json.dumps({"rdma": {"allocateStrategy": "RequestsAsCount", "vfSelector": {}}}),
    }
    create(joined, pod("all", {**share(800), "koordinator.sh/rdma": "8"}, wishes))
    held = allocated(joined, "all")
    assert [one["minor"] for one in held["gpu"]] == [one["minor"] for one in held["rdma"]] == list(range(8))
    functions = [one["extension"]["vfs"] for one in held["rdma"]]
    assert all(len(of_card) == 1 for of_card in functions)
    assert len({of_card[0]["busID"] for of_card in functions}) == 8

    create(joined, pod("one", {**share(100), "koordinator.sh/rdma": "1"}, wishes))
    explained(joined, "one", "gpu 0 gpu-core 0", "rdma 0 rdma 99")
    away(joined)


def test_cards_that_nvswitches_join_are_given_out_in_partitions(joined: Cluster) -> None:
    create(joined, pod("pair", share(200)))
    create(joined, pod("four", share(400)))
    pair, four = minors(joined, "pair"), minors(joined, "four")
    assert pair[0] % 2 == 0 and pair[1] == pair[0] + 1
    assert four in ([0, 1, 2, 3], [4, 5, 6, 7])

    create(joined, pod("odd", share(300)))
    explained(joined, "odd", "node(s) Unsupported number of GPU requests")
    create(joined, pod("another", share(400)))
    explained(joined, "another", "Insufficient Partitioned GPU Devices", f"gpu {four[0]} gpu-core 0")
    away(joined)
