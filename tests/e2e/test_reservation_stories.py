"""Reservations with kubectl: room kept for pods to come, used by its owners, refused to others, and given back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, started, until, with_kubectl
from tests.e2e.test_quota_stories import listed

pytestmark = with_kubectl(timeout_s=120)

PREFIX = "scheduling.koordinator.sh"
CPU = 8


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node of eight cores; new Reservations go through the manager."""
    gates = ("--manager-feature-gates", "ReservationMutatingWebhook=true")
    found = started(tmp_path_factory.mktemp("reservations"), "--nodes", "1", "--node-cpu", str(CPU), *gates)
    yield found
    found.stop()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The same with nothing on it."""
    yield shared_cluster
    for kind in ("deployments", "pods", "reservations"):
        shared_cluster.kubectl("delete", kind, "--all", "--wait=true", "--grace-period=0")


def reservation(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    container = {"name": "main", "image": "web", "resources": resources}
    template = {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
    owners = [{"labelSelector": {"matchLabels": {"app": name}}}]
    return {
        "apiVersion": f"{PREFIX}/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {"template": template, "owners": owners, **spec},
    }


def pod_spec(cpu: str, **spec: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    return {
        "schedulerName": "koord-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "web", "resources": resources}],
        **spec,
    }


def pod(name: str, cpu: str, app: str = "", **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {"app": app or name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(cpu, **spec)}


def apply(cluster: Cluster, *objects: dict[str, Any]) -> None:
    cluster.kubectl("create", "-f", "-", text=listed(*objects))


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.get("reservation", name).get("status", {}).get("phase", ""))


def until_phase(cluster: Cluster, name: str, wanted: str, seconds: float = 30) -> None:
    until(lambda: phase(cluster, name) == wanted, seconds, cluster.process)


def node_of(cluster: Cluster, name: str) -> str:
    return str(cluster.get("pod", name)["spec"].get("nodeName", ""))


def until_placed(cluster: Cluster, name: str, seconds: float = 30) -> None:
    until(lambda: node_of(cluster, name), seconds, cluster.process)


def until_refused(cluster: Cluster, name: str) -> str:
    """What the pod's condition says."""

    def told() -> str:
        conditions = cluster.get("pod", name).get("status", {}).get("conditions", [])
        return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")

    until(told, 30, cluster.process)
    return told()


def uses(cluster: Cluster, name: str) -> str:
    """The reservation that a pod says it uses."""
    text = cluster.get("pod", name)["metadata"].get("annotations", {}).get(f"{PREFIX}/reservation-allocated")
    return str(json.loads(text)["name"]) if text else ""


def explain(cluster: Cluster, *asked: str) -> str:
    """What `koordinator explain` says, in one line."""
    done = cluster.koordinator("explain", *asked)
    assert not done.stderr, done.stderr
    return " ".join(done.stdout.split())


def row(cluster: Cluster, name: str) -> list[str]:
    """What `kubectl get reservation` shows."""
    return cluster.kubectl("get", "reservation", name, "--no-headers").split()


