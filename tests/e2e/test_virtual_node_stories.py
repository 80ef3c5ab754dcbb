"""Two clusters with kubectl: one lends its idle nodes to the other, and takes them back."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.e2e.cluster import Cluster, UpCluster, only_local, until, with_kubectl
from tests.free_ports import free_port

pytestmark = [*with_kubectl(timeout_s=240), only_local("two of them at once")]

REPORTS = {"enable": True, "metricReportIntervalSeconds": 5, "metricAggregateDurationSeconds": 5}
NODE = "tidal-web"


class Clusters(NamedTuple):
    lender: Cluster
    borrower: Cluster
    process: "subprocess.Popen[str]"
    port: int

    def until(self, holds: Any, seconds: float = 60.0) -> None:
        until(holds, seconds, self.process)

    def lent(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.lender.get("-n", NODE, "pods")["items"]
        return found

    def allocatable(self) -> str:
        node = self.borrower.run("get", "node", NODE, "-o", "json")
        status = json.loads(node.stdout).get("status", {}) if node.returncode == 0 else {}
        return str(status.get("allocatable", {}).get("cpu", "0"))


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    lender = UpCluster(tmp_path_factory.mktemp("web"), "--nodes", "2", "--node-cpu", "8")
    borrower = UpCluster(tmp_path_factory.mktemp("batch"), "--nodes", "1", "--node-cpu", "4")
    data = json.dumps({"data": {"colocation-config": json.dumps(REPORTS)}})
    patch = ("patch", "configmap", "slo-controller-config", "--type", "merge", "-p", data)
    lender.kubectl("-n", "koordinator-system", *patch)
    port = free_port()
    command = [sys.executable, "-m", "koordinator.cli.main", "virtual-node", "--source", "web"]
    command += ["--kubeconfig", str(lender.kubeconfig), "--borrower-kubeconfig", str(borrower.kubeconfig)]
    command += ["--idle-for", "10s", "--address", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    yield Clusters(lender, borrower, process, port)
    process.terminate()
    process.communicate(timeout=20)
    borrower.stop()
    lender.stop()


def job(name: str, cpu: str, count: int) -> str:
    container = {"name": "main", "image": name, "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    spec = {
        "restartPolicy": "Never",
        "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
        "nodeSelector": {"type": "virtual-kubelet"},
        "containers": [container],
    }
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": count,
            "completions": count,
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [ignored]},
            "template": {"metadata": {"labels": {"job": name}}, "spec": spec},
        },
    }
    return json.dumps(body)


def web(cpu: str) -> str:
    container = {"name": "web", "image": "web", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    spec = {"priorityClassName": "koord-prod", "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})


def test_a_job_runs_on_idle_nodes_of_another_cluster_until_a_service_needs_them(clusters: Clusters) -> None:
    lender, borrower = clusters.lender, clusters.borrower
    clusters.until(lambda: clusters.allocatable() not in ("0", "6750m"), 120)
    assert "largest-free" in borrower.kubectl("describe", "node", NODE)

    borrower.kubectl("apply", "-f", "-", text=job("render", "5", 2))
    clusters.until(
        lambda: (
            [one["status"]["phase"] for one in clusters.lent()] == ["Running"] * 2
            and borrower.kubectl("get", "pods", "-l", "job=render").count("Running") == 2
        )
    )
    assert {one["spec"]["nodeName"] for one in clusters.lent()} == {"node-0", "node-1"}

    lender.kubectl("apply", "-f", "-", text=web("6"))
    clusters.until(lambda: lender.get("pod", "web")["status"].get("phase") == "Running")

    clusters.until(lambda: "Reclaimed" in borrower.kubectl("get", "pods", "-l", "job=render"))
    # Its successor waits, as nobody promised it the room, and the Job has not failed.
    clusters.until(lambda: "Pending" in borrower.kubectl("get", "pods", "-l", "job=render"))
    assert clusters.allocatable() == "6750m"
    assert not borrower.get("job", "render")["status"].get("failed")
    assert len([one for one in clusters.lent() if one["status"]["phase"] == "Running"]) == 1

    borrower.kubectl("delete", "job", "render", "--wait=true")
    clusters.until(lambda: clusters.lent() == [])
    with urllib.request.urlopen(f"http://127.0.0.1:{clusters.port}/metrics", timeout=5) as answer:
        told = answer.read().decode()
    assert 'virtual_node_lent_core_seconds_total{source="web",namespace="default"}' in told
