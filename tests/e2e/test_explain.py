"""`koordinator explain` beside a running `koordinator up`, without any set-up, and on what kubectl dumps."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.api.labels import QUOTA_REQUEST
from tests.e2e.cluster import Cluster, started, until, with_kubectl

pytestmark = with_kubectl(timeout_s=120)

BIG = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "big"},
    "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "64"}}}]},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = started(tmp_path_factory.mktemp("explain"), "--nodes", "5")
    running.kubectl("apply", "-f", "-", text=json.dumps(BIG))
    until(lambda: running.get("pod", "big").get("status", {}).get("conditions"), 20, running.process)
    yield running
    if running.process.poll() is None:
        running.stop()


def explain(cluster: Cluster, *arguments: str, text: str = "") -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "koordinator.cli.main", "explain", "pod", "big", "-o", "json", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def test_the_scheduler_is_found_through_the_kubeconfig(cluster: Cluster) -> None:
    status, answer = explain(cluster)

    assert (status, answer["verdict"]) == (3, "Unschedulable")
    assert answer["events"][0]["reason"] == "FailedScheduling"
    assert answer["queue"]["area"] == "unschedulable"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_dump_gives_the_answer_of_the_live_scheduler(cluster: Cluster, form: str, tmp_path: Path) -> None:
    dump = cluster.kubectl("get", "nodes,pods,events", "-A", "-o", form)

    status, offline = explain(cluster, "--dump", "-", text=dump)
    _, live = explain(cluster)

    assert status == 3
    same = (
        "verdict",
        "sentence",
        "message",
        "reasons",
        "remedies",
        "requests",
        "feasibleCount",
        "rejectedBy",
    )
    assert {key: offline[key] for key in same} == {key: live[key] for key in same}


def test_cluster_info_dump_is_understood(cluster: Cluster) -> None:
    dump = cluster.kubectl("cluster-info", "dump")

    assert explain(cluster, "--dump", "-", text=dump)[1]["nodeCount"] == 5


def test_a_schedule_explanation_is_answered(cluster: Cluster) -> None:
    asked = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ScheduleExplanation",
        "metadata": {"name": "why", "namespace": "default"},
        "spec": {"questionObjectKey": "default/big"},
    }
    cluster.kubectl("apply", "-f", "-", text=json.dumps(asked))

    until(lambda: cluster.get("scheduleexplanation", "why").get("status"), 20, cluster.process)
    status = cluster.get("scheduleexplanation", "why")["status"]

    [detail] = status["detailedExplanation"][0]["scheduleExplanation"]["nodeFailedDetails"]
    assert (detail["failedPlugin"], len(detail["failedNodes"])) == ("NodeResourcesFit", 5)


TREE = """
apiVersion: v1
kind: Namespace
metadata: {name: quotas}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {name: ads, namespace: quotas}
spec: {min: {cpu: 2}, max: {cpu: 4}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {name: search, namespace: quotas}
spec: {min: {cpu: 3}, max: {cpu: 4}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: train}
spec: {minMember: 3}
"""


def small(name: str, cpu: str, **own: str) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": own},
        "spec": {"containers": [container]},
    }


def wait_for_conditions(cluster: Cluster, name: str) -> None:
    until(lambda: cluster.get("pod", name).get("status", {}).get("conditions"), 20, cluster.process)


def test_quotas_are_drawn_and_a_pod_above_its_own_is_told_why(cluster: Cluster) -> None:
    quota = {"quota.scheduling.koordinator.sh/name": "ads"}
    cluster.kubectl("apply", "-f", "-", text=TREE)
    pods = [small("ads-0", "3", **quota), small("ads-1", "2", **quota)]
    for each in pods:
        cluster.kubectl("apply", "-f", "-", text=json.dumps(each))
        wait_for_conditions(cluster, each["metadata"]["name"])

    def has_figures() -> bool:
        """Amounts reach the API server once a second: those of the second pod may come after those of the first."""
        ads = cluster.get("elasticquota", "ads", "-n", "quotas")
        used = ads.get("status", {}).get("used", {}).get("cpu")
        asked = json.loads(ads["metadata"].get("annotations", {}).get(QUOTA_REQUEST, "{}")).get("cpu")
        return bool((used, asked) == ("3", "5"))

    until(has_figures, 20, cluster.process)
    tree = cluster.koordinator("quota", "tree").stdout
    told = cluster.koordinator("explain", "pod/ads-1")

    [ads] = [line for line in tree.splitlines() if "─ ads" in line]
    assert "borrows 1 from search, 2 waiting" in ads, tree
    assert told.returncode == 3
    assert "queue at root/ads: runtime 4 cores, used 3, you ask 2; borrowed 1 from root/search" in told.stdout
    assert "raise cpu in max of ads from 4 to 5" in told.stdout


def test_a_gang_is_explained_before_and_after_it_can_start(cluster: Cluster) -> None:
    member = {"pod-group.scheduling.sigs.k8s.io": "train"}
    for number in range(2):
        cluster.kubectl("apply", "-f", "-", text=json.dumps(small(f"train-{number}", "30", **member)))
    waiting = cluster.koordinator("explain", "gang", "train")
    cluster.kubectl("apply", "-f", "-", text=json.dumps(small("train-2", "30", **member)))
    until(
        lambda: cluster.get("podgroup", "train").get("status", {}).get("phase") == "Running",
        30,
        cluster.process,
    )
    started = cluster.koordinator("explain", "podgroup/train")

    assert waiting.returncode == 3
    assert "default/train has 2 of at least 3 members" in waiting.stdout
    assert (started.returncode, "all of its 3 members have a node" in started.stdout) == (0, True)
