"""Places of reserved devices: owners get cards, NICs, partitions and NUMA nodes that belong together, as strangers do.
How: the whole scheduler on a fake API."""

import json
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.scheduler import Scheduler
from tests.cluster import virtual_loop
from tests.scheduler.device_share.test_numa_alignment import aligned_pod
from tests.scheduler.device_share.test_numa_alignment import machine as numa_machine
from tests.scheduler.device_share.test_plugin import (
    ALLOCATED,
    CORE,
    HINT,
    JOINT,
    RATIO,
    RDMA,
    allocated,
    device,
    found,
    gpu_pod,
    is_bound,
    machine,
    minors,
)
from tests.scheduler.device_share.test_reserved_devices import reserved, used
from tests.scheduler.reservation.test_plugin import (
    AFFINITY,
    node_of,
    put_reservation,
    reservation,
    status_of,
    used_by,
)
from tests.scheduler.world import World, play, running

Json = dict[str, Any]
POLICIES = pytest.mark.parametrize("policy", ["", "Aligned", "Restricted"])
VF = {HINT: json.dumps({"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}})}
NICS = {**VF, JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"]})}
SAME_SWITCH = {**VF, JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
PAIRS = {
    "scheduling.koordinator.sh/gpu-partitions": json.dumps(
        {"1": [{"minors": [n]} for n in range(4)], "2": [{"minors": [0, 1]}, {"minors": [2, 3]}]}
    )
}


def room(name: str, gpus: int, *, rdma: int = 0, annotations: Json | None = None, **spec: Any) -> Json:
    """A Reservation of whole cards; `rdma` in percent."""
    body = reservation(name, **{"allocateOnce": False, **spec})
    template = body["spec"]["template"]
    template["metadata"] = {"annotations": annotations or {}}
    requests = {"cpu": "8", "memory": "8Gi", CORE: str(100 * gpus), RATIO: str(100 * gpus)}
    template["spec"]["containers"][0]["resources"] = {
        "requests": requests | ({RDMA: str(rdma)} if rdma else {})
    }
    return body


def owner(
    name: str, gpus: int = 1, *, annotations: Json | None = None, must: bool = True, **parts: Any
) -> Json:
    affinity = {AFFINITY: "{}"} if must else {}
    body = gpu_pod(name, 100 * gpus, annotations={**(annotations or {}), **affinity}, **parts)
    body["metadata"]["labels"] = {"app": "web"}
    return body


async def put(world: World, *pods: Json) -> None:
    for body in pods:
        world.api.put("Pod", body)
        await world.settle()


def vfs(world: World, name: str) -> list[str]:
    return [vf["busID"] for nic in allocated(world, name)["rdma"] for vf in nic["extension"]["vfs"]]


@POLICIES
def test_owners_of_a_reservation_of_many_switches_get_cards_and_nics_of_the_same_one(policy: str) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=8, nics=4, numa=True)
        put_reservation(world, room("room", 8, rdma=400, annotations=NICS, allocatePolicy=policy))
        await world.settle()
        kept = [vf["busID"] for nic in reserved(world, "room")["rdma"] for vf in nic["extension"]["vfs"]]
        names = [f"web-{number}" for number in range(4)]
        await put(world, *(owner(name, annotations=SAME_SWITCH, extra={RDMA: "1"}) for name in names))

        for name in names:
            assert is_bound(world, name), world.condition(name)
            assert minors(world, name, "rdma") == [minors(world, name)[0] // 2]
            assert '"room"' in used_by(world, name)
        taken = [bus_id for name in names for bus_id in vfs(world, name)]
        assert len(set(taken)) == 4
        # Its own come first, and the reserved NIC has another for who shares it.
        assert vfs(world, "web-0")[0] in kept

    play(story)


@pytest.mark.parametrize(("policy", "fits"), [("", True), ("Aligned", True), ("Restricted", False)], ids=str)
def test_an_owner_that_needs_other_cards_than_reserved_ones_gets_their_nic(policy: str, fits: bool) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4, nics=2, numa=True)
        put_reservation(world, room("room", 1, rdma=1, annotations=SAME_SWITCH, allocatePolicy=policy))
        await world.settle()
        await put(world, gpu_pod("beside", 100))
        assert minors(world, "beside") == [1] and [c["minor"] for c in reserved(world, "room")["gpu"]] == [0]

        await put(world, owner("web", 2, annotations=SAME_SWITCH, extra={RDMA: "1"}))

        assert is_bound(world, "web") == fits
        if fits:
            assert minors(world, "web") == [2, 3] and minors(world, "web", "rdma") == [1]

    play(story)


@POLICIES
def test_partitions_are_chosen_among_reserved_cards(policy: str) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4)
        report = device("a", 4, numa=True)
        report["metadata"] |= {"annotations": PAIRS, "labels": {labels.GPU_PARTITION_POLICY: "Honor"}}
        world.api.put("Device", report)
        put_reservation(world, room("room", 2, allocatePolicy=policy))
        await world.settle()
        kept = [each["minor"] for each in reserved(world, "room")["gpu"]]
        await put(world, gpu_pod("stranger", 200), owner("web", 2))

        assert minors(world, "web") == kept and minors(world, "stranger") == [2, 3]

    play(story)


def chosen_beforehand(name: str, minor: int, *, must: bool) -> Json:
    """A pod whose planner chose its card."""
    hint = json.dumps({"nodeNames": ["a"], "extensions": {"DeviceShare": {}}})
    held = json.dumps({"gpu": [{"minor": minor, "resources": {CORE: "100", RATIO: "100"}}]})
    return owner(name, annotations={labels.SCHEDULING_HINT: hint, ALLOCATED: held}, must=must)


@pytest.mark.parametrize("must", [True, False])
@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_card_chosen_beforehand_is_the_one_that_an_owner_gets_of_a_restricted_reservation(
    minor: int, must: bool
) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4, numa=True)
        put_reservation(world, room("room", 2, allocatePolicy="Restricted"))
        await world.settle()
        assert [each["minor"] for each in reserved(world, "room")["gpu"]] == [0, 1]
        await put(world, chosen_beforehand("web", minor, must=must))

        is_reserved = minor in (0, 1)
        assert is_bound(world, "web") == (is_reserved or not must)
        if is_bound(world, "web"):
            assert minors(world, "web") == [minor]
            assert bool(used_by(world, "web")) == is_reserved, "it owns what it holds, and nothing else"

    play(story)


def aligned_owner(name: str, *, must: bool) -> Json:
    body = aligned_pod(name, cpus=4, gpus=1, nic=False, binds=True)
    body["metadata"]["labels"]["app"] = "web"
    if must:
        body["metadata"]["annotations"][AFFINITY] = "{}"
    return body


@pytest.mark.parametrize("must", [True, False])
def test_a_reserved_card_beside_which_no_cpus_are_left_is_not_used(must: bool) -> None:
    async def story(world: World) -> None:
        numa_machine(world)
        body = room("room", 1, allocatePolicy="Restricted")
        body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4"
        put_reservation(world, body)
        await world.settle()
        [card] = [each["minor"] for each in reserved(world, "room")["gpu"]]
        await put(world, aligned_pod("beside", cpus=8, gpus=1, nic=False, binds=True))
        assert minors(world, "beside") == [1 - card]

        await put(world, aligned_owner("web", must=must))
        assert is_bound(world, "web") != must
        if not must:
            assert minors(world, "web")[0] // 2 == 1 and not used_by(world, "web")
            return
        assert "1 Unaligned NUMA Hint" in world.condition("web")["message"]
        world.api.remove("Pod", "beside", "default")
        await world.settle(3)
        assert minors(world, "web") == [card] and used_by(world, "web")

    play(story)


def test_a_pod_that_no_single_reservation_has_room_for_is_refused_before_it_gets_the_node() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=6)
        for name in ("one", "two"):
            put_reservation(world, room(name, 1))
        await world.settle()
        await put(world, *(gpu_pod(f"half-{number}", 50) for number in range(4)))
        assert {minors(world, f"half-{number}")[0] for number in range(4)} == {2, 3, 4, 5}

        await put(world, owner("web", 2, must=False))
        refused = world.condition("web")["message"]
        assert "2 Reservation(s) for node reason that Insufficient gpu devices" in refused
        machine(world, "b", gpus=2)
        await world.settle(3)

        assert node_of(world, "web") == "b" and not used_by(world, "web")

    play(story)


def test_an_owner_hears_that_its_reserved_card_is_healthy_again() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        put_reservation(world, room("room", 1, allocatePolicy="Restricted"))
        await world.settle()
        [card] = [each["minor"] for each in reserved(world, "room")["gpu"]]
        world.api.put("Device", device("a", 2, unhealthy=(card,)))
        await put(world, owner("web"))
        assert "Reservation(s) Insufficient gpu devices" in world.condition("web")["message"]

        world.api.put("Device", device("a", 2))
        await world.settle(3)

        assert minors(world, "web") == [card]

    play(story)


@pytest.mark.parametrize("annotations", [{}, PAIRS], ids=["topology", "partitions"])
def test_a_larger_reservation_gets_the_neighbour_of_the_card_that_it_takes_over(annotations: Json) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4, numa=True)
        report = device("a", 4, numa=True)
        report["metadata"]["annotations"] = annotations
        world.api.put("Device", report)
        await put(world, gpu_pod("first", 100), gpu_pod("second", 100), owner("old", must=False))
        assert minors(world, "old") == [2]
        for name in ("first", "second"):
            world.api.remove("Pod", name, "default")

        body = room("room", 2, allocatePolicy="Restricted", preAllocation=True)
        body["metadata"]["labels"] = {labels.PRE_ALLOCATION_REQUIRED: "true"}
        put_reservation(world, body)
        await world.settle()

        assert [each["minor"] for each in reserved(world, "room")["gpu"]] == [2, 3]
        assert used_by(world, "old")

    play(story)


