"""Pods that move, with kubectl: a `koord-descheduler` beside a cluster of three nodes of eight cores."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordinator.api import quantity
from tests.e2e.cluster import Cluster, started, until, with_kubectl
from tests.free_ports import free_port

pytestmark = with_kubectl(timeout_s=240)

Json = dict[str, Any]
NO_LIMITER: Json = {
    "name": "MigrationController",
    "args": {"objectLimiters": {"workload": {"duration": "0s"}}},
}
ALONE = {"leaderElect": False, "resourceName": "alone"}
"""An election of its own: jobs of the other descheduler are not its."""


def load(namespace: str, low: float, high: float, **more: Any) -> Json:
    """LowNodeLoad for one namespace, by percents of CPU; to be hot for a moment is enough, unless more is said."""
    args = {
        "lowThresholds": {"cpu": low, "memory": 90},
        "highThresholds": {"cpu": high, "memory": 95},
        "anomalyCondition": {"consecutiveAbnormalities": 1},
        "evictableNamespaces": {"include": [namespace]},
    }
    return {"name": "LowNodeLoad", "args": args | more}


def profile(balances: Json, *others: Json, **more: Any) -> Json:
    """A profile that balances by a plugin, with its arguments and those of others."""
    plugins = {"balance": {"enabled": [{"name": balances["name"]}]}}
    return {"plugins": plugins, "pluginConfig": [balances, *others], **more}


def config(*profiles: Json, interval: str = "2s", **more: Any) -> str:
    """A file for a descheduler; PORT is to be replaced."""
    address = "127.0.0.1:PORT"
    head = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"}
    where = {"healthzBindAddress": address, "metricsBindAddress": address, "deschedulingInterval": interval}
    return yaml.safe_dump({**head, **where, "profiles": [*profiles], **more})


COOLS_HOT = config(profile(load("hot", 5, 12), NO_LIMITER))
REPORTS = json.dumps({"enable": True, "metricReportIntervalSeconds": 5, "metricAggregateDurationSeconds": 5})


class Process:
    """A descheduler of its own."""

    def __init__(self, folder: Path, kubeconfig: Path, rules: str = COOLS_HOT) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = folder / "descheduler.yaml"
        config.write_text(rules.replace("PORT", str(self.port)))
        command = [sys.executable, "-m", "koordinator.cli.descheduler", "--config", str(config)]
        command += ["--kubeconfig", str(kubeconfig), "--secure-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until(lambda: self.text("/readyz") == "ok", 60, self.process)

    def text(self, path: str) -> str:
        """What it answers; empty while nobody does."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                body: bytes = answer.read()
                return body.decode()
        except OSError:
            return ""

    def stop(self) -> str:
        self.process.terminate()
        return self.process.communicate(timeout=20)[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("up"), "--nodes", "3", "--node-cpu", "8")
    data = json.dumps({"data": {"colocation-config": REPORTS}})
    running.kubectl(
        *("-n", "koordinator-system", "patch", "configmap", "slo-controller-config"),
        *("--type", "merge", "-p", data),
    )
    yield running
    running.stop()


@pytest.fixture(scope="module")
def descheduler(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    made = Process(tmp_path_factory.mktemp("descheduler"), cluster.kubeconfig_of("koord-descheduler"))
    yield made
    said = made.stop()
    assert "forbidden" not in said.lower(), said


def deploy(cluster: Cluster, namespace: str, replicas: int, *, uses: str = "") -> list[str]:
    """A Deployment `web` with a budget of one; all pods ready on the first node. Their names."""
    requests = {"requests": {"cpu": "1200m", "memory": "1Gi"}}
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels, "annotations": {"simulation.koordinator.sh/behaviour": uses or "{}"}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "web", "resources": requests}],
        },
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    items = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec},
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web"},
            "spec": budget,
        },
    ]
    first, *others = [node["metadata"]["name"] for node in cluster.get("nodes")["items"]]
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("cordon", *others)
    cluster.kubectl(
        "-n",
        namespace,
        "apply",
        "-f",
        "-",
        text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )
    until(lambda: ready(cluster, namespace) == replicas, 60, cluster.process)
    cluster.kubectl("uncordon", *others)
    pods = cluster.get("-n", namespace, "pods")["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {first}
    return [pod["metadata"]["name"] for pod in pods]


def ready(cluster: Cluster, namespace: str) -> int:
    found: int = cluster.get("-n", namespace, "deployment", "web")["status"].get("readyReplicas", 0)
    return found


def job(cluster: Cluster, name: str) -> Json:
    status: Json = cluster.get("podmigrationjob", name).get("status", {})
    return status


def move(cluster: Cluster, name: str, namespace: str, pod: str) -> None:
    body = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "PodMigrationJob",
        "metadata": {"name": name},
        "spec": {"ttl": "5m", "podRef": {"namespace": namespace, "name": pod}},
    }
    cluster.kubectl("create", "-f", "-", text=json.dumps(body))


