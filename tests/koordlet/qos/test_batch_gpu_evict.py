"""Owners of GPUs get back what was lent of them: batch pods of that card go, no more than is enough, and say why."""

import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos import batch_gpu_evict
from koordinator.koordlet.qos.batch_gpu_evict import BatchGPUEvict, CardUse, LentCard
from koordinator.koordlet.qos.eviction import Arbitration
from koordinator.koordlet.qos.evictor import Evictor
from tests.cluster import virtual_loop
from tests.koordlet.qos.acting_node import ActingNode, make_pod
from tests.koordlet.report.agent_node import cards

GIB = 2**30
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


def holder(name: str, core: int, memory_gib: int, *, minor: int = 0, **parts: Any) -> Pod:
    """A pod with a part of a card; a batch pod unless its QoS says otherwise."""
    prefix = "batch-" if parts.get("qos", "BE") == "BE" else ""
    amounts = {
        f"koordinator.sh/{prefix}gpu-core": str(core),
        f"koordinator.sh/{prefix}gpu-memory": f"{memory_gib}Gi",
    }
    text = json.dumps({"gpu": [{"minor": minor, "id": f"GPU-{minor}", "resources": amounts}]})
    annotations = {ALLOCATED: text, **parts.pop("annotations", {})}
    return make_pod(name, annotations=annotations, **parts)


class LendingNode(ActingNode):
    """Two cards of 80 GiB; `web` owns the first."""

    def __init__(self, root: Path, *batch: Pod) -> None:
        super().__init__(root, gates="BatchGPU=true")
        self.shared = msgspec.structs.replace(self.shared, gpus=cards())
        self.set_pods([holder("web", 100, 80, qos="LS"), *batch])
        self.strategy = BatchGPUEvict(self.shared, Evictor(self.shared))

    async def round(self, used: Mapping[str, tuple[float, float]], card: int = 0) -> list[str]:
        """Pods use so many percent and GiB of a card; who was evicted so far."""
        self.use(used, card)
        await self.strategy.run()
        return self.api.names

    def use(self, used: Mapping[str, tuple[float, float]], card: int = 0) -> None:
        at = {"gpu_minor": str(card), "gpu_device_uuid": f"GPU-{card}"}
        for uid, (core, memory_gib) in used.items():
            self.measure(kinds.POD_GPU_CORE, core, pod_uid=uid, **at)
            self.measure(kinds.POD_GPU_MEMORY, memory_gib * GIB, pod_uid=uid, **at)
        self.measure(kinds.NODE_GPU_CORE, sum(core for core, _ in used.values()), **at)
        self.measure(kinds.NODE_GPU_MEMORY, sum(gib for _, gib in used.values()) * GIB, **at)


def test_an_owner_that_wants_its_compute_back_gets_it_and_the_event_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = LendingNode(tmp_path, holder("small", 20, 8), holder("large", 50, 8))

        # The batch pods rest, and what they were given counts all the same.
        assert await node.round({"web": (40, 10), "small": (0, 1), "large": (10, 1)}) == ["large"]
        message = node.events.recorded[0][2]
        assert message == (
            "trigger by koordlet feature BatchGPU (GPU 0: its owners use 40% of its compute, "
            "with what batch pods have 110%, above 95%), kill pod: large"
        )

    on_virtual_time(scenario())


def test_an_owner_whose_memory_grows_gets_it_before_the_card_is_full(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = LendingNode(tmp_path, holder("job", 20, 40))

        assert await node.round({"web": (10, 35), "job": (5, 40)}) == []
        assert await node.round({"web": (10, 37), "job": (5, 40)}) == ["job"]
        assert "its owners use 46% of its memory" in node.events.recorded[0][2]

    on_virtual_time(scenario())


def test_a_batch_pod_that_uses_more_than_it_was_given_counts_with_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = LendingNode(tmp_path, holder("job", 20, 8))

        assert await node.round({"web": (40, 10), "job": (60, 8)}) == ["job"]

    on_virtual_time(scenario())


def test_what_runs_outside_of_pods_counts_as_the_owners(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = LendingNode(tmp_path, holder("job", 50, 8))

        assert await node.round({"web": (10, 10), "": (40, 1), "job": (0, 1)}) == ["job"]

    on_virtual_time(scenario())


def test_other_cards_and_pods_that_forbid_it_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        policy = {"koordinator.sh/eviction-policy": '["MemoryEvict"]'}
        node = LendingNode(
            tmp_path, holder("elsewhere", 50, 8, minor=1), holder("spared", 50, 8, annotations=policy)
        )

        assert await node.round({"web": (90, 10)}) == []

    on_virtual_time(scenario())


def test_nobody_goes_where_nothing_was_measured(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = LendingNode(tmp_path, holder("job", 99, 79))
        await node.strategy.run()
        assert node.api.names == []

        # A figure that no card can have is none.
        assert await node.round({"web": (9_000, 10)}) == []

    on_virtual_time(scenario())


USE = st.builds(CardUse, st.floats(0, 100), st.floats(0, 80 * GIB))


@given(owners=USE, batch=st.dictionaries(st.sampled_from("abcdef"), USE))
def test_evictions_leave_owners_their_room_and_take_no_pod_more_than_that_needs(
    owners: CardUse, batch: dict[str, CardUse]
) -> None:
    card = LentCard(0, 80 * GIB, owners, batch)

    arbitration = Arbitration(batch_gpu_evict.wanted([card], [make_pod(uid) for uid in batch]))
    order = []
    while (victim := arbitration.next_victim()) is not None:
        order.append(victim.uid)
        arbitration.settle(victim, True)

    stay = {uid: use for uid, use in batch.items() if uid not in order}
    both = sum(stay.values(), owners)
    assert not stay or (both.core_percent <= 95.01 and both.memory_bytes <= 76 * GIB + len(batch))
    if order:
        before = both + batch[order[-1]]
        assert before.core_percent > 94.99 or before.memory_bytes > 76 * GIB - len(batch)
