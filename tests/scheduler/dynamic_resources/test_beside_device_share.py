"""Pods that ask for cards by resources (DeviceShare) and for devices by claim: both hold, or neither does."""

from koordinator.cluster import errors
from tests.scheduler.device_share.test_plugin import CORE, RATIO, allocated, found, is_bound, machine
from tests.scheduler.dynamic_resources.builders import (
    Json,
    claim,
    device,
    device_class,
    resource_slice,
    user_of,
)
from tests.scheduler.world import World, play


def mixed(name: str, percent: int, *claims: str) -> Json:
    requests = {"cpu": "100m", "memory": "1Gi", CORE: str(percent), RATIO: str(percent)}
    return user_of(name, *claims, requests=requests)


def world_of(world: World, cards: dict[str, int], devices: dict[str, int]) -> None:
    """Nodes with so many cards and so many devices to claim."""
    world.api.put("DeviceClass", device_class())
    for name, count in cards.items():
        machine(world, name, gpus=count)
        published = [device(f"{name}{number}") for number in range(devices.get(name, 0))]
        world.api.put("ResourceSlice", resource_slice(name, *published, node=name))


def claim_in(world: World, name: str) -> Json:
    status: Json = world.api.objects["ResourceClaim"]["default", name].get("status", {})
    return status


def test_a_pod_gets_its_card_and_its_claim_on_the_only_node_that_has_both() -> None:
    async def story(world: World) -> None:
        world_of(world, {"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 1})
        world.api.put(
            "Pod", {**mixed("full", 100), "spec": {**mixed("full", 100)["spec"], "nodeSelector": ON_B}}
        )
        await world.settle()
        world.api.put("ResourceClaim", claim("one"))
        world.api.put("Pod", mixed("both", 50, "one"))
        await world.settle()

        assert world.api.placements() == {"full": "b", "both": "c"}
        assert [each["minor"] for each in allocated(world, "both")["gpu"]] == [0]
        given = claim_in(world, "one")
        assert [each["device"] for each in given["allocation"]["devices"]["results"]] == ["c0"]
        assert given["reservedFor"][0]["name"] == "both"

    play(story)


ON_B = {"kubernetes.io/hostname": "b"}


def test_a_claim_that_cannot_be_written_gives_back_the_card_too() -> None:
    async def story(world: World) -> None:
        world_of(world, {"a": 1}, {"a": 1})
        world.api.put("ResourceClaim", claim("one"))
        world.api.put("ResourceClaim", claim("two"))
        world.api.fail_next["patch"] = [errors.Forbidden("no")]
        world.api.put("Pod", mixed("first", 100, "one"))
        world.api.put("Pod", mixed("second", 100, "two"))
        await world.settle(30)

        placed = [name for name in ("first", "second") if is_bound(world, name)]
        assert len(placed) == 1, "there is one card and one device"
        [other] = {"first", "second"} - set(placed)
        assert "scheduling.koordinator.sh/device-allocated" not in found(world, other)["metadata"].get(
            "annotations", {}
        )
        claims = [name for name in ("one", "two") if claim_in(world, name).get("allocation")]
        assert len(claims) == 1

    play(story)


def test_a_pod_whose_card_is_gone_keeps_no_device_by_claim() -> None:
    async def story(world: World) -> None:
        world_of(world, {"a": 1}, {"a": 2})
        world.api.put("Pod", mixed("full", 100))
        await world.settle()
        for name in ("one", "two"):
            world.api.put("ResourceClaim", claim(name))
        world.api.put("Pod", mixed("waits", 50, "one"))
        world.api.put("Pod", user_of("plain", "two", cpu="10m"))
        await world.settle()

        assert not is_bound(world, "waits") and is_bound(world, "plain")
        assert "allocation" not in claim_in(world, "one")
        world.api.remove("Pod", "full", "default")
        await world.settle(10)
        assert is_bound(world, "waits")
        [given] = claim_in(world, "one")["allocation"]["devices"]["results"]
        [other] = claim_in(world, "two")["allocation"]["devices"]["results"]
        assert {given["device"], other["device"]} == {"a0", "a1"}

    play(story)
