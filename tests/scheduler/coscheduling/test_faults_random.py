"""Random stories of gangs: nobody runs half, nobody waits for ever, and nothing leaks. A failing seed fails again."""

import asyncio
import random

import pytest

from tests.cluster import virtual_loop
from tests.cluster.faulty_cluster import Faults
from tests.scheduler.coscheduling.crowd import Crowd
from tests.scheduler.coscheduling.stage import stage

UNREST_S = 60.0
SETTLE_S = 120.0
CALM_S = 600.0
CALM_ATTEMPTS_MAX = 40
"""Attempts of each pending pod in the calm at the end, where nothing happens that could change anything."""


async def live(seed: int, faults: Faults, death_ratio: float = 0.0) -> None:
    async with stage(seed=seed) as played:
        crowd = Crowd(played, seed)
        await crowd.begin()
        played.faults = faults
        crowd.may_be_half = faults != Faults()
        deaths = random.Random(seed)

        def moment(_: str) -> None:
            if deaths.random() < death_ratio:
                played.cut()

        played.moment = moment
        await played.start()
        loop = asyncio.get_running_loop()
        while loop.time() < UNREST_S:
            await crowd.act()
            await crowd.clear_lost_nodes()
            if played.line.is_cut:
                await played.bury()
                await played.start()
            for _ in range(crowd.rng.randint(1, 6)):
                await crowd.check_step()
                await asyncio.sleep(crowd.rng.uniform(0.0, 0.3))
        played.moment = lambda _: None
        if played.line.is_cut:
            await played.bury()
            await played.start()
        played.heal()
        await crowd.everybody_comes()
        await asyncio.sleep(10)
        await crowd.clear_lost_nodes()
        await asyncio.sleep(SETTLE_S)
        before = played.attempts()
        await crowd.check_settled()
        await asyncio.sleep(CALM_S)
        await crowd.check_settled()
        pending = sum(not where for where in (await crowd.pods()).values())
        attempts = played.attempts() - before
        assert attempts <= CALM_ATTEMPTS_MAX * pending, f"{attempts} attempts of {pending} pending pods"


@pytest.mark.parametrize("seed", range(5))
def test_gangs_that_come_and_go_run_whole_or_wait_for_room(seed: int) -> None:
    virtual_loop.run(live(seed, Faults()))


@pytest.mark.parametrize("seed", range(100, 105))
def test_so_they_do_when_the_api_misbehaves(seed: int) -> None:
    virtual_loop.run(live(seed, Faults.drawn(random.Random(seed))))


@pytest.mark.parametrize("seed", range(200, 205))
def test_so_they_do_when_schedulers_die_on_the_way(seed: int) -> None:
    virtual_loop.run(live(seed, Faults(), death_ratio=0.03))
