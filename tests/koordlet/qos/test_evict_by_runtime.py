"""Evicting by stopping containers: all that run, failures told, victims not killed again while they go."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.eviction import Victims
from koordinator.koordlet.qos.evictor import EVENT_FAIL, EVENT_SUCCESS, Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from tests.host.test_cri import FakeRuntime, grpc
from tests.koordlet.qos.acting_node import ActingNode, make_pod, threshold

GIB = 2**30


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    fake = FakeRuntime(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()


def full_node(root: Path, *containers: tuple[str, bool]) -> ActingNode:
    node = ActingNode(root, gates="BEMemoryEvict=true", only_evict_by_api=False)
    node.set_pods([make_pod("a", containers=containers), make_pod("b")])
    node.view.slo = threshold()
    node.measure(kinds.NODE_MEMORY, 75 * GIB)
    node.measure_pods(kinds.POD_MEMORY, {"a": 9 * GIB, "b": 8 * GIB})
    return node


async def test_all_running_containers_are_stopped(tmp_path: Path, runtime: FakeRuntime) -> None:
    node = full_node(tmp_path, ("ended", False), ("main", True), ("side", True))
    strategy = MemoryEvict(node.shared, Evictor(node.shared))

    await strategy.run()

    assert sorted(request[2:] for _, request in runtime.asked) == [b"a-main", b"a-side"]
    assert node.events.reasons() == [("a", EVENT_SUCCESS)]
    assert node.api.asked == []


async def test_a_container_that_cannot_be_stopped_is_reported_and_the_next_pod_goes(
    tmp_path: Path, runtime: FakeRuntime
) -> None:
    runtime.failures[b"a-side"] = grpc.StatusCode.INTERNAL
    node = full_node(tmp_path, ("main", True), ("side", True))

    await MemoryEvict(node.shared, Evictor(node.shared)).run()

    assert node.events.reasons() == [("a", EVENT_FAIL), ("b", EVENT_SUCCESS)]
    assert "container side: runtime.v1.RuntimeService: INTERNAL" in node.events.recorded[0][2]
    assert node.shared.metrics.eviction.values == {("node", "evicted"): 1}


async def test_without_a_runtime_nobody_counts_as_evicted_and_one_is_reported(tmp_path: Path) -> None:
    node = full_node(tmp_path, ("main", True))

    await MemoryEvict(node.shared, Evictor(node.shared)).run()

    assert node.events.reasons() == [("a", EVENT_FAIL)]
    assert "no socket of containerd" in node.events.recorded[0][2]
    assert node.shared.metrics.eviction.values == {}


def leaving_and_spared(memory: Victims, node: ActingNode, now_s: float) -> tuple[set[str], set[str]]:
    found = memory.look(node.view.pods, now_s)
    return set(found.leaving), set(found.spared)


async def test_a_killed_pod_is_remembered_until_its_usage_is_known_again(tmp_path: Path) -> None:
    node = ActingNode(tmp_path)
    memory = Victims()
    node.set_pods([make_pod("a")])
    memory.killed("a", ["containerd://a-main"], 100)

    assert leaving_and_spared(memory, node, 101) == ({"a"}, set())
    node.set_pods([make_pod("a", containers=[("main", False)])])
    assert leaving_and_spared(memory, node, 102) == ({"a"}, set())
    node.set_pods([make_pod("a", containers=[("again", True)])])  # the kubelet has started it again
    assert leaving_and_spared(memory, node, 103) == ({"a"}, set())
    assert leaving_and_spared(memory, node, 102 + eviction.SETTLE_S) == (set(), set())


async def test_a_pod_that_survives_neither_counts_nor_is_tried_again(tmp_path: Path) -> None:
    node = ActingNode(tmp_path)
    memory = Victims()
    node.set_pods([make_pod("a"), make_pod("b")])
    memory.evicted("a", 100)
    memory.refused("b", 100)

    assert leaving_and_spared(memory, node, 101) == ({"a"}, {"b"})
    assert leaving_and_spared(memory, node, 100 + eviction.REFUSED_S) == ({"a"}, set())
    assert leaving_and_spared(memory, node, 100 + eviction.LEAVING_S_MAX) == (set(), {"a"})
    node.set_pods([])
    assert leaving_and_spared(memory, node, 300) == (set(), set())
