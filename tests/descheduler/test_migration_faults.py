"""Migrations among faults, from a seed: restarts at any step, an API that fails, pods and nodes that vanish, a
scheduler that places nothing, a clock that jumps. No pod goes without a place, limits hold, and all jobs end."""

import asyncio
import random

import msgspec
import pytest

from koordinator.api.core import Node, Pod
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.descheduler.migration import jobs
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.descheduler.world import World, config, run

AT_ONCE = 2
LIMITS = {
    "maxMigratingPerNode": AT_ONCE,
    "maxMigratingPerWorkload": AT_ONCE,
    "maxUnavailablePerWorkload": 3,
    "objectLimiters": {"workload": {"duration": "0s"}},
}
TROUBLE_S = 150.0
TTL_S = 300.0


class JumpingClock:
    """The time of the world, as a machine has it whose clock is set now and then."""

    def __init__(self, inner: Clock) -> None:
        self.ahead_s = 0.0
        self._inner = inner

    def now(self) -> float:
        return self._inner.now() + self.ahead_s


class Watch(msgspec.Struct):
    """What must never be, looked at again and again. `killed` are pods that others removed."""

    world: World
    pods: list[Pod]
    killed: set[str] = set()
    placed: set[str] = set()
    broken: list[str] = []

    async def run(self) -> None:
        """Look on until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(0.1)

    async def _look(self) -> None:
        there = {one.metadata.name for one in await self.world.pods() if not one.metadata.deletion_timestamp}
        rooms = {one.metadata.name for one in await self.world.reservations() if one.status.node_name}
        moving = await self.world.jobs()
        self.placed |= {one.spec.pod_ref.name for one in moving if one.metadata.uid in rooms}
        names = {one.metadata.name for one in self.pods}
        self.broken += [f"{one} went without a place" for one in names - there - self.placed - self.killed]
        # Whose pod has gone counts no more here; its successor counts as unavailable until it is ready.
        on_way = [
            one.metadata.name
            for one in moving
            if jobs.is_open(one) and jobs.has_passed(one) and one.spec.pod_ref.name in there
        ]
        if len(on_way) > AT_ONCE:
            self.broken.append(f"{on_way} at once, at most {AT_ONCE} may")


async def trouble(world: World, watch: Watch, clock: JumpingClock, rng: random.Random) -> None:
    """One thing that goes wrong."""
    match rng.choice(("pod", "node", "clock", "scheduler", "nothing")):
        case "pod":
            pod = rng.choice(watch.pods)
            watch.killed.add(pod.metadata.name)
            try:
                await world.cluster.delete(Pod, pod.metadata.name, "default", grace_period_s=0)
            except errors.NotFound:
                return
        case "node":
            gone, world.elsewhere = world.elsewhere, "n2"
            if gone == "n1":
                await world.cluster.delete(Node, gone)
        case "clock":
            clock.ahead_s = rng.choice((-200.0, 0.0, 100.0, 400.0))
        case "scheduler":
            world.reserves = not world.reserves


@pytest.mark.parametrize("seed", range(12))
def test_no_pod_goes_without_a_place_limits_hold_and_jobs_end(seed: int) -> None:
    async def scenario(world: World) -> None:
        rng = random.Random(seed)
        pods = await world.deployment("web", 8, "n0")
        world.elsewhere, world.reserves = "n1", rng.random() < 0.7
        faulty = FaultyCluster(world.cluster, Faults.drawn(rng), rng)
        clock = faulty.clock = JumpingClock(world.cluster.clock)
        watch = Watch(world, pods, set(), set(), [])
        watching = asyncio.create_task(watch.run())
        body = config(args=LIMITS)
        names = [f"move-{number}" for number in range(5)]
        for name, pod in zip(names, pods, strict=False):
            await world.migrate(pod, name)
        loop = asyncio.get_running_loop()
        over_s = loop.time() + TROUBLE_S
        while loop.time() < over_s:
            async with world.descheduling(body, faulty):  # each time another instance
                await asyncio.sleep(rng.choice((0.3, 2.0, 5.0, 12.0, 40.0)))
                await trouble(world, watch, clock, rng)
        faulty.heal()
        clock.ahead_s = max(clock.ahead_s, 0.0)
        async with world.descheduling(body, faulty):
            ended = [await world.ended(name, within_s=2 * TTL_S) for name in names]
        watching.cancel()
        assert not watch.broken
        assert all(one.status.phase in (jobs.SUCCEEDED, jobs.FAILED) for one in ended)
        await world.until(lambda now: len(now) == len(pods))

    run(scenario)


def test_a_scheduler_that_places_nothing_for_ever_costs_no_pod() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 8, "n0")
        world.reserves = False
        async with world.descheduling(config(args=LIMITS)):
            for number, pod in enumerate(pods):
                await world.migrate(pod, f"move-{number}")
            reasons = {
                (await world.ended(f"move-{number}", within_s=2 * TTL_S)).status.reason for number in range(8)
            }
        assert reasons == {jobs.TIMEOUT}
        assert {one.metadata.uid for one in await world.pods()} == {one.metadata.uid for one in pods}
        assert not await world.reservations()

    run(scenario)
