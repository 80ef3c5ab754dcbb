"""Reservations placed onto running pods that will leave: nobody else gets their room in between."""

import json
from typing import Any

import msgspec
import pytest

from koordinator.api import labels
from koordinator.cluster import errors
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, SchedulerConfig
from tests.scheduler.reservation.test_plugin import (
    Json,
    node_of,
    owned,
    put_reservation,
    reservation,
    status_of,
    used_by,
)
from tests.scheduler.world import World, play

CLUSTER = {"preAllocationPolicy": {"mode": "Cluster"}}


def config(**args: Any) -> SchedulerConfig:
    shipped = default_plugins.shipped_profile()
    own = PluginConfig(name="Reservation", args={"preAllocationConfig": args})
    return SchedulerConfig(
        profiles=[msgspec.structs.replace(shipped, plugin_config=[*shipped.plugin_config, own])]
    )


def fence(name: str, *, cpu: str = "3", memory: str = "1Gi", required: bool = False, **spec: Any) -> Json:
    policy = {"preAllocation": True, "allocatePolicy": "Restricted", "allocateOnce": False}
    body = reservation(name, cpu=cpu, memory=memory, **{**policy, **spec})
    if required:
        body["metadata"]["labels"] = {labels.PRE_ALLOCATION_REQUIRED: "true"}
    return body


def runs(name: str, app: str = "web", *, cpu: str = "3", mark: bool = False, priority: str = "0") -> Json:
    body = owned(name, app=app, cpu=cpu, nodeName="node-0")
    body["metadata"]["annotations"] = {labels.PRE_ALLOCATABLE_PRIORITY: priority}
    if mark:
        body["metadata"]["labels"][labels.POD_IS_PRE_ALLOCATABLE] = "true"
    body["status"] = {"phase": "Running"}
    return body


def uses(world: World, name: str) -> str:
    text = used_by(world, name)
    return str(json.loads(text)["name"]) if text else ""


def test_the_room_of_a_running_pod_is_kept_for_its_successor() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", runs("old"))
        await world.settle()
        put_reservation(world, fence("room"))
        await world.settle()
        assert (status_of(world, "room")["phase"], uses(world, "old")) == ("Available", "room")
        assert [each["name"] for each in status_of(world, "room")["currentOwners"]] == ["old"]

        world.api.put("Pod", owned("stranger", app="other", cpu="2"))
        await world.settle()
        world.api.remove("Pod", "old", "default")
        await world.settle(15)
        assert node_of(world, "stranger") == ""
        world.api.put("Pod", owned("new", cpu="3"))
        await world.settle()
        assert (node_of(world, "new"), uses(world, "new")) == ("node-0", "room")

    play(story)


def test_a_reservation_waits_for_a_pod_that_it_may_take_over() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, fence("room", required=True))
        await world.settle()
        [refused] = status_of(world, "room")["conditions"]
        assert "no pod match reservation with pre allocation required" in refused["message"]
        world.api.put("Pod", runs("another", app="other", cpu="1"))
        await world.settle(15)
        assert "nodeName" not in status_of(world, "room")
        world.api.put("Pod", runs("old", cpu="2"))
        await world.settle(15)
        assert (status_of(world, "room")["nodeName"], uses(world, "old")) == ("node-0", "room")

    play(story)


@pytest.mark.parametrize(("prefers_none", "taken"), [(True, ""), (False, "room")])
def test_free_room_is_used_first_if_that_is_wished(prefers_none: bool, taken: str) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        world.api.put("Pod", runs("old"))
        await world.settle()
        put_reservation(world, fence("room"))
        await world.settle()
        assert (status_of(world, "room")["phase"], uses(world, "old")) == ("Available", taken)

    play(story, config(preferNoPreAllocatedPods=prefers_none))


def test_marked_pods_are_taken_over_by_priority_whoever_owns_the_reservation() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for name, priority in (("low", "1"), ("high", "2")):
            world.api.put("Pod", runs(name, app="batch", cpu="2", mark=True, priority=priority))
        await world.settle()
        put_reservation(world, fence("room", cpu="2", **CLUSTER))
        await world.settle()
        assert (uses(world, "low"), uses(world, "high")) == ("", "room")

    play(story, config(enableClusterMode=True))


