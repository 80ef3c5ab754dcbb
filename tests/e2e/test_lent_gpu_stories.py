"""GPUs of services lent to batch pods, with kubectl: a service leaves most of its card, a batch pod has it, and goes
when the service wants it back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=180)

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
BEHAVIOUR = "simulation.koordinator.sh/behaviour"
LENT = "node.koordinator.sh/batch-gpus"
BATCH_CORE, BATCH_MEMORY = "koordinator.sh/batch-gpu-core", "koordinator.sh/batch-gpu-memory"
WHOLE = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
CONFIG = ("-n", "koordinator-system", "patch", "configmap", "slo-controller-config", "--type=merge", "-p")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node of two GPUs, whose agent knows a service after ten seconds and reports as often as it may."""
    folder = tmp_path_factory.mktemp("lent")
    found = started(folder, "--nodes", "1", "--gpus", "2", "--lend-gpus", "10s")
    colocation = {"enable": True, "metricReportIntervalSeconds": 30, "gpuReclaimPercent": 100}
    found.kubectl(*CONFIG, json.dumps({"data": {"colocation-config": json.dumps(colocation)}}))
    until(lambda: asked_interval(found) == 30, 30, found.process)
    found.kubectl("delete", "nodemetrics", "--all")  # a new one is filled after half of the interval
    yield found
    found.stop()


def asked_interval(cluster: Cluster) -> int:
    items = cluster.get("nodemetrics")["items"]
    return int(items[0]["spec"]["metricCollectPolicy"]["reportIntervalSeconds"]) if items else 0


def create(cluster: Cluster, name: str, limits: dict[str, str], *, qos: str, uses: dict[str, float]) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"koordinator.sh/qosClass": qos},
            "annotations": {BEHAVIOUR: json.dumps(uses)},
        },
        "spec": {
            **({"priorityClassName": "koord-batch"} if qos == "BE" else {}),
            "schedulerName": "koord-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "model", "resources": {"limits": limits}}],
        },
    }
    done = cluster.run("create", "-f", "-", text=json.dumps(body))
    assert done.returncode == 0, done.stderr


def card(cluster: Cluster, name: str) -> Any:
    """The card of a pod that is bound, None while it waits."""
    found = cluster.get("pod", name)
    if not found["spec"].get("nodeName"):
        return None
    return json.loads(found["metadata"]["annotations"][ALLOCATED])["gpu"][0]


def lent(cluster: Cluster) -> dict[int, int]:
    """Percent of the compute that each card of the node lends, which its sum agrees with."""
    node = cluster.get("node", "node-0")
    text = node["metadata"]["annotations"].get(LENT)
    found = {
        each["minor"]: int(each["resources"][BATCH_CORE]) for each in json.loads(text or "{}").get("gpu", ())
    }
    assert int(node["status"]["allocatable"].get(BATCH_CORE, 0)) == sum(found.values())
    return found


def test_a_card_is_lent_while_its_service_needs_little_and_comes_back_when_it_needs_it(
    cluster: Cluster,
) -> None:
    create(
        cluster,
        "web",
        {"cpu": "1", "memory": "1Gi", **WHOLE},
        qos="LS",
        uses={"gpuCoreRatio": 0.2, "gpuMemoryRatio": 0.25},
    )
    until(lambda: card(cluster, "web") is not None, 30, cluster.process)
    minor = card(cluster, "web")["minor"]
    wants = {"kubernetes.io/batch-cpu": "1k", "kubernetes.io/batch-memory": "1Gi"}
    wants |= {BATCH_CORE: "50", BATCH_MEMORY: "20Gi"}
    create(cluster, "train", wants, qos="BE", uses={})
    create(cluster, "greedy", {**wants, BATCH_CORE: "90"}, qos="BE", uses={})
    assert card(cluster, "train") is None  # the service is young: nobody knows yet what it uses

    # 90 % of the card, less a tenth more than the 20 % that the service uses, in steps of 5 %.
    until(lambda: lent(cluster) == {minor: 65}, 90, cluster.process)
    until(lambda: card(cluster, "train") is not None, 30, cluster.process)
    given = card(cluster, "train")
    assert given["minor"] == minor
    assert given["resources"] == {BATCH_CORE: "50", BATCH_MEMORY: "20Gi"}
    said = cluster.koordinator("explain", "pod", "greedy").stdout
    assert "batch-gpu-core" in said

    until(lambda: cluster.get("pod", "train")["status"]["phase"] == "Running", 30, cluster.process)
    busy = json.dumps({"gpuCoreRatio": 0.8, "gpuMemoryRatio": 0.25})
    cluster.kubectl("annotate", "--overwrite", "pod", "web", f"{BEHAVIOUR}={busy}")
    until(lambda: cluster.run("get", "pod", "train").returncode != 0, 30, cluster.process)
    # They took turns until the batch pod went: it wanted 45 %, the service 80 %.
    events = cluster.get("events", "--field-selector", "involvedObject.name=train")["items"]
    [evicted] = [each["message"] for each in events if each["reason"] == "evictPodSuccess"]
    assert evicted == (
        f"trigger by koordlet feature BatchGPU (GPU {minor}: its owners use 64% of its compute, "
        "with what batch pods have 114%, above 95%), kill pod: train"
    )
    assert cluster.get("pod", "web")["status"]["phase"] == "Running"
