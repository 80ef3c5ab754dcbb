"""Devices of Reservations, in the whole scheduler: owners get them first, strangers never."""

import json
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cluster import errors
from tests.scheduler.device_share.test_plugin import (
    ALLOCATED,
    CORE,
    HINT,
    RATIO,
    RDMA,
    allocated,
    device,
    gpu_pod,
    is_bound,
    machine,
    minors,
)
from tests.scheduler.reservation.test_plugin import AFFINITY, put_reservation, reservation, status_of, used_by
from tests.scheduler.world import World, node, play

Json = dict[str, Any]
GENERAL = {HINT: json.dumps({"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}})}


def gpu_reservation(name: str, percent: int, *, more: Json | None = None, **spec: Any) -> Json:
    body = reservation(name, **spec)
    template = body["spec"]["template"]
    template["metadata"] = {"annotations": GENERAL if more else {}}
    requests = {"cpu": "4", "memory": "4Gi", CORE: str(percent), RATIO: str(percent), **(more or {})}
    template["spec"]["containers"][0]["resources"] = {"requests": requests}
    return body


def owner(name: str, percent: int, *, must: bool = False, more: Json | None = None) -> Json:
    annotations: Json = dict(GENERAL) if more else {}
    if must:
        annotations[AFFINITY] = "{}"
    body = gpu_pod(name, percent, annotations=annotations, extra=more)
    body["metadata"]["labels"] = {"app": "web"}
    return body


def reserved(world: World, name: str) -> Json:
    found = next(r for r in world.api.objects["Reservation"].values() if r["metadata"]["name"] == name)
    body: Json = json.loads(found["metadata"]["annotations"][ALLOCATED])
    return body


def used(world: World) -> dict[int, int]:
    """What all holders use of the GPUs of node a, by minor."""
    plugin = next(
        p for p in world.scheduler.engine.profiles["koord-scheduler"].plugins if p.name == "DeviceShare"
    )
    cache = plugin.cache  # type: ignore[attr-defined]
    row = world.scheduler.table.row_of("a")
    return {minor: amounts.get(CORE, 0) for minor, amounts in cache.at(row).used.get("gpu", {}).items()}


def test_reserved_cards_are_kept_from_strangers_and_given_to_owners() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        put_reservation(world, gpu_reservation("room", 100))
        await world.settle()
        assert status_of(world, "room")["phase"] == "Available"
        [card] = [each["minor"] for each in reserved(world, "room")["gpu"]]
        world.api.put("Pod", gpu_pod("stranger", 100))
        await world.settle()
        world.api.put("Pod", gpu_pod("late", 50))
        await world.settle()
        assert minors(world, "stranger") == [1 - card]
        assert not is_bound(world, "late")

        world.api.put("Pod", owner("web", 100))
        await world.settle()

        assert minors(world, "web") == [card]
        assert used(world) == {0: 100, 1: 100}

    play(story)


@pytest.mark.parametrize("policy", ["", "Aligned", "Restricted"])
def test_owners_use_what_is_reserved_before_what_is_free(policy: str) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4, numa=True)
        room = gpu_reservation("room", 100, allocateOnce=False, allocatePolicy=policy)
        put_reservation(world, room)
        await world.settle()
        [card] = [each["minor"] for each in reserved(world, "room")["gpu"]]

        for name in ("one", "two"):
            world.api.put("Pod", owner(name, 50))
            await world.settle()

        assert minors(world, "one") == minors(world, "two") == [card]
        assert used(world) == {card: 100}

        world.api.remove("Pod", "one", "default")
        await world.settle()
        assert used(world) == {card: 100}, "the reservation holds again what its owner left"
        world.api.put("Pod", owner("three", 50))
        await world.settle()
        assert minors(world, "three") == [card]

    play(story)


def test_an_owner_gets_nothing_beyond_a_restricted_reservation() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        put_reservation(world, gpu_reservation("room", 50, allocatePolicy="Restricted", allocateOnce=False))
        await world.settle()
        world.api.put("Pod", owner("web", 100, must=True))
        await world.settle()
        assert not is_bound(world, "web")

        world.api.put("Pod", owner("small", 50, must=True))
        await world.settle()
        assert minors(world, "small") == [each["minor"] for each in reserved(world, "room")["gpu"]]

    play(story)


@pytest.mark.parametrize("policy", ["", "Aligned"])
def test_an_owner_gets_what_is_free_on_top_of_a_reservation_that_is_not_restricted(policy: str) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        put_reservation(world, gpu_reservation("room", 50, allocatePolicy=policy, allocateOnce=False))
        await world.settle()
        world.api.put("Pod", gpu_pod("stranger", 100))
        world.api.put("Pod", owner("web", 100, must=True))
        await world.settle()

        assert not is_bound(world, "stranger")
        assert minors(world, "web") == [0] and used(world) == {0: 100}

    play(story)


def test_virtual_functions_of_a_reservation_go_to_its_owner() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2, nics=1)
        put_reservation(world, gpu_reservation("room", 100, more={RDMA: "1"}))
        await world.settle()
        [kept] = reserved(world, "room")["rdma"]
        world.api.put("Pod", gpu_pod("stranger", 50, annotations=GENERAL, extra={RDMA: "1"}))
        await world.settle()
        [other] = allocated(world, "stranger")["rdma"]
        assert other["extension"]["vfs"] != kept["extension"]["vfs"]

        world.api.put("Pod", owner("web", 100, more={RDMA: "1"}))
        await world.settle()

        assert allocated(world, "web")["rdma"][0]["extension"]["vfs"] == kept["extension"]["vfs"]
        assert minors(world, "web") == [each["minor"] for each in reserved(world, "room")["gpu"]]

    play(story)


def test_what_reservations_and_owners_hold_is_known_after_a_restart() -> None:
    async def story(world: World) -> None:
        card = {"minor": 1, "resources": {CORE: "100", RATIO: "100", "koordinator.sh/gpu-memory": "16Gi"}}
        room = gpu_reservation("room", 100, allocateOnce=False)
        room["metadata"]["annotations"] = {ALLOCATED: json.dumps({"gpu": [card]})}
        room["status"] = {
            "phase": "Available",
            "nodeName": "a",
            "allocatable": {"cpu": "4", "memory": "4Gi", CORE: "100", RATIO: "100"},
        }
        half = {"minor": 1, "resources": {CORE: "50", RATIO: "50", "koordinator.sh/gpu-memory": "8Gi"}}
        old = owner("old", 50)
        old["metadata"]["annotations"] = {
            ALLOCATED: json.dumps({"gpu": [half]}),
            "scheduling.koordinator.sh/reservation-allocated": json.dumps(
                {"name": "room", "uid": "uid-room"}
            ),
        }
        old["spec"]["nodeName"] = "a"
        world.api.put("Pod", old)
        put_reservation(world, room)
        machine(world, "a", gpus=2)
        await world.settle()
        assert used(world) == {1: 100}
        world.api.put("Pod", gpu_pod("stranger", 50))
        world.api.put("Pod", owner("new", 50))
        await world.settle()

        assert minors(world, "stranger") == [0]
        assert minors(world, "new") == [1]

    play(story)


def test_the_number_of_cards_that_the_webhook_adds_keeps_no_owner_from_its_card() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        put_reservation(world, gpu_reservation("room", 100))
        await world.settle()

        world.api.put("Pod", owner("web", 100, more={"koordinator.sh/gpu.shared": "1"}))
        await world.settle()

        assert minors(world, "web") == [0]

    play(story)


def test_with_the_gate_a_reservation_of_whole_cards_counts_what_owners_take_of_them_in_other_names() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        amounts = {CORE: "200", RATIO: "200", "koordinator.sh/gpu-memory": "32Gi", "nvidia.com/gpu": "2"}
        world.api.put("Node", node("a", cpu="64", memory="256Gi", extra=amounts))
        room = reservation("room", allocatePolicy="Restricted", allocateOnce=False)
        asked = {"cpu": "4", "memory": "4Gi", "nvidia.com/gpu": "1"}
        room["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": asked}
        put_reservation(world, room)
        await world.settle()
        held = status_of(world, "room")["allocatable"]
        assert (held[CORE], held[RATIO], held["nvidia.com/gpu"]) == ("100", "100", "1")
        assert held["koordinator.sh/gpu-memory"] == "16Gi"

        world.api.put("Pod", owner("web", 50, must=True))
        await world.settle()
        [card] = minors(world, "web")
        assert [card] == [each["minor"] for each in reserved(world, "room")["gpu"]]
        await world.settle(5)
        assert status_of(world, "room")["allocated"][CORE] == "50"

    play(story, gates=FeatureGates.of(Component.SCHEDULER, "ResizePod=true"))


@pytest.mark.parametrize("ends_with_pod", [True, False])
def test_the_card_of_a_running_pod_is_kept_for_its_successor(ends_with_pod: bool) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        for body in (owner("old", 100), gpu_pod("other", 100)):
            world.api.put("Pod", body)
            await world.settle()
        [card] = minors(world, "old")

        put_reservation(
            world,
            gpu_reservation("room", 100, preAllocation=True, allocatePolicy="Restricted", allocateOnce=False),
        )
        await world.settle()

        assert status_of(world, "room")["phase"] == "Available"
        assert [each["minor"] for each in reserved(world, "room")["gpu"]] == [card]
        assert used_by(world, "old")
        assert used(world) == {0: 100, 1: 100}, "the pod counts within the reservation"

        if ends_with_pod:
            world.api.remove("Pod", "old", "default")
            await world.settle(15)
            assert used(world) == {0: 100, 1: 100}, "the reservation holds what its owner left"
        world.api.put("Pod", gpu_pod("stranger", 100))
        world.api.put("Pod", owner("new", 100, must=True))
        await world.settle(15)
        assert not is_bound(world, "stranger")
        assert (is_bound(world, "new") and minors(world, "new") == [card]) == ends_with_pod

    play(story)


@pytest.mark.parametrize("is_required", [True, False])
def test_a_pod_on_a_card_that_is_not_healthy_is_not_taken_over(is_required: bool) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        world.api.put("Pod", owner("old", 100))
        await world.settle()
        [card] = minors(world, "old")
        world.api.put("Device", device("a", 2, unhealthy=(card,)))
        await world.settle()
        room = gpu_reservation("room", 100, preAllocation=True, allocatePolicy="Restricted")
        if is_required:
            room["metadata"]["labels"] = {labels.PRE_ALLOCATION_REQUIRED: "true"}
        put_reservation(world, room)
        await world.settle()
        assert not used_by(world, "old")
        if is_required:
            [refused] = status_of(world, "room")["conditions"]
            assert "would not get all devices of the pods that it takes over" in refused["message"]
        else:
            assert [each["minor"] for each in reserved(world, "room")["gpu"]] == [1 - card]

    play(story)


def test_a_reservation_that_is_not_bound_gives_cards_back_to_the_pod_it_took_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        world.api.put("Pod", owner("old", 50))
        await world.settle()
        patch = world.api.patch
        meanwhile: list[dict[int, int]] = []

        async def refused(view: type[Any], name: str, body: Any, *rest: Any, **options: Any) -> Any:
            if view is Pod and body["metadata"]["annotations"].get(labels.RESERVATION_ALLOCATED):
                meanwhile.append(used(world))
            if body.get("status", {}).get("phase") == "Available":
                raise errors.Forbidden("no")
            return await patch(view, name, body, *rest, **options)

        room = gpu_reservation(
            "room", 100, preAllocation=True, allocatePolicy="Restricted", allocateOnce=False
        )
        with monkeypatch.context() as patched:
            patched.setattr(world.api, "patch", refused)
            put_reservation(world, room)
            await world.settle(0.5)
            assert meanwhile == [{0: 100}], "the pod counts within the reservation that is being placed"
            assert used(world) == {0: 50}
        await world.settle(30)
        assert (status_of(world, "room")["phase"], used(world)) == ("Available", {0: 100})

    play(story)
