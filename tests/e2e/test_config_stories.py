"""Policies of nodes with kubectl: one pool, refusals, two CPU models, an amplified node, pods that wait already.

The manager's webhooks are called over TLS.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from koordinator import clock
from tests.e2e.cluster import Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=120)

GATES = (
    "NodeMutatingWebhook",
    "NodeValidatingWebhook",
    "ConfigMapValidatingWebhook",
    "ColocationProfileController",
)
SYSTEM = ("-n", "koordinator-system")
CONFIG = ("configmap", "slo-controller-config", *SYSTEM)
RATIO = "node.koordinator.sh/resource-amplification-ratio"
RAW = "node.koordinator.sh/raw-allocatable"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    gates = ",".join(f"{gate}=true" for gate in GATES)
    running = started(tmp_path_factory.mktemp("config"), "--nodes", "4", "--manager-feature-gates", gates)
    running.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
    running.kubectl("label", "node", "node-0", "pool=batch")
    yield running
    if running.process.poll() is None:
        running.stop()


def patch_of(data: dict[str, Any]) -> str:
    texts = {
        key: value if value is None or isinstance(value, str) else json.dumps(value)
        for key, value in data.items()
    }
    return json.dumps({"data": texts})


def configure(cluster: Cluster, data: dict[str, Any]) -> None:
    cluster.kubectl("patch", *CONFIG, "--type=merge", "-p", patch_of(data))


def refusal(cluster: Cluster, data: dict[str, Any]) -> str:
    done = cluster.run("patch", *CONFIG, "--type=merge", "-p", patch_of(data))
    assert done.returncode == 1, done.stdout
    return done.stderr


def pool(name: str = "batch", **strategy: Any) -> dict[str, Any]:
    return {"name": name, "nodeSelector": {"matchLabels": {"pool": name}}, **strategy}


def thresholds(cluster: Cluster) -> dict[str, int]:
    slos = cluster.get("nodeslos")["items"]
    key = "resourceUsedThresholdWithBE"
    return {slo["metadata"]["name"]: slo["spec"][key]["cpuSuppressThresholdPercent"] for slo in slos}


def node(cluster: Cluster, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Annotations and allocatable."""
    found = cluster.get("node", name)
    return found["metadata"].get("annotations", {}), found["status"]["allocatable"]


def report_usage(cluster: Cluster, name: str) -> None:
    """As the node agent does, whose own first report takes up to a minute."""
    usage = {"systemUsage": {"resources": {"cpu": "1", "memory": "4Gi"}}, "nodeUsage": {"resources": {}}}
    status = {"updateTime": clock.rfc3339(clock.SystemClock().now()), "nodeMetric": usage}
    body = json.dumps({"status": status})
    cluster.kubectl("patch", "nodemetric", name, "--subresource=status", "--type=merge", "-p", body)


def test_thresholds_of_one_pool_change_its_nodes_only(cluster: Cluster) -> None:
    before = {
        slo["metadata"]["name"]: slo["metadata"]["resourceVersion"]
        for slo in cluster.get("nodeslos")["items"]
    }

    strategy = {"clusterStrategy": {"enable": True}, "nodeStrategies": [pool(cpuSuppressThresholdPercent=40)]}
    configure(cluster, {"resource-threshold-config": strategy})

    until(lambda: thresholds(cluster)["node-0"] == 40, WAIT_S, cluster.process)
    assert thresholds(cluster) == {"node-0": 40, "node-1": 65, "node-2": 65, "node-3": 65}
    after = {
        slo["metadata"]["name"]: slo["metadata"]["resourceVersion"]
        for slo in cluster.get("nodeslos")["items"]
    }
    assert {name for name in after if after[name] != before[name]} == {"node-0"}

    cluster.kubectl("label", "node", "node-3", "pool=batch")
    until(lambda: thresholds(cluster)["node-3"] == 40, WAIT_S, cluster.process)
    cluster.kubectl("label", "node", "node-3", "pool-")
    until(lambda: thresholds(cluster)["node-3"] == 65, WAIT_S, cluster.process)


