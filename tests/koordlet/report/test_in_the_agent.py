"""Reporters and the trainer within the whole agent, while the API fails a third of all calls or loses the answers."""

import asyncio
from pathlib import Path

import pytest

from koordinator import clock
from koordinator.api import labels
from koordinator.api.device import Device
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.koordlet.report import topology
from koordinator.koordlet.report.outage import PAUSE_S, ROUNDS_MAX, FirstRounds
from tests.koordlet.agent_world import CPUS, NODE, World, live


@pytest.mark.parametrize("seed", range(3))
def test_all_objects_are_right_in_the_end_whatever_calls_fail(tmp_path: Path, seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects()
        world.run_pod("web", batch=False, cores=1.0)
        world.cluster.fail_ratio = 0.35
        await asyncio.sleep(400)
        refused = world.cluster.refused
        world.cluster.fail_ratio = 0.0
        await asyncio.sleep(150)

        assert refused > 20
        view = world.agent.shared.view
        stored = await world.api.get(NodeResourceTopology, NODE)
        assert view.topology is not None
        assert topology.patch_of(stored, view.topology) is None
        assert labels.NODE_CPU_TOPOLOGY in stored.metadata.annotations
        assert stored.zones[0].resources[0].capacity == str(CPUS)
        assert (await world.api.get(Device, NODE)).spec.devices == []
        status = (await world.node_metric()).status
        assert world.clock.now() - clock.parse_rfc3339(status.update_time or "") < 70
        assert [pod.name for pod in status.pods_metric] == ["web"]
        assert status.prod_peak_metric is not None
        assert {"web", "__node__", "__node-sys__"} <= {
            path.name for path in (tmp_path / "checkpoints").iterdir()
        }

    live(tmp_path, scenario, seed=seed, gates="Accelerators=true")


def test_what_the_scheduler_needs_is_there_within_a_second_after_the_start(tmp_path: Path) -> None:
    """CPUs are read by a collector that starts together with the reporters, and the caches fill meanwhile."""

    async def scenario(world: World) -> None:
        await world.create_objects()
        await asyncio.sleep(1)

        stored = await world.api.get(NodeResourceTopology, NODE)
        assert labels.NODE_CPU_TOPOLOGY in stored.metadata.annotations
        assert stored.zones[0].resources[0].capacity == str(CPUS)
        assert (await world.api.get(Device, NODE)).spec.devices == []

    live(tmp_path, scenario, gates="Accelerators=true")


def test_reporters_that_wait_for_long_do_so_at_their_own_pace() -> None:
    rounds = FirstRounds(3.0)
    pauses = []
    for _ in range(ROUNDS_MAX + 1):
        pauses.append(rounds.interval_s)
        rounds.waited()

    assert pauses == [PAUSE_S] * ROUNDS_MAX + [3.0]
    assert FirstRounds(0.1).interval_s == 0.1


def test_half_an_hour_without_api_ends_in_one_fresh_report(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects()
        world.run_pod("web", batch=False, cores=1.0)
        await asyncio.sleep(70)
        world.cluster.away = True
        await asyncio.sleep(1400)
        refused = world.cluster.refused
        world.use["web"] = 2.0
        await asyncio.sleep(400)
        assert world.cluster.refused - refused < 400

        world.cluster.away = False
        await asyncio.sleep(70)

        status = (await world.node_metric()).status
        (pod,) = status.pods_metric
        assert pod.pod_usage.resources["cpu"] in ("2", "1999m")
        tasks = {task.get_name() for task in asyncio.all_tasks()}
        assert {"predict", "nodemetric", "nodetopology"} <= tasks

    live(tmp_path, scenario)