def test_room_is_reserved_consumed_and_given_back_when_its_time_is_over(cluster: Cluster) -> None:
    apply(cluster, reservation("room", "6"))
    until_phase(cluster, "room", "Available")
    assert row(cluster, "room")[:2] == ["room", "Available"]
    [condition] = [
        each for each in cluster.get("reservation", "room")["status"]["conditions"] if each["type"] == "Ready"
    ]
    assert (condition["status"], condition["reason"]) == ("True", "Available")

    apply(cluster, pod("stranger", "4"))
    assert "Insufficient cpu" in until_refused(cluster, "stranger")
    assert "reservation room keeps 6 cores" in explain(cluster, "pod", "stranger")
    assert "on node-0; nobody uses it" in explain(cluster, "reservation", "room")

    apply(cluster, pod("owner", "6", app="room"))
    until_placed(cluster, "owner")
    assert uses(cluster, "owner") == "room"
    until_phase(cluster, "room", "Succeeded")
    status = cluster.get("reservation", "room")["status"]
    assert [each["name"] for each in status["currentOwners"]] == ["owner"]
    assert status["allocated"]["cpu"] == "6"
    assert node_of(cluster, "stranger") == "", "the owner has the room now"
    assert "is used up by default/owner" in explain(cluster, "reservation", "room")

    cluster.kubectl("delete", "pod", "owner", "--wait=true")
    until_placed(cluster, "stranger")

    cluster.kubectl("delete", "pod", "stranger", "--wait=true")
    apply(cluster, reservation("brief", "6", ttl="3s"))
    until_phase(cluster, "brief", "Available")
    apply(cluster, pod("patient", "6"))
    until_phase(cluster, "brief", "Failed")
    until_placed(cluster, "patient")
    assert "Expired" in cluster.kubectl("describe", "reservation", "brief")
    assert "has expired" in explain(cluster, "reservation", "brief")


def test_a_list_shows_where_room_is_and_until_when_defaults_included(cluster: Cluster) -> None:
    apply(cluster, reservation("room", "2"))
    until_phase(cluster, "room", "Available")
    head, line = cluster.kubectl("get", "reservations").splitlines()
    assert head.split() == ["NAME", "PHASE", "AGE", "NODE", "TTL", "EXPIRES"]
    assert [*line.split()[:2], *line.split()[3:]] == ["room", "Available", "node-0", "24h"]
    assert cluster.get("reservation", "room")["spec"]["allocateOnce"] is True
    refused = cluster.run("create", "-f", "-", text=json.dumps(reservation("odd", "2", allocatePolicy="Any")))
    assert refused.returncode and "allocatePolicy" in refused.stderr


def test_profiles_reach_reservations_and_no_pod_passes_itself_off_as_one(cluster: Cluster) -> None:
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "rooms"},
        "spec": {
            "selector": {"matchLabels": {"kind": "room"}},
            "labels": {"by": "profile"},
            "schedulerName": "koord-scheduler",
        },
    }
    apply(cluster, profile)
    body = reservation("room", "2")
    body["metadata"]["labels"] = {"kind": "room"}
    del body["spec"]["template"]["spec"]["schedulerName"]

    def created() -> Any:
        """A manager that has just started asks the server for its webhooks first."""
        cluster.run("delete", "reservation", "room", "--ignore-not-found")
        apply(cluster, body)
        return cluster.get("reservation", "room")["metadata"]["labels"].get("by")

    until(created, 30, cluster.process)
    until_phase(cluster, "room", "Available")
    cluster.kubectl("delete", "clustercolocationprofile", "rooms")

    impostor = pod("impostor", "1")
    impostor["metadata"]["annotations"] = {f"{PREFIX}/reserve-pod": "true"}
    refused = cluster.run("create", "-f", "-", text=json.dumps(impostor))
    assert refused.returncode and "is for the scheduler's own use" in refused.stderr, refused.stderr


def test_a_deployment_rolls_out_into_its_own_reservation(cluster: Cluster) -> None:
    apply(cluster, reservation("web", "6", allocateOnce=False))
    until_phase(cluster, "web", "Available")
    apply(cluster, pod("stranger", "3"))
    until_refused(cluster, "stranger")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod_spec("2")},
        },
    }
    apply(cluster, deployment)
    cluster.kubectl("rollout", "status", "deployment", "web", "--timeout=60s")
    until(
        lambda: cluster.get("reservation", "web")["status"].get("allocated", {}).get("cpu") == "6",
        30,
        cluster.process,
    )
    first = owners(cluster, "web")

    cluster.kubectl("rollout", "restart", "deployment", "web")
    cluster.kubectl("rollout", "status", "deployment", "web", "--timeout=60s")
    until(
        lambda: len(owners(cluster, "web")) == 3 and not owners(cluster, "web") & first, 30, cluster.process
    )
    assert phase(cluster, "web") == "Available"
    assert node_of(cluster, "stranger") == "", "the old pods' room was kept for the new ones"
    assert "3 pods use it" in explain(cluster, "reservation", "web")


