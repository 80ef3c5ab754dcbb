"""Gangs with kubectl on a running `koordinator up` with room for six pods of one core."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, scheduler_config, started, until, with_kubectl
from tests.e2e.test_scheduler_process import Process

pytestmark = with_kubectl(timeout_s=120)

PREFIX = "gang.scheduling.koordinator.sh"
SLOW = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {qps: RATE, burst: 1}
profiles:
- schedulerName: slow
  plugins:
    preEnqueue: &on {enabled: [{name: Coscheduling}]}
    preFilter: *on
    postFilter: *on
    reserve: *on
    permit: *on
    preBind: {enabled: [{name: Coscheduling}, {name: DefaultPreBind}]}
    postBind: *on
"""
"""A scheduler that takes its time: what it binds takes seconds."""
Json = dict[str, Any]
NUMBERS = itertools.count()


def pod(name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Json:
    requests = {"requests": {"cpu": "1", "memory": "100Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": annotations or {}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "train", "resources": requests}],
        },
    }


def pod_group(name: str, minimum: int, **annotations: str) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {
            "name": name,
            "annotations": {f"{PREFIX}/{key.replace('_', '-')}": text for key, text in annotations.items()},
        },
        "spec": {"minMember": minimum},
    }


def members(gang: str, *numbers: int) -> list[Json]:
    """Pods of a PodGroup."""
    label = "pod-group.scheduling.sigs.k8s.io"
    return [pod(f"{gang}-{number}", {label: gang, "job": gang}) for number in numbers]


def annotated(gang: str, size: int, minimum: int, **annotations: str) -> list[Json]:
    """Pods that tell themselves what gang they are."""
    said = {"name": gang, "min-available": str(minimum)} | annotations
    about = {f"{PREFIX}/{key.replace('_', '-')}": text for key, text in said.items()}
    return [pod(f"{gang}-{number}", {"job": gang}, about) for number in range(size)]


