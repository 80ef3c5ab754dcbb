"""The auditor beside a running scheduler."""

import logging

import pytest

from koordinator.prometheus import Registry
from koordinator.scheduler.auditor.auditor import AuditOptions, Auditor
from koordinator.scheduler.auditor.metrics import AuditMetrics, LabelClash, label_names
from tests.scheduler.world import World, play, pod

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
        AuditMetrics(Registry(), ("a.b", "a/b"))
