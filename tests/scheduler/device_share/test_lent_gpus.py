"""What services leave of their cards is given to batch pods, and takes nothing from anybody."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.plugins.device_share import request
from koordinator.scheduler.plugins.device_share.node_device_cache import NodeDeviceCache
from tests.scheduler.device_share.test_plugin import (
    CORE,
    MEMORY,
    RATIO,
    device,
    found,
    gpu_pod,
    is_bound,
    machine,
    minors,
)
from tests.scheduler.world import Json, World, node, play, pod

BATCH_CORE, BATCH_MEMORY = "koordinator.sh/batch-gpu-core", "koordinator.sh/batch-gpu-memory"
LENT = "node.koordinator.sh/batch-gpus"
GIB = 2**30


def lend(
    world: World,
    cards: dict[int, tuple[int, int]],
    *,
    name: str = "a",
    gpus: int = 2,
    labels: Json | None = None,
) -> None:
    """A node whose cards lend so much core (percent) and memory (GiB), as the manager writes it."""
    entries = [
        {
            "minor": minor,
            "id": f"GPU-{minor}",
            "resources": {BATCH_CORE: str(core), BATCH_MEMORY: f"{memory}Gi"},
        }
        for minor, (core, memory) in cards.items()
    ]
    extra = {
        CORE: str(100 * gpus),
        RATIO: str(100 * gpus),
        MEMORY: f"{16 * gpus}Gi",
        BATCH_CORE: str(sum(core for core, _ in cards.values())),
        BATCH_MEMORY: f"{sum(memory for _, memory in cards.values())}Gi",
    }
    body = node(name, cpu="64", memory="256Gi", extra=extra, labels=labels or {})
    body["metadata"]["annotations"] = {LENT: json.dumps({"gpu": entries})}
    world.api.put("Node", body)
    world.api.put("Device", device(name, gpus))


def batch_pod(name: str, core: int = 30, memory_gib: int = 4, **more: str) -> Json:
    requests = {"cpu": "1", BATCH_CORE: str(core), BATCH_MEMORY: f"{memory_gib}Gi", **more}
    body = pod(name, requests=requests)
    body["metadata"]["uid"] = f"uid-{name}"
    return body


async def put(world: World, body: Json) -> None:
    world.api.put("Pod", body)
    await world.settle()


def test_a_batch_pod_goes_to_the_card_that_lends_and_says_so() -> None:
    async def story(world: World) -> None:
        lend(world, {1: (40, 8)})
        await put(world, batch_pod("batch"))

        annotation = "scheduling.koordinator.sh/device-allocated"
        assert json.loads(found(world, "batch")["metadata"]["annotations"][annotation]) == {
            "gpu": [{"minor": 1, "id": "GPU-1", "resources": {BATCH_CORE: "30", BATCH_MEMORY: "4Gi"}}]
        }

    play(story)


def test_what_is_lent_is_given_once() -> None:
    async def story(world: World) -> None:
        lend(world, {0: (50, 8), 1: (50, 8)})
        for name in ("one", "two", "three"):
            await put(world, batch_pod(name))

        assert sorted(minors(world, "one") + minors(world, "two")) == [0, 1]
        assert not is_bound(world, "three")
        assert "Insufficient" in world.condition("three")["message"]

    play(story)


def test_cards_that_lend_nothing_refuse() -> None:
    async def story(world: World) -> None:
        machine(world, "a")
        # The node says that it has some, and names no card.
        extra = {CORE: "200", RATIO: "200", MEMORY: "32Gi", BATCH_CORE: "100", BATCH_MEMORY: "16Gi"}
        world.api.put("Node", node("a", cpu="64", memory="256Gi", extra=extra))
        await put(world, batch_pod("batch"))

        assert not is_bound(world, "batch")

    play(story)


def test_owners_get_their_whole_cards_whatever_is_lent_of_them() -> None:
    async def story(world: World) -> None:
        lend(world, {0: (80, 12), 1: (80, 12)})
        for name in ("one", "two"):
            await put(world, batch_pod(name, 60, 8))
        await put(world, gpu_pod("owner", 200))

        assert minors(world, "owner") == [0, 1]

    play(story)


def test_a_partition_of_cards_is_free_for_owners_whatever_is_lent_of_them() -> None:
    async def story(world: World) -> None:
        honors = {
            "node.koordinator.sh/gpu-model": "H100",
            "node.koordinator.sh/gpu-partition-policy": "Honor",
        }
        lend(world, {0: (60, 8), 5: (60, 8)}, gpus=8, labels=honors)
        for name in ("one", "two"):
            await put(world, batch_pod(name, 60, 8))
        await put(world, gpu_pod("owner", 800))

        assert minors(world, "owner") == list(range(8))

    play(story)


def test_a_batch_pod_waits_for_a_card_that_lends_and_starts_when_one_does() -> None:
    async def story(world: World) -> None:
        lend(world, {0: (10, 2)})
        await put(world, batch_pod("batch"))
        assert not is_bound(world, "batch")

        lend(world, {0: (10, 2), 1: (60, 8)})
        await world.settle(30)

        assert minors(world, "batch") == [1]

    play(story)


def test_a_card_that_is_another_one_now_lends_nothing() -> None:
    async def story(world: World) -> None:
        lend(world, {0: (60, 8)}, gpus=1)
        body = device("a", 1)
        body["spec"]["devices"][0]["id"] = "GPU-new"
        world.api.put("Device", body)
        await put(world, batch_pod("batch"))

        assert not is_bound(world, "batch")

    play(story)


def test_an_annotation_that_cannot_be_read_lends_nothing_and_keeps_the_cards() -> None:
    async def story(world: World) -> None:
        lend(world, {0: (60, 8)}, gpus=1)
        extra = {CORE: "100", RATIO: "100", MEMORY: "16Gi", BATCH_CORE: "60", BATCH_MEMORY: "8Gi"}
        body = node("a", cpu="64", memory="256Gi", extra=extra)
        body["metadata"]["annotations"] = {LENT: '{"gpu": 7}'}
        world.api.put("Node", body)
        await put(world, batch_pod("batch"))
        await put(world, gpu_pod("owner", 100))

        assert not is_bound(world, "batch")
        assert minors(world, "owner") == [0]

    play(story)


def test_both_amounts_belong_to_a_request_and_nothing_of_an_owner() -> None:
    for asked in (
        {BATCH_CORE: "30"},
        {BATCH_MEMORY: "4Gi"},
        {BATCH_CORE: "200", BATCH_MEMORY: "4Gi"},
        {BATCH_CORE: "30", BATCH_MEMORY: "4Gi", CORE: "10", RATIO: "10"},
    ):
        assert "invalid resource device requests" in request.parse(asked).status.message
    assert request.parse({BATCH_CORE: "30", BATCH_MEMORY: "4Gi"}).status.is_success


ASKED = st.one_of(
    st.tuples(st.just("batch"), st.sampled_from((10, 30, 60)), st.sampled_from((1, 4, 8))),
    st.tuples(st.just("owner"), st.sampled_from((30, 50, 100)), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 7), st.just(0)),
    st.tuples(st.just("lend"), st.sampled_from((0, 20, 50, 80)), st.sampled_from((1, 8, 12))),
)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(ASKED, max_size=14))
def test_neither_owners_nor_batch_pods_are_ever_given_more_than_there_is(
    steps: list[tuple[str, int, int]],
) -> None:
    """Owners fit as if nothing was lent; batch pods fit into what was lent when they were placed."""

    async def story(world: World) -> None:
        lent = {0: (50, 8), 1: (50, 8)}
        lend(world, lent)
        alive: list[str] = []
        for number, (what, size, memory) in enumerate(steps):
            name = f"{what}-{number}"
            if what == "lend":
                lent = {0: (size, memory), 1: (50, 8)}
                lend(world, lent)
                await world.settle()
                continue
            if what == "end":
                if size < len(alive):
                    world.api.remove("Pod", alive.pop(size), "default")
                    await world.settle()
                continue
            before = _used(world)
            await put(world, batch_pod(name, size, memory) if what == "batch" else gpu_pod(name, size))
            if not is_bound(world, name):
                fits = any(before.get(minor, {}).get(CORE, 0) + size <= 100 for minor in lent)
                assert what == "batch" or not fits, "an owner is never kept away by what is lent"
                world.api.remove("Pod", name, "default")
                await world.settle()
                continue
            alive.append(name)
            [minor] = minors(world, name)
            used = _used(world)[minor]
            assert used.get(CORE, 0) <= 100 and used.get(MEMORY, 0) <= 16 * GIB
            if what == "batch":
                core, memory_gib = lent[minor]
                assert used[BATCH_CORE] <= core and used[BATCH_MEMORY] <= memory_gib * GIB

    play(story)


def _used(world: World) -> dict[int, dict[str, Any]]:
    cache = world.scheduler.engine.table.shared(NodeDeviceCache)
    return {minor: dict(amounts) for minor, amounts in cache.at(0).used.get("gpu", {}).items()}