def test_a_refusal_names_the_field_and_the_rule(cluster: Cluster) -> None:
    out_of_range = {"nodeStrategies": [pool(cpuSuppressThresholdPercent=140)]}
    message = refusal(cluster, {"resource-threshold-config": out_of_range})
    assert '"reason":"ConfigParamInvalid"' in message
    rule = "nodeStrategies[0].cpuSuppressThresholdPercent must be at least 0 and at most 100, not 140"
    assert f"resource-threshold-config: {rule}" in message

    assert '"reason":"ParseConfigFail"' in refusal(cluster, {"cpu-burst-config": "{"})
    ratio = {"enable": True, "resourceAmplificationRatio": {"cpu": 0.5}}
    assert "must be at least 1, not 0.5" in refusal(cluster, {"resource-amplification-config": ratio})

    spare = {"name": "spare", "nodeSelector": {"matchLabels": {"spare": "yes"}}, "policy": "auto"}
    configure(cluster, {"cpu-burst-config": {"nodeStrategies": [pool(policy="none"), spare]}})
    labelled = cluster.run("label", "node", "node-0", "spare=yes")
    assert labelled.returncode == 1 and "ExistNodeConfict" in labelled.stderr
    cluster.kubectl("label", "node", "node-1", "spare=yes")
    configure(cluster, {"cpu-burst-config": None})


def test_without_the_webhook_malformed_text_keeps_the_policy_and_an_event_tells(cluster: Cluster) -> None:
    known = thresholds(cluster)
    # The webhook is asked about ConfigMaps with this label only.
    cluster.kubectl("label", *CONFIG, "koordinator.sh/configmap-type-")
    text = cluster.get(*CONFIG)["data"].get("resource-threshold-config")
    configure(cluster, {"resource-threshold-config": "{"})

    def told() -> list[str]:
        events = cluster.get("events", *SYSTEM)["items"]
        return [each["message"] for each in events if each["reason"] == "SLOCfgUnmarshalFailed"]

    until(told, WAIT_S, cluster.process)
    assert "resource-threshold-config: not JSON" in told()[0]
    assert thresholds(cluster) == known
    configure(cluster, {"resource-threshold-config": text})
    cluster.kubectl("label", *CONFIG, "koordinator.sh/configmap-type=slo-controller-config")


def test_two_cpu_models_are_made_comparable(cluster: Cluster) -> None:
    for name, model in (("node-1", "Xeon 8269CY"), ("node-2", "Xeon 8163")):
        info = {"cpuModel": model, "hyperThreadEnabled": True, "turboEnabled": True}
        annotations = {"node.koordinator.sh/cpu-basic-info": json.dumps(info)}
        topology = {
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {"name": name, "annotations": annotations},
            "topologyPolicies": ["None"],
            "zones": [],
        }
        # By the server: nodes of the cluster have reported theirs.
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(topology))

    def batch(name: str) -> int:
        return int(node(cluster, name)[1].get("kubernetes.io/batch-cpu", 0))

    for number in range(1, 4):
        report_usage(cluster, f"node-{number}")
    until(lambda: all(batch(f"node-{n}") for n in range(1, 4)), WAIT_S, cluster.process)
    models = {"Xeon 8269CY": 1.5, "Xeon 8163": 1.2}
    ratios = {model: {"hyperThreadTurboEnabledRatio": ratio} for model, ratio in models.items()}
    configure(
        cluster,
        {
            "cpu-normalization-config": {
                "enable": False,
                "nodeConfigs": [
                    {"name": name, "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": name}}}
                    | {"enable": True, "ratioModel": ratios}
                    for name in ("node-1", "node-2")
                ],
            }
        },
    )

    key = "node.koordinator.sh/cpu-normalization-ratio"
    wanted = ["1.00", "1.50", "1.20", "1.00"]
    until(
        lambda: [node(cluster, f"node-{n}")[0].get(key) for n in range(4)] == wanted, WAIT_S, cluster.process
    )
    # The nodes are alike and idle but for this: batch lends more of faster CPUs.
    until(lambda: batch("node-1") > batch("node-2") > batch("node-3"), WAIT_S, cluster.process)
    assert 1.3 < batch("node-1") / batch("node-3") < 1.7
    configure(cluster, {"cpu-normalization-config": None})


