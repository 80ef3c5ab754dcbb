"""The auditor beside a running scheduler."""

import logging
from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import FixedClock
from koordinator.prometheus import MetricsRegistry
from koordinator.scheduler.auditor.auditor import AuditMetrics, AuditOptions, Auditor, LabelClash, label_names
from koordinator.scheduler.engine.results import Unplaced
from koordinator.scheduler.plugin.handle import RecordKind
from koordinator.scheduler.plugin.status import unschedulable
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.coscheduling.stage import member
from tests.scheduler.coscheduling.test_preemption import with_preemption
from tests.scheduler.world import World, node, play, pod

Json = dict[str, Any]
PREFIX = "scheduler_workload_auditor_"


def auditor_of(world: World) -> Auditor:
    assert world.scheduler.auditor is not None
    return world.scheduler.auditor


def value(world: World, name: str, labels: str = "") -> float:
    line = f"{PREFIX}{name}{labels} "
    found = [each for each in world.scheduler.metrics.text().splitlines() if each.startswith(line)]
    return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


def kinds(world: World, name: str) -> list[str]:
    found = world.scheduler.caches.pods.get(name, "default")
    assert found is not None
    return [str(record.kind) for record in auditor_of(world).history(found).records]


def test_a_pod_without_a_node_has_a_history_and_a_placed_one_has_none() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("small", cpu="1"))
        world.api.put("Pod", pod("big", cpu="8"))
        world.api.put("Pod", pod("held", schedulingGates=[{"name": "quota"}]))
        await world.settle(2)

        assert kinds(world, "small") == []
        assert kinds(world, "big") == ["create", "preemptFailure"]
        assert kinds(world, "held") == ["create", "gatedByQueueAdmission"]
        assert value(world, "scheduling_events_before_outcome_count") == 1

        world.api.put("Pod", pod("held"))
        await world.settle(2)
        assert kinds(world, "held") == []
        # created, gated, admitted
        assert value(world, "scheduling_events_before_outcome_sum") == 1 + 3

    play(story, auditing=AuditOptions())


def test_a_preemption_is_followed_to_the_last_victim() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(2):
            world.api.put("Pod", pod(f"low-{number}", cpu="2", priority=1))
        await world.settle(2)
        important = pod("high", cpu="4", priority=100)
        important["metadata"]["labels"] = {"team": "a"}
        world.api.put("Pod", important)
        await world.settle(10)

        assert world.api.placements() == {"high": "node-0"}
        mine = '{team="a"}'
        assert value(world, "preemption_to_victim_deleted_seconds_count", mine) == 1
        assert value(world, "preemption_victim_deleting_retries_count", mine) == 1
        assert value(world, "preemption_invalidations_total", mine) == 0
        assert value(world, "scheduling_events_before_outcome_count", mine) == 1

    play(story, auditing=AuditOptions(metric_labels=("team",)))


def test_a_victim_that_finds_another_node_at_once_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("low", cpu="4", priority=1))
        await world.settle(2)
        world.api.put("Pod", pod("high", cpu="4", priority=100))
        await world.settle(5)
        world.nodes(2, cpu="4")
        world.api.put("Pod", pod("low", cpu="4", priority=1))  # as a StatefulSet brings it back
        await world.settle(2)

        assert world.api.placements() == {"high": "node-0", "low": "node-1"}
        assert value(world, "victim_reschedule_duration_seconds_count") == 1

    with caplog.at_level(logging.WARNING):
        play(story, auditing=AuditOptions())
    assert "need not have been evicted" in caplog.text


def test_a_gang_has_one_history_that_tells_each_step_once() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        for number in range(3):
            world.api.put("Pod", member(f"m-{number}", "job", 4))
        await world.settle(2)
        assert kinds(world, "m-0") == ["create", "gatedByQueueAdmission"]

        world.api.put("Pod", member("m-3", "job", 4))
        await world.settle(0.5)
        assert kinds(world, "m-0") == [
            "create",
            "gatedByQueueAdmission",
            "gangMinMemberSatisfied",
            "preemptFailure",
            "scheduleFailure",
            "gangAllPodsAlreadyAttempted",
        ]

        world.api.put("Node", {**node("node-0", cpu="4")})
        await world.settle(400)
        assert sorted(name for name, where in world.api.placements().items() if where) == [
            f"m-{number}" for number in range(4)
        ]
        assert len(auditor_of(world)) == 0
        assert value(world, "scheduling_events_before_outcome_count") == 1

    play(story, auditing=AuditOptions())


def test_a_job_that_takes_the_place_of_another_is_one_preemption_and_its_victims_are_one_workload() -> None:
    seen: list[list[str]] = []

    async def story(world: World) -> None:
        world.nodes(3, cpu="4")
        for number in range(3):
            world.api.put("Pod", member(f"low-{number}", "low", 3, cpu="4", priority=1))
        await world.settle(2)
        world.api.hold_deletions = True
        for number in range(3):
            world.api.put("Pod", member(f"high-{number}", "high", 3, cpu="4", priority=1000))
        await world.settle(5)
        seen.extend((kinds(world, "high-0"), kinds(world, "low-0")))
        for number in range(3):
            world.api.remove("Pod", f"low-{number}", "default")
        await world.settle(30)

        assert sorted(name for name, where in world.api.placements().items() if where) == [
            f"high-{number}" for number in range(3)
        ]
        assert value(world, "preemption_to_victim_deleted_seconds_count") == 1
        assert value(world, "repeated_preemptions_total") == 0
        assert value(world, "preemption_invalidations_total") == 0
        assert value(world, "scheduling_events_before_outcome_count") == 2

    play(story, with_preemption(), auditing=AuditOptions())
    of_preemptor, of_victim = seen
    assert of_preemptor == [
        *("create", "gatedByQueueAdmission", "gangMinMemberSatisfied"),
        *("preemptNominated", "scheduleFailure", "gangAllPodsAlreadyAttempted"),
        *("preemptVictimDeleting", "scheduleFailure", "gangAllPodsAlreadyAttempted"),
    ]
    assert of_victim == ["evicted"]


