"""The whole agent closes the loop on a node of files: a service waits, batch gives way, and grows back afterwards."""

import asyncio
import functools
from pathlib import Path
from typing import Any

from koordinator.api import interference
from koordinator.host.cgroup_knobs import V2
from tests.host import host_tree
from tests.koordlet.agent_world import BE, BURSTABLE, World, live

GATES = "Interference=true,InterferenceControl=true"
POLICY: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuSuppressThresholdPercent": 50,
        "cpuSuppressPolicy": "cfsQuota",
    },
    "extensions": {"interference": {"enable": True}},
}


class Waiting:
    """The time for which a service waited, by its groups' pressure; `share` says how much of the time it waits."""

    def __init__(self, world: World, uid: str) -> None:
        self._clock = world.clock
        self._before_s, self._since_s, self._share = 0.0, world.clock.now(), 0.0
        base = world.root / "sys/fs/cgroup"
        for group in ("kubepods", f"{BURSTABLE}/pod{uid}"):
            path = base / group / "cpu.pressure"
            host_tree.write(path.parent, {"cpu.pressure": self.text()})
            world.files.counters[str(path)] = functools.partial(Waiting.text, self)

    def text(self) -> str:
        total_us = int(self._total_s() * 1e6)
        calm = "avg10=0.00 avg60=0.00 avg300=0.00"
        return f"some {calm} total={total_us}\nfull {calm} total=0\n"

    def waits(self, share: float) -> None:
        self._before_s, self._since_s, self._share = self._total_s(), self._clock.now(), share

    def _total_s(self) -> float:
        return self._before_s + (self._clock.now() - self._since_s) * self._share


async def beside_batch(world: World) -> Waiting:
    """A service and a batch pod under `POLICY`."""
    await world.create_objects(POLICY)
    world.run_pod("web", batch=False, cores=0.4)
    world.run_pod("batch", batch=True, cores=1.5)
    return Waiting(world, "web")


def quota_percent(world: World) -> float:
    text = world.quota()
    return 100.0 if text == "max" else int(text) / 100_000 / 4 * 100


def test_a_whole_episode(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        service = await beside_batch(world)
        await asyncio.sleep(8)
        assert quota_percent(world) >= 35, "as configured, or more already"

        await asyncio.sleep(90)
        assert quota_percent(world) >= 80, "nobody suffers: up to 95% of the node but for what services use"

        service.waits(0.6)
        await asyncio.sleep(4)
        assert quota_percent(world) <= 5
        await asyncio.sleep(12)
        told = interference.of_report((await world.node_metric()).status.extensions)
        assert told is not None and told.percent >= 10 and told.resource == "cpu"

        service.waits(0.0)
        await asyncio.sleep(6)
        assert quota_percent(world) <= 5, "not at once"
        await asyncio.sleep(120)
        assert 15 <= quota_percent(world) <= 60, "growing back, short of where services suffered"
        for group in (BURSTABLE, f"{BURSTABLE}/podweb"):
            assert world.quota(group) == "max", "services are never touched"

        await world.say(extensions={"interference": {"enable": False}})
        await asyncio.sleep(30)
        assert 38 <= quota_percent(world) <= 42, "the fixed threshold less what services use"
        assert "interference" not in (await world.node_metric()).status.extensions

    live(tmp_path, scenario, version=V2, gates=GATES)


def test_batch_gives_way_while_the_api_server_is_away_and_the_cluster_is_told_later(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        service = await beside_batch(world)
        await asyncio.sleep(60)

        world.cluster.away = True
        service.waits(0.6)
        await asyncio.sleep(15)
        assert quota_percent(world) <= 5
        assert "interference" not in (await world.node_metric()).status.extensions

        world.cluster.away = False
        await asyncio.sleep(70)
        assert "interference" in (await world.node_metric()).status.extensions

    live(tmp_path, scenario, version=V2, gates=GATES)


def test_what_a_service_feels_without_batch_too_costs_batch_little(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        service = await beside_batch(world)
        await asyncio.sleep(60)
        service.waits(0.6)
        await asyncio.sleep(10)
        assert quota_percent(world) <= 5, "it is tried"
        await asyncio.sleep(80)
        assert quota_percent(world) >= 80, "and undone"

    live(tmp_path, scenario, version=V2, gates=GATES)


def test_an_agent_that_ends_gives_everything_back_where_that_is_asked_for(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        memory = tmp_path / "sys/fs/cgroup" / BE / "memory.high"
        host_tree.write(memory.parent, {"memory.high": "max", "memory.current": str(2**30)})
        service = await beside_batch(world)
        await asyncio.sleep(30)
        service.waits(0.6)
        await asyncio.sleep(10)
        assert quota_percent(world) <= 5

    world = live(tmp_path, scenario, version=V2, gates=GATES, restore_on_exit=True)
    assert world.quota() == "max"


def test_without_the_gate_nothing_of_it_happens(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        service = await beside_batch(world)
        service.waits(0.6)
        await asyncio.sleep(100)
        assert 38 <= quota_percent(world) <= 42
        assert "interference" not in (await world.node_metric()).status.extensions

    live(tmp_path, scenario, version=V2, gates="Interference=true")
