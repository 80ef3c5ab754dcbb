"""How an agent ends, and how the next one begins."""

import asyncio
from pathlib import Path

import pytest

from koordinator.koordlet import agent as agents
from tests.host import host_tree
from tests.koordlet.agent_world import World, live
from tests.koordlet.test_agent import protecting


async def suppressed(world: World, within_s: float = 10) -> None:
    await world.create_objects(protecting())
    world.run_pod("web", batch=False, cores=1.5)
    world.run_pod("batch", batch=True, cores=1.0)
    await asyncio.sleep(within_s)
    assert int(world.quota()) > 0


async def stopped(world: World) -> None:
    world.running.cancel()
    await asyncio.wait([world.running])


@pytest.mark.parametrize("version", host_tree.VERSIONS)
def test_an_agent_that_restores_on_exit_leaves_nothing_behind(tmp_path: Path, version: int) -> None:
    async def scenario(world: World) -> None:
        await suppressed(world)
        await stopped(world)
        assert world.quota() in ("-1", "max")
        assert world.agent.shared.executor.owners() == []

    live(tmp_path, scenario, version=version, restore_on_exit=True)


def test_an_agent_leaves_protection_in_force_and_the_next_one_knows_what_was_before(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await suppressed(world)
        before = world.quota()
        await stopped(world)
        assert world.quota() == before

        second = world.make_agent("BECPUSuppress=false")
        running = asyncio.create_task(second.run())
        await asyncio.sleep(10)
        assert world.quota() == "-1", "a gate that is off puts back what it changed"
        running.cancel()
        await asyncio.wait([running])

    live(tmp_path, scenario)


def test_what_hangs_at_the_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await suppressed(world)

        async def hang() -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(world.kubelet, "close", hang)
        began_s = asyncio.get_running_loop().time()
        await stopped(world)
        assert asyncio.get_running_loop().time() - began_s <= agents.END_S + 0.1

    live(tmp_path, scenario, restore_on_exit=True)


def test_an_agent_that_measures_nothing_acts_on_nothing_by_samples(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(protecting())
        world.run_pod("web", batch=False, cores=1.5)
        world.run_pod("batch", batch=True, cores=1.0)
        await asyncio.sleep(30)
        assert world.quota() == "-1" and world.agent.is_started.is_set()

    live(tmp_path, scenario, used_interval_s=0.5)


def test_an_agent_without_an_api_server_waits_says_for_what_and_can_be_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        world.cluster.away = True
        await asyncio.sleep(600)
        assert world.agent.troubles()["node"] == "the API server is away"
        reported = [record for record in caplog.records if record.message.startswith("waiting for")]
        assert {record.message for record in reported} == {
            "waiting for node",
            "waiting for pods",
            "waiting for NodeSLO",
        }
        await stopped(world)

    live(tmp_path, scenario, restore_on_exit=True)


def test_an_api_server_that_comes_late_is_enough(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.cluster.away = True
        await asyncio.sleep(600)
        world.cluster.away = False
        await suppressed(world, within_s=60)

    live(tmp_path, scenario)


def test_an_agent_that_measures_nothing_puts_back_what_a_former_one_changed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await suppressed(world)
        await stopped(world)

        second = world.make_agent(used_interval_s=0.5)
        running = asyncio.create_task(second.run())
        await asyncio.sleep(20)
        assert world.quota() == "-1"
        running.cancel()
        await asyncio.wait([running])

    live(tmp_path, scenario)
