"""What people do with the manager, by kubectl on a running `koordinator up`: its webhooks are asked over TLS.

Hollow nodes are asked to report every ten minutes only; meanwhile reports are written by hand, so that nobody waits
for them and nobody overwrites them (`test_up` has nodes that report of themselves).
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=180)

SYSTEM = ("-n", "koordinator-system")
CONFIG = "slo-controller-config"
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
ON = {"enable": True, "metricReportIntervalSeconds": 600}
OFF = {**ON, "enable": False}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("manager"), "--nodes", "3")
    configure(running, ON)
    until(lambda: asked_interval(running) == 600, 30, running.process)
    running.kubectl("delete", "nodemetrics", "--all")  # new ones are filled after half the interval or more
    until(lambda: asked_interval(running) == 600, 30, running.process)
    for number in range(3):
        report(running, f"node-{number}", 0)
    configure(running, OFF)
    until(lambda: lenders(running) == {}, 30, running.process)
    yield running
    if running.process.poll() is None:
        running.stop()


def configure(cluster: Cluster, colocation: dict[str, Any]) -> None:
    patch = {"data": {"colocation-config": json.dumps(colocation)}}
    cluster.kubectl(*SYSTEM, "patch", "configmap", CONFIG, "--type=merge", "-p", json.dumps(patch))


def asked_interval(cluster: Cluster) -> int:
    """How often nodes are asked to report, once all three are asked the same."""
    items = cluster.get("nodemetrics")["items"]
    found = {each["spec"]["metricCollectPolicy"]["reportIntervalSeconds"] for each in items}
    return found.pop() if len(items) == 3 and len(found) == 1 else 0


def report(cluster: Cluster, node: str, seconds_ago: float, **usage: str) -> None:
    """Write a report as the node's agent would."""
    time = (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    resources = {"resources": {"cpu": "1", "memory": "1Gi", **usage}}
    status = {"updateTime": time, "nodeMetric": {"nodeUsage": resources, "systemUsage": resources}}
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", "nodemetric", node, "--subresource=status", "--type=merge", "-p", patch)


def lenders(cluster: Cluster) -> dict[str, int]:
    """Nodes that offer Batch CPU, and how much."""
    return {
        node["metadata"]["name"]: int(node["status"]["allocatable"][BATCH_CPU].replace("k", "000"))
        for node in cluster.get("nodes")["items"]
        if BATCH_CPU in node["status"]["allocatable"]
    }


def pod(
    name: str, *, labels: dict[str, str], requests: dict[str, str], priority: str = "", **spec: Any
) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            **({"priorityClassName": priority} if priority else {}),
            "containers": [
                {"name": "main", "image": "x", "resources": {"requests": requests, "limits": requests}}
            ],
            **spec,
        },
    }
    return json.dumps(body)


QOS = "koordinator.sh/qosClass"
BATCH = {BATCH_CPU: "1000", BATCH_MEMORY: "1Gi"}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        pytest.param(
            pod("a", labels={QOS: "BE"}, requests={"cpu": "1"}, priority="koord-prod"),
            "koordinator.sh/qosClass=BE and priorityClass=koord-prod cannot be used in combination",
            id="best effort with the priority of services",
        ),
        pytest.param(
            pod("a", labels={QOS: "LSR"}, requests={"cpu": "1"}, priority="koord-batch"),
            "koordinator.sh/qosClass=LSR and priorityClass=koord-batch cannot be used in combination",
            id="reserved cores with the priority of batch",
        ),
        pytest.param(
            pod("a", labels={QOS: "LS"}, requests=BATCH, priority="koord-prod"),
            "labels.koordinator.sh/qosClass: Required value: must specify koordinator QoS BE",
            id="batch resources without BE",
        ),
        pytest.param(
            pod("a", labels={QOS: "LSR"}, requests={"cpu": "1500m"}, priority="koord-prod"),
            'resources.requests: Invalid value: "1500m": the requested CPUs of LSR Pod must be integer',
            id="reserved cores by halves",
        ),
        pytest.param(
            pod("a", labels={QOS: "LSR"}, requests={"memory": "1Gi"}, priority="koord-prod"),
            "LSR Pod must declare the requested CPUs",
            id="reserved cores without a number",
        ),
    ],
)
def test_a_pod_against_the_rules_is_refused_with_field_and_rule(
    cluster: Cluster, manifest: str, words: str
) -> None:
    refused = cluster.run("create", "-f", "-", text=manifest)

    assert refused.returncode == 1
    assert 'admission webhook "vpod.koordinator.sh" denied the request' in refused.stderr
    assert words in refused.stderr


