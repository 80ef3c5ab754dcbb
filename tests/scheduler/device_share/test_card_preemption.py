"""Room on cards is made by evicting less important pods that are on them, and no others."""

from tests.scheduler.device_share.test_plugin import gpu_pod, is_bound, machine, minors
from tests.scheduler.device_share.test_reserved_devices import gpu_reservation, owner
from tests.scheduler.reservation.test_plugin import put_reservation
from tests.scheduler.world import World, play


def names(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.api.pods()}


def test_a_whole_card_is_freed_by_evicting_who_has_a_part_of_it() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        for name, percent, priority in (("small", 30, 0), ("large", 100, 100), ("beside", 30, 0)):
            world.api.put("Pod", gpu_pod(name, percent, priority=priority))
            await world.settle()
        assert minors(world, "small") == minors(world, "beside") != minors(world, "large")

        world.api.put("Pod", gpu_pod("vip", 100, priority=50))
        await world.settle(3)

        assert names(world) == {"large", "vip"}
        assert minors(world, "vip") != minors(world, "large")

    play(story)


def test_no_more_pods_are_evicted_than_the_card_needs() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        for name, percent in (("one", 50), ("two", 30), ("three", 20)):
            world.api.put("Pod", gpu_pod(name, percent))
            await world.settle()

        world.api.put("Pod", gpu_pod("vip", 50, priority=50))
        await world.settle(3)

        assert is_bound(world, "vip")
        assert names(world) in ({"two", "three", "vip"}, {"one", "vip"})

    play(story)


def test_nobody_is_evicted_for_a_card_that_is_not_healthy() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2, unhealthy=(0,))
        world.api.put("Pod", gpu_pod("small", 30))
        await world.settle()

        world.api.put("Pod", gpu_pod("vip", 200, priority=50))
        await world.settle(3)

        assert names(world) == {"small", "vip"}
        assert not is_bound(world, "vip")

    play(story)


def test_owners_of_a_restricted_reservation_make_room_within_it() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        put_reservation(world, gpu_reservation("room", 100, allocateOnce=False, allocatePolicy="Restricted"))
        await world.settle()
        for body in (owner("low", 100), gpu_pod("stranger", 100)):
            world.api.put("Pod", body)
            await world.settle()
        [card] = minors(world, "low")

        vip = owner("vip", 100, must=True)
        vip["spec"]["priority"] = 50
        world.api.put("Pod", vip)
        await world.settle(3)

        assert names(world) == {"stranger", "vip"}
        assert minors(world, "vip") == [card]

    play(story)
