"""Hollow kubelets keep sidecars, follow probes and readiness gates, and resize pods in place."""

import asyncio
from typing import Any

import pytest

from koordinator.api.core import Container, ContainerStatus, Pod, Probe
from koordinator.api.decode import from_builtins
from koordinator.clock import Clock
from koordinator.local.nodes import behaviour, kubelet
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.upkeep import HollowPod
from koordinator.simulate.virtual_time import run_virtual
from tests.local.nodes.world import World, world

SIDECAR = {"name": "proxy", "image": "x", "restartPolicy": "Always"}


async def make(w: World, does: dict[str, Any] | None = None, **spec: Any) -> None:
    """A pod named `web` on the node."""
    annotations = behaviour.annotations(Behaviour(start_delay_seconds=1, **(does or {})))
    own = {"containers": [{"name": "main", "image": "x"}], "terminationGracePeriodSeconds": 5} | spec
    body = {"metadata": {"name": "web", "annotations": annotations}, "spec": own}
    await w.cluster.create(Pod, body, "default")
    await w.cluster.bind("default", "web", "node-0")


def named(pod: Pod, name: str) -> ContainerStatus:
    every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return next(one for one in every if one.name == name)


def ready(pod: Pod) -> tuple[str, str]:
    return next((c.status, c.reason) for c in pod.status.conditions if c.type == "Ready")


async def after(w: World, seconds: float) -> Pod:
    await asyncio.sleep(seconds)
    return await w.get("web")


def test_a_sidecar_runs_and_is_ready_as_long_as_the_pod_and_ends_with_it() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            step = {"name": "step", "image": "x"}
            await make(w, {"run_seconds": 20}, initContainers=[step, SIDECAR], restartPolicy="Never")
            pod = await after(w, 5)
            assert (named(pod, "proxy").ready, named(pod, "proxy").started) == (True, True)
            assert named(pod, "proxy").state.running is not None
            assert named(pod, "step").state.terminated is not None
            assert ready(pod) == ("True", "")

            pod = await after(w, 30)
            assert pod.status.phase == "Succeeded"
            assert named(pod, "proxy").state.terminated is not None
            assert (named(pod, "proxy").ready, ready(pod)) == (False, ("False", "PodCompleted"))

    run_virtual(main)


def test_a_sidecar_is_not_restarted_with_the_containers() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await make(w, {"run_seconds": 5}, initContainers=[SIDECAR], restartPolicy="Always")
            pod = await after(w, 10)
            assert named(pod, "main").state.waiting is not None
            assert named(pod, "proxy").state.running is not None
            pod = await after(w, 10)
            assert (named(pod, "main").restart_count, named(pod, "proxy").restart_count) == (1, 0)

    run_virtual(main)


@pytest.mark.parametrize(
    ("container", "does", "expected"),
    [
        ({}, {}, (0.0, 0.0, None, None)),
        (
            {"readiness_probe": Probe(initial_delay_seconds=5, period_seconds=3, success_threshold=3)},
            {},
            (0, 11, None, None),
        ),
        ({"startup_probe": Probe(initial_delay_seconds=20)}, {}, (20, 20, None, None)),
        (
            {"startup_probe": Probe(initial_delay_seconds=20), "readiness_probe": Probe(initial_delay_seconds=5)},
            {},
            (20, 20, None, None),
        ),
        (
            {"readiness_probe": Probe(period_seconds=2, failure_threshold=4)},
            {"readiness_fails_after_seconds": 30, "readiness_fails_for_seconds": 10},
            (0, 0, 36, None),
        ),
        ({"liveness_probe": Probe(initial_delay_seconds=9)}, {"liveness_fails_after_seconds": 1}, (0, 0, None, 29)),
        ({"liveness_probe": Probe()}, {}, (0, 0, None, None)),
        ({"liveness_probe": None}, {"liveness_fails_after_seconds": 1}, (0, 0, None, None)),
        (
            {"startup_probe": Probe(period_seconds=1, failure_threshold=30)},
            {"startup_fails": True},
            (None, None, None, 29),
        ),
    ],
)  # fmt: skip
def test_probes_say_when_a_container_is_started_ready_unready_and_killed(
    container: Any, does: Any, expected: Any
) -> None:
    line = kubelet.timeline(Container(name="c", **container), Behaviour(**does))

    found = (line.started_s, line.ready_s, line.unready_s, line.killed_s)
    assert tuple(None if moment == float("inf") else moment for moment in found) == expected