def test_what_a_pod_is_cannot_change_while_it_lives(cluster: Cluster) -> None:
    labels = {QOS: "LS", "koordinator.sh/priority": "9100"}
    cluster.kubectl(
        "create", "-f", "-", text=pod("fixed", labels=labels, requests={"cpu": "1"}, priority="koord-prod")
    )

    for key, value in ((QOS, "BE"), ("koordinator.sh/priority", "9200")):
        refused = cluster.run("label", "pod", "fixed", f"{key}={value}", "--overwrite")
        assert f'labels.{key}: Invalid value: "{value}": field is immutable' in refused.stderr
    refused = cluster.run("label", "pod", "fixed", "koordinator.sh/priority-class=koord-batch")
    assert "spec.priority: Invalid value" in refused.stderr

    cluster.kubectl("label", "pod", "fixed", "team=a")
    cluster.kubectl("delete", "pod", "fixed", "--wait=false")


def test_switching_co_location_on_lends_resources_and_a_waiting_batch_pod_runs(cluster: Cluster) -> None:
    assert lenders(cluster) == {}
    job = pod(
        "job", labels={QOS: "BE"}, requests=BATCH, priority="koord-batch", schedulerName="koord-scheduler"
    )
    cluster.kubectl("create", "-f", "-", text=job)
    cluster.kubectl("wait", "--for=condition=PodScheduled=False", "pod/job", "--timeout=30s")
    (condition,) = [
        c for c in cluster.get("pod", "job")["status"]["conditions"] if c["type"] == "PodScheduled"
    ]
    assert "Insufficient kubernetes.io/batch-cpu" in condition["message"]

    configure(cluster, ON)

    cluster.kubectl("wait", "--for=condition=Ready", "pod/job", "--timeout=60s")
    until(lambda: len(lenders(cluster)) == 3, 60, cluster.process)
    assert all(0 < milli <= 32_000 for milli in lenders(cluster).values())


def test_explain_says_term_by_term_where_lent_amounts_come_from(cluster: Cluster) -> None:
    until(lambda: len(lenders(cluster)) == 3, 60, cluster.process)

    def lent() -> dict[str, Any]:
        told = cluster.koordinator("explain", "lent", "node-0", "-o", "json").stdout
        (node,) = json.loads(told)["nodes"]
        return dict(node["lent"][0])

    def agrees() -> bool:
        """Whether it differs by less than what the manager rewrites a node for (`resourceDiffThreshold`: a tenth)."""
        written = lenders(cluster)["node-0"]
        return abs(lent()["cpuMilli"] - written) <= 0.1 * written

    until(agrees, 60, cluster.process)
    batch = lent()
    assert batch["kind"] == "batch"
    assert sum(term["cpuMilli"] for term in batch["terms"]) == batch["cpuMilli"] > 0
    assert [term["name"] for term in batch["terms"]][:2] == ["capacity", "margin"]
    told = cluster.koordinator("explain", "lent").stdout
    assert all(f"node-{number}" in told for number in range(3)) and "3 nodes" in told
    missing = cluster.koordinator("explain", "lent/node-9")
    assert missing.returncode == 1 and 'nodes "node-9" not found' in missing.stderr


SPARK = """
apiVersion: v1
kind: Namespace
metadata: {name: spark, labels: {koordinator.sh/enable-colocation: "true"}}
---
apiVersion: config.koordinator.sh/v1alpha1
kind: ClusterColocationProfile
metadata: {name: spark}
spec:
  namespaceSelector: {matchLabels: {koordinator.sh/enable-colocation: "true"}}
  selector: {matchLabels: {sparkoperator.k8s.io/launched-by-spark-operator: "true"}}
  qosClass: BE
  priorityClassName: koord-batch
  koordinatorPriority: 1000
  schedulerName: koord-scheduler
  labels: {koordinator.sh/mutated: "true"}
  annotations: {koordinator.sh/intercepted: "true"}
  patch: {spec: {terminationGracePeriodSeconds: 5}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: executors, namespace: spark}
spec:
  replicas: 4
  selector: {matchLabels: {spark-role: executor}}
  template:
    metadata: {labels: {spark-role: executor, sparkoperator.k8s.io/launched-by-spark-operator: "true"}}
    spec:
      containers:
      - name: executor
        image: spark
        resources: {requests: {cpu: "1", memory: 1Gi}, limits: {cpu: "1", memory: 2Gi}}
"""
DRIVER = pod(
    "driver",
    labels={"spark-role": "driver", "sparkoperator.k8s.io/launched-by-spark-operator": "true"},
    requests={"cpu": "1500m", "memory": "512Mi"},
)