def test_a_job_by_hand_reserves_room_then_evicts_and_ends_when_the_successor_is_ready(
    cluster: Cluster, descheduler: Process
) -> None:
    pod, *_ = deploy(cluster, "shop", 4)

    move(cluster, "move-web", "shop", pod)
    until(lambda: job(cluster, "move-web").get("phase") == "Succeeded", 60, descheduler.process)

    status = job(cluster, "move-web")
    successor = cluster.get("-n", "shop", "pod", status["podRef"]["name"])
    assert successor["spec"]["nodeName"] == status["nodeName"]
    assert pod not in {one["metadata"]["name"] for one in cluster.get("-n", "shop", "pods")["items"]}
    told = cluster.kubectl("describe", "podmigrationjob", "move-web")
    steps = ("ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete", "Complete")
    assert all(step in told for step in steps), told
    cluster.kubectl("-n", "shop", "delete", "deployment", "web")


def test_a_refused_job_says_why_and_so_does_explain(cluster: Cluster, descheduler: Process) -> None:
    [pod] = deploy(cluster, "single", 1)

    move(cluster, "move-single", "single", pod)
    until(lambda: job(cluster, "move-single").get("phase") == "Failed", 30, descheduler.process)

    assert "its workload has only 1 replicas" in job(cluster, "move-single")["message"]
    url = ("--descheduler-url", descheduler.url)
    told = cluster.koordinator("explain", "eviction", "pod", f"single/{pod}", *url)
    assert "stays: MigrationController: its workload has only 1 replicas" in told.stdout, told.stderr
    told = cluster.koordinator("explain", "eviction", "job", "move-single", *url)
    assert "Failed" in told.stdout and "wanted by somebody, by hand" in told.stdout, told.stderr
    cluster.kubectl("-n", "single", "delete", "deployment", "web")


def usage_milli(cluster: Cluster, node: str) -> dict[str, int]:
    """What pods use of a node by its last report, and under "" what the system does."""
    status = cluster.get("nodemetric", node).get("status", {})

    def milli(found: Json) -> int:
        return quantity.milli(found.get("resources", {}).get("cpu", "0"))

    pods = {one["name"]: milli(one.get("podUsage", {})) for one in status.get("podsMetric", ())}
    return {"": milli(status.get("nodeMetric", {}).get("systemUsage", {}))} | pods


def one_pod_too_many(cluster: Cluster, first: str, pods: list[str]) -> float:
    """Percent of CPU below which the node is when one of its pods goes, as soon as all are measured."""
    metrics = ("get", "nodemetrics", "-o", "jsonpath={.items[*].status.updateTime}")
    until(lambda: len(cluster.kubectl(*metrics).split()) == 3, 120, cluster.process)
    # A report averages over five seconds: at first over some in which the pods were not there.
    until(lambda: min(usage_milli(cluster, first).get(pod, 0) for pod in pods) > 120, 60, cluster.process)
    used = usage_milli(cluster, first)
    return (sum(used.values()) - used[pods[0]] / 2) / 80