def test_several_pods_leave_for_one_reservation_where_that_is_allowed() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(4):
            world.api.put("Pod", runs(f"old-{number}", cpu="1"))
        await world.settle()
        put_reservation(world, fence("one", cpu="3"))
        await world.settle()
        assert "nodeName" not in status_of(world, "one"), "one pod less is not enough"
        put_reservation(world, fence("several", memory="3Gi", preAllocationPolicy={"enableMultiple": True}))
        await world.settle()
        assert status_of(world, "several")["phase"] == "Available"
        assert sorted(uses(world, f"old-{number}") for number in range(4)) == ["", *["several"] * 3]

    play(story)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param(
            CLUSTER, "requires cluster mode pre-allocation which is disabled", id="cluster mode is off"
        ),
        pytest.param({"allocatePolicy": "Aligned"}, "pre allocation is unsupported", id="not restricted"),
    ],
)
def test_what_cannot_be_placed_onto_pods_says_why(spec: Json, why: str) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        put_reservation(world, fence("room", **spec))
        await world.settle()
        [refused] = status_of(world, "room")["conditions"]
        assert why in refused["message"]

    play(story)


def test_a_pod_whose_reservation_could_not_be_placed_does_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", runs("old"))
        await world.settle()
        patch = world.api.patch
        seen: list[str] = []

        async def refused(view: type[Any], name: str, body: Any, *rest: Any, **options: Any) -> Any:
            if body.get("status", {}).get("phase") == "Available":
                seen.append(uses(world, "old"))
                raise errors.Forbidden("no")
            return await patch(view, name, body, *rest, **options)

        with monkeypatch.context() as patched:
            patched.setattr(world.api, "patch", refused)
            put_reservation(world, fence("room"))
            await world.settle(0.5)
            assert (seen, uses(world, "old")) == (["room"], "")
        await world.settle(30)
        assert (status_of(world, "room")["phase"], uses(world, "old")) == ("Available", "room")

    play(story)


def test_a_pod_is_taken_over_by_one_reservation_only() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="16")
        world.api.put("Pod", runs("old"))
        await world.settle()
        for name in ("a", "b"):
            put_reservation(world, fence(name, required=True))
        await world.settle(30)
        placed = {name for name in ("a", "b") if status_of(world, name).get("phase") == "Available"}
        assert placed == {uses(world, "old")}
        notes = [each["message"] for each in world.api.events("FailedScheduling")]
        assert notes and all("no pod match reservation" in note for note in notes)

    play(story)


def test_a_pod_that_is_too_big_for_the_reservation_is_left_alone() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        world.api.put("Pod", runs("old", cpu="4"))
        await world.settle()
        put_reservation(world, fence("room"))
        await world.settle()
        assert (status_of(world, "room")["phase"], uses(world, "old")) == ("Available", "")

    play(story)


def test_what_an_attempt_before_a_restart_wrote_is_taken_off_again() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        name_of_it = json.dumps({"name": "room", "uid": "uid-room"})
        for name, cpu in (("fits", "3"), ("grew", "4")):
            body = runs(name, cpu=cpu)
            body["metadata"]["annotations"][labels.RESERVATION_ALLOCATED] = name_of_it
            body["spec"]["nodeName"] = "node-1" if name == "grew" else "node-0"
            world.api.put("Pod", body)
        await world.settle()
        put_reservation(world, fence("room"))
        await world.settle()
        assert status_of(world, "room")["nodeName"] == "node-0"
        assert (uses(world, "fits"), uses(world, "grew")) == ("room", "")

    play(story)


def test_a_pod_elsewhere_does_not_use_a_reservation_that_has_its_node() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        world.api.put("Pod", runs("old"))
        await world.settle()
        put_reservation(world, fence("room"))
        await world.settle()
        late = runs("late", cpu="1")
        late["spec"]["nodeName"] = "node-1"
        late["metadata"]["annotations"][labels.RESERVATION_ALLOCATED] = json.dumps(
            {"name": "room", "uid": "uid-room"}
        )
        world.api.put("Pod", late)
        await world.settle(2)
        assert (uses(world, "old"), uses(world, "late")) == ("room", "")

    play(story)


def test_a_reservation_that_fits_no_more_lets_go_of_pods_that_it_was_to_take_over() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        body = runs("grew", cpu="4")
        body["metadata"]["annotations"][labels.RESERVATION_ALLOCATED] = json.dumps(
            {"name": "room", "uid": "uid-room"}
        )
        world.api.put("Pod", body)
        await world.settle()
        put_reservation(world, fence("room", required=True))
        await world.settle()
        assert ("nodeName" in status_of(world, "room"), uses(world, "grew")) == (False, "")

    play(story)


def test_a_reservation_that_is_deleted_while_it_is_placed_lets_go_of_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", runs("old"))
        await world.settle()
        patch = world.api.patch

        async def deleted_before(view: type[Any], name: str, body: Any, *rest: Any, **options: Any) -> Any:
            if "status" in body and name == "room":
                assert uses(world, "old") == "room"
                world.api.remove("Reservation", "room")
                await world.settle()  # the scheduler has heard of it
            return await patch(view, name, body, *rest, **options)

        monkeypatch.setattr(world.api, "patch", deleted_before)
        put_reservation(world, fence("room"))
        await world.settle(5)
        assert uses(world, "old") == ""

    play(story)
