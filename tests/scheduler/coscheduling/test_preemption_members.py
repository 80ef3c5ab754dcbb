"""For which members of a gang others are evicted."""

from tests.scheduler.coscheduling.stage import member
from tests.scheduler.coscheduling.test_preemption import (
    full_of_a_lesser_gang,
    gang,
    nominated,
    placed,
    victims,
    with_preemption,
)
from tests.scheduler.world import World, play

ONLY_WAITING = {"match-policy": "only-waiting"}


def test_nobody_goes_for_members_beyond_the_minimum_that_would_wait_for_others() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 4)

        gang(world, "high", 4, minimum=3, cpu="4", priority=1000, annotations=ONLY_WAITING)
        await world.settle(120)

        assert len(placed(world, "high")) == 3
        assert len(victims(world)) == 3
        assert not nominated(world)

    play(story, with_preemption())


def test_nobody_goes_for_a_gang_that_lacks_members_which_nobody_could_start_without() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        gang(world, "high", 2, cpu="4", priority=1000, annotations=ONLY_WAITING)
        await world.settle(5)
        assert len(placed(world, "high")) == 2
        world.nodes(3, cpu="4")
        world.api.put("Pod", member("low", "low", 1, cpu="4", priority=1))
        await world.settle(5)

        world.api.put("Pod", member("high-9", "high", 2, cpu="4", priority=1000, annotations=ONLY_WAITING))
        await world.settle(60)

        assert victims(world) == []
        assert "fewer pending members than the gang needs" in world.condition("high-9")["message"]
        assert not nominated(world)

    play(story, with_preemption())