@pytest.mark.parametrize("kind", ["readinessProbe", "livenessProbe", "startupProbe", "none"])
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_pods_with_any_probe_are_told_from_those_without(kind: str, where: str) -> None:
    container = {"name": "c", **({} if kind == "none" else {kind: {}})}
    pod = from_builtins({"metadata": {"name": "p"}, "spec": {where: [container]}}, Pod)
    assert kubelet.has_probes(pod) is (kind != "none")


@pytest.mark.parametrize(
    ("fails_after_s", "lasts_s", "unready_s", "ready_again_s"),
    [
        pytest.param(30, 100, 40, 135, id="in the middle"),
        pytest.param(0, 100, 35, 105, id="before it was ready"),
        pytest.param(30, 2, 40, 40, id="too short to be noticed"),
        pytest.param(30, None, 40, float("inf"), id="for ever"),
    ],
)
def test_readiness_ends_and_comes_back_by_its_thresholds(
    fails_after_s: float, lasts_s: float | None, unready_s: float, ready_again_s: float
) -> None:
    probe = Probe(initial_delay_seconds=20, period_seconds=5, success_threshold=2)
    does = Behaviour(readiness_fails_after_seconds=fails_after_s, readiness_fails_for_seconds=lasts_s)
    line = kubelet.timeline(Container(name="c", readiness_probe=probe), does)
    assert (line.ready_s, line.unready_s, line.ready_again_s) == (25, unready_s, ready_again_s)


def test_containers_change_at_the_moments_of_their_timelines() -> None:
    never = float("inf")
    lines = {
        "a": kubelet.Timeline(started_s=5, ready_s=10, unready_s=30, ready_again_s=40, killed_s=never),
        "b": kubelet.Timeline(started_s=0, ready_s=0, unready_s=never, ready_again_s=never, killed_s=60),
    }
    seen = {moment: kubelet.health(lines, moment)["a"] for moment in (4, 5, 9, 10, 29, 30, 39, 40)}
    off, started, ready = (False, False), (True, False), (True, True)
    assert seen == {4: off, 5: started, 9: started, 10: ready, 29: ready, 30: started, 39: started, 40: ready}
    changes, moment = [], kubelet.next_change_s(lines, 0)
    while moment is not None:
        changes.append(moment)
        moment = kubelet.next_change_s(lines, moment)
    assert changes == [5, 10, 30, 40, 60]
    assert not kubelet.is_killed(lines, 59.9) and kubelet.is_killed(lines, 60)