@POLICIES
def test_an_owner_makes_room_on_reserved_devices_by_evicting_another_owner(policy: str) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2, nics=1, numa=True)
        put_reservation(world, room("room", 1, rdma=100, annotations=SAME_SWITCH, allocatePolicy=policy))
        await world.settle()
        nic = {"extra": {RDMA: "100"}, "annotations": SAME_SWITCH}
        await put(world, owner("low", **nic), gpu_pod("stranger", 100))
        [card], own_vfs = minors(world, "low"), vfs(world, "low")

        await put(world, owner("vip", **nic, priority=50))
        await world.settle(3)

        assert {pod["metadata"]["name"] for pod in world.api.pods()} == {"stranger", "vip"}
        assert (minors(world, "vip"), vfs(world, "vip")) == ([card], own_vfs)

    play(story)


def test_a_card_that_an_owner_makes_room_on_waits_for_it() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        put_reservation(world, room("room", 1, allocatePolicy="Restricted"))
        await world.settle()
        await put(world, owner("low"))
        world.api.hold_deletions = True
        await put(world, owner("vip", priority=50), owner("late", priority=20))
        assert found(world, "vip")["status"]["nominatedNodeName"] == "a"

        world.api.remove("Pod", "low", "default")
        await world.settle(3)

        assert minors(world, "vip") == [0] and used_by(world, "vip")
        assert not is_bound(world, "late")

    play(story)