def test_an_amplified_node_stays_so_while_its_kubelet_reports(cluster: Cluster) -> None:
    def report(cpu: str) -> None:
        """As a kubelet does: it knows nothing of ratios."""
        amounts = {"cpu": cpu, "memory": "126Gi"}
        body = json.dumps({"status": {"allocatable": amounts}})
        cluster.kubectl("patch", "node", "node-0", "--subresource=status", "--type=merge", "-p", body)

    configure(
        cluster,
        {
            "resource-amplification-config": {
                "nodeConfigs": [pool(enable=True, resourceAmplificationRatio={"cpu": 2})]
            }
        },
    )
    until(lambda: node(cluster, "node-0")[0].get(RATIO) == '{"cpu":2.00}', WAIT_S, cluster.process)

    for cpu, amplified in (("31", "62"), ("31", "62"), ("30", "60"), ("31", "62")):
        report(cpu)
        annotations, allocatable = node(cluster, "node-0")
        assert (allocatable["cpu"], allocatable["memory"]) == (amplified, "126Gi")
        assert json.loads(annotations[RAW]) == {"cpu": cpu, "memory": "126Gi"}
    assert cluster.get("node", "node-0")["status"]["capacity"]["cpu"] == "32"
    assert node(cluster, "node-1")[1]["cpu"] == "31500m"

    # What nobody can read must not keep the kubelet from reporting.
    annotated = cluster.run("annotate", "node", "node-1", f"{RAW}=x", f"{RATIO}={{")
    assert f"Warning: metadata.annotations[{RATIO}]: not JSON" in annotated.stderr
    body = json.dumps({"status": {"allocatable": {"cpu": "31"}}})
    done = cluster.run("patch", "node", "node-1", "--subresource=status", "--type=merge", "-p", body)
    assert done.returncode == 0
    assert node(cluster, "node-1")[1]["cpu"] == "31"

    configure(cluster, {"resource-amplification-config": None})
    until(lambda: RATIO not in node(cluster, "node-0")[0], WAIT_S, cluster.process)
    until(lambda: node(cluster, "node-0")[1]["cpu"] == "31", WAIT_S, cluster.process)
    report("31")
    annotations, allocatable = node(cluster, "node-0")
    assert allocatable["cpu"] == "31" and RAW not in annotations


def test_a_profile_reaches_pods_that_wait_already(cluster: Cluster) -> None:
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "busybox"}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "waits",
            "labels": {"app": "spark", "koordinator.sh/priority-class": "koord-batch"},
        },
        "spec": spec,
    }
    cluster.kubectl("apply", "-f", "-", text=json.dumps(pod))
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "spark", "labels": {"config.koordinator.sh/controller-managed": "true"}},
        "spec": {
            "selector": {"matchLabels": {"app": "spark"}},
            "qosClass": "BE",
            "labels": {"team": "data"},
            "labelSuffixes": {"team": "-batch"},
        },
    }

    cluster.kubectl("apply", "-f", "-", text=json.dumps(profile))

    def labels() -> dict[str, str]:
        found: dict[str, str] = cluster.get("pod", "waits")["metadata"]["labels"]
        return found

    until(lambda: labels().get("koordinator.sh/qosClass") == "BE", WAIT_S, cluster.process)
    assert labels()["team"] == "data-batch"
    # By hand the class of a pod stays fixed.
    refused = cluster.run("label", "pod", "waits", "koordinator.sh/qosClass=LS", "--overwrite")
    assert refused.returncode == 1 and "field is immutable" in refused.stderr

    # What the pod rules refuse is told on the profile.
    profile["metadata"] |= {"name": "wrong"}
    profile["spec"] = {"selector": {"matchLabels": {"app": "spark"}}, "qosClass": "LSR"}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(profile))

    def told() -> list[str]:
        events = cluster.get("events", "--field-selector=reason=ColocationProfileRefused")["items"]
        return [each["message"] for each in events if each["involvedObject"]["name"] == "wrong"]

    until(told, WAIT_S, cluster.process)
    assert "a pod could not be changed, default/waits for one" in told()[0]
    assert "cannot be used in combination" in told()[0]
    assert labels()["koordinator.sh/qosClass"] == "BE"
