"""What the profiles in deploy/profiles make of the pods that they are meant for."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordinator.api import crd, defaults, kinds, slo_config
from koordinator.api.annotations.placement import RESOURCE_SPEC
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.clock import LoopClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.install.steps import resource_of_body
from koordinator.local import registry
from koordinator.local.patches import json_patch
from koordinator.manager.config import colocation_config, node_slo_spec, validation
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.config.node_slo_spec import NodeSLOConfig
from koordinator.manager.manager import Manager
from koordinator.manager.webhooks import review, table
from koordinator.simulate import virtual_time

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "deploy" / "profiles"
PROFILES = sorted(path for path in FOLDER.glob("*.yaml") if not path.name.endswith(".config.yaml"))
CONFIGS = sorted(FOLDER.glob("*.config.yaml"))
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "work"}}
ENABLED = {"koordinator.sh/enable-colocation": "true"}

TRAINING = "training.kubeflow.org"
# File, what is special about the pod, its labels as the framework gives them, and what becomes of it:
# QoS class, number of the priority class, sub-priority, and the resources that it asks for.
CPU, MID, BATCH = "cpu", "kubernetes.io/mid-cpu", "kubernetes.io/batch-cpu"
CASES = [
    ("web-services", "a service", {"app.kubernetes.io/component": "web"}, ("LS", 9000, None, CPU)),
    (
        "web-services",
        "a pinned service",
        {"app.kubernetes.io/component": "web", "koordinator.sh/pinned": "true"},
        ("LSR", 9000, None, CPU),
    ),
    ("spark", "a driver", {"spark-role": "driver", "spark-app-selector": "x"}, ("LS", 9000, None, CPU)),
    ("spark", "an executor", {"spark-role": "executor", "spark-exec-id": "1"}, ("BE", 5000, "5500", BATCH)),
    (
        "presto-trino",
        "a coordinator",
        {"app.kubernetes.io/name": "trino", "app.kubernetes.io/component": "coordinator"},
        ("LS", 9000, None, CPU),
    ),
    (
        "presto-trino",
        "a worker",
        {"app.kubernetes.io/name": "presto", "app.kubernetes.io/component": "worker"},
        ("BE", 5000, "5900", BATCH),
    ),
    (
        "flink",
        "a job manager",
        {"type": "flink-native-kubernetes", "component": "jobmanager"},
        ("LS", 9000, None, CPU),
    ),
    (
        "flink",
        "a task manager of a stream",
        {"type": "flink-native-kubernetes", "component": "taskmanager"},
        ("LS", 7000, None, MID),
    ),
    (
        "flink",
        "a task manager of a bounded job",
        {"type": "flink-native-kubernetes", "component": "taskmanager", "koordinator.sh/bounded": "true"},
        ("BE", 5000, "5500", BATCH),
    ),
    (
        "tensorflow",
        "a parameter server",
        {f"{TRAINING}/operator-name": "tfjob-controller", f"{TRAINING}/replica-type": "ps"},
        ("LS", 9000, None, CPU),
    ),
    (
        "tensorflow",
        "a worker",
        {f"{TRAINING}/operator-name": "tfjob-controller", f"{TRAINING}/replica-type": "worker"},
        ("BE", 5000, "5700", BATCH),
    ),
    (
        "pytorch",
        "a rank",
        {f"{TRAINING}/operator-name": "pytorchjob-controller", f"{TRAINING}/replica-type": "worker"},
        ("LS", 9000, None, CPU),
    ),
    ("pytorch", "a data loader", {"app.kubernetes.io/component": "data-loader"}, ("BE", 5000, "5800", BATCH)),
    (
        "transcoding",
        "a transcoder",
        {"app.kubernetes.io/component": "transcoder"},
        ("BE", 5000, "5100", BATCH),
    ),
]


def pod(labels: dict[str, str]) -> Json:
    amounts = {"cpu": "4", "memory": "8Gi"}
    container = {"name": "main", "image": "x", "resources": {"requests": amounts, "limits": dict(amounts)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "work", "labels": labels},
        "spec": {"containers": [container]},
    }


def admitted(file_name: str, bodies: list[Json], enabled: bool = True) -> list[Json]:
    """The pods after both webhooks of a whole manager; a refusal fails."""
    found: list[Json] = []

    async def main(clock: LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        space = {**NAMESPACE, "metadata": {"name": "work", "labels": ENABLED if enabled else {}}}
        profiles = list(yaml.safe_load_all((FOLDER / f"{file_name}.yaml").read_text()))
        for body in (*crd.manifests(), *defaults.objects()[1:], space, *profiles):
            view = kinds.view_of(resource_of_body(body))
            await cluster.create(view, body, body["metadata"].get("namespace", ""))
        manager = Manager(cluster)
        async with manager.following():
            for body in bodies:
                mutated = await ask(manager, table.MUTATE_POD, body)
                patch = mutated.get("patch")
                after = json_patch.apply(body, msgspec.json.decode(patch)) if patch else body
                await ask(manager, table.VALIDATE_POD, after)
                found.append(after)

    virtual_time.run_virtual(main)
    return found


async def ask(manager: Manager, path: str, body: Json) -> Json:
    request = {
        "uid": "1",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "work",
        "object": body,
    }
    envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = msgspec.json.decode(await review.review(manager.handlers[path], msgspec.json.encode(envelope)))
    response: Json = answer["response"]
    assert response["allowed"], response.get("status")
    if "patch" in response:
        response["patch"] = msgspec.convert(response["patch"], bytes, strict=False)
    return response


@pytest.mark.parametrize("file_name", sorted({case[0] for case in CASES}))
def test_pods_become_what_the_profile_says(file_name: str) -> None:
    cases = [case for case in CASES if case[0] == file_name]

    pods = admitted(file_name, [pod(dict(labels)) for _, _, labels, _ in cases])

    for (_, what, _, (qos, number, sub_priority, resource)), after in zip(cases, pods, strict=True):
        labels, spec = after["metadata"]["labels"], after["spec"]
        assert labels["koordinator.sh/qosClass"] == qos, what
        assert spec["priority"] == number, what
        assert labels.get("koordinator.sh/priority") == sub_priority, what
        assert spec["schedulerName"] == "koord-scheduler", what
        for amounts in spec["containers"][0]["resources"].values():
            assert set(amounts) == {resource, resource.replace("cpu", "memory")}, what
            assert str(amounts[resource]) in ("4", "4000", "4k"), what


@pytest.mark.parametrize("file_name", [path.stem for path in PROFILES])
def test_other_pods_and_other_namespaces_are_left_alone(file_name: str) -> None:
    stranger = pod({"app": "other"})
    meant = [pod(dict(labels)) for name, _, labels, _ in CASES if name == file_name]
    assert meant, "no pod in CASES shows what this profile does"

    assert admitted(file_name, [stranger]) == [stranger]
    assert admitted(file_name, meant, enabled=False) == meant


def test_profiles_can_be_applied_together_and_never_meet_on_a_pod() -> None:
    bodies = [body for path in PROFILES for body in yaml.safe_load_all(path.read_text())]
    names = [body["metadata"]["name"] for body in bodies]
    assert len(set(names)) == len(names)
    for name, _, labels, _ in CASES:
        matching = [
            path.stem
            for path in PROFILES
            for body in yaml.safe_load_all(path.read_text())
            if selects(body["spec"]["selector"], labels)
        ]
        assert set(matching) == {name}


def selects(selector: Json, labels: dict[str, str]) -> bool:
    pairs = selector.get("matchLabels", {}).items()
    expressions = selector.get("matchExpressions", [])
    return pairs <= labels.items() and all(
        (labels.get(each["key"]) in each["values"]) == (each["operator"] == "In") for each in expressions
    )


def test_a_pinned_service_asks_for_whole_cores() -> None:
    [body] = admitted(
        "web-services", [pod({"app.kubernetes.io/component": "web", "koordinator.sh/pinned": "true"})]
    )

    text = body["metadata"]["annotations"]["scheduling.koordinator.sh/resource-spec"]
    assert json.loads(text) == {"requiredCPUBindPolicy": "FullPCPUs"}
    assert RESOURCE_SPEC.decode(text).required_cpu_bind_policy == "FullPCPUs"


def test_batch_is_evicted_in_the_order_of_what_it_loses() -> None:
    order = {
        body["metadata"]["name"]: body["spec"]["koordinatorPriority"]
        for path in PROFILES
        for body in yaml.safe_load_all(path.read_text())
        if body["spec"]["qosClass"] == "BE"
    }

    assert min(order, key=order.__getitem__) == "transcoding"
    assert max(order, key=order.__getitem__) == "presto-trino-worker"
    assert all(5000 <= number <= 5999 for number in order.values()), "within the band of koord-batch"


# --- Fragments of slo-controller-config ---


def data_of(path: Path) -> dict[str, str]:
    body = yaml.safe_load(path.read_text())
    assert set(body) == {"data"}
    return dict(body["data"])


def node(labels: dict[str, str]) -> Node:
    return from_builtins({"metadata": {"name": "n", "labels": labels}}, Node)


def test_fragments_are_valid_and_do_not_overwrite_each_other() -> None:
    assert len(CONFIGS) == 2
    together: dict[str, str] = {}
    for path in CONFIGS:
        data = data_of(path)
        assert not together.keys() & data.keys()
        together |= data
    verdict = validation.validate_config_map({}, together, {})
    assert verdict.allowed, verdict


def test_nodes_of_the_batch_pool_lend_more_and_keep_more() -> None:
    data = data_of(FOLDER / "batch.config.yaml")
    config = colocation_config.sync(ColocationState(), data).state.config
    slo = node_slo_spec.sync(NodeSLOConfig(), data).config

    for labels, reclaim, suppress in (({}, 65, 65), ({"koordinator.sh/pool": "batch"}, 85, 85)):
        strategy = colocation_config.node_strategy(config, node(labels))
        assert (strategy.enable, strategy.cpu_reclaim_threshold_percent) == (True, reclaim)
        threshold = node_slo_spec.wanted_spec(slo, node(labels)).resource_used_threshold_with_be
        assert threshold is not None
        assert (threshold.enable, threshold.cpu_suppress_threshold_percent) == (True, suppress)
        assert threshold.cpu_evict_be_satisfaction_lower_percent == 30


def test_services_burst_and_come_first_on_every_node() -> None:
    data = data_of(FOLDER / "web-services.config.yaml")
    assert set(data) == {slo_config.CPU_BURST.key, slo_config.RESOURCE_QOS.key}
    spec = node_slo_spec.wanted_spec(node_slo_spec.sync(NodeSLOConfig(), data).config, node({}))

    assert spec.cpu_burst_strategy is not None and spec.cpu_burst_strategy.policy == "auto"
    qos = spec.resource_qos_strategy
    assert qos is not None and qos.be_class is not None and qos.ls_class is not None
    assert qos.be_class.cpu_qos is not None and qos.be_class.cpu_qos.group_identity == -1
    assert qos.be_class.resctrl_qos is not None and qos.be_class.resctrl_qos.cat_range_end_percent == 30
    assert qos.ls_class.cpu_qos is not None and qos.ls_class.cpu_qos.enable is True
