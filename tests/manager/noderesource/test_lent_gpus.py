"""What nodes lend of GPUs: never more than is predicted free, on cards that are there, where a pool wants it."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.device import Device
from koordinator.manager.noderesource import lent_gpus
from koordinator.manager.noderesource.lent_gpus import CardAmount
from tests.manager.noderesource.world import World, node_body, run

CORE, MEMORY, RATIO = (f"koordinator.sh/gpu-{part}" for part in ("core", "memory", "memory-ratio"))
BATCH_CORE, BATCH_MEMORY = "koordinator.sh/batch-gpu-core", "koordinator.sh/batch-gpu-memory"
LENT = "node.koordinator.sh/batch-gpus"
GIB = 2**30


def gpu(minor: int, core: int, memory_gib: int, name: str = "", **more: Any) -> dict[str, Any]:
    amounts = {CORE: str(core), MEMORY: f"{memory_gib}Gi"}
    return {"type": "gpu", "id": name or f"GPU-{minor}", "minor": minor, "resources": amounts, **more}


async def cards(world: World, *devices: dict[str, Any]) -> None:
    await world.user.create(Device, {"metadata": {"name": "n1"}, "spec": {"devices": list(devices)}})


async def report(world: World, *free: dict[str, Any], **more: Any) -> None:
    resource = {"resources": {"cpu": "1", "memory": "1G"}, "devices": list(free)}
    await world.report(prodReclaimableMetric={"resource": resource}, **more)


async def lent(world: World) -> dict[int, tuple[str, str]]:
    """Core and memory by minor, which the sums of the node agree with."""
    node = await world.node()
    text = node.metadata.annotations.get(LENT)
    allocatable, capacity = node.status.allocatable, node.status.capacity
    if text is None:
        assert not {BATCH_CORE, BATCH_MEMORY} & (allocatable.keys() | capacity.keys())
        return {}
    entries = json.loads(text)["gpu"]
    found = {
        each["minor"]: (each["resources"][BATCH_CORE], each["resources"][BATCH_MEMORY]) for each in entries
    }
    assert allocatable[BATCH_CORE] == str(sum(int(core) for core, _ in found.values()))
    assert allocatable[BATCH_MEMORY] == str(sum(int(each[:-2]) * GIB for _, each in found.values()))
    return found


def test_a_pool_lends_its_share_of_what_stays_free_of_each_card() -> None:
    async def scenario(world: World) -> None:
        await cards(world, gpu(0, 100, 80, health=True), gpu(1, 100, 80, health=True))
        await world.configure(colocation_config='{"enable": true, "gpuReclaimPercent": 50}')
        await report(world, gpu(0, 73, 41), gpu(1, 10, 80))

        assert await lent(world) == {0: ("35", "20Gi"), 1: ("5", "40Gi")}

    run(scenario)


def test_nothing_is_lent_unless_the_pool_says_so() -> None:
    async def scenario(world: World) -> None:
        await cards(world, gpu(0, 100, 80, health=True))
        await world.configure(colocation_config='{"enable": true}')
        await report(world, gpu(0, 73, 41))
        assert await lent(world) == {}

        pool = {"name": "gpus", "nodeSelector": {"matchLabels": {"pool": "gpu"}}, "gpuReclaimPercent": 100}
        await world.configure(colocation_config=json.dumps({"enable": True, "nodeConfigs": [pool]}))
        assert await lent(world) == {0: ("70", "41Gi")}

    run(scenario, nodes=[node_body(labels={"pool": "gpu"})])


def test_what_is_lent_follows_the_prediction_card_by_card_even_where_the_sum_stays() -> None:
    async def scenario(world: World) -> None:
        await cards(world, gpu(0, 100, 80, health=True), gpu(1, 100, 80, health=True))
        await world.configure(colocation_config='{"enable": true, "gpuReclaimPercent": 100}')
        await report(world, gpu(0, 60, 40), gpu(1, 20, 10))
        assert await lent(world) == {0: ("60", "40Gi"), 1: ("20", "10Gi")}

        await report(world, gpu(0, 20, 10), gpu(1, 60, 40))
        assert await lent(world) == {0: ("20", "10Gi"), 1: ("60", "40Gi")}

    run(scenario)


def test_series_of_gpus_are_of_nodes_that_lend_some_and_fall_to_nothing_with_them() -> None:
    async def scenario(world: World) -> None:
        gauge = world.controller._metrics.node_allocatable.values
        core, memory = ("n1", BATCH_CORE, "integer"), ("n1", BATCH_MEMORY, "byte")
        await cards(world, gpu(0, 100, 80, health=True))
        await world.configure(colocation_config='{"enable": true}')
        await report(world, gpu(0, 60, 40))
        assert ("n1", "kubernetes.io/batch-cpu", "integer") in gauge
        assert not {core, memory} & gauge.keys()

        await world.configure(colocation_config='{"enable": true, "gpuReclaimPercent": 100}')
        await report(world, gpu(0, 60, 40))
        assert (gauge[core], gauge[memory]) == (60, 40 * GIB)

        await world.configure(colocation_config='{"enable": true}')
        await report(world, gpu(0, 60, 40))
        assert (gauge[core], gauge[memory]) == (0, 0)

    run(scenario)


def test_a_node_whose_agent_is_silent_lends_no_cards() -> None:
    async def scenario(world: World) -> None:
        await cards(world, gpu(0, 100, 80, health=True))
        await world.configure(colocation_config='{"enable": true, "gpuReclaimPercent": 100}')
        await report(world, gpu(0, 60, 40))
        assert await lent(world)

        await asyncio.sleep(16 * 60)
        assert await lent(world) == {}

    run(scenario)


def test_cards_that_are_broken_or_numbered_anew_lend_nothing() -> None:
    async def scenario(world: World) -> None:
        broken, other = gpu(0, 100, 80, health=False), gpu(1, 100, 80, "GPU-new", health=True)
        await cards(world, broken, other, gpu(2, 100, 80, health=True))
        await world.configure(colocation_config='{"enable": true, "gpuReclaimPercent": 100}')
        await report(world, gpu(0, 60, 40), gpu(1, 60, 40), gpu(3, 60, 40, "GPU-2"))

        assert await lent(world) == {}

    run(scenario)


def test_a_percentage_that_cannot_be_is_refused() -> None:
    async def scenario(world: World) -> None:
        await cards(world, gpu(0, 100, 80, health=True))
        await world.configure(colocation_config='{"enable": true, "gpuReclaimPercent": 50}')
        await world.configure(colocation_config='{"enable": true, "gpuReclaimPercent": 101}')
        await report(world, gpu(0, 60, 40))

        assert await lent(world) == {0: ("30", "20Gi")}

    run(scenario)


AMOUNT = st.tuples(st.integers(-50, 250), st.integers(-(2**34), 2**40))


@given(
    free=st.dictionaries(st.integers(0, 4), AMOUNT),
    has=st.dictionaries(st.integers(0, 4), AMOUNT),
    percent=st.integers(0, 100),
)
def test_no_card_lends_more_than_its_share_of_what_is_free_and_there(
    free: dict[int, tuple[int, int]], has: dict[int, tuple[int, int]], percent: int
) -> None:
    reported, known = (
        {f"GPU-{minor}": CardAmount(minor, *amounts) for minor, amounts in each.items()}
        for each in (free, has)
    )

    found = lent_gpus.lent(reported, known, percent)

    for name, card in found.items():
        for amount, predicted, total in (
            (card.core_percent, reported[name].core_percent, known[name].core_percent),
            (card.memory_bytes, reported[name].memory_bytes, known[name].memory_bytes),
        ):
            assert 0 < amount <= total
            assert amount * 100 <= predicted * percent
    sums = lent_gpus.sums(found)
    assert (sums[BATCH_CORE] or 0) == sum(card.core_percent for card in found.values())
