"""Quotas with kubectl on a running `koordinator up`, over TLS: a tree, each rule broken, a node pool."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=120)

Q = "quota.scheduling.koordinator.sh"
GATES = "MultiQuotaTree=true,EnableQuotaAdmission=true"
QUOTA_API = "scheduling.sigs.k8s.io/v1alpha1"


def quota(name: str, parent: str = "", *, is_parent: bool = False, **rest: Any) -> dict[str, Any]:
    labels = {f"{Q}/is-parent": str(is_parent).lower()} | ({f"{Q}/parent": parent} if parent else {})
    return {
        "apiVersion": QUOTA_API,
        "kind": "ElasticQuota",
        "metadata": {
            "name": name,
            "namespace": rest.get("namespace", "quotas"),
            "labels": labels,
            "annotations": rest.get("annotations", {}),
        },
        "spec": {
            "min": rest.get("low", {"cpu": "1", "memory": "1Gi"}),
            "max": rest.get("high", {"cpu": "8", "memory": "8Gi"}),
        },
    }


def pod(pod_name: str, cpu: str = "1", namespace: str = "shop", **labels: str) -> dict[str, Any]:
    requests = {"requests": {"cpu": cpu, "memory": "100Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name,
            "namespace": namespace,
            "labels": {f"{Q}/{key}": value for key, value in labels.items()},
        },
        "spec": {"containers": [{"name": "main", "image": "web", "resources": requests}]},
    }


def listed(*objects: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


TREE = listed(
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("quotas", "shop")),
    quota("team", is_parent=True, low={"cpu": "4", "memory": "4Gi"}),
    quota("web", "team", low={"cpu": "3", "memory": "2Gi"}, annotations={f"{Q}/namespaces": '["shop"]'}),
    quota("batch", "team", is_parent=True, low={"cpu": "1"}),
    quota("nightly", "batch", low={"cpu": "1"}),
    quota("other"),
    pod("server"),
    pod("job", namespace="quotas", name="nightly"),
)


def patched(name: str, **labels: str) -> tuple[str, ...]:
    return (
        "label",
        "elasticquota",
        name,
        "-n",
        "quotas",
        "--overwrite",
        *(f"{Q}/{k}={v}" for k, v in labels.items()),
    )


def annotated(name: str, key: str, text: str) -> tuple[str, ...]:
    return ("annotate", "elasticquota", name, "-n", "quotas", "--overwrite", f"{Q}/{key}={text}")


def spec(name: str, **amounts: Any) -> tuple[str, ...]:
    return (
        "patch",
        "elasticquota",
        name,
        "-n",
        "quotas",
        "--type=merge",
        "-p",
        json.dumps({"spec": amounts}),
    )


def deleted(name: str) -> tuple[str, ...]:
    return ("delete", "elasticquota", name, "-n", "quotas")


Attempt = tuple[str, ...] | dict[str, Any]
# (what is tried, the quota, field and rule that the refusal names, the reference's words)
BROKEN_RULES: dict[str, tuple[Attempt, str, str, str, str]] = {
    "children are promised more than the parent has": (
        quota("db", "team", low={"cpu": "1", "memory": "1Gi"}),
        "quotas/db", "spec.min", "min-sum-brothers", "all brothers' MinQuota > parent MinQuota, parent: team",
    ),
    "a parent keeps less than its children are promised": (
        spec("team", min={"cpu": "3"}),
        "quotas/team", "spec.min", "min-sum-children", "all children's MinQuota > MinQuota, quota: team: cpu 4 > 3",
    ),
    "the parent does not exist": (
        quota("db", "nobody"), "quotas/db", f"{Q}/parent", "parent-missing", "parent not exist: nobody",
    ),
    "the parent is a leaf": (
        quota("db", "other"), "quotas/db", f"{Q}/parent", "parent-not-parent", "other is not a parent quota",
    ),
    "max names other resources than the parent's": (
        quota("db", "team", high={"cpu": "8", "gpu": "1"}, low={}),
        "quotas/db", "spec.max", "max-keys", "differ in ['gpu', 'memory']",
    ),
    "min names a resource that the parent's does not": (
        quota("db", "batch", low={"memory": "1Gi"}),
        "quotas/db", "spec.min", "min-keys", "min of db has ['memory'], which min of its parent batch has not",
    ),
    "min is above max": (
        quota("db", low={"cpu": "9"}), "quotas/db", "spec.min.cpu", "min-above-max", "cpu: 9 > 8",
    ),
    "max is negative": (
        spec("other", max={"cpu": "-1"}), "quotas/other", "spec.max.cpu", "max-negative", "value < 0",
    ),
    "a weight that is no JSON": (
        annotated("other", "shared-weight", "much"),
        "quotas/other", f"{Q}/shared-weight", "shared-weight", "shared-weight",
    ),
    "a parent with children becomes a leaf": (
        patched("batch", **{"is-parent": "false"}),
        "quotas/batch", f"{Q}/is-parent", "has-children", "isParent is forbidden to modify as false",
    ),
    "a leaf with pods becomes a parent": (
        patched("web", **{"is-parent": "true"}),
        "quotas/web", f"{Q}/is-parent", "has-pods", "quota has bound pods, isParent is forbidden to modify as true",
    ),
    "a quota moves below its own child": (
        patched("team", parent="batch"), "quotas/team", f"{Q}/parent", "cycle", "team cannot be below batch",
    ),
    "a quota changes its tree": (
        patched("other", **{"tree-id": "t2"}),
        "quotas/other", f"{Q}/tree-id", "tree-changed", "tree id changed [] vs [t2]",
    ),
    "a namespace is bound twice": (
        quota("db", annotations={f"{Q}/namespaces": '["shop"]'}),
        "quotas/db", f"{Q}/namespaces", "namespace-bound", "namespace shop is already bound to quota web",
    ),
    "the name is taken in another namespace": (
        quota("other", namespace="shop"), "shop/other", "metadata.name", "exists", "already exists: other",
    ),
    "the root quota is changed": (
        ("label", "elasticquota", "koordinator-root-quota", "-n", "koordinator-system", "--overwrite",
         f"{Q}/is-parent=false"),
        "koordinator-system/koordinator-root-quota", "", "forbidden", "invalid quota koordinator-root-quota",
    ),
    "a quota with children is deleted": (
        deleted("batch"), "quotas/batch", "", "has-children", "quota batch has 1 child quotas",
    ),
    "a quota with pods is deleted": (
        deleted("nightly"), "quotas/nightly", "", "has-pods", "quota nightly has 1 child pods: job, ...",
    ),
    "a pod goes to a parent quota": (
        pod("lost", name="team"),
        "quotas/team", f"{Q}/name", "parent-quota", "can not be linked to a parentQuotaGroup,quota:team",
    ),
    "a pod becomes preemptible later": (
        ("label", "pod", "server", "-n", "shop", f"{Q}/preemptible=false"),
        "", f"{Q}/preemptible", "preemptible", "field is immutable",
    ),
    "a pod asks for more than its quota has": (
        pod("large", "7500m"),
        "quotas/web", "cpu", "", "exceeded quota: quotas/web, requested: cpu=7500m, used: cpu=1, limited: cpu=8",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("quotas"), "--nodes", "3", "--manager-feature-gates", GATES)
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(scope="module")
def tree(cluster: Cluster) -> dict[str, Any]:
    cluster.kubectl("apply", "-f", "-", text=TREE)
    return shown(cluster)


def shown(cluster: Cluster) -> dict[str, Any]:
    """Quotas and pods as users made them, without what components write (the scheduler's own quotas, sums)."""
    found = {}
    for item in cluster.get("elasticquotas,pods", "-A")["items"]:
        if item["metadata"]["namespace"] == "koordinator-system":
            continue
        metadata = item["metadata"]
        annotations = {
            key: metadata.get("annotations", {}).get(f"{Q}/{key}") for key in ("shared-weight", "namespaces")
        }
        amounts = {key: item["spec"].get(key) for key in ("min", "max")}
        found[metadata["namespace"], metadata["name"]] = (metadata.get("labels"), annotations, amounts)
    return found


def test_a_tree_is_applied_from_one_file_and_completed(cluster: Cluster, tree: dict[str, Any]) -> None:
    labels, annotations, _ = tree["quotas", "other"]

    assert labels[f"{Q}/parent"] == "koordinator-root-quota"
    assert json.loads(annotations["shared-weight"]) == {"cpu": "8", "memory": "8Gi"}


def test_what_pods_of_a_quota_ask_for_shows_on_it_and_on_its_parents(
    cluster: Cluster, tree: dict[str, Any]
) -> None:
    def asked(name: str) -> Any:
        annotations = cluster.get("elasticquota", name, "-n", "quotas")["metadata"]["annotations"]
        return json.loads(annotations.get(f"{Q}/child-request", "{}"))

    until(lambda: asked("web") == {"cpu": "1", "memory": "100Mi"}, 20, cluster.process)
    until(lambda: asked("team") == {"cpu": "2", "memory": "200Mi"}, 20, cluster.process)


def test_a_list_of_quotas_shows_the_tree_and_the_amounts(cluster: Cluster, tree: dict[str, Any]) -> None:
    heads, *lines = cluster.kubectl("get", "elasticquotas", "-n", "quotas").splitlines()

    assert heads.split()[:8] == ["NAME", "PARENT", "USED", "CPU", "MIN", "CPU", "MAX", "CPU"]
    web = next(line for line in lines if line.startswith("web "))
    assert "team" in web and "3" in web.split() and "8Gi" in web.split()


def test_what_a_quota_may_use_now_shows_in_the_wide_list(cluster: Cluster, tree: dict[str, Any]) -> None:
    def said() -> list[str]:
        heads, line = cluster.kubectl("get", "eq", "web", "-n", "quotas", "-o", "wide").splitlines()
        assert heads.split()[-4:] == ["AGE", "TREE", "RUNTIME", "REQUEST"]
        return [text for text in line.split() if text.startswith("{")]

    until(lambda: len(said()) == 2, 20, cluster.process)
    runtime, request = map(json.loads, said())
    annotations = cluster.get("eq", "web", "-n", "quotas")["metadata"]["annotations"]
    assert runtime == json.loads(annotations[f"{Q}/runtime"])
    assert request["cpu"] == "1"


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_broken_rule_is_named_and_changes_nothing(
    cluster: Cluster, tree: dict[str, Any], rule: str
) -> None:
    attempt, name, field, code, words = BROKEN_RULES[rule]

    if isinstance(attempt, tuple):
        refused = cluster.run(*attempt)
    else:
        refused = cluster.run("create", "-f", "-", text=json.dumps(attempt))

    assert refused.returncode == 1, refused.stdout
    for part in (name, field, code and f"rule {code})", words):
        assert part in refused.stderr, refused.stderr
    assert shown(cluster) == tree


def test_a_deployment_gets_as_many_pods_as_its_quota_has_room_for(
    cluster: Cluster, tree: dict[str, Any]
) -> None:
    template = pod("", "500m")
    template["metadata"] = {"labels": {"app": "shop"}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "shop", "namespace": "shop"},
        "spec": {
            "replicas": 25,
            "selector": {"matchLabels": {"app": "shop"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }
    cluster.kubectl("apply", "-f", "-", text=json.dumps(deployment))

    def refusals() -> str:
        events = cluster.get("events", "-n", "shop")["items"]
        return " ".join(event["message"] for event in events if event["reason"] == "FailedCreate")

    until(lambda: "exceeded quota: quotas/web, requested: cpu=500m" in refusals(), 20, cluster.process)
    chosen = ("pods", "-n", "shop", "-l", "app=shop")
    until(lambda: len(cluster.get(*chosen)["items"]) >= 14, 20, cluster.process)
    pods = cluster.get(*chosen)["items"]
    quota_now = cluster.get("elasticquota", "web", "-n", "quotas")
    admitted = json.loads(quota_now["metadata"]["annotations"][f"{Q}/child-request"])
    assert len(pods) == 14, "8 cores less that of the server, half a core each"
    assert admitted["cpu"] == "8"
    cluster.kubectl("delete", "deployment", "shop", "-n", "shop")


def test_a_node_pool_becomes_a_tree_and_its_pods_land_there(cluster: Cluster, tree: dict[str, Any]) -> None:
    nodes = sorted(node["metadata"]["name"] for node in cluster.get("nodes")["items"])
    cluster.kubectl("label", "node", nodes[1], "pool=gpu")
    profile = {
        "apiVersion": "quota.koordinator.sh/v1alpha1",
        "kind": "ElasticQuotaProfile",
        "metadata": {"name": "gpu", "namespace": "quotas"},
        "spec": {
            "quotaName": "gpu-root",
            "quotaLabels": {f"{Q}/is-parent": "true"},
            "nodeSelector": {"matchLabels": {"pool": "gpu"}},
        },
    }
    cluster.kubectl("apply", "-f", "-", text=json.dumps(profile))
    root = ("elasticquota", "gpu-root", "-n", "quotas")
    until(lambda: cluster.run("get", *root).returncode == 0, 20, cluster.process)
    made = cluster.get(*root)
    allocatable = cluster.get("node", nodes[1])["status"]["allocatable"]
    total = json.loads(made["metadata"]["annotations"][f"{Q}/total-resource"])
    assert total["cpu"] == allocatable["cpu"]
    assert made["spec"]["min"]["cpu"] == allocatable["cpu"]

    cluster.kubectl(
        "apply",
        "-f",
        "-",
        text=listed(quota("gpu-team", "gpu-root"), pod("train", namespace="quotas", name="gpu-team")),
    )
    team = cluster.get("elasticquota", "gpu-team", "-n", "quotas")
    assert team["metadata"]["labels"][f"{Q}/tree-id"] == made["metadata"]["labels"][f"{Q}/tree-id"]
    cluster.kubectl("wait", "--for=condition=PodScheduled", "pod/train", "-n", "quotas", "--timeout=30s")
    placed = cluster.get("pod", "train", "-n", "quotas")["spec"]
    assert placed["nodeName"] == nodes[1]
    required = placed["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "pool", "operator": "In", "values": ["gpu"]}]

    cluster.kubectl("label", "node", nodes[2], "pool=gpu")
    both = lambda: json.loads(cluster.get(*root)["metadata"]["annotations"][f"{Q}/total-resource"])["pods"]  # noqa: E731
    until(lambda: both() == "220", 20, cluster.process)