class Job:
    """A job of two members that preempts, as the auditor is told of it."""

    def __init__(self, auditor: Auditor, registry: ResourceRegistry) -> None:
        self.auditor = auditor
        self.entries = [
            QueuedPod(PodInfo.of(self.pod(member(name, "job", 2)), registry), "koord-scheduler", None, 0.0)
            for name in ("a", "b")
        ]
        self.victims = [PodInfo.of(self.pod(pod(name)), registry) for name in ("x", "y")]
        for entry in self.entries:
            auditor.created(entry.pod.pod)

    @staticmethod
    def pod(body: Json) -> Pod:
        return from_builtins({**body, "metadata": {**body["metadata"], "uid": body["metadata"]["name"]}}, Pod)

    def fails(self, number: int, by: str, nominated: str | None = None) -> None:
        entry = self.entries[number]
        self.auditor.failed(entry, Unplaced(entry.pod, unschedulable(), frozenset((by,)), nominated))

    def makes_room(self) -> None:
        for victim, node_name in zip(self.victims, ("n1", "n2"), strict=True):
            self.auditor.evicting(self.entries[0].pod, node_name, [victim])
        self.fails(0, "NodeResourcesFit", "n1")
        self.fails(1, "JobPreemptionSuccessPlugin", "n2")

    @property
    def kinds(self) -> list[str]:
        return [str(each.kind) for each in self.auditor.history(self.entries[0].pod.pod).records]


@pytest.fixture
def registry() -> MetricsRegistry:
    return MetricsRegistry()


@pytest.fixture
def job(registry: MetricsRegistry) -> Job:
    auditor = Auditor(AuditOptions(), registry, FixedClock(1000.0), lambda _: True)
    return Job(auditor, ResourceRegistry())


def measured(registry: MetricsRegistry, name: str) -> float:
    found = [each for each in registry.text().splitlines() if each.startswith(f"{PREFIX}{name} ")]
    return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


def test_a_job_that_makes_room_on_several_nodes_is_followed_to_the_last_victim_of_all(
    job: Job, registry: MetricsRegistry
) -> None:
    job.makes_room()
    job.auditor.deleted(job.victims[0].pod)
    assert job.kinds == ["create", "preemptNominated"]

    job.auditor.deleted(job.victims[1].pod)
    assert job.kinds == ["create", "preemptNominated", "victimAllDeleted"]
    assert measured(registry, "preemption_to_victim_deleted_seconds_count") == 1
    assert measured(registry, "repeated_preemptions_total") == 0, "the second member is of the same job"


def test_a_round_in_vain_while_victims_leave_counts_once_whoever_of_the_job_was_tried(
    job: Job, registry: MetricsRegistry
) -> None:
    job.makes_room()
    for _ in range(2):
        job.fails(1, "NodeResourcesFit")
        job.fails(0, "Coscheduling")
        job.auditor.gang(job.entries[0].pod.pod, RecordKind.ALL_TRIED)
    for victim in job.victims:
        job.auditor.deleted(victim.pod)

    assert measured(registry, "preemption_victim_deleting_retries_sum") == 2


def test_members_that_go_where_room_was_made_for_each_of_them_use_it(
    job: Job, registry: MetricsRegistry
) -> None:
    job.makes_room()
    for entry, node_name in zip(reversed(job.entries), ("n2", "n1"), strict=True):
        job.auditor.placed(entry, node_name)

    assert measured(registry, "preemption_invalidations_total") == 0
    assert job.kinds == [], "nobody of the job waits any more"


def test_a_job_that_goes_elsewhere_made_room_for_nothing(job: Job, registry: MetricsRegistry) -> None:
    job.makes_room()
    job.auditor.placed(job.entries[1], "n3")

    assert measured(registry, "preemption_invalidations_total") == 1


def test_nothing_is_kept_of_pods_that_left() -> None:
    async def story(world: World) -> None:
        for number in range(3):
            world.api.put("Pod", pod(f"p-{number}"))
        await world.settle(1)
        for number in range(3):
            world.api.remove("Pod", f"p-{number}", "default")
        await world.settle(1)

        assert len(auditor_of(world)) == 0
        assert value(world, "scheduling_events_before_outcome_count") == 3

    play(story, auditing=AuditOptions())


def test_without_options_there_is_no_auditor_and_no_metric_of_it() -> None:
    async def story(world: World) -> None:
        assert world.scheduler.auditor is None
        assert PREFIX not in world.scheduler.metrics.text()

    play(story)


def test_labels_of_pods_become_names_that_prometheus_allows() -> None:
    assert label_names(("app.kubernetes.io/name", "2nd")) == ("app_kubernetes_io_name", "_2nd")
    with pytest.raises(LabelClash, match=r"a\.b, a/b"):
        AuditMetrics(MetricsRegistry(), ("a.b", "a/b"))