def test_a_plan_is_looked_at_checked_and_carried_out_by_hand(
    cluster: Cluster, descheduler: Process, tmp_path: Path
) -> None:
    pods = deploy(cluster, "planned", 5)
    first = cluster.get("nodes")["items"][0]["metadata"]["name"]
    hot_percent = one_pod_too_many(cluster, first, pods)
    rules, file = tmp_path / "rules.yaml", tmp_path / "plan.yaml"
    rules.write_text(config(profile(load("planned", 5, hot_percent), NO_LIMITER)).replace("PORT", "0"))
    given = ("--descheduler-config", str(rules))

    planned = cluster.koordinator("simulate", "descheduling", *given, "-o", "yaml")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    file.write_text(planned.stdout)
    [step] = yaml.safe_load(planned.stdout)["moves"]
    checked = cluster.koordinator("migrate", *given, "--plan", str(file), "--check")
    assert "all 1 moves can be made now" in checked.stdout, checked.stderr
    assert step["pod"].removeprefix("planned/") in pods
    done = cluster.koordinator("migrate", *given, "--plan", str(file))
    again = cluster.koordinator("migrate", *given, "--plan", str(file))

    assert done.returncode == 0 and f"it runs on {step['target']}" in done.stdout, done.stdout + done.stderr
    where = [pod["spec"]["nodeName"] for pod in cluster.get("-n", "planned", "pods")["items"]]
    assert sorted(where) == sorted([first] * 4 + [step["target"]])
    assert again.returncode == 1 and "it is gone" in again.stderr, again.stdout + again.stderr
    cluster.kubectl("-n", "planned", "delete", "deployment", "web")


def scheduler_url(cluster: Cluster) -> str:
    """Where the scheduler of the cluster answers, as its kubeconfig says; empty where it does not."""
    [own] = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"]
    told = {one["name"]: one["extension"] for one in own["cluster"].get("extensions") or ()}
    return str(told.get("koordinator", {}).get("schedulerURL", ""))


def test_a_plan_that_the_scheduler_accepts_cools_a_node(cluster: Cluster, tmp_path: Path) -> None:
    if not (url := scheduler_url(cluster)):
        pytest.skip("the address of the scheduler is not published")
    pods = deploy(cluster, "together", 5)
    first = cluster.get("nodes")["items"][0]["metadata"]["name"]
    hot_percent = one_pod_too_many(cluster, first, pods)
    planning = load("together", 5, hot_percent, plan={"schedulerURL": url})
    rules = config(profile(planning, NO_LIMITER), leaderElection=ALONE | {"resourceName": "planner"})
    planner = Process(tmp_path, cluster.kubeconfig_of("koord-descheduler"), rules)
    fewest = 5

    def has_moved() -> bool:
        nonlocal fewest
        fewest = min(fewest, ready(cluster, "together"))
        where = [pod["spec"].get("nodeName") for pod in cluster.get("-n", "together", "pods")["items"]]
        return any(node not in (None, first) for node in where)

    try:
        until(has_moved, 90, planner.process)
        told = cluster.get("podmigrationjobs")["items"]
    finally:
        said = planner.stop()

    [made] = [one for one in told if one["spec"]["podRef"]["namespace"] == "together"]
    reason = made["metadata"]["annotations"]["koordinator.sh/evict-reason"]
    assert f"node {first} is overutilized; it is planned to run on" in reason
    assert made["metadata"]["annotations"]["koordinator.sh/job-source-node"] == first
    assert fewest >= 4, said
    cluster.kubectl("-n", "together", "delete", "deployment", "web")


def test_a_hot_node_is_cooled_and_the_service_never_falls_below_its_budget(
    cluster: Cluster, descheduler: Process
) -> None:
    deploy(cluster, "hot", 5)
    first = cluster.get("nodes")["items"][0]["metadata"]["name"]
    fewest = 5

    def has_moved() -> bool:
        nonlocal fewest
        fewest = min(fewest, ready(cluster, "hot"))
        pods = cluster.get("-n", "hot", "pods")["items"]
        time.sleep(0.5)
        return any(pod["spec"].get("nodeName") not in (None, first) for pod in pods)

    until(has_moved, 150, descheduler.process)

    assert fewest >= 4
    told = cluster.koordinator("explain", "eviction", "node", first, "--descheduler-url", descheduler.url)
    assert "node is overutilized, node cpu usage(" in told.stdout, told.stderr
    assert 'descheduler_pods_evicted{result="success",strategy="LowNodeLoad",namespace="hot"' in (
        descheduler.text("/metrics")
    )
    cluster.kubectl("-n", "hot", "delete", "deployment", "web")


BUSY = json.dumps({"cpuMilli": 1_000})


def seen(process: Process, node: str) -> Json:
    """How LowNodeLoad saw a node in its last cycle."""
    pools = json.loads(process.text(f"/apis/v1/explain/nodes/{node}") or "{}").get("pools")
    return dict(pools[0]) if pools else {}


