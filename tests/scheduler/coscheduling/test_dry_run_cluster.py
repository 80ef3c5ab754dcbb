"""Job preemption on the node table, held against what the filters say about its outcome."""

import itertools
import random
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.framework import Plugin, PreFilterPlugin, PreFilterResult
from koordinator.scheduler.plugin.status import unschedulable
from koordinator.scheduler.plugins.coscheduling.dry_run_cluster import PreemptionDryRun
from koordinator.scheduler.plugins.coscheduling.job_preemptor import JobPreemption, PreemptReason
from koordinator.scheduler.plugins.coscheduling.jobs import JobResidents, PreemptorJob
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of
from tests.scheduler.coscheduling.test_preemption import with_preemption
from tests.scheduler.small_cluster import SmallCluster
from tests.scheduler.world import Json, node, pod

PRIORITY = 10


def with_port(body: Json) -> Json:
    body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    return body


class Cluster(SmallCluster):
    """An engine that decides only."""

    def __init__(self, *plugins: type[Plugin[Any]]) -> None:
        super().__init__(with_preemption(), *plugins)
        self.preemption = self.plugin(Coscheduling).preemption

    def add_node(self, name: str, cpu: int, **parts: object) -> None:
        self.node(node(name, cpu=str(cpu), **parts))

    def info(self, body: Json) -> PodInfo:
        body["metadata"]["uid"] = body["metadata"]["name"]
        return self.pod(body)

    def view(self, pod: PodInfo) -> View:
        return View(self.profile, self.table, self.engine.nominations, pod)

    def preempt(self, members: Sequence[PodInfo]) -> JobPreemption:
        trigger = members[0]
        job = PreemptorJob(
            name="job", trigger=trigger, members={each.key: each for each in members}, is_gang=True
        )
        return self.preemption.decide(job, self.refused(trigger))[0]

    def accepts(self, members: Sequence[PodInfo], nodes: Sequence[str], gone: Sequence[str]) -> bool:
        """Whether each member fits on its node beside those before it once these pods are gone."""
        with trial_of(self.table) as trial:
            for place in list(self.table.places()):
                if place.pod.key in gone:
                    trial.take(place.pod)
            for member, name in zip(members, nodes, strict=True):
                row = self.table.row_of(name)
                assert row is not None, name
                if not self.view(member).check(row).is_success:
                    return False
                trial.add(member, name)
        return True


def random_cluster(rng: random.Random) -> Cluster:
    cluster = Cluster()
    names = [f"n{number}" for number in range(rng.randint(1, 4))]
    for name in names:
        taints = [{"key": "k", "effect": "NoSchedule"}] if rng.random() < 0.15 else []
        cluster.add_node(name, 8, taints=taints, pods=rng.choice((4, 110)))
    for number in range(rng.randint(0, 30)):
        body = pod(
            f"p{number}",
            cpu=str(rng.randint(1, 6)),
            priority=rng.choice((0, 5, 9, PRIORITY, 15)),
            memory=None,
        )
        marks = {}
        if rng.random() < 0.2:
            marks[labels.DISABLE_PREEMPTIBLE] = "true"
        if rng.random() < 0.5:
            marks[labels.QUESTIONED_OBJECT_KEY] = rng.choice("xyz")
        if rng.random() < 0.2:
            with_port(body)
        body["metadata"]["labels"] = marks
        info = cluster.info(body)
        name = rng.choice(names)
        row = cluster.table.row_of(name)
        assert row is not None, name
        if cluster.table.free[0, row] >= dict(info.requests)[0]:
            cluster.table.assign(info, name)
    return cluster


def random_members(rng: random.Random, cluster: Cluster, *, equal: bool) -> list[PodInfo]:
    largest = rng.choice((2, 4, 8))
    sizes = [rng.randint(1, largest)] * 4 if equal else [rng.randint(1, largest) for _ in range(4)]
    wants_port = rng.random() < 0.3
    members = []
    for number in range(rng.randint(1, 4)):
        body = pod(f"m{number}", cpu=str(sizes[number]), priority=PRIORITY, memory=None)
        if wants_port:
            with_port(body)
        members.append(cluster.info(body))
    # Members are placed in a trigger's round: one that fits nowhere.
    members.sort(key=lambda each: -each.requests[0][1])
    return members


