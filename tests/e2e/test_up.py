"""`koordinator up` as a user meets it: one command, a kubeconfig, stock kubectl, Ctrl-C."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster import Cluster, only_local, started, until, with_kubectl
from tests.free_ports import free_port

pytestmark = with_kubectl(timeout_s=180)

PROFILE = """
apiVersion: config.koordinator.sh/v1alpha1
kind: ClusterColocationProfile
metadata: {name: batch}
spec:
  namespaceSelector: {matchLabels: {colocation: "true"}}
  qosClass: BE
  priorityClassName: koord-batch
  koordinatorPriority: 1000
  schedulerName: koord-scheduler
---
apiVersion: v1
kind: Namespace
metadata: {name: spark, labels: {colocation: "true"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: executors, namespace: spark}
spec:
  replicas: 50
  selector: {matchLabels: {app: executors}}
  template:
    metadata: {labels: {app: executors}}
    spec:
      containers:
      - name: main
        image: spark
        resources: {requests: {cpu: "1", memory: 1Gi}, limits: {cpu: "1", memory: 1Gi}}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("up"), "--nodes", "20")
    yield running
    if running.process.poll() is None:
        running.stop()


def test_all_nodes_are_registered_once_the_kubeconfig_is_there(cluster: Cluster) -> None:
    assert len(cluster.get("nodes")["items"]) == 20


@only_local("how it stops")
def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    running = started(tmp_path, "--nodes", "2")

    stderr = running.stop()

    assert running.process.returncode == 0
    assert "Traceback" not in stderr
    assert "Stopped" in stderr


@only_local("its data directory")
def test_a_data_directory_keeps_objects_across_a_kill(tmp_path: Path) -> None:
    # The webhooks are kept, too; until their server is there again, they must not be in the way.
    gates = ("--manager-feature-gates", "ConfigMapValidatingWebhook=true")
    arguments = ("--nodes", "0", "--data-dir", str(tmp_path / "data"), *gates)
    first = started(tmp_path, *arguments)
    first.kubectl("create", "configmap", "kept", "--from-literal=a=1")
    first.stop(signal.SIGKILL)

    second = started(tmp_path, *arguments)
    try:
        assert second.get("configmap", "kept")["data"] == {"a": "1"}
        second.kubectl("run", "web", "--image=web")
        config = (
            "-n",
            "koordinator-system",
            "patch",
            "configmap",
            "slo-controller-config",
            "--type=merge",
            "-p",
        )
        refused = second.run(*config, json.dumps({"data": {"colocation-config": "{"}}))
        assert 'admission webhook "vconfigmap.koordinator.sh" denied the request' in refused.stderr
    finally:
        second.stop()


