"""Nodes that have a pod's image are preferred, also where only their agent tells of it."""

from typing import Any

import pytest

from koordinator.api.annotations.node import NODE_IMAGES, NodeImage, NodeImages
from tests.scheduler.world import World, node, play, pod

IMAGE = "shop/web:1"
TOLD = NODE_IMAGES.encode(NodeImages(images=[NodeImage(names=[IMAGE], size_bytes=900 << 20)]))


def with_image(name: str, text: str) -> dict[str, Any]:
    """A node whose agent says this of images that the kubelet does not name."""
    found = node(name)
    found["metadata"].setdefault("annotations", {})[NODE_IMAGES.key] = text
    return found


async def goes_to(world: World, name: str) -> str:
    wanted = pod(name)
    wanted["spec"]["containers"][0]["image"] = IMAGE
    world.api.put("Pod", wanted)
    await world.settle()
    return world.api.placements()[name]


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_an_image_that_only_the_agent_tells_of_draws_its_pods(holder: str) -> None:
    async def story(world: World) -> None:
        for name in ("n1", "n2"):
            world.api.put("Node", with_image(name, TOLD) if name == holder else node(name))

        assert await goes_to(world, "web") == holder

    play(story)


def test_when_the_agent_tells_of_it_no_more_or_wrongly_nothing_draws_pods() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", with_image("n1", TOLD))
        world.api.put("Node", node("n2", cpu="64"))  # emptier, once nothing else counts
        assert await goes_to(world, "first") == "n1"

        world.api.put("Node", with_image("n1", "{"))
        assert await goes_to(world, "second") == "n2"
        world.api.put("Node", node("n1"))
        assert await goes_to(world, "third") == "n2"

    play(story)