def owners(cluster: Cluster, name: str) -> set[str]:
    return {each["name"] for each in cluster.get("reservation", name)["status"].get("currentOwners", [])}


def test_room_for_one_owner_is_refused_to_others_and_never_overtaken(cluster: Cluster) -> None:
    apply(cluster, reservation("vip", "6", allocatePolicy="Restricted"))
    until_phase(cluster, "vip", "Available")
    strangers = [pod(f"stranger-{number}", "3", priorityClassName="koord-prod") for number in range(4)]
    apply(cluster, *strangers)
    for each in strangers:
        assert "Insufficient cpu" in until_refused(cluster, each["metadata"]["name"])

    apply(cluster, pod("vip", "7"))
    assert "1 Reservation(s) matched owner total" in until_refused(cluster, "vip")
    assert "default/vip is for the pod, but too small" in explain(cluster, "reservation", "vip")
    assert "is for other owners" in explain(cluster, "reservation", "vip", "--pod", "stranger-0")
    cluster.kubectl("delete", "pod", "vip", "--wait=true")
    # Once it has the room, it is a pod like any other: as important as those that wait, so that they may not evict it.
    apply(cluster, pod("vip", "6", priorityClassName="koord-prod"))
    until_placed(cluster, "vip")
    assert uses(cluster, "vip") == "vip"
    assert not any(node_of(cluster, each["metadata"]["name"]) for each in strangers)


def test_the_room_of_a_pod_that_will_leave_is_kept_for_its_successor(cluster: Cluster) -> None:
    onto = {"preAllocation": True, "allocatePolicy": "Restricted", "allocateOnce": False}
    apply(cluster, reservation("room", "6", **onto))
    until_phase(cluster, "room", "Available")
    cluster.kubectl("delete", "reservation", "room")

    apply(cluster, pod("old", "6", app="room"))
    until_placed(cluster, "old")
    apply(cluster, reservation("room", "6", **onto))
    until_phase(cluster, "room", "Available")
    assert uses(cluster, "old") == "room"
    assert "default/old uses it" in explain(cluster, "reservation", "room")

    apply(cluster, pod("stranger", "4"))
    assert "Insufficient cpu" in until_refused(cluster, "stranger")
    cluster.kubectl("delete", "pod", "old", "--wait=true")
    apply(cluster, pod("new", "6", app="room"))
    until_placed(cluster, "new")
    assert (uses(cluster, "new"), node_of(cluster, "stranger")) == ("room", "")


def test_the_room_of_a_gang_is_kept_together_or_not_at_all(cluster: Cluster) -> None:
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"minMember": 2},
    }

    def for_gang(name: str, cpu: str) -> dict[str, Any]:
        made = reservation(name, cpu)
        made["spec"]["template"]["metadata"] = {"labels": {"pod-group.scheduling.sigs.k8s.io": "train"}}
        return made

    apply(cluster, group, for_gang("a", "6"), for_gang("b", "6"))
    until(
        lambda: "1 of 2 members fit" in explain(cluster, "reservation", "a"),
        30,
        cluster.process,
    )
    assert [phase(cluster, name) in ("", "Pending") for name in "ab"] == [True, True]
    apply(cluster, pod("stranger", "6"))
    until_placed(cluster, "stranger")
    cluster.kubectl("delete", "pod", "stranger", "--wait=true")
    cluster.kubectl("delete", "reservation", "b")
    apply(cluster, for_gang("b", "1"))
    for name in "ab":
        until_phase(cluster, name, "Available")
    cluster.kubectl("delete", "podgroup", "train")
