"""Reservations that make room for themselves, where the plugin's arguments allow it, and owners that make more."""

from typing import Any

import msgspec
import pytest

from koordinator.api import labels
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
from tests.scheduler.world import World, play, pod


def config(plugin: str = "Reservation", **args: Any) -> SchedulerConfig:
    shipped = default_plugins.shipped_profile()
    own = PluginConfig(name=plugin, args=args)
    return SchedulerConfig(
        profiles=[msgspec.structs.replace(shipped, plugin_config=[*shipped.plugin_config, own])]
    )


PREEMPTS = config(enablePreemption=True)


def runs(name: str, node_name: str = "node-0", *, cpu: str = "3", priority: int = 0, **marks: str) -> Json:
    body = pod(name, cpu=cpu, priority=priority, nodeName=node_name)
    body["metadata"]["labels"] = marks
    body["status"] = {"phase": "Running"}
    return body


def names(world: World) -> set[str]:
    return {each["metadata"]["name"] for each in world.api.pods()}


def of_priority(name: str, priority: int, **spec: Any) -> Json:
    body = reservation(name, cpu="3", **spec)
    body["metadata"]["labels"] = {labels.PRIORITY: str(priority)}
    return body


def test_a_reservation_evicts_less_important_pods_and_gets_their_room_before_others() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        world.api.put("Pod", runs("low", priority=5))
        world.api.put("Pod", runs("high", "node-1", priority=50))
        await world.settle()
        put_reservation(world, of_priority("room", 10))
        world.api.put("Pod", pod("stranger", cpu="3", priority=5))
        await world.settle(15)
        assert names(world) == {"high", "stranger"}
        assert status_of(world, "room")["nodeName"] == "node-0"
        assert node_of(world, "stranger") == ""
        [event] = world.api.events("Preempted")
        assert event["message"] == "Preempted by reservation room on node node-0"

    play(story, PREEMPTS)


@pytest.mark.parametrize("settings", [config(), config("Coscheduling", enablePreemption=True)])
def test_room_is_not_made_unless_the_arguments_say_so(settings: SchedulerConfig) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", runs("low"))
        await world.settle()
        put_reservation(world, of_priority("room", 10))
        await world.settle(15)
        assert names(world) == {"low"}

    play(story, settings)


def test_pods_that_must_not_be_preempted_stay() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", runs("kept", **{labels.DISABLE_PREEMPTIBLE: "true"}))
        await world.settle()
        put_reservation(world, of_priority("room", 10))
        world.api.put("Pod", pod("important", cpu="3", priority=100))
        await world.settle(15)
        assert names(world) == {"kept", "important"}
        [refused] = status_of(world, "room")["conditions"]
        assert "preemption: 0/1 nodes are available" in refused["message"]
        assert node_of(world, "important") == ""

    play(story, PREEMPTS)


def test_another_reservation_is_never_evicted() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, of_priority("first", 1))
        await world.settle()
        put_reservation(world, of_priority("second", 10))
        await world.settle(15)
        assert (status_of(world, "first")["phase"], "nodeName" in status_of(world, "second")) == (
            "Available",
            False,
        )

    play(story, PREEMPTS)


def test_an_owner_evicts_pods_for_what_it_needs_beyond_its_reservation() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        put_reservation(world, reservation("room", cpu="3"))
        await world.settle()
        world.api.put("Pod", runs("important", priority=50))
        world.api.put("Pod", runs("low", priority=5, cpu="2"))
        await world.settle()
        world.api.put("Pod", owned("web", cpu="5", priority=20))
        await world.settle(15)
        assert names(world) == {"important", "web"}
        assert node_of(world, "web") == "node-0"
        assert '"room"' in used_by(world, "web")

    play(story)
