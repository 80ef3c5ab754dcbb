"""What people do with kubectl all day, on a running `koordinator up`: no word on stderr that they would not expect."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, only_local, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("stories"), "--nodes", "3")
    running.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
    yield running
    if running.process.poll() is None:
        running.stop()


def test_a_job_that_sleeps_completes(cluster: Cluster) -> None:
    cluster.kubectl("create", "job", "nap", "--image=busybox", "--", "sleep", "1")

    cluster.kubectl("wait", "--for=condition=complete", "job/nap", "--timeout=30s")

    assert cluster.get("job", "nap")["status"]["succeeded"] == 1


def test_autoscale_keeps_an_object_in_both_versions(cluster: Cluster) -> None:
    cluster.kubectl("create", "deployment", "scaled", "--image=web")

    cluster.kubectl("autoscale", "deployment", "scaled", "--min=1", "--max=5", "--cpu-percent=80")

    assert "Deployment/scaled" in cluster.kubectl("get", "hpa", "scaled")
    older = cluster.get("horizontalpodautoscalers.v1.autoscaling", "scaled")
    assert older["spec"]["targetCPUUtilizationPercentage"] == 80
    (metric,) = cluster.get("hpa", "scaled")["spec"]["metrics"]
    assert metric["resource"]["target"]["averageUtilization"] == 80


def pod(name: str, **spec: object) -> dict[str, object]:
    container = {"name": "main", "image": "x", "ports": [{"name": "http", "containerPort": 8080}]}
    labels = {"app": "shop"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], **spec},
    }


def test_a_service_leads_to_its_ready_pods_by_named_ports_also_of_sidecars(cluster: Cluster) -> None:
    slow = {
        "name": "main",
        "image": "x",
        "readinessProbe": {"exec": {"command": ["x"]}, "initialDelaySeconds": 600},
    }
    port = [{"name": "http", "containerPort": 9090}]
    sidecar = {"name": "proxy", "image": "x", "restartPolicy": "Always", "ports": port}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "shop", "labels": {"team": "a"}},
        "spec": {"selector": {"app": "shop"}, "ports": [{"name": "web", "port": 80, "targetPort": "http"}]},
    }
    pods = [
        pod("shop-0", hostname="shop-0", subdomain="shop"),
        pod("shop-1", containers=[slow], initContainers=[sidecar]),
    ]
    items = [service, *pods]
    cluster.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/shop-0", "--timeout=30s")

    def slices() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cluster.get("endpointslices", "-l", "kubernetes.io/service-name=shop")[
            "items"
        ]
        return found

    until(lambda: sum(len(one["endpoints"]) for one in slices()) == 2, 20, cluster.process)
    by_port = {one["ports"][0]["port"]: one for one in slices()}
    assert set(by_port) == {8080, 9090}
    (ready,), (waiting,) = by_port[8080]["endpoints"], by_port[9090]["endpoints"]
    node = cluster.get("pod", "shop-0")["spec"]["nodeName"]
    assert ready["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert waiting["conditions"] == {"ready": False, "serving": False, "terminating": False}
    assert (ready["nodeName"], ready["hostname"], ready["zone"][:5]) == (node, "shop-0", "zone-")
    assert by_port[8080]["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]
    assert by_port[8080]["metadata"]["labels"] == {
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": "shop",
        "team": "a",
    }
    older = json.loads(cluster.run("get", "endpoints", "shop", "-o", "json").stdout)
    assert sorted((subset["ports"][0]["port"], sorted(subset)) for subset in older["subsets"]) == [
        (8080, ["addresses", "ports"]),
        (9090, ["notReadyAddresses", "ports"]),
    ]
    proxy = cluster.get("pod", "shop-1")["status"]["initContainerStatuses"][0]
    assert (proxy["ready"], "running" in proxy["state"]) == (True, True)
    cluster.kubectl("delete", "service/shop", "pod/shop-0", "pod/shop-1")
    until(lambda: not slices(), 30, cluster.process)


def test_a_new_namespace_has_an_account_and_the_certificate_and_secrets_take_text(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "fresh")
    until(
        lambda: cluster.run("-n", "fresh", "get", "cm/kube-root-ca.crt", "sa/default").returncode == 0,
        20,
        cluster.process,
    )
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "value"}}

    cluster.kubectl("-n", "fresh", "apply", "-f", "-", text=json.dumps(secret))

    stored = cluster.get("-n", "fresh", "secret", "s")
    assert (stored["data"], "stringData" in stored, stored["type"]) == ({"key": "dmFsdWU="}, False, "Opaque")


def test_a_pod_is_resized_in_place_as_far_as_its_node_has_room(cluster: Cluster) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(pod("grows", containers=[container])))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/grows", "--timeout=30s")

    def resize(cpu: str) -> None:
        change = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
        cluster.kubectl("patch", "pod", "grows", "--subresource=resize", "-p", json.dumps(change))

    def status() -> tuple[str, str, dict[str, str]]:
        found = cluster.get("pod", "grows")["status"]
        main = found["containerStatuses"][0]
        resizing = {c["type"]: c.get("reason", "") for c in found["conditions"] if "Resize" in c["type"]}
        return main["resources"]["requests"]["cpu"], main["allocatedResources"]["cpu"], resizing

    resize("300m")
    until(lambda: status() == ("300m", "300m", {}), 20, cluster.process)
    resize("4000")
    until(lambda: status() == ("300m", "300m", {"PodResizePending": "Infeasible"}), 20, cluster.process)
    cluster.kubectl("delete", "pod", "grows")


def test_the_list_of_pod_groups_shows_how_far_gangs_are(cluster: Cluster) -> None:
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"minMember": 2},
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"train-{number}",
                "labels": {"pod-group.scheduling.sigs.k8s.io": "train"},
            },
            "spec": {"containers": [{"name": "main", "image": "train"}]},
        }
        for number in range(2)
    ]

    def line(*arguments: str) -> list[str]:
        heads, line = cluster.kubectl("get", "pg", "train", *arguments).splitlines()
        assert heads.split()[:6] == ["NAME", "PHASE", "MINMEMBER", "SCHEDULED", "RUNNING", "AGE"]
        return line.split()

    cluster.kubectl("apply", "-f", "-", text=json.dumps(group))
    until(lambda: line()[1] == "Pending", 20, cluster.process)
    cluster.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    until(lambda: line()[1:5] == ["Running", "2", "2", "2"], 30, cluster.process)
    cluster.kubectl("delete", "pod", "train-0")
    until(lambda: line()[1:5] == ["Scheduling", "2", "1", "1"], 30, cluster.process)
    cluster.kubectl("delete", "podgroup/train", "pod/train-1")


def test_the_list_of_network_topologies_shows_how_many_nodes_have_a_place(cluster: Cluster) -> None:
    topology = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": "other"},
        "spec": {"networkTopologySpec": [{"topologyLayer": "NodeTopologyLayer"}]},
    }
    root = {"topologyLayer": "ClusterTopologyLayer", "topologyName": ""}
    detail = {"topologyInfo": root, "childTopologyLayer": "SpineLayer", "nodeNum": 8}
    status = json.dumps({"status": {"detailStatus": [detail]}})
    cluster.kubectl("apply", "-f", "-", text=json.dumps(topology))
    cluster.kubectl(
        "patch", "clusternetworktopology", "other", "--subresource=status", "--type=merge", "-p", status
    )

    heads, line = cluster.kubectl("get", "clusternetworktopologies").splitlines()

    assert heads.split() == ["NAME", "TOP", "LAYER", "NODES", "AGE"]
    assert line.split()[:3] == ["other", "SpineLayer", "8"]
    cluster.kubectl("delete", "clusternetworktopology", "other")


def test_a_drain_waits_for_the_budget_and_a_taint_does_not(cluster: Cluster) -> None:
    cluster.kubectl("create", "deployment", "kept", "--image=web", "--replicas=2")
    cluster.kubectl("create", "pdb", "kept", "--selector=app=kept", "--min-available=2")
    cluster.kubectl("rollout", "status", "deployment/kept", "--timeout=30s")
    node = cluster.get("pods", "-l", "app=kept")["items"][0]["spec"]["nodeName"]

    drained = cluster.run("drain", node, "--force", "--timeout=2s", "--pod-selector=app=kept")

    assert drained.returncode == 1
    assert "Cannot evict pod as it would violate the pod's disruption budget." in drained.stderr
    cluster.kubectl("taint", "node", node, "k=v:NoExecute")
    chosen = ("-l", "app=kept", f"--field-selector=spec.nodeName={node}")
    cluster.kubectl("wait", "--for=delete", "pod", *chosen, "--timeout=30s")
    cluster.kubectl("taint", "node", node, "k-")
    cluster.kubectl("uncordon", node)


def test_a_refused_patch_shows_the_patch(cluster: Cluster) -> None:
    cluster.kubectl("create", "deployment", "typed", "--image=web")

    refused = cluster.run("patch", "deployment", "typed", "-p", '{"spec":{"replicas":"x"}}')

    assert refused.returncode == 1
    assert 'patch: Invalid value: "map[spec:map[replicas:x]]": ' in refused.stderr


@only_local("how it stops")
def test_ctrl_c_ends_watches_within_seconds(tmp_path: Path) -> None:
    running = started(tmp_path, "--nodes", "1")
    command = ["kubectl", "--kubeconfig", str(running.kubeconfig), "get", "nodes", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()  # the watch is open
        started_s = time.monotonic()

        stderr = running.stop(signal.SIGINT)

        assert time.monotonic() - started_s < 10
        assert running.process.returncode == 0
        assert "Traceback" not in stderr
        watch.communicate(timeout=10)
        assert watch.returncode == 0
