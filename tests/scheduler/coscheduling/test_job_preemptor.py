"""Preemption for whole jobs."""

from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.clock import rfc3339
from koordinator.scheduler.plugins.coscheduling.dry_run_cluster import PreemptionDryRun
from koordinator.scheduler.plugins.coscheduling.job_preemptor import (
    JobPreemption,
    PreemptReason,
    preempt,
)
from koordinator.scheduler.plugins.coscheduling.jobs import JobResidents, PreemptorJob, VictimAction
from koordinator.scheduler.table.trial import rehearsal_of
from tests.scheduler.small_cluster import NOW_S, SmallCluster
from tests.scheduler.world import Json, node, pod

CPU = 8


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    node: str
    priority: int
    job: str = ""
    spare: int = 0
    is_terminating: bool = False
    is_waiting: bool = False


class Cluster:
    """Nodes of `CPU` cores; each pod with its size."""

    def __init__(self, pods: list[tuple[Occupant, int]], sizes: list[int], node_count: int) -> None:
        self.nodes = [f"n{number}" for number in range(node_count)]
        self.members = [f"m{number}" for number in range(len(sizes))]
        self.surplus: frozenset[str] = frozenset()
        self.size = {pod.key: size for pod, size in pods} | dict(zip(self.members, sizes, strict=True))
        self.pods = {node: [pod for pod, _ in pods if pod.node == node] for node in self.nodes}

    def preempt(self, priority: int = 10) -> JobPreemption:
        cluster = SmallCluster.shipped(Coscheduling={"enablePreemption": True})
        for name in self.nodes:
            cluster.node(node(name, cpu=str(CPU)))
        there = {pod.key: pod for pods in self.pods.values() for pod in pods}
        for each in there.values():
            cluster.pod(self._body(each), is_assumed=each.is_waiting)
        members = {
            key: cluster.pod(self._body(Occupant(key=key, node="", priority=priority)))
            for key in self.members
        }
        trigger = members[self.members[0]]
        job = PreemptorJob(name="job", trigger=trigger, members=members, surplus=self.surplus)
        with rehearsal_of(cluster.table) as trial:
            dry_run = PreemptionDryRun(
                cluster.table,
                cluster.table.shared(JobResidents),
                trial,
                cluster.refused(trigger),
                job,
                spare=lambda pod: there[pod.key].spare,
            )
            return preempt(job, dry_run)

    def _body(self, each: Occupant) -> Json:
        body = pod(each.key, cpu=str(self.size[each.key]), memory=None, priority=each.priority)
        marks = {labels.QUESTIONED_OBJECT_KEY: each.job} if each.job else {}
        namespace, _, name = each.key.rpartition("/")
        body["metadata"] = {"namespace": namespace, "name": name, "uid": each.key, "labels": marks}
        if each.is_terminating:
            body["metadata"]["deletionTimestamp"] = rfc3339(NOW_S)
        body["spec"]["nodeName"] = each.node
        return body


def occupant(key: str, node: str, priority: int = 0, **parts: Any) -> Occupant:
    return Occupant(key=key, node=node, priority=priority, **parts)


def test_members_that_do_not_fit_on_one_node_together_are_spread() -> None:
    cluster = Cluster([(occupant("a", "n0"), 8), (occupant("b", "n1"), 8)], [6, 6], 2)

    found = cluster.preempt()

    assert found.nominations == {"m0": "n0", "m1": "n1"}


def test_nobody_is_evicted_when_one_member_finds_no_room() -> None:
    cluster = Cluster([(occupant("a", "n0"), 8)], [6, 6], 1)

    found = cluster.preempt()

    assert found.reason is PreemptReason.NO_ROOM
    assert found.message == "0/1 nodes are available: 1 Insufficient cpu."
    assert not found.evictions


def test_victims_that_wait_or_leave_already_are_not_deleted() -> None:
    pods = [
        (occupant("a", "n0", is_waiting=True), 4),
        (occupant("b", "n0", is_terminating=True), 4),
    ]

    found = Cluster(pods, [8], 1).preempt()

    actions = {each.pod.key: each.action for each in found.evictions}
    assert actions == {"a": VictimAction.REJECT, "b": VictimAction.NOTHING}


def test_victims_of_one_job_are_preferred_to_those_of_several() -> None:
    pods = [(occupant(f"p{number}", f"n{number}", job=f"job-{number % 2}"), 8) for number in range(6)]

    found = Cluster(pods, [8, 8, 8], 6).preempt()

    assert {each.job for each in found.evictions} == {"job-0"}


def test_pods_without_a_job_cost_as_much_as_jobs_of_their_own() -> None:
    pods = [
        (occupant("a", "n0", 5), 4),
        (occupant("b", "n0", 5), 4),
        (occupant("c", "n1", 5, job="j"), 4),
        (occupant("d", "n1", 5, job="j"), 4),
    ]

    found = Cluster(pods, [8], 2).preempt()

    assert found.nominations == {"m0": "n1"}


def test_of_equally_important_pods_that_goes_whose_job_loses_others_already() -> None:
    pods = [
        (occupant("a", "n0", job="broken"), 8),
        (occupant("b", "n1", job="a-healthy-one"), 4),
        (occupant("c", "n1", job="broken"), 4),
    ]

    found = Cluster(pods, [8, 4], 2).preempt()

    assert {each.pod.key for each in found.evictions} == {"a", "c"}


def gone_for(size: int, *pods: Occupant) -> set[str]:
    """Who goes from one node of pods of 2 cores for a member of this size."""
    found = Cluster([(each, 2) for each in pods], [size], 1).preempt()
    return {each.pod.key for each in found.evictions}


def test_of_equally_important_pods_those_go_that_no_other_pod_misses() -> None:
    needed, alone = occupant("a", "n0", job="whole"), occupant("b", "n0")
    spare = occupant("z", "n0", job="large", spare=1)

    assert gone_for(4, needed, alone, spare) == {"z"}
    assert gone_for(6, needed, alone, spare) == {"b", "z"}


def test_a_gang_that_is_below_its_minimum_goes_before_pods_that_do_something() -> None:
    pods = [
        occupant("a", "n0", job="broken", spare=-1),
        occupant("b", "n0"),
        occupant("c", "n0", job="whole"),
    ]

    assert gone_for(4, *pods) == {"a"}


def test_of_gangs_that_would_break_the_one_goes_that_loses_most() -> None:
    pods = [occupant(key, "n0", job=job) for key, job in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z"))]

    assert gone_for(4, *pods) == {"a", "b"}


def test_of_equals_the_last_by_name_goes_whatever_its_namespace() -> None:
    first, last = occupant("x/b", "n0"), occupant("a/z", "n0")

    assert gone_for(6, first, last) == gone_for(6, last, first) == {"a/z"}


def test_a_job_spares_its_least_important_pod_and_of_equals_the_last_by_name() -> None:
    gang = [occupant(key, "n0", job="j", spare=1) for key in ("a", "b", "c")]
    important, alone = occupant("d", "n0", 5, job="j", spare=1), occupant("y", "n0")

    assert gone_for(4, *gang) == gone_for(4, *reversed(gang)) == {"c"}
    assert gone_for(4, important, gang[0], alone) == {"a"}


def test_members_that_are_not_needed_get_room_where_there_is_some() -> None:
    cluster = Cluster([(occupant("a", "n0"), 8), (occupant("b", "n1"), 8)], [8, 8, 8], 2)
    cluster.surplus = frozenset({"m0", "m2"})

    found = cluster.preempt()

    assert found.nominations == {"m1": "n0", "m0": "n1"}
    assert {each.pod.key for each in found.evictions} == {"a", "b"}
