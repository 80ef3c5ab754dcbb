"""Three ways to install on a cluster: kubectl with plain manifests, `koordinator install`, Helm."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from koordinator.install import objects
from koordinator.install.values import Values
from tests.e2e.cluster import HELM, Cluster, needs_helm, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=180)

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = str(DEPLOY / "chart" / "koordinator")
SYSTEM = "koordinator-system"
KINDS = "deploy,ds,svc,cm,sa,role,rolebinding,pdb,clusterrole,clusterrolebinding,priorityclass,crd"
WORKLOADS = ("Deployment", "DaemonSet", "PodDisruptionBudget")
"""Controllers write the status of these, so their version moves; what is wanted of them is their generation."""
# `up` has brought CRDs, priority classes and the configuration before we come.
SERVER_SIDE = ("apply", "--server-side", "--force-conflicts", "--validate=strict")


EXECUTOR = """
apiVersion: v1
kind: Pod
metadata: {name: executor, namespace: spark, labels: {spark-role: executor}}
spec:
  containers: [{name: main, image: spark, resources: {requests: {cpu: "1"}, limits: {cpu: "1"}}}]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("install"), "--nodes", "2")
    yield running
    if running.process.poll() is None:
        running.stop()


def command(cluster: Cluster, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run(words, capture_output=True, text=True, timeout=90, env=environment)


def koordinator(cluster: Cluster, *arguments: str) -> str:
    done = command(cluster, sys.executable, "-m", "koordinator.cli.main", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def versions(cluster: Cluster) -> dict[str, str]:
    """Object → what changes whenever something else is wanted of it."""
    found = {}
    for body in cluster.get(KINDS, "-A")["items"]:
        metadata = body["metadata"]
        field = "generation" if body["kind"] in WORKLOADS else "resourceVersion"
        found[objects.key(body)] = str(metadata[field])
    return found


def installed(cluster: Cluster) -> set[str]:
    wanted = {objects.key(body) for body in objects.objects(Values()) if "Webhook" not in body["kind"]}
    return wanted & versions(cluster).keys()


ALL = {objects.key(body) for body in objects.objects(Values()) if "Webhook" not in body["kind"]} - {
    f"Namespace {SYSTEM}"
}


def test_plain_manifests_apply_and_a_second_time_changes_nothing(cluster: Cluster) -> None:
    cluster.kubectl(*SERVER_SIDE, "-k", str(DEPLOY))
    assert installed(cluster) == ALL
    before = versions(cluster)

    cluster.kubectl(*SERVER_SIDE, "-k", str(DEPLOY))

    assert versions(cluster) == before


def test_kubectl_shows_the_components_running(cluster: Cluster) -> None:
    for workload in ("koord-manager", "koord-scheduler"):
        cluster.kubectl("-n", SYSTEM, "rollout", "status", f"deployment/{workload}", "--timeout=60s")

    agents = ("-n", SYSTEM, "get", "pods", "-l", "koord-app=koordlet")
    until(lambda: cluster.kubectl(*agents).count("Running") == 2, 60, cluster.process)
    template = cluster.get("mutatingwebhookconfiguration", "koordinator-mutating-webhook-configuration")
    assert len(json.loads(template["metadata"]["annotations"]["template"])) == 5


def test_install_finds_everything_as_it_should_be(cluster: Cluster) -> None:
    before = versions(cluster)

    first = koordinator(cluster, "install", "--apply", "--force-conflicts")
    second = koordinator(cluster, "install", "--apply")

    assert "created" not in first and "failed" not in first
    assert {line.split()[0] for line in second.splitlines()} == {"unchanged"}
    changed = {key for key, version in versions(cluster).items() if before.get(key) != version}
    assert not any(key.startswith(WORKLOADS) for key in changed), "nothing is started anew"


def test_an_upgrade_rolls_out_and_tells_what_is_left_over(cluster: Cluster) -> None:
    output = koordinator(
        cluster,
        *("install", "--apply", "--force-conflicts"),
        *("--set", "manager.replicas=3", "--set", "scheduler.enabled=false"),
    )

    assert f"configured Deployment {SYSTEM}/koord-manager" in output
    assert f"left over  Deployment {SYSTEM}/koord-scheduler: " in output
    assert cluster.get("deployment", "koord-manager", "-n", SYSTEM)["spec"]["replicas"] == 3
    assert cluster.get("deployment", "koord-scheduler", "-n", SYSTEM)["spec"]["replicas"] == 2
    koordinator(cluster, "install", "--apply", "--force-conflicts")


@needs_helm
def test_what_helm_renders_applies_and_is_the_same(cluster: Cluster) -> None:
    rendered = command(cluster, HELM, "template", "koordinator", CHART, "--kube-version", "1.31.0")
    assert rendered.returncode == 0, rendered.stderr
    before = versions(cluster)

    cluster.kubectl(*SERVER_SIDE, "-f", "-", text=rendered.stdout)

    changed = {key for key, version in versions(cluster).items() if before.get(key) != version}
    # A second owner of the same fields is written down; nothing else changes.
    assert not any(key.startswith(WORKLOADS) for key in changed)
    kept = {
        objects.key(body)
        for body in cluster.get("crd,priorityclass")["items"]
        if body["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {key for key in ALL if key.startswith(("CustomResourceDefinition", "PriorityClass"))}


def test_dry_run_and_output_folder_apply_as_well(cluster: Cluster, tmp_path: Path) -> None:
    text = koordinator(cluster, "install", "--dry-run")
    assert [objects.key(body) for body in yaml.safe_load_all(text)] == [
        objects.key(body) for body in objects.objects(Values())
    ]
    koordinator(cluster, "install", "--output-dir", str(tmp_path), "--set", "koordlet.log.level=2")
    cluster.kubectl(*SERVER_SIDE, "-k", str(tmp_path))

    [container] = cluster.get("ds", "koordlet", "-n", SYSTEM)["spec"]["template"]["spec"]["containers"]
    assert "-v=2" in container["args"]


def test_profiles_and_fragments_apply(cluster: Cluster) -> None:
    folder = DEPLOY / "profiles"
    for path in sorted(folder.glob("*.yaml")):
        if path.name.endswith(".config.yaml"):
            patch = ("-n", SYSTEM, "patch", "configmap", "slo-controller-config", "--patch-file", str(path))
            cluster.kubectl(*patch)
        else:
            cluster.kubectl("apply", "--validate=strict", "-f", str(path))

    profiles = cluster.get("clustercolocationprofiles")["items"]
    assert {"spark-executor", "web-services", "transcoding"} <= {
        body["metadata"]["name"] for body in profiles
    }
    data = cluster.get("configmap", "slo-controller-config", "-n", SYSTEM)["data"]
    assert {"cpu-burst-config", "resource-qos-config", "colocation-config"} <= data.keys()

    cluster.kubectl("create", "namespace", "spark")
    cluster.kubectl("label", "namespace", "spark", "koordinator.sh/enable-colocation=true")

    def becomes_batch() -> bool:
        made = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=EXECUTOR)
        [container] = json.loads(made)["spec"]["containers"]
        return container["resources"]["requests"] == {"kubernetes.io/batch-cpu": "1k"}

    # A watch that fails is opened again after up to a minute, as in client-go.
    until(becomes_batch, 90, cluster.process)

    def reaches_the_nodes() -> bool:
        policies = [body["spec"] for body in cluster.get("nodeslos")["items"]]
        return len(policies) == 2 and all(spec["cpuBurstStrategy"]["policy"] == "auto" for spec in policies)

    until(reaches_the_nodes, 30, cluster.process)


def test_uninstall_takes_it_away_and_keeps_what_users_need(cluster: Cluster) -> None:
    would = koordinator(cluster, "uninstall", "--dry-run")
    assert "(dry run)" in would and installed(cluster) == ALL

    koordinator(cluster, "uninstall", "--apply")

    left = {key.partition(" ")[0] for key in installed(cluster)}
    assert left == {"CustomResourceDefinition", "PriorityClass"}
    assert cluster.run("get", "namespace", SYSTEM).returncode == 0


@needs_helm
def test_helm_installs_upgrades_and_uninstalls(cluster: Cluster) -> None:
    # `up` and the tests before brought some of the objects.
    done = command(cluster, HELM, "install", "koordinator", CHART, "--take-ownership")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert f"koordinator doctor -n {SYSTEM}" in notes and "{{" not in notes
    assert installed(cluster) == ALL

    refused = command(cluster, sys.executable, "-m", "koordinator.cli.main", "install", "--apply")
    assert refused.returncode == 1 and "it belongs to the Helm release koordinator" in refused.stdout

    done = command(cluster, HELM, "upgrade", "koordinator", CHART, "--set", "manager.replicas=1")
    assert done.returncode == 0, done.stderr
    assert cluster.get("deployment", "koord-manager", "-n", SYSTEM)["spec"]["replicas"] == 1

    done = command(cluster, HELM, "uninstall", "koordinator", "--wait=false")
    assert done.returncode == 0, done.stderr
    left = {key.partition(" ")[0] for key in installed(cluster)}
    assert left == {"CustomResourceDefinition", "PriorityClass"}
