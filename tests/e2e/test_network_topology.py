"""A network described with kubectl on a running `koordinator up`, and gangs that are placed by it."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=120)

TOPOLOGY = """
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: ClusterNetworkTopology
metadata: {name: default}
spec:
  networkTopologySpec:
  - {topologyLayer: SpineLayer, labelKey: [example.com/spine]}
  - {topologyLayer: BlockLayer, parentTopologyLayer: SpineLayer, labelKey: [example.com/block]}
  - {topologyLayer: NodeTopologyLayer, parentTopologyLayer: BlockLayer}
"""
PREFIX = "gang.scheduling.koordinator.sh"
BLOCK = {"gatherStrategy": [{"layer": "BlockLayer", "strategy": "MustGather"}]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Eight nodes of four cores, three of them for whole pods: two spines of two blocks of two."""
    arguments = ("--nodes", "8", "--node-cpu", "4", "--without-manager", "--enable-network-topology-manager")
    found = started(tmp_path_factory.mktemp("network"), *arguments)
    for number in range(8):
        spine, block = f"s{number // 4}", f"b{number // 2}"
        labels = (f"example.com/spine={spine}", f"example.com/block={block}")
        found.kubectl("label", "node", f"node-{number}", *labels)
    found.kubectl("apply", "-f", "-", text=TOPOLOGY)
    yield found
    found.stop()


def gang(name: str, size: int, spec: Any) -> str:
    """A list of pods of one core that are to be placed together."""
    about = {
        f"{PREFIX}/name": name,
        f"{PREFIX}/min-available": str(size),
        f"{PREFIX}/network-topology-spec": json.dumps(spec),
    }
    requests = {"requests": {"cpu": "1", "memory": "100Mi"}}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{number}", "labels": {"job": name}, "annotations": about},
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [{"name": "main", "image": "train", "resources": requests}],
            },
        }
        for number in range(size)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})


def pods_of(cluster: Cluster, name: str) -> list[Any]:
    found: list[Any] = cluster.get("pods", "-l", f"job={name}")["items"]
    return found


def blocks_of(cluster: Cluster, name: str) -> Counter[int]:
    nodes = [pod["spec"].get("nodeName") for pod in pods_of(cluster, name)]
    return Counter(int(node.removeprefix("node-")) // 2 for node in nodes if node)


def test_the_status_tells_the_network(cluster: Cluster) -> None:
    def counts() -> dict[str, int]:
        status = cluster.get("clusternetworktopology", "default").get("status", {})
        return {
            each["topologyInfo"]["topologyName"]: each["nodeNum"] for each in status.get("detailStatus", [])
        }

    expected = {"": 8, "s0": 4, "s1": 4} | {f"b{number}": 2 for number in range(4)}
    until(lambda: counts() == expected, 30, cluster.process)


def test_a_gang_lands_in_one_block_and_one_that_no_block_holds_says_so(cluster: Cluster) -> None:
    test_the_status_tells_the_network(cluster)
    cluster.kubectl("apply", "-f", "-", text=gang("fits", 6, BLOCK))
    until(lambda: sum(blocks_of(cluster, "fits").values()) == 6, 30, cluster.process)
    assert len(blocks_of(cluster, "fits")) == 1

    cluster.kubectl("apply", "-f", "-", text=gang("large", 7, BLOCK))

    def told() -> str:
        conditions = [c for pod in pods_of(cluster, "large") for c in pod["status"].get("conditions", [])]
        return " ".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")

    until(lambda: "no candidate topology nodes can accommodate job" in told(), 30, cluster.process)
    assert "desiredOfferSlot: 7" in told() and "topology topologyNode BlockLayer/b3: 6" in told()
    assert not blocks_of(cluster, "large")
