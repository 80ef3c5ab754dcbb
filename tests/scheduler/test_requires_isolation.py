"""Pods that require isolation go where an agent proved it, and say why they wait elsewhere."""

from typing import Any

import pytest

from koordinator.api import isolation, labels
from tests.scheduler.world import World, node, play, pod, with_plugins

PROFILE = with_plugins(filter="RequiresIsolation")


def proven(name: str, **states: str) -> dict[str, Any]:
    return node(name, labels={isolation.label_of(kind): state for kind, state in states.items()})


@pytest.mark.parametrize("where", ["annotations", "labels"])
def test_only_nodes_with_all_of_it_proven_are_taken(where: str) -> None:
    async def story(world: World) -> None:
        world.api.put("Node", proven("broken", cpu="broken", memory="works"))
        world.api.put("Node", proven("half", cpu="works", memory="unknown"))
        world.api.put("Node", node("old"))
        one = pod("one")
        text = "cpu,memory" if where == "annotations" else "cpu.memory"
        one["metadata"].setdefault(where, {})[labels.REQUIRES_ISOLATION] = text
        world.api.put("Pod", one)
        world.api.put("Pod", pod("plain"))
        await world.settle()

        assert world.api.placements()["plain"] != ""
        assert world.api.placements()["one"] == ""
        message = world.condition("one")["message"]
        assert "1 node(s) whose agent found that the required isolation does not work" in message
        assert "2 node(s) whose agent has not proven the required isolation" in message

        world.api.put("Node", proven("half", cpu="works", memory="works"))
        await world.settle(20)
        assert world.api.placements()["one"] == "half"

    play(story, **PROFILE)


def test_a_kind_that_nobody_knows_is_proven_nowhere() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", proven("good", cpu="works", memory="works", io="works", cache="works"))
        one = pod("one")
        one["metadata"]["annotations"] = {labels.REQUIRES_ISOLATION: "network"}
        world.api.put("Pod", one)
        await world.settle()
        assert world.api.placements()["one"] == ""

    play(story, **PROFILE)
