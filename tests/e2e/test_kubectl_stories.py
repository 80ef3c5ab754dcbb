"""What people do with kubectl all day, on a running `koordinator up`: no word on stderr that they would not expect."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

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
