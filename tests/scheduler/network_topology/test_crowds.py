"""Many gangs on one network, with whatever happens meanwhile: no gang runs half, none is torn apart."""

import random
from collections import defaultdict

import pytest

from koordinator.api.feature_gates import Component, FeatureGates
from tests.scheduler.network_topology.test_manager import rack
from tests.scheduler.network_topology.test_planning import BLOCK, SPINE, fabric, gang, on
from tests.scheduler.world import World, play, pod

WISHES = {"BlockLayer": BLOCK, "SpineLayer": SPINE}


def place_of(node: str, layer: str) -> str:
    return node[:5] if layer == "BlockLayer" else node[:2]


def members_of(world: World, name: str) -> list[str]:
    return [n for n in world.api.placements() if n.rpartition("-")[0] == name]


def check(world: World, sizes: dict[str, int], layers: dict[str, str]) -> list[str]:
    """The gangs that run; each of them as a whole, below one place of its layer, on nodes with room."""
    nodes: dict[str, list[str]] = defaultdict(list)
    used: dict[str, int] = defaultdict(int)
    for each in world.api.pods():
        node = each["spec"].get("nodeName")
        if node:
            nodes[each["metadata"]["name"].rpartition("-")[0]].append(node)
            used[node] += int(each["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    assert all(cpu <= 4 for cpu in used.values()), used
    for name, size in sizes.items():
        assert len(nodes[name]) in (0, size), (name, nodes[name])
        assert len({place_of(node, layers[name]) for node in nodes[name]}) <= 1, (name, nodes[name])
    return [name for name in sizes if nodes[name]]


@pytest.mark.parametrize("is_inline", [False, True], ids=["member by member", "at once"])
@pytest.mark.parametrize("seed", range(4))
def test_gangs_are_placed_whole_and_within_their_place(seed: int, is_inline: bool) -> None:
    rng = random.Random(seed)

    async def story(world: World) -> None:
        fabric(world, cpu="4")
        sizes: dict[str, int] = {}
        layers: dict[str, str] = {}
        for number in range(8):
            name = f"g{number}"
            layers[name] = rng.choice(sorted(WISHES))
            sizes[name] = rng.randint(2, 6)
            # The largest still fits the smallest place: 2 nodes of 4 cores.
            gang(world, name, sizes[name], WISHES[layers[name]], cpu="1" if sizes[name] > 4 else "2")
            await world.settle(rng.random() * 5)
            if rng.random() < 0.3:
                world.api.put("Pod", pod(f"single{number}-0", cpu="1"))
            check(world, sizes, layers)
            if rng.random() < 0.3:
                block = rng.randrange(4)
                node = f"s{block // 2}-b{block % 2}-x{number}"
                world.api.put("Node", rack(node, node[:2], node[:5], cpu="4"))
        waiting = set(sizes)
        while waiting:  # all that run end, which makes room for the others
            await world.settle(400)
            running = check(world, {name: sizes[name] for name in sorted(waiting)}, layers)
            assert running, waiting
            for name in running:
                for member in members_of(world, name):
                    world.api.remove("Pod", member, "default")
            waiting -= set(running)

    play(story, **on(gates=GATE if is_inline else None))


GATE = FeatureGates.of(Component.SCHEDULER, "EnableInlineBatchSchedule=true")