class Story:
    """A namespace in which things are created, and what is seen there."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        cluster.kubectl("create", "namespace", namespace)

    def create(self, *objects: Json) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("create", "-f", "-", text=json.dumps(body))

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, text=text)

    def bound(self, job: str) -> list[str]:
        found = self.cluster.get("pods", "-n", self.namespace, "-l", f"job={job}")["items"]
        return sorted(each["metadata"]["name"] for each in found if each["spec"].get("nodeName"))

    def wait_until_bound(self, job: str, count: int) -> None:
        until(lambda: len(self.bound(job)) == count, 20, self.cluster.process)

    def message(self, name: str) -> str:
        """Why the pod has no node, as its status says; empty when it says nothing."""
        path = '{.status.conditions[?(@.type=="PodScheduled")].message}'
        return self.kubectl("get", "pod", name, "-o", f"jsonpath={path}")

    def end(self) -> None:
        """Room for the next story."""
        self.kubectl("delete", "pods,podgroups", "--all", "--now", "--wait=false")
        until(lambda: not self.cluster.get("pods", "-n", self.namespace)["items"], 20, self.cluster.process)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("gangs")
    config = scheduler_config(folder, enablePreemption="true")
    running = started(folder, "--nodes", "2", "--node-cpu", "4", "--scheduler-config", str(config))
    running.kubectl("create", "priorityclass", "urgent", "--value=1000")
    running.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def story(cluster: Cluster) -> Iterator[Story]:
    told = Story(cluster, f"story-{next(NUMBERS)}")
    yield told
    told.end()


def test_of_two_gangs_with_room_for_one_the_other_waits_and_follows(story: Story) -> None:
    mixed = [
        each for pair in zip(members("a", *range(4)), members("b", *range(4)), strict=True) for each in pair
    ]
    story.create(pod_group("a", 4), pod_group("b", 4), *mixed)

    until(lambda: len(story.bound("a")) + len(story.bound("b")) == 4, 20, story.cluster.process)
    first, other = ("a", "b") if story.bound("a") else ("b", "a")
    assert len(story.bound(first)) == 4
    until(lambda: "Insufficient cpu" in story.message(f"{other}-0"), 20, story.cluster.process)
    assert story.bound(other) == []
    assert f'GangGroup "{story.namespace}/{other}" gets rejected' in story.kubectl(
        "describe", "pods", "-l", f"job={other}"
    )

    story.kubectl("delete", "pods", "-l", f"job={first}")
    story.wait_until_bound(other, 4)


def test_a_gang_larger_than_the_cluster_says_so_and_leaves_the_room_to_others(story: Story) -> None:
    story.create(pod_group("vast", 7), *members("vast", *range(7)))

    until(lambda: "Insufficient cpu" in story.message("vast-6"), 20, story.cluster.process)
    said = story.kubectl("describe", "pod", "vast-0")
    assert f"gang {story.namespace}/vast needs 7 members, at most 6 fit now" in said, said
    story.create(*annotated("fits", 6, 6))
    story.wait_until_bound("fits", 6)
    assert story.bound("vast") == []


def test_members_that_come_one_by_one_start_when_the_last_has_come(story: Story) -> None:
    story.create(*members("late", 0))
    story.create(pod_group("late", 3))
    story.create(*members("late", 1))
    story.create(*annotated("alone", 1, 1))
    story.wait_until_bound("alone", 1)
    assert story.bound("late") == []

    story.create(*members("late", 2))

    story.wait_until_bound("late", 3)


def test_a_member_deleted_while_all_wait_is_missed_until_it_comes_back(story: Story) -> None:
    story.create(*annotated("full", 4, 1))
    story.wait_until_bound("full", 4)
    story.create(*annotated("job", 3, 3))
    until(lambda: "Insufficient cpu" in story.message("job-2"), 20, story.cluster.process)

    story.kubectl("delete", "pod", "job-1")
    story.kubectl("delete", "pods", "-l", "job=full")
    story.create(*annotated("probe", 1, 1))
    story.wait_until_bound("probe", 1)
    assert story.bound("job") == [], "two of three"

    story.create(annotated("job", 3, 3)[1])
    story.wait_until_bound("job", 3)


@pytest.mark.parametrize("mode", ["Strict", "NonStrict"])
def test_members_beyond_the_minimum_run_as_there_is_room(story: Story, mode: str) -> None:
    story.create(*annotated("wide", 7, 5, mode=mode))

    story.wait_until_bound("wide", 6)
    until(lambda: story.message(f"wide-{unbound(story)}") != "", 20, story.cluster.process)
    story.kubectl("delete", "pod", story.bound("wide")[0])
    until(lambda: len(story.bound("wide")) == 6, 20, story.cluster.process)


def unbound(story: Story) -> int:
    """The number of the one that has no node."""
    return next(number for number in range(7) if f"wide-{number}" not in story.bound("wide"))


def test_parameter_servers_and_workers_of_two_namespaces_start_together(
    story: Story, cluster: Cluster
) -> None:
    servers = Story(cluster, f"{story.namespace}-servers")
    groups = json.dumps([f"{servers.namespace}/ps", f"{story.namespace}/worker"])
    servers.create(pod_group("ps", 1, groups=groups), *members("ps", 0))
    story.create(pod_group("worker", 3, groups=groups), *members("worker", 0, 1))
    story.create(*annotated("probe", 1, 1))
    story.wait_until_bound("probe", 1)
    assert servers.bound("ps") == [], "the server waits for its workers"

    story.create(*members("worker", 2))

    story.wait_until_bound("worker", 3)
    servers.wait_until_bound("ps", 1)
    servers.end()


def test_a_gang_whose_scheduler_is_killed_is_finished_by_the_next_one(story: Story, tmp_path: Path) -> None:
    kubeconfig = story.cluster.kubeconfig
    first, second = Process(tmp_path, kubeconfig, SLOW.replace("RATE", "5")), None
    try:
        until(first.leads, 20, first.process)
        gang = annotated("job", 32, 32)
        for each in gang:
            each["spec"]["schedulerName"] = "slow"
            each["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "50m"
        story.create(*gang)
        until(lambda: len(story.bound("job")) >= 3, 20, first.process)
        first.process.kill()
        assert 3 <= len(story.bound("job")) < 32, "it was killed in the middle"

        second = Process(tmp_path, kubeconfig, SLOW.replace("RATE", "1000"))
        story.wait_until_bound("job", 32)
    finally:
        for each in (first, second):
            if each is not None:
                if each.process.poll() is None:
                    each.process.kill()
                each.process.communicate()


def test_an_important_job_takes_the_place_of_a_whole_other_one(story: Story) -> None:
    story.create(*annotated("cheap", 4, 4))
    story.wait_until_bound("cheap", 4)
    urgent = annotated("urgent", 6, 6)
    for each in urgent:
        each["spec"]["priorityClassName"] = "urgent"
    story.create(*urgent)

    story.wait_until_bound("urgent", 6)

    assert story.cluster.get("pods", "-n", story.namespace, "-l", "job=cheap")["items"] == []
    events = story.cluster.get("events", "-n", story.namespace)["items"]
    told = {each["involvedObject"]["name"] for each in events if each["reason"] == "Preempted"}
    assert told == {f"cheap-{number}" for number in range(4)}


def test_an_important_job_that_would_not_fit_anyway_evicts_nobody(story: Story) -> None:
    story.create(*annotated("cheap", 4, 4))
    story.wait_until_bound("cheap", 4)
    urgent = annotated("urgent", 7, 7)
    for each in urgent:
        each["spec"]["priorityClassName"] = "urgent"
    story.create(*urgent)

    until(lambda: "Insufficient cpu" in story.message("urgent-6"), 20, story.cluster.process)
    story.create(*annotated("probe", 1, 1))
    story.wait_until_bound("probe", 1)
    assert len(story.bound("cheap")) == 4
    assert story.bound("urgent") == []
