"""A node lent as a whole, with kubectl: the service moves together, batch work has the machine, then it comes back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.cluster import Cluster, started, until, with_kubectl
from tests.e2e.test_descheduler_stories import Process, ready

pytestmark = with_kubectl(timeout_s=240)

POOL = """
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: TidalPool
metadata: {name: night}
spec:
  nodeSelector: {matchLabels: {pool: web}}
  onlineReserve: 1
  schedule:
  - {start: "* * * * *", duration: 6h, batchNodes: 1}
  timeZone: Asia/Shanghai
  cooldown: 1s
  drain: {gracePeriod: 5s}
"""
TRAIN = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: train, namespace: night}
spec:
  replicas: 1
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}}
    spec:
      schedulerName: koord-scheduler
      priorityClassName: koord-batch
      nodeSelector: {tidal.scheduling.koordinator.sh/phase: batch}
      tolerations: [{key: tidal.scheduling.koordinator.sh/batch-phase, operator: Exists}]
      containers: [{name: main, image: train, resources: {requests: {cpu: "6", memory: 1Gi}}}]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    gates = ("--manager-feature-gates", "TidalPool=true")
    running = started(tmp_path_factory.mktemp("tide"), "--nodes", "3", "--node-cpu", "8", *gates)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def descheduler(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    made = Process(tmp_path_factory.mktemp("descheduler"), cluster.kubeconfig_of("koord-descheduler"))
    yield made
    made.stop()


def explained(cluster: Cluster) -> dict[str, Any]:
    done = cluster.koordinator("explain", "tp/night", "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def deploy_web(cluster: Cluster) -> None:
    labels = {"app": "web"}
    requests = {"requests": {"cpu": "1", "memory": "1Gi"}}
    pod = {
        "schedulerName": "koord-scheduler",
        "containers": [{"name": "main", "image": "web", "resources": requests}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": "web", "namespace": "night"}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(body))
    until(lambda: ready(cluster, "night") == 3, 60, cluster.process)


def test_a_node_is_lent_and_returned(cluster: Cluster, descheduler: Process) -> None:
    cluster.kubectl("create", "namespace", "night")
    cluster.kubectl("label", "nodes", "--all", "pool=web")
    deploy_web(cluster)
    cluster.kubectl("apply", "-f", "-", text=TRAIN)

    wrong = yaml.safe_load(POOL)
    wrong["spec"]["schedule"][0]["start"] = "61 * * * *"
    refused = cluster.run("apply", "-f", "-", text=json.dumps(wrong))
    assert "spec.schedule[0].start: end of range (61) above maximum (59)" in refused.stderr

    cluster.kubectl("apply", "-f", "-", text=POOL)
    pool = cluster.get("tidalpool", "night")
    assert (pool["spec"]["leadTime"], pool["spec"]["drain"]["timeout"]) == ("30m", "30m")

    until(
        lambda: cluster.get("-n", "night", "deployment", "train")["status"].get("readyReplicas"),
        120,
        cluster.process,
    )
    lent = next(node for node in explained(cluster)["nodes"] if node["phase"] == "batch")["name"]
    where = {
        pod["metadata"]["labels"]["app"]: pod["spec"]["nodeName"]
        for pod in cluster.get("-n", "night", "pods")["items"]
        if pod["metadata"]["labels"]["app"] == "train" or pod["spec"]["nodeName"] == lent
    }
    assert where == {"train": lent}
    assert ready(cluster, "night") == 3
    table = cluster.kubectl("get", "tp").splitlines()
    assert table[0].split() == ["NAME", "MEMBERS", "ONLINE", "BATCH", "TARGET", "WHY", "NEXT", "AGE"]
    assert table[1].split()[:5] == ["night", "3", "2", "1", "1"]

    cluster.kubectl("delete", "tp", "night", "--timeout=60s")
    node = cluster.get("node", lent)
    assert not [key for key in node["metadata"]["labels"] if key.startswith("tidal.")]
    assert not [taint for taint in node["spec"].get("taints", []) if taint["key"].startswith("tidal.")]
