"""Random stories of jobs that evict each other: nobody goes in vain, and in the end everything is at rest. A failing
seed fails again."""

import random

import pytest

from tests.cluster import virtual_loop
from tests.cluster.faulty_cluster import Faults
from tests.scheduler.coscheduling.contest import live
from tests.scheduler.coscheduling.stage import stage, with_moments


async def story(seed: int, faults: Faults, death_ratio: float = 0.0) -> None:
    async with stage(with_moments(enablePreemption=True), seed=seed) as played:
        contest = await live(
            played, seed, faults, death_ratio=death_ratio, unrest_s=60.0, settle_s=200.0, calm_s=600.0
        )
        assert contest.departures


@pytest.mark.parametrize("seed", range(6))
def test_jobs_take_the_place_of_less_important_ones_until_everybody_has_what_there_is_room_for(
    seed: int,
) -> None:
    virtual_loop.run(story(seed, Faults()))


@pytest.mark.parametrize("seed", range(100, 104))
def test_so_they_do_when_the_api_misbehaves(seed: int) -> None:
    virtual_loop.run(story(seed, Faults.drawn(random.Random(seed))))


@pytest.mark.parametrize("seed", range(200, 204))
def test_so_they_do_when_schedulers_die_on_the_way(seed: int) -> None:
    virtual_loop.run(story(seed, Faults(), death_ratio=0.02))