def _code(method: str, url: str) -> int:
    """The code of an answer without credentials, whoever signed the certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@only_local("its --tls and --token")
def test_a_token_and_tls_protect_the_cluster(tmp_path: Path) -> None:
    running = started(tmp_path, "--nodes", "0", "--token")
    try:
        assert "Active" in running.kubectl("get", "namespaces")
        stranger = running.run("--token=wrong", "get", "namespaces")
        assert stranger.returncode == 1
        assert "Unauthorized" in stranger.stderr or "logged in" in stranger.stderr
        config = yaml.safe_load(running.kubeconfig.read_text())
        scheduler = config["clusters"][0]["cluster"]["extensions"][0]["extension"]["schedulerURL"]
        assert scheduler.startswith("https://127.0.0.1:")
        assert _code("GET", f"{scheduler}/readyz") == 200
        assert _code("GET", f"{scheduler}/configz") == 401
        assert _code("PUT", f"{scheduler}/debug/flags/s") == 401
        running.kubectl("run", "web", "--image=web")
        told = running.koordinator("explain", "pod", "web")
        assert (told.returncode, told.stderr) == (3, "")  # answered: there is no node for it
    finally:
        running.stop()


@only_local("its flags")
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--manager-feature-gates", "Bogus=true"], 1, "Error: feature gates: 'Bogus=true': no such gate"),
        (["--scheduler-feature-gates", "Bogus=true"], 1, "Error: feature gates: 'Bogus=true': no such gate"),
        (
            ["--manager-feature-gates", "MultiQuotaTree=true", "--without-manager"],
            2,
            "Error: --manager-feature-gates is for the manager that --without-manager leaves out",
        ),
    ],
)
def test_gates_that_cannot_be_set_are_told_in_one_line(
    tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "koordinator.cli.main",
        "up",
        *arguments,
        "--kubeconfig",
        str(tmp_path / "k"),
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert done.returncode == status
    assert done.stderr.splitlines()[-1].startswith(words)


@only_local("its --port")
def test_a_second_cluster_leaves_the_kubeconfig_of_a_running_one_alone(cluster: Cluster) -> None:
    before = cluster.kubeconfig.read_text()
    command = [sys.executable, "-m", "koordinator.cli.main", "up", "--kubeconfig", str(cluster.kubeconfig)]

    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert refused.returncode == 1
    assert "is running; stop it first" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert cluster.kubeconfig.read_text() == before


def test_a_taken_port_is_told_in_one_line(tmp_path: Path, cluster: Cluster) -> None:
    server = json.loads(cluster.kubectl("config", "view", "-o", "json"))["clusters"][0]["cluster"]["server"]
    port = server.rpartition(":")[2]
    command = [sys.executable, "-m", "koordinator.cli.main", "up", "--port", port, "--nodes", "0"]

    done = subprocess.run(
        [*command, "--kubeconfig", str(tmp_path / "k")], capture_output=True, text=True, timeout=30
    )

    assert done.returncode == 1
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_nodes_are_ready_and_lend_batch_resources(cluster: Cluster) -> None:
    cluster.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")

    def lends() -> bool:
        allocatable = [node["status"]["allocatable"] for node in cluster.get("nodes")["items"]]
        return len(allocatable) == 20 and all("kubernetes.io/batch-cpu" in amounts for amounts in allocatable)

    until(lends, 60, cluster.process)


def test_a_deployment_under_a_profile_becomes_best_effort_pods_on_batch_cpu(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", text=PROFILE)
    cluster.kubectl("-n", "spark", "rollout", "status", "deployment/executors", "--timeout=60s")

    pods = cluster.get("pods", "-n", "spark")["items"]
    assert len(pods) == 50
    for pod in pods:
        assert pod["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
        assert pod["metadata"]["labels"]["koordinator.sh/priority"] == "1000"
        assert pod["spec"]["priority"] == 5000
        assert pod["status"]["phase"] == "Running"
        (container,) = pod["spec"]["containers"]
        assert set(container["resources"]["requests"]) == {
            "kubernetes.io/batch-cpu",
            "kubernetes.io/batch-memory",
        }
        assert container["resources"]["requests"]["kubernetes.io/batch-cpu"] in ("1k", "1000")
    assert len({pod["spec"]["nodeName"] for pod in pods}) > 1


def test_a_manager_that_is_started_beside_it_stands_by(cluster: Cluster, tmp_path: Path) -> None:
    before = leader(cluster)
    metrics, health, webhooks = (free_port() for _ in range(3))
    command = [
        *(sys.executable, "-m", "koordinator.cli.manager", "--kubeconfig", str(cluster.kubeconfig)),
        *(f"--metrics-addr=127.0.0.1:{metrics}", f"--health-probe-addr=127.0.0.1:{health}"),
        "--enable-pprof=false",
    ]
    environment = {**os.environ, "WEBHOOK_PORT": str(webhooks), "WEBHOOK_CERT_DIR": str(tmp_path)}
    beside = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        until(lambda: answer(f"http://127.0.0.1:{health}/readyz") == "ok", 60, beside)
        assert leader(cluster) == before
        told = answer(f"http://127.0.0.1:{metrics}/internal-metrics")
        assert "\nkoordinator_manager_is_leader 0\n" in told
    finally:
        beside.terminate()
        beside.communicate(timeout=30)


def leader(cluster: Cluster) -> str:
    lease = cluster.get("lease", "koordinator-manager", "-n", "koordinator-system")
    found: str = lease["spec"]["holderIdentity"]
    return found


def answer(url: str) -> str:
    """What is answered, empty while nobody does or something is wrong."""
    try:
        with urllib.request.urlopen(url, timeout=5) as found:
            text: str = found.read().decode()
            return text
    except OSError:
        return ""


def test_deleting_the_namespace_cleans_up(cluster: Cluster) -> None:
    cluster.kubectl("delete", "namespace", "spark", "--timeout=60s")

    assert cluster.get("pods", "-A")["items"] == []
    assert cluster.run("get", "namespace", "spark").returncode == 1
    assert cluster.get("replicasets", "-A")["items"] == []
