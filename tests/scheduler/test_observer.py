"""Slow attempts, debug output and diagnoses: told when asked, dropped rather than piled up."""

import asyncio
import itertools
import logging

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.config import config
from koordinator.scheduler.observe.debugging import DebugOptions, DiagnosisDump, DumpOptions, PodDiagnosis
from koordinator.scheduler.observe.observer import (
    HINTS_EVERY,
    SAMPLE_EVERY,
    SAMPLE_GAP_S,
    Attempt,
    CycleProbe,
    Monitor,
    MonitorOptions,
    ObserverOptions,
)
from koordinator.scheduler.plugin.capabilities import PreFilterTransformer
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import PreFilterPlugin, PreFilterResult
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial
from tests.scheduler.extending import Desk
from tests.scheduler.world import World, node, play, pod


def test_a_slow_attempt_is_reported_on_each_scan_and_at_its_end() -> None:
    reported: list[float] = []
    monitor = Monitor(MonitorOptions(timeout_s=30), lambda _, duration_s: reported.append(duration_s))
    monitor.popped("a", Attempt("ns/a", "p", 0.0, 2))
    monitor.started("a", 1.0)

    for now_s in (20.0, 31.0, 31.1, 41.1):
        monitor.scan(now_s)
    assert reported == [pytest.approx(30.1), pytest.approx(40.1)]
    assert monitor.completed("a", 51.0) == 50.0
    assert (len(reported), reported[-1], len(monitor)) == (3, 50.0, 0)
    assert monitor.completed("a", 52.0) == 0.0


def test_pods_that_nobody_started_are_forgotten() -> None:
    monitor = Monitor(MonitorOptions(drop_unhandled_s=5), lambda _: None)
    monitor.popped("a", Attempt("ns/a", "p", 0.0, 1))
    monitor.scan(5.0)
    assert len(monitor) == 1
    monitor.scan(5.1)
    assert len(monitor) == 0


def test_a_binding_that_hangs_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        await world.settle()

        async def never(*_: object, **__: object) -> None:
            await asyncio.sleep(3_600)

        world.api.bind = never  # type: ignore[method-assign]
        world.api.put("Pod", pod("web"))
        await world.settle(45)

        assert world.scheduler.metrics.timeouts.values == {("koord-scheduler",): 1}
        assert any("!!!CRITICAL TIMEOUT!!!" in record.message for record in caplog.records)

    play(story)


def test_debug_output_costs_a_switch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "koordinator.scheduler")

    async def story(world: World) -> None:
        world.api.put("Node", node("small", cpu="1"))
        world.api.put("Node", node("large", cpu="8"))
        world.api.put("Node", node("larger", cpu="16"))
        world.api.put("Pod", pod("quiet"))
        await world.settle()
        assert "Top" not in caplog.text and "Failed to filter" not in caplog.text
        debug = world.scheduler.observer.debug
        debug.top_scores, debug.filters, debug.diagnosis = 2, True, True
        world.api.put("Pod", pod("loud", cpu="2"))
        await world.settle()
        world.api.put("Pod", pod("lost", cpu="64"))
        await world.settle()

    play(story)

    lines = caplog.text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| # | Pod | Node | Score |"))
    assert lines[head + 2].startswith("| 0 | default/loud | larger |")
    assert lines[head + 3].startswith("| 1 | default/loud | large |")
    refusal = "on Node 'small', failedPlugin: NodeResourcesFit, reason: Insufficient cpu"
    assert any(line.endswith(refusal) for line in lines)
    assert sum("dump diagnosis for default/lost, targetPod: default/lost/uid-" in line for line in lines) == 1


