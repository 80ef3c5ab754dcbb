"""FragmentationGradient in a running scheduler: nodes, cards, learning, restarts; what is kept equals what is new."""

import json
import random

import numpy as np
import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.clock import FixedClock
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.device_share.plugin import DeviceShare
from koordinator.scheduler.plugins.fragmentation import target
from koordinator.scheduler.plugins.fragmentation.books import CostBook, GPUNodes
from koordinator.scheduler.plugins.fragmentation.demand import PodDemand, Shape
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.simulate.replay_config import config_of
from koordinator.simulate.replay_options import GpuScore
from tests.scheduler.device_share.test_plugin import (
    ALLOCATED,
    CORE,
    MEMORY,
    RATIO,
    allocated,
    device,
    found,
    gpu_pod,
    machine,
    minors,
)
from tests.scheduler.world import Json, World, node, play

GRADIENT = config_of(GpuScore.FRAGMENTATION_GRADIENT)


def there(name: str, minor: int, percent: int, node_name: str = "a") -> Json:
    """A pod that runs and holds a part of a card."""
    amounts = {CORE: str(percent), RATIO: str(percent), MEMORY: "1Gi"}
    held = {"gpu": [{"minor": minor, "resources": amounts}]}
    return gpu_pod(name, percent, annotations={ALLOCATED: json.dumps(held)}, nodeName=node_name)


@pytest.mark.parametrize("numa", [False, True])
def test_parts_go_on_cards_in_use_before_anything_is_learned(numa: bool) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4, numa=numa)
        for name, percent in (("one", 60), ("two", 50), ("three", 50), ("four", 40)):
            world.api.put("Pod", gpu_pod(name, percent))
            await world.settle()

        assert minors(world, "one") == minors(world, "four") == [0]
        assert minors(world, "two") == minors(world, "three") == [1]

    play(story, GRADIENT)


def test_after_a_restart_pods_that_run_teach_which_rest_of_a_card_is_of_no_use() -> None:
    async def story(world: World) -> None:
        # Half of card 0 is left, 40 % of card 1. Pods of 50 % come often, none that fit into 40 %: it costs nothing.
        for number in range(20):
            world.api.put("Pod", there(f"elsewhere-{number}", number, 50, "gone"))
        world.api.put("Pod", there("first", 0, 50))
        world.api.put("Pod", there("second", 1, 60))
        machine(world, "a", gpus=2)
        world.api.put("Pod", gpu_pod("small", 10))
        await world.settle()

        assert minors(world, "small") == [1]

    play(story, GRADIENT)


def test_pods_without_gpus_leave_the_cpus_of_cards_alone() -> None:
    async def story(world: World) -> None:
        for number in range(20):
            world.api.put("Pod", there(f"elsewhere-{number}", number, 100, "gone"))
        machine(world, "gpus", gpus=2)
        world.api.put("Node", node("plain", cpu="64", memory="256Gi"))
        body = gpu_pod("plain-pod", 100)
        body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "63"}
        world.api.put("Pod", body)
        await world.settle()

        assert found(world, "plain-pod")["spec"]["nodeName"] == "plain"

    play(story, GRADIENT)


def test_a_whole_card_is_taken_from_a_node_where_it_leaves_whole_sets() -> None:
    async def story(world: World) -> None:
        for number in range(20):
            world.api.put("Pod", there(f"elsewhere-{number}", number, 200, "gone"))
        machine(world, "odd", gpus=3)
        machine(world, "even", gpus=2)
        world.api.put("Pod", gpu_pod("single", 100))
        await world.settle()
        assert found(world, "single")["spec"]["nodeName"] == "odd"

        world.api.put("Pod", gpu_pod("pair", 200))
        await world.settle()
        assert len(allocated(world, "pair")["gpu"]) == 2

    play(story, GRADIENT)


def test_a_model_that_came_since_the_target_was_made_counts_as_none() -> None:
    engine = Engine(GRADIENT, FixedClock(), plugins=installed_plugins())
    nodes = GPUNodes(engine.table)
    made = target.target_of({DEMANDS[0]: 1.0}, ())
    book = CostBook(engine.table, nodes, made)
    for number, model in enumerate(("T4", "A10", "")):
        labels = {"node.koordinator.sh/gpu-model": model} if model else {}
        engine.table.set_node(from_builtins(node(f"n-{number}", labels=labels), Node))

    assert nodes.models(engine.table.rows, 0).tolist() == [0, 0, 0]
    assert nodes.models(engine.table.rows, 1).tolist() == [0, 1, 1]
    assert np.isfinite(book.costs(DEMANDS[3], engine.table.rows)).all()


DEMANDS = [
    PodDemand(Shape(1_000, 1 << 30, 1, 30)),
    PodDemand(Shape(9_000, 1 << 30, 1, 70)),
    PodDemand(Shape(2_000, 40 << 30, 2, 100)),
    PodDemand(Shape(5_000, 9 << 30, 0, 0)),
]


def test_costs_that_are_kept_are_those_worked_out_anew() -> None:
    generator = random.Random(7)
    engine = Engine(GRADIENT, FixedClock(), plugins=installed_plugins())
    [profile] = engine.profiles.values()
    plugin = next(each for each in profile.plugins if isinstance(each, DeviceShare))
    for number in range(6):
        cards = generator.choice((1, 2, 4))
        extra = {CORE: str(100 * cards), RATIO: str(100 * cards), MEMORY: f"{16 * cards}Gi"}
        body = node(f"n-{number}", cpu="32", memory="128Gi", extra=extra)
        engine.table.set_node(from_builtins(body, Node))
        plugin.set_device(None, from_builtins(device(f"n-{number}", cards), Device))
    nodes = GPUNodes(engine.table)
    made = target.target_of(dict.fromkeys(DEMANDS[:3], 1 / 3), nodes.model_names)
    kept = CostBook(engine.table, nodes, made)
    running: list[str] = []
    for number in range(80):
        if running and generator.random() < 0.3:
            engine.table.unassign(running.pop(generator.randrange(len(running))))
        body = gpu_pod(f"p-{number}", generator.choice((20, 50, 70, 100, 200)))
        pod = PodInfo.of(from_builtins(body, Pod), engine.table.registry)
        if isinstance(engine.cycle.run(profile, pod, profile.class_key(pod), 1, 0.0), Placed):
            running.append(pod.uid)
        rows = engine.table.rows
        asked = rows[np.sort(generator.sample(range(rows.size), 3))]
        for demand in DEMANDS:
            fresh = CostBook(engine.table, nodes, made)
            assert np.allclose(kept.costs(demand, asked), fresh.costs(demand, asked), atol=1e-2)
    assert len(running) > 5
