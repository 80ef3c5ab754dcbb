"""Eviction when the clock steps, the agent restarts and pods vanish under it: never a wild decision."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from tests.cluster import virtual_loop
from tests.koordlet.qos.acting_node import ActingNode, FakeApi, make_pod, threshold

GIB = 2**30
GATE = "BEMemoryEvict=true"


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


def full(node: ActingNode, used: dict[str, float]) -> None:
    node.view.slo = threshold()
    node.measure(kinds.NODE_MEMORY, 75 * GIB)
    node.measure_pods(kinds.POD_MEMORY, used)


@pytest.mark.parametrize("step_s", [-3600, -5, 5, 3600])
def test_after_a_step_of_the_clock_only_new_samples_count(tmp_path: Path, step_s: float) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=GATE)
        node.set_pods([make_pod("a"), make_pod("b")])
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        full(node, {"a": 8 * GIB, "b": 8 * GIB})
        node.clock.shift_s = step_s
        await strategy.run()
        assert node.api.asked == []

        full(node, {"a": 8 * GIB, "b": 8 * GIB})
        await strategy.run()
        assert len(node.api.asked) == 1

    on_virtual_time(scenario())


def test_a_rest_is_as_long_as_it_should_be_whatever_the_clock_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=GATE)
        node.set_pods([make_pod(name) for name in "abcd"])
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        evicted = []
        for second in range(9):
            node.clock.shift_s += (-1) ** second * 1000
            full(node, dict.fromkeys("abcd", 8 * GIB))
            await strategy.run()
            evicted.append(len(node.api.names))
            node.set_pods([make_pod(name) for name in "abcd" if name not in node.api.names])
            await asyncio.sleep(1)

        assert evicted == [1, 1, 1, 1, 2, 2, 2, 2, 3]

    on_virtual_time(scenario())


def test_after_a_restart_pods_that_leave_still_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = ActingNode(tmp_path, gates=GATE)
        first.set_pods([make_pod("a"), make_pod("b")])
        full(first, {"a": 9 * GIB, "b": 8 * GIB})
        await MemoryEvict(first.shared, Evictor(first.shared)).run()
        assert first.api.names == ["a"]

        second = ActingNode(tmp_path, gates=GATE)
        second.set_pods([make_pod("a", deleted=True), make_pod("b")])
        strategy = MemoryEvict(second.shared, Evictor(second.shared))
        for _ in range(30):
            full(second, {"a": 9 * GIB, "b": 8 * GIB})
            await strategy.run()
            await asyncio.sleep(1)

        assert second.api.asked == []

    on_virtual_time(scenario())


def test_a_pod_that_vanishes_during_a_round_is_not_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        class VanishingApi(FakeApi):
            async def evict(self, namespace: str, pod: str, **more: Any) -> None:
                acting.set_pods([make_pod("c")])  # meanwhile the kubelet's list has changed
                await super().evict(namespace, pod, **more)

        acting = ActingNode(tmp_path, gates=GATE, api=VanishingApi())
        acting.set_pods([make_pod(name) for name in "abc"])
        full(acting, {"a": 3 * GIB, "b": 2 * GIB, "c": 4 * GIB})
        await MemoryEvict(acting.shared, Evictor(acting.shared)).run()

        # "c" goes first, "a" and "b" have gone by themselves.
        assert acting.api.names == ["c"]

    on_virtual_time(scenario())


def test_without_a_policy_a_node_or_capacity_nobody_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=GATE, capacity={"cpu": "x", "memory": "-1"})
        node.set_pods([make_pod("a")])
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        full(node, {"a": 8 * GIB})
        await strategy.run()
        node.view.node = None
        await strategy.run()
        node.view.slo = None
        await strategy.run()

        assert node.api.asked == []

    on_virtual_time(scenario())
