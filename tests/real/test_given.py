"""What needs nothing on loopback: on a cluster that was given, else on bare servers of ours that stand for one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.cluster import errors
from tests.e2e.cluster import until
from tests.e2e.test_quota_stories import listed
from tests.real.cluster import RealCluster, Shape
from tests.real.given import AGAINST_THE_RULES, FILE, NAMESPACE, GivenCluster

Json = dict[str, Any]


@pytest.fixture(scope="module")
def kubeconfig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An administrator's, of a cluster without anything of ours."""
    if FILE:
        yield Path(FILE).resolve()
        return
    request.getfixturevalue("_servers")
    shape = Shape(nodes=2, manager=False, scheduler=False, installed=False)
    with RealCluster.open(tmp_path_factory.mktemp("bare"), shape) as bare:
        yield bare.kubeconfig


@pytest.fixture(scope="module")
def given(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GivenCluster]:
    with GivenCluster.open(tmp_path_factory.mktemp("given"), kubeconfig) as running:
        assert FILE or running.manager is not None, "servers of ours reach our webhooks"
        yield running


def pod(name: str, cpu: str, **labels: str) -> Json:
    container = {"name": "main", "image": "registry.k8s.io/pause", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
    }


def create(cluster: GivenCluster, *bodies: Json) -> None:
    cluster.kubectl("apply", "-f", "-", text=listed(*bodies))


def is_bound(cluster: GivenCluster, name: str) -> bool:
    return bool(cluster.get("-n", NAMESPACE, "pod", name)["spec"].get("nodeName"))


@pytest.fixture
def usable(given: GivenCluster) -> GivenCluster:
    """With a node that every pod may use."""
    nodes = [node["spec"] for node in given.get("nodes")["items"]]
    if all(spec.get("unschedulable") or spec.get("taints") for spec in nodes):
        pytest.skip("the given cluster has no node that every pod may use")
    return given


def versions(cluster: GivenCluster) -> set[str]:
    items = json.loads(cluster.kubectl("get", "-f", "-", "-o", "json", text=cluster.documents))["items"]
    return {f"{body['metadata']['uid']} {body['metadata'].get('generation')}" for body in items}


def test_installing_a_second_time_changes_nothing(given: GivenCluster) -> None:
    before = versions(given)

    given.install()

    assert versions(given) == before


def test_a_pod_is_bound(usable: GivenCluster) -> None:
    create(usable, pod("small", "1m"))

    until(lambda: is_bound(usable, "small"), 60, usable.process)


def test_a_gang_waits_for_its_last_member(usable: GivenCluster) -> None:
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "pair", "namespace": NAMESPACE},
        "spec": {"minMember": 2},
    }
    label = {"pod-group.scheduling.sigs.k8s.io": "pair"}
    create(usable, group, pod("first", "1m", **label))
    create(usable, pod("later", "1m"))
    until(lambda: is_bound(usable, "later"), 60, usable.process)
    assert not is_bound(usable, "first")

    create(usable, pod("second", "1m", **label))

    until(lambda: is_bound(usable, "first") and is_bound(usable, "second"), 60, usable.process)


def test_a_quota_refuses_what_is_above_it_and_counts_what_is_used(usable: GivenCluster) -> None:
    limits = {"min": {"cpu": "2m"}, "max": {"cpu": "2m"}}
    quota = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "team", "namespace": NAMESPACE},
        "spec": limits,
    }
    create(usable, quota)
    label = {"quota.scheduling.koordinator.sh/name": "team"}
    create(usable, pod("within", "2m", **label))
    until(lambda: is_bound(usable, "within"), 60, usable.process)

    create(usable, pod("above", "1m", **label))

    waits = ("--for=condition=PodScheduled=False", "pod/above", "--timeout=60s")
    usable.kubectl("-n", NAMESPACE, "wait", *waits)
    used = ("-n", NAMESPACE, "elasticquota", "team")
    until(lambda: usable.get(*used).get("status", {}).get("used", {}).get("cpu") == "2m", 60, usable.process)
    (refused,) = [
        each
        for each in usable.get("-n", NAMESPACE, "pod", "above")["status"]["conditions"]
        if each["type"] == "PodScheduled"
    ]
    assert "quota" in refused["message"].lower(), refused


def test_a_pod_that_fits_nowhere_waits_and_is_explained(given: GivenCluster) -> None:
    create(given, pod("huge", "1M"))
    waits = ("--for=condition=PodScheduled=False", "pod/huge", "--timeout=60s")
    given.kubectl("-n", NAMESPACE, "wait", *waits)

    assert given.scheduler is not None
    told = given.koordinator("explain", "pod/huge", "-n", NAMESPACE, "--scheduler-url", given.scheduler.url)

    assert told.returncode == 3, told.stderr
    assert "cpu" in told.stdout


def test_the_doctor_finds_kinds_classes_and_what_accounts_may_do(given: GivenCluster) -> None:
    checks = (f"--check={name}" for name in ("crds", "access", "config", "priority-classes"))
    told = given.koordinator("doctor", *checks)

    assert told.returncode == 0, told.stdout + told.stderr


@pytest.fixture
def managed(given: GivenCluster) -> GivenCluster:
    """With a manager whose webhooks are called by URL."""
    if given.manager is None:
        pytest.skip(
            "the given API server does not reach this machine's loopback, so it calls no webhooks there"
        )
    return given


def test_every_node_gets_a_policy_and_is_asked_to_report(managed: GivenCluster) -> None:
    nodes = {node["metadata"]["name"] for node in managed.get("nodes")["items"]}

    for kind in ("nodeslos", "nodemetrics"):
        until(
            lambda kind=kind: nodes == {each["metadata"]["name"] for each in managed.get(kind)["items"]},
            60,
            managed.process,
        )


def test_webhooks_change_and_refuse_pods(managed: GivenCluster) -> None:
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "koordinator-test"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "selector": {"matchLabels": {"work": "batch"}},
            "qosClass": "BE",
            "priorityClassName": "koord-batch",
        },
    }
    dry = ("-n", NAMESPACE, "create", "--dry-run=server", "-f", "-")
    create(managed, profile)
    batch = json.dumps(pod("batch", "1", work="batch"))

    def requests() -> Json:
        made = managed.run(*dry, "-o", "json", text=batch)
        return json.loads(made.stdout)["spec"]["containers"][0]["resources"]["requests"]

    until(lambda: requests() == {"kubernetes.io/batch-cpu": "1k"}, 60, managed.process)
    refused = managed.run("run", "refused", *AGAINST_THE_RULES)
    assert 'admission webhook "vpod.koordinator.sh" denied' in refused.stderr


def test_nothing_is_forbidden_to_components(given: GivenCluster) -> None:
    components = [each for each in (given.scheduler, given.manager) if each is not None]
    said = [line for each in components for line in each.said().splitlines()]

    assert not [line for line in said if errors.Forbidden.__name__ in line or "forbidden" in line.lower()]