def test_spark_pods_become_batch_pods_by_a_profile(cluster: Cluster) -> None:
    before = lenders(cluster)
    cluster.kubectl("apply", "-f", "-", text=SPARK)
    cluster.kubectl("-n", "spark", "create", "-f", "-", text=DRIVER)
    cluster.kubectl("-n", "spark", "create", "-f", "-", text=pod("other", labels={}, requests={"cpu": "1"}))
    cluster.kubectl("-n", "spark", "wait", "--for=condition=Ready", "pods", "--all", "--timeout=60s")

    other = cluster.get("pod", "other", "-n", "spark")
    assert QOS not in other["metadata"]["labels"] if "labels" in other["metadata"] else True
    assert other["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}

    pods = cluster.get("pods", "-n", "spark", "-l", "koordinator.sh/mutated=true")["items"]
    assert len(pods) == 5
    for each in pods:
        labels, spec = each["metadata"]["labels"], each["spec"]
        assert (labels[QOS], labels["koordinator.sh/priority"]) == ("BE", "1000")
        assert each["metadata"]["annotations"]["koordinator.sh/intercepted"] == "true"
        assert (spec["priorityClassName"], spec["priority"]) == ("koord-batch", 5000)
        assert (spec["schedulerName"], spec["terminationGracePeriodSeconds"]) == ("koord-scheduler", 5)
        (container,) = spec["containers"]
        assert container["resources"].keys() == {"requests", "limits"}
        assert set(container["resources"]["requests"]) == {BATCH_CPU, BATCH_MEMORY}
        told = json.loads(each["metadata"]["annotations"]["node.koordinator.sh/extended-resource-spec"])
        assert told["containers"][container["name"]] == container["resources"]
        assert before[spec["nodeName"]] >= 1000
    (driver,) = [each for each in pods if each["metadata"]["name"] == "driver"]
    assert driver["spec"]["containers"][0]["resources"]["requests"] == {
        BATCH_CPU: "1500",
        BATCH_MEMORY: "512Mi",
    }


# What keeps batch pods from harm when reports fail


def doctor(cluster: Cluster, *checks: str) -> list[str]:
    """What the doctor finds, as `object: problem`."""
    chosen = [word for check in checks for word in ("--check", check)]
    found = json.loads(cluster.koordinator("doctor", "-o", "json", *chosen).stdout)["findings"]
    return [f"{each['object']}: {each['problem']}" for each in found]


def test_a_node_that_stops_reporting_lends_no_more_and_says_why(cluster: Cluster) -> None:
    report(cluster, "node-0", 3_600)
    until(lambda: "node-0" not in lenders(cluster), 30, cluster.process)

    assert lenders(cluster).keys() == {"node-1", "node-2"}
    until(lambda: "NodeMetricExpired" in cluster.kubectl("describe", "node", "node-0"), 30, cluster.process)
    described = cluster.kubectl("describe", "node", "node-0")
    assert "the last report is 1h0m" in described
    assert "degradeTimeMinutes allows 15m0s" in described
    found = doctor(cluster, "batch", "reports")
    assert (
        "Node node-0: batch resources withdrawn: no report for more than 15 minutes (degradeTimeMinutes)"
        in found
    )
    assert any(words.startswith("Node node-0: no longer reports") for words in found)
    told = cluster.koordinator("explain", "lent", "node-0").stdout
    assert "report of 1h0m" in told and "degradeTimeMinutes allows 15m0s" in told

    report(cluster, "node-0", 0)
    until(lambda: "node-0" in lenders(cluster), 30, cluster.process)
    until(
        lambda: "NodeResourceRestored" in cluster.kubectl("describe", "node", "node-0"),
        30,
        cluster.process,
    )


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        pytest.param({"cpu": "-5"}, "cpu -5 is negative", id="negative"),
        pytest.param({"cpu": "9e12"}, "is above", id="more cores than any machine has"),
        pytest.param({"memory": "7Ei"}, "memory is", id="more memory than any machine has"),
    ],
)
def test_figures_that_cannot_be_true_withdraw_that_node_only(
    cluster: Cluster, usage: dict[str, str], words: str
) -> None:
    report(cluster, "node-1", 0)
    report(cluster, "node-2", 0)
    until(lambda: {"node-1", "node-2"} <= lenders(cluster).keys(), 30, cluster.process)

    report(cluster, "node-1", 0, **usage)
    until(lambda: "node-1" not in lenders(cluster), 30, cluster.process)

    assert "node-2" in lenders(cluster)
    findings = doctor(cluster, "batch")
    assert any(words in found for found in findings), findings
    report(cluster, "node-1", 0)
    until(lambda: "node-1" in lenders(cluster), 30, cluster.process)


def test_a_report_from_the_future_is_used_and_reported(cluster: Cluster) -> None:
    report(cluster, "node-2", -3_600)

    until(lambda: "NodeClockSkewed" in cluster.kubectl("describe", "node", "node-2"), 30, cluster.process)

    assert "NodeMetric node-2: its report has a time in the future" in doctor(cluster, "reports")
    report(cluster, "node-2", 0)


def test_without_its_configuration_nothing_is_lent_until_it_is_back(cluster: Cluster) -> None:
    for number in range(3):
        report(cluster, f"node-{number}", 0)
    text = cluster.kubectl(*SYSTEM, "get", "configmap", CONFIG, "-o", "json")
    cluster.kubectl(*SYSTEM, "delete", "configmap", CONFIG)

    until(lambda: lenders(cluster) == {}, 30, cluster.process)

    assert "ConfigMap koordinator-system/slo-controller-config: missing" in doctor(cluster, "config")
    body = json.loads(text)
    body["metadata"] = {key: body["metadata"][key] for key in ("name", "namespace", "labels")}
    cluster.kubectl("create", "-f", "-", text=json.dumps(body))
    until(lambda: len(lenders(cluster)) == 3, 30, cluster.process)
