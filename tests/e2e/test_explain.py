"""`koordinator explain` beside a running `koordinator up`, without any set-up, and on what kubectl dumps."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, until

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the PATH"),
    pytest.mark.timeout(120),
]

BIG = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "big"},
    "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "64"}}}]},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("explain"), "--nodes", "5")
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