def test_a_dry_run_tells_who_would_go_and_moves_nobody(cluster: Cluster, tmp_path: Path) -> None:
    pods = deploy(cluster, "looked", 4, uses=BUSY)
    first = cluster.get("nodes")["items"][0]["metadata"]["name"]
    jobs = len(cluster.get("podmigrationjobs")["items"])
    rules = config(profile(load("looked", 20, 30)), interval="1s", leaderElection=ALONE, dryRun=True)
    looking = Process(tmp_path, cluster.kubeconfig_of("koord-descheduler"), rules)
    url = ("--descheduler-url", looking.url)

    try:
        until(lambda: '"dry run"' in looking.text("/apis/v1/cycles"), 120, looking.process)
        told = cluster.koordinator("explain", "eviction", "node", first, *url)
    finally:
        looking.stop()

    assert "high" in told.stdout and "dry run" in told.stdout, told.stdout + told.stderr
    assert any(f"looked/{pod}" in told.stdout for pod in pods), told.stdout
    assert len(cluster.get("podmigrationjobs")["items"]) == jobs
    left = cluster.get("-n", "looked", "pods")["items"]
    assert sorted(pod["metadata"]["name"] for pod in left) == sorted(pods)
    cluster.kubectl("-n", "looked", "delete", "deployment", "web")


def test_a_peak_that_passes_moves_nobody_and_scale_down_frees_whole_nodes(
    cluster: Cluster, tmp_path: Path
) -> None:
    deploy(cluster, "peak", 4, uses=BUSY)
    first = cluster.get("nodes")["items"][0]["metadata"]["name"]
    patience = {"consecutiveAbnormalities": 1000, "timeout": "1h"}
    packs = {"name": "ScaleDownBinPack", "args": {"evictableNamespaces": {"include": ["wide"]}}}
    rules = config(
        profile(load("peak", 20, 30, anomalyCondition=patience), name="patient"),
        profile(packs, name="packing"),
        interval="1s",
        leaderElection=ALONE,
    )
    running = Process(tmp_path, cluster.kubeconfig_of("koord-descheduler"), rules)
    try:
        until(lambda: seen(running, first).get("class") == "high", 120, running.process)
        assert seen(running, first)["outcome"] == "not-abnormal-yet"
        cluster.kubectl("-n", "peak", "delete", "deployment", "web")
        until(lambda: seen(running, first).get("class") != "high", 120, running.process)
        assert not json.loads(running.text("/apis/v1/cycles"))[-1]["evictions"]
        namespaces = {one["spec"]["podRef"]["namespace"] for one in cluster.get("podmigrationjobs")["items"]}
        assert "peak" not in namespaces

        deploy_wide(cluster, 9)
        until(lambda: len(costs(cluster)) == 9, 60, running.process)
        assert len({node for node, _ in costs(cluster)}) == 3
        cluster.kubectl("-n", "wide", "scale", "deployment", "web", "--replicas=3")
        until(lambda: len(cluster.get("-n", "wide", "pods")["items"]) == 3, 60, running.process)
    finally:
        running.stop()

    left = {pod["spec"]["nodeName"] for pod in cluster.get("-n", "wide", "pods")["items"]}
    assert len(left) == 1, left
    cluster.kubectl("-n", "wide", "delete", "deployment", "web")


def deploy_wide(cluster: Cluster, replicas: int) -> None:
    """A Deployment whose pods are evenly on all nodes."""
    cluster.kubectl("create", "namespace", "wide")
    labels = {"matchLabels": {"app": "web"}}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    pod = {
        "schedulerName": "koord-scheduler",
        "topologySpreadConstraints": [{**spread, "labelSelector": labels}],
        "containers": [{"name": "main", "image": "web", "resources": {"requests": {"cpu": "500m"}}}],
    }
    template = {"metadata": {"labels": labels["matchLabels"]}, "spec": pod}
    spec = {"replicas": replicas, "selector": labels, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    cluster.kubectl("-n", "wide", "apply", "-f", "-", text=json.dumps(body))
    until(lambda: ready(cluster, "wide") == replicas, 60, cluster.process)


def costs(cluster: Cluster) -> list[tuple[str, str]]:
    """The nodes of pods that have a deletion cost, and the cost."""
    found = cluster.get("-n", "wide", "pods")["items"]
    key = "controller.kubernetes.io/pod-deletion-cost"
    return [
        (pod["spec"]["nodeName"], cost)
        for pod in found
        if (cost := pod["metadata"].get("annotations", {}).get(key))
    ]
