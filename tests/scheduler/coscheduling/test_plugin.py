"""Stories of gangs: API in, API out, on virtual time."""

from typing import Any

from tests.scheduler.world import World, play, pod

Json = dict[str, Any]
PREFIX = "gang.scheduling.koordinator.sh"


def member(name: str, gang: str, minimum: int, cpu: str = "1", **annotations: str) -> Json:
    """A pod of a gang that is described by annotations; `annotations` are more of them, without their prefix."""
    body = pod(name, cpu=cpu)
    more = {f"{PREFIX}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    body["metadata"]["annotations"] = {
        f"{PREFIX}/name": gang,
        f"{PREFIX}/min-available": str(minimum),
        **more,
    }
    return body


def placed(world: World) -> list[str]:
    return sorted(name for name, where in world.api.placements().items() if where)


def test_nobody_is_bound_before_all_members_exist_and_then_everybody_is() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for name in ("a", "b"):
            world.api.put("Pod", member(name, "job", 3))
        await world.settle(60)
        assert placed(world) == []
        world.api.put("Pod", member("c", "job", 3))
        await world.settle()
        assert placed(world) == ["a", "b", "c"]

    play(story)


def test_a_gang_that_does_not_fit_as_a_whole_leaves_the_room_to_others() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(5):
            world.api.put("Pod", member(f"big-{number}", "big", 5))
        await world.settle()
        assert placed(world) == []
        assert 'GangGroup "default/big" gets rejected' in world.condition("big-0")["message"]
        for number in range(4):
            world.api.put("Pod", member(f"small-{number}", "small", 4))
        await world.settle(2)
        assert placed(world) == ["small-0", "small-1", "small-2", "small-3"]

    play(story)
