"""Gangs and Reservations: members use room that was kept for them, and the room of a gang is kept together."""

from typing import Any

from koordinator.api import labels
from koordinator.cluster import errors
from tests.scheduler.coscheduling.test_early_refusal import early_of
from tests.scheduler.reservation.test_plugin import (
    Json,
    node_of,
    owned,
    put_reservation,
    reservation,
    status_of,
    used_by,
)
from tests.scheduler.world import World, play, pod

GANG = {labels.GANG_NAME: "g", labels.GANG_MIN_AVAILABLE: "2"}


def member(name: str, **parts: Any) -> Json:
    body = owned(name, cpu="3", **parts)
    body["metadata"].setdefault("annotations", {}).update(GANG)
    return body


def for_gang(name: str, annotations: Json | None = None, marks: Json | None = None, **spec: Any) -> Json:
    body = reservation(name, cpu="3", **spec)
    meta = {"annotations": GANG if annotations is None else annotations, "labels": marks or {}}
    body["spec"]["template"]["metadata"] = meta
    return body


def phases(world: World, *names: str) -> list[str]:
    return [str(status_of(world, name).get("phase", "Pending")) for name in names]


def test_members_of_a_gang_start_together_in_rooms_that_are_kept_for_them() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        put_reservation(world, reservation("a", cpu="3"))
        await world.settle()
        world.api.put("Pod", pod("stranger", cpu="3"))
        for name in ("0", "1"):
            world.api.put("Pod", member(name, affinity="{}"))
        await world.settle(5)
        assert [node_of(world, name) for name in ("0", "1")] == ["", ""]
        assert status_of(world, "a")["phase"] == "Available", (
            "the room is given back when the other fits nowhere"
        )
        world.api.remove("Pod", "stranger", "default")
        put_reservation(world, reservation("b", cpu="3"))
        await world.settle(60)
        assert {node_of(world, name) for name in ("0", "1")} == {"node-0", "node-1"}
        assert phases(world, "a", "b") == ["Succeeded", "Succeeded"]
        assert all(used_by(world, name) for name in ("0", "1"))

    play(story)


def test_the_reservations_of_a_gang_get_their_nodes_together_or_none() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, for_gang("a"))
        await world.settle(5)
        assert phases(world, "a") == ["Pending"], "the other one is not there yet"
        put_reservation(world, for_gang("b"))
        await world.settle(5)
        assert phases(world, "a", "b") == ["Pending", "Pending"]
        world.api.put("Pod", pod("stranger", cpu="3"))
        await world.settle(5)
        assert node_of(world, "stranger") == "node-0", "half of a gang keeps nobody out"
        world.nodes(3, cpu="4")
        await world.settle(60)
        assert phases(world, "a", "b") == ["Available", "Available"]
        a = world.api.objects["Reservation"][("", "a")]
        assert a["metadata"]["annotations"][labels.BIND_GANG_MEMBER_COUNT] == "2"

    play(story)


def test_reservations_do_not_make_up_the_numbers_of_the_gang_itself() -> None:
    async def story(world: World) -> None:
        world.nodes(4, cpu="4")
        for name in "ab":
            put_reservation(world, for_gang(name))
        await world.settle(5)
        assert phases(world, "a", "b") == ["Available", "Available"]
        world.api.put("Pod", member("0"))
        await world.settle(5)
        assert node_of(world, "0") == ""
        world.api.put("Pod", member("1"))
        await world.settle(5)
        assert used_by(world, "0") and used_by(world, "1")

    play(story)


def test_a_pod_group_says_how_many_reservations_belong_together() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for name in "ab":
            put_reservation(world, for_gang(name, {}, {labels.POD_GROUP: "pg"}))
        await world.settle(5)
        assert phases(world, "a", "b") == ["Pending", "Pending"]
        group = {"metadata": {"name": "pg", "namespace": "default"}, "spec": {"minMember": 3}}
        world.api.put("PodGroup", group)
        await world.settle(5)
        assert phases(world, "a", "b") == ["Pending", "Pending"]
        world.api.put("PodGroup", {**group, "spec": {"minMember": 2}})
        await world.settle(5)
        assert phases(world, "a", "b") == ["Available", "Available"]
        for name in "ab":
            world.api.remove("Reservation", name)
        put_reservation(world, for_gang("c", {}, {labels.POD_GROUP: "pg"}))
        await world.settle(5)
        assert phases(world, "c") == ["Pending"], "what was there before counts no more"

    play(story)


def test_a_reservation_that_could_not_be_written_keeps_the_others_of_its_gang() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for name in "ab":
            put_reservation(world, for_gang(name))
        world.api.fail_next["patch"] = [errors.Forbidden("no")]
        await world.settle(60)
        assert phases(world, "a", "b") == ["Available", "Available"]

    play(story)


def test_what_the_descheduler_reserves_for_one_member_waits_for_no_others() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, for_gang("a", marks={labels.CREATED_BY: labels.DESCHEDULER}))
        await world.settle(5)
        assert phases(world, "a") == ["Available"]

    play(story)


def test_why_the_reservations_of_a_gang_wait_is_told_on_them() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for name in "ab":
            put_reservation(world, for_gang(name))
        await world.settle(5)
        messages = [status_of(world, name)["conditions"][0]["message"] for name in "ab"]
        assert "Insufficient cpu" in messages[0]
        assert messages[1].startswith(
            '0/1 nodes are available: 1 GangGroup "default/g/reservations" gets rejected'
        )

    play(story)


def test_reservations_of_a_gang_that_are_gone_are_not_remembered() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for name in "ab":
            put_reservation(world, for_gang(name))
        await world.settle(5)
        early = early_of(world)
        assert len(early._keys) == 2
        for name in "ab":
            world.api.remove("Reservation", name)
        await world.settle(1)
        assert not early._keys

    play(story)