async def test_a_full_queue_drops_diagnoses_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dump = DiagnosisDump(DumpOptions(queue_size=1, worker_count=1))
    asked = PodInfo.of(from_builtins(pod("a"), Pod), ResourceRegistry())
    found = PodDiagnosis(timestamp="2026-01-01T00:00:00Z", questioned_key="default/a", is_root_cause_pod=True)

    dump.write(asked, found, blocking=False)
    dump.write(asked, found, blocking=False)
    dump.write(asked, found, blocking=True)

    assert (dump.dropped_count, caplog.text.count("dump diagnosis for")) == (1, 1)
    task = asyncio.create_task(dump.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    assert caplog.text.count("dump diagnosis for") == 2


def test_measured_cycles_leave_the_plugins_as_they_were() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        for number in range(40):
            world.api.put("Pod", pod(f"p-{number}", cpu="10m", memory="1Mi"))
        await world.settle()
        profile = world.scheduler.profiles["koord-scheduler"]
        assert not any("filter" in vars(plugin) or "score" in vars(plugin) for plugin in profile.plugins)
        searched = world.scheduler.metrics.algorithm_duration.of()
        assert searched.counts[0] == 40, "no time passes in a cycle here"

    play(story, observing=ObserverOptions(debug=DebugOptions()))


def test_victims_and_attempts_of_preemption_are_counted() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        for name in ("a", "b"):
            world.api.put("Pod", pod(name))
        await world.settle()
        world.api.put("Pod", pod("important", cpu="2", priority=1_000))
        await world.settle(3)

        metrics = world.scheduler.metrics
        assert world.api.placements()["important"] == "node-0"
        assert metrics.preemption_attempts.values == {(): 1}
        assert metrics.preemption_victims.of().total == 2
        assert metrics.point_duration.of("Bind", "Success", "koord-scheduler").counts[0] == 3

    play(story)


class Looking(PreFilterTransformer[None], PreFilterPlugin[None]):
    name = "Looking"

    def before_pre_filter(self, pod: PodInfo, what_if: Trial) -> PodInfo:
        return pod

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult()


def probe_of(desk: Desk) -> CycleProbe:
    """A probe whose seconds are counted by being asked for, so that each call takes one."""
    return CycleProbe(desk.engine.metrics, itertools.count(7).__next__)


def test_one_cycle_in_ten_is_measured_and_one_per_gap_however_many_there_are() -> None:
    probe = probe_of(Desk())

    assert [probe.is_due(0.0) for _ in range(21)] == [True, *[False] * 20]
    assert not probe.is_due(SAMPLE_GAP_S * 0.9)
    assert probe.is_due(SAMPLE_GAP_S)
    assert [number for number in range(30) if probe.is_due(100.0 + number)] == [9, 19, 29]
    assert [probe.is_due(5.0) for _ in range(SAMPLE_EVERY)][-1], "a clock that was set back ends no measuring"


def test_a_hint_took_as_long_as_from_its_beginning_to_its_end() -> None:
    desk = Desk(Looking).nodes("a")
    probe, plugin, event = probe_of(desk), desk.plugin("Looking"), ClusterEvent.NODE_ADDED

    with probe.measuring_hints([desk.profile], event.value):
        plugin.wakes(QueueingEvent(event, 0, None, None), desk.info(pod("p")))

    assert desk.engine.metrics.hint_duration.of("Looking", event.value, "Queue").total == 1


def test_transformers_are_measured_like_plugins() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await world.settle()
        measured = world.scheduler.metrics.plugin_duration.of("Looking", "BeforePreFilter", "Success")
        assert sum(measured.counts) == 1

    looking = {"multiPoint": {"enabled": [{"name": "Looking"}]}}
    settings = config.decode({"profiles": [{"plugins": looking}]})
    play(story, settings, plugins={**built_in.PLUGINS, "Looking": Looking})


def test_queueing_hints_are_measured_and_left_as_they_were() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        for number in range(3):
            world.api.put("Pod", pod(f"picky-{number}", nodeSelector={"disk": "ssd"}))
        await world.settle(1)
        for number in range(HINTS_EVERY):
            world.api.put("Node", node(f"more-{number}", cpu="1"))
        await world.settle(1)

        durations = world.scheduler.metrics.hint_duration.lines()
        counted = [line for line in durations if "_count" in line and 'plugin="NodeAffinity"' in line]
        assert counted and all(
            f'event="{ClusterEvent.NODE_ADDED.value}"' in line and 'hint="QueueSkip"' in line
            for line in counted
        )
        profile = world.scheduler.profiles["koord-scheduler"]
        assert not any("wakes" in vars(plugin) for plugin in profile.plugins)

    play(story)