def test_readiness_follows_its_probe_through_a_failure() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            probe = {"initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 1}
            main = {"name": "main", "image": "x", "readinessProbe": probe}
            does = {"readiness_fails_after_seconds": 30, "readiness_fails_for_seconds": 20}
            await make(w, does, containers=[main, {"name": "other", "image": "x"}])
            pod = await after(w, 6)
            assert (pod.status.phase, ready(pod)) == ("Running", ("False", "ContainersNotReady"))
            assert (named(pod, "main").started, named(pod, "main").ready) == (True, False)
            assert named(pod, "other").ready
            began = named(pod, "main").state.running

            found = []
            for _ in range(7):
                pod = await after(w, 10)
                found.append(ready(pod)[0])
            assert found == ["True", "True", "False", "False", "True", "True", "True"]
            assert named(pod, "main").state.running == began

    run_virtual(main)


def test_a_failing_liveness_probe_restarts_the_container() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            probe = {"periodSeconds": 5, "failureThreshold": 2}
            main = {"name": "main", "image": "x", "livenessProbe": probe}
            await make(w, {"liveness_fails_after_seconds": 10}, containers=[main], restartPolicy="Always")
            assert named(await after(w, 12), "main").restart_count == 0
            pod = await after(w, 10)
            ended = named(pod, "main").last_state.terminated
            assert ended is not None
            assert (ended.exit_code, named(pod, "main").state.waiting is not None) == (137, True)
            pod = await after(w, 10)
            assert (named(pod, "main").restart_count, ready(pod)[0]) == (1, "True")

    run_virtual(main)


def test_a_readiness_gate_holds_a_pod_back_until_somebody_opens_it() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock) as w:
            await make(w, readinessGates=[{"conditionType": "example.com/ok"}])
            assert ready(await after(w, 5)) == ("False", "ReadinessGatesNotReady")

            conditions = [
                {"type": c.type, "status": c.status} for c in (await w.get("web")).status.conditions
            ]
            patch = {"status": {"conditions": [*conditions, {"type": "example.com/ok", "status": "True"}]}}
            await w.cluster.patch(Pod, "web", patch, "default", subresource="status")
            assert ready(await after(w, 3)) == ("True", "")

    run_virtual(main)


def amounts(cpu: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": cpu}}


async def resize(w: World, cpu: str) -> None:
    container = {"name": "main", "image": "x", "resources": amounts(cpu)}
    await w.cluster.patch(Pod, "web", {"spec": {"containers": [container]}}, "default")


def resizing(pod: Pod) -> dict[str, str]:
    return {c.type: c.reason for c in pod.status.conditions if c.type.startswith("PodResize")}


def test_a_resize_is_promised_then_applied() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, cpu_milli=8_000) as w:
            await make(w, containers=[{"name": "main", "image": "x", "resources": amounts("1")}])
            pod = await after(w, 5)
            assert named(pod, "main").allocated_resources["cpu"] == "1"
            assert named(pod, "main").resources is not None

            await resize(w, "3")
            seen = []
            for _ in range(8):
                pod = await after(w, 0.5)
                applied = named(pod, "main").resources
                assert applied is not None
                seen.append(
                    (named(pod, "main").allocated_resources["cpu"], applied.requests["cpu"], resizing(pod))
                )
            assert ("3", "1", {"PodResizeInProgress": ""}) in seen
            assert seen[-1] == ("3", "3", {})
            assert float(w.fleet.request[0]) == 3_000
            assert float(w.fleet.limit[0]) == 3_000

    run_virtual(main)


def test_a_resize_waits_for_room_and_one_beyond_the_node_is_refused() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, cpu_milli=8_000) as w:
            await w.pod("other", requests={"cpu": "5", "memory": "1Gi"})
            await make(w, containers=[{"name": "main", "image": "x", "resources": amounts("1")}])
            await after(w, 5)
            await resize(w, "4")
            pod = await after(w, 5)
            assert (resizing(pod), named(pod, "main").allocated_resources["cpu"]) == (
                {"PodResizePending": "Deferred"},
                "1",
            )

            await resize(w, "40")
            assert resizing(await after(w, 5)) == {"PodResizePending": "Infeasible"}
            await resize(w, "4")
            await w.cluster.delete(Pod, "other", "default", grace_period_s=0)
            pod = await after(w, 15)
            assert (resizing(pod), named(pod, "main").allocated_resources["cpu"]) == ({}, "4")

    run_virtual(main)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["sleep", "5"], 5),
        (["sleep", "2m"], 120),
        (["sh", "-c", "sleep 1h"], 3600),
        (["sleep", "0"], None),
        (["nginx"], None),
        (["sleep"], None),
    ],
)
def test_a_command_that_sleeps_tells_how_long(words: list[str], seconds: float | None) -> None:
    assert behaviour.sleep_s(words) == seconds


def test_containers_run_between_their_start_and_their_end() -> None:
    pod = HollowPod(Pod(), 0, 0)
    assert not pod.runs
    pod.started_s = 1.0
    assert pod.runs
    pod.ended = {"exitCode": 0}
    assert not pod.runs