def fits_nowhere(cluster: Cluster, member: PodInfo) -> bool:
    return not any(cluster.view(member).check(row).is_success for row in cluster.table.rows.tolist())


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_victims_make_room_for_all_members_at_once_and_none_of_them_could_stay(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    members = random_members(rng, cluster, equal=rng.random() < 0.5)
    if not fits_nowhere(cluster, members[0]):
        return
    before = {place.pod.key: place.row for place in cluster.table.places()}

    found = cluster.preempt(members)

    assert {place.pod.key: place.row for place in cluster.table.places()} == before
    by_key = {place.pod.key: place.pod for place in cluster.table.places()}
    gone = [each.pod.key for each in found.evictions]
    if found.reason is not PreemptReason.SUCCESS:
        assert not gone
        assert not found.nominations
        return
    assert all(by_key[key].priority < PRIORITY for key in gone)
    assert not any(labels.DISABLE_PREEMPTIBLE in by_key[key].pod.metadata.labels for key in gone)
    nodes = [found.nominations[member.key] for member in members]
    assert cluster.accepts(members, nodes, gone)
    for key in gone:
        assert not cluster.accepts(members, nodes, [other for other in gone if other != key]), key


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_room_for_equal_members_is_found_wherever_there_is_some(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    members = random_members(rng, cluster, equal=True)
    if not fits_nowhere(cluster, members[0]):
        return

    found = cluster.preempt(members)

    everybody = [
        place.pod.key
        for place in cluster.table.places()
        if place.pod.priority < PRIORITY and labels.DISABLE_PREEMPTIBLE not in place.pod.pod.metadata.labels
    ]
    names = [cluster.table.name_of(row) for row in cluster.table.rows.tolist()]
    offers = itertools.product(names, repeat=len(members))
    is_possible = any(cluster.accepts(members, way, everybody) for way in offers)
    assert found.is_success is is_possible, found.message


def test_columns_of_pods_follow_them() -> None:
    cluster = Cluster()
    cluster.add_node("n", 8)
    residents = next(each for each in cluster.table._keepers if isinstance(each, JobResidents))
    marks = {labels.QUESTIONED_OBJECT_KEY: "job"}

    def body(name: str, **parts: str) -> Json:
        made = pod(name)
        made["metadata"]["labels"] = {**marks, **parts}
        return made

    for name in ("a", "b"):
        cluster.table.assign(cluster.info(body(name)), "n")
    first, second = residents.slot_of("a"), residents.slot_of("b")
    assert residents.jobs[first] == residents.jobs[second]
    assert set(residents.below(1).tolist()) == {first, second}

    cluster.table.assign(cluster.info(body("b", **{labels.DISABLE_PREEMPTIBLE: "true"})), "n")
    assert residents.below(1).tolist() == [first]

    cluster.table.unassign("a")
    cluster.table.unassign("b")
    assert not residents.below(1).size
    cluster.table.assign(cluster.info(pod("c")), "n")
    cluster.table.assign(cluster.info(pod("d")), "n")
    assert residents.jobs[residents.slot_of("c")] != residents.jobs[residents.slot_of("d")]


@pytest.mark.parametrize(
    ("leaving", "reason"),
    [
        ({"priority": PRIORITY - 1}, PreemptReason.TERMINATING),
        ({"priority": PRIORITY}, PreemptReason.SUCCESS),
        ({"priority": PRIORITY - 1, "labels": {labels.DISABLE_PREEMPTIBLE: "true"}}, PreemptReason.SUCCESS),
    ],
    ids=["a victim of such a job", "as important", "nobody's victim"],
)
def test_a_job_waits_only_for_leaving_pods_that_it_could_have_evicted(
    leaving: Json, reason: PreemptReason
) -> None:
    cluster = Cluster()
    cluster.add_node("kept", 4)
    cluster.add_node("other", 4)
    gone = pod("gone", cpu="4", priority=leaving["priority"])
    gone["metadata"] |= {"labels": leaving.get("labels", {}), "deletionTimestamp": "2026-11-29T00:00:00Z"}
    gone["status"] = {
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    }
    cluster.table.assign(cluster.info(gone), "kept")
    cluster.table.assign(cluster.info(pod("small", cpu="4", priority=1)), "other")
    member = cluster.info(
        pod("member", cpu="4", priority=PRIORITY) | {"status": {"nominatedNodeName": "kept"}}
    )

    assert cluster.preempt([member]).reason is reason


def test_a_cluster_without_pods_has_no_victims() -> None:
    cluster = Cluster()
    cluster.add_node("n", 8)

    found = cluster.preempt([cluster.info(pod("m", cpu="9", priority=PRIORITY))])

    assert found.reason is PreemptReason.NO_ROOM
    assert found.message == "0/1 nodes are available: 1 Preemption is not helpful for scheduling."


def test_a_node_that_was_cleared_in_vain_is_not_tried_again_when_more_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    for name in ("cheap", "dear"):
        cluster.add_node(name, 8)
        victim = pod(f"on-{name}", cpu="7", priority=0 if name == "cheap" else 5, nodeName=name)
        cluster.info(victim)
    holder = with_port(pod("holder", cpu="1", priority=0, nodeName="cheap"))
    holder["metadata"]["labels"] = {labels.DISABLE_PREEMPTIBLE: "true"}
    cluster.info(holder)
    tried: list[Sequence[str]] = []
    clear = PreemptionDryRun.clear

    def noted(self: PreemptionDryRun, members: Sequence[PodInfo]) -> Sequence[str]:
        tried.append(clear(self, members))
        return tried[-1]

    monkeypatch.setattr(PreemptionDryRun, "clear", noted)
    found = cluster.preempt([cluster.info(with_port(pod("m", cpu="4", priority=PRIORITY)))])

    assert tried == [["cheap"], ["dear"]]
    assert found.nominations == {"default/m": "dear"}
    assert [each.pod.key for each in found.evictions] == ["default/on-dear"]


class Guarded(PreFilterPlugin[None]):
    """Lets nobody in while there is a guard, wherever that one is."""

    name = "Guarded"

    def class_key(self, pod: PodInfo) -> Hashable:
        return pod.uid

    def epoch(self, state: None) -> Hashable:
        return self.handle.table.place_of("guard") is not None

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult(unschedulable("there is a guard")) if self.epoch(state) else PreFilterResult()


def test_who_refuses_members_as_a_whole_and_names_nobody_is_served_where_no_member_fits() -> None:
    cluster = Cluster(Guarded)
    cluster.add_node("full", 4)
    cluster.add_node("free", 4)
    cluster.info(pod("guard", cpu="1", priority=0, nodeName="full"))
    cluster.info(pod("noble", cpu="3", priority=PRIORITY + 1, nodeName="full"))

    found = cluster.preempt([cluster.info(pod("m", cpu="4", priority=PRIORITY))])

    assert [each.pod.key for each in found.evictions] == ["default/guard"], found.message
    assert found.nominations == {"default/m": "free"}


def test_without_victims_only_the_nodes_that_evictions_could_help_on_are_listed() -> None:
    cluster = Cluster()
    for name, parts in (("full", {}), ("closed", {"unschedulable": True})):
        cluster.add_node(name, 2, **parts)
        cluster.info(pod(f"on-{name}", cpu="2", node=name, priority=PRIORITY))
    member = cluster.info(pod("member", cpu="2", priority=PRIORITY))

    assert cluster.preempt([member]).message == "0/2 nodes are available: 1 no potential victims."