def test_nobody_is_evicted_from_a_reservation_for_a_stranger() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        put_reservation(world, room("room", 1))
        await world.settle()
        await put(world, owner("low"), gpu_pod("beside", 100, priority=100), gpu_pod("vip", 100, priority=50))
        await world.settle(3)

        assert {pod["metadata"]["name"] for pod in world.api.pods()} == {"low", "beside", "vip"}
        assert not is_bound(world, "vip")

    play(story)


def test_reserved_cards_and_nics_are_their_owners_also_after_a_restart() -> None:
    async def before(world: World) -> None:
        machine(world, "a", gpus=4, nics=2, numa=True)
        put_reservation(
            world, room("room", 3, rdma=200, annotations=SAME_SWITCH, allocatePolicy="Restricted")
        )
        await world.settle()
        assert status_of(world, "room")["phase"] == "Available"
        assert [len(reserved(world, "room")[kind]) for kind in ("gpu", "rdma")] == [3, 2]
        nic = {"annotations": SAME_SWITCH, "extra": {RDMA: "1"}}
        stranger = gpu_pod("stranger", 100, **nic)
        await put(world, owner("first", **nic), stranger)
        assert minors(world, "first", "rdma") == [minors(world, "first")[0] // 2]
        assert not is_bound(world, "stranger"), "a card is free, but no NIC"

    async def after(world: World, books: dict[int, int]) -> None:
        assert used(world) == books == {0: 100, 1: 100, 2: 100}
        nic = {"annotations": SAME_SWITCH, "extra": {RDMA: "1"}}
        await put(world, owner("second", **nic), owner("third", **nic), owner("fourth", **nic))
        names = ("first", "second", "third")
        assert {minors(world, name)[0] for name in names} == {0, 1, 2}
        assert all(minors(world, name, "rdma") == [minors(world, name)[0] // 2] for name in names)
        assert len({vfs(world, name)[0] for name in names}) == 3
        assert not is_bound(world, "fourth") and not is_bound(world, "stranger")

        world.api.remove("Reservation", "room")
        await world.settle(3)
        assert minors(world, "stranger") == [3], "owners keep theirs, the last card's NIC is free"
        assert found(world, "stranger")["spec"]["nodeName"] == "a"

    async def main() -> None:
        world = World(None)
        async with running(world, strict=True):
            await before(world)
            books = used(world)
        world.scheduler = Scheduler(world.api, default_plugins.shipped_config())
        async with running(world, strict=True):
            await world.settle()
            await after(world, books)

    virtual_loop.run(main())
