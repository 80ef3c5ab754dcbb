"""Gangs without job preemption: stock preemption makes room for the member that failed the round."""

from tests.scheduler.coscheduling.gang_builders import condition
from tests.scheduler.coscheduling.test_preemption import (
    full_of_a_lesser_gang,
    gang,
    nominated,
    placed,
    victims,
)
from tests.scheduler.world import World, play


def test_without_job_preemption_only_the_member_that_failed_the_round_evicts() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 3)
        world.api.hold_deletions = True

        gang(world, "high", 3, cpu="4", priority=1000)
        await world.settle(3)
        assert len(victims(world)) == 1
        assert len(nominated(world)) == 1

        await world.settle(300)
        assert len(victims(world)) == 1
        assert len(nominated(world)) == 1

    play(story)


def test_members_are_reported_once_that_preemption_did_not_help_the_one_that_failed() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        gang(world, "high", 5, cpu="4")
        await world.settle(30)

        reported = [condition(world, f"high-{number}") for number in range(5)]
        assert max(message.count("preemption: ") for message in reported) == 1

    play(story)


def test_without_job_preemption_a_gang_gets_its_room_member_by_member() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 3)

        gang(world, "high", 3, cpu="4", priority=1000)
        await world.settle(120)

        assert len(placed(world, "high")) == 3
        assert len(victims(world)) == 3

    play(story)


def test_without_job_preemption_a_member_keeps_its_room_when_another_one_fails() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 2)
        world.api.hold_deletions = True
        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(2)
        [(first, node_name)] = nominated(world).items()
        [gone] = victims(world)
        world.api.remove("Pod", gone, "default")
        await world.settle(10)
        assert len(nominated(world)) == 2

        # Sooner or later the round begins with the other one, and fails.
        await world.settle(1_000)
        assert nominated(world)[first] == node_name
        assert len(world.scheduler.engine.nominations) == 2

    play(story)
