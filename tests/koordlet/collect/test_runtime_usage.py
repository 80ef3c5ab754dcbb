"""Pods and containers without groups are measured by what their runtime tells."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordinator.clock import SystemClock
from koordinator.host import cri
from koordinator.host.cgroup_layout import Runtime
from koordinator.host.cri import RuntimeUsage
from koordinator.host.cri_messages import ListContainerStatsResponse, ListPodSandboxStatsResponse
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import runtime_usage
from koordinator.koordlet.collect.pod_usage import PodUsage
from koordinator.koordlet.collect.runtime_usage import RuntimeUsageCollector
from tests.host.cri_double import FakeRuntime, container_stats, sandbox_stats
from tests.koordlet.collect.collecting_node import CollectingNode, make_pod


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    fake = FakeRuntime(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def node(tmp_path: Path) -> CollectingNode:
    """A pod whose groups are there (`seen`), one without any (`vm`)."""
    node = CollectingNode(tmp_path, SystemClock())
    node.pods(make_pod("seen"), make_pod("vm"))
    node.end("kubepods/podvm/vm-0")
    node.end("kubepods/podvm")
    return node


async def test_a_pod_without_groups_is_measured_by_its_runtime_and_counts_among_pods(
    node: CollectingNode, runtime: FakeRuntime
) -> None:
    collector = RuntimeUsageCollector(node.shared, node.known)
    for at_s, cpu_s in ((100, 10), (110, 15)):
        own = container_stats("vm-0", at_s, cpu_s - 1)
        told = (sandbox_stats("vm", at_s, cpu_s, own), sandbox_stats("seen", at_s, cpu_s))
        runtime.answers["ListPodSandboxStats"] = ListPodSandboxStatsResponse(told)
        assert await collector.collect()

    assert node.values(kinds.POD_CPU, pod_uid="vm") == [0.5]
    assert node.values(kinds.POD_MEMORY, pod_uid="vm") == [5000]
    assert node.values(kinds.CONTAINER_CPU, container_id="containerd://vm-0") == [0.5]
    assert node.values(kinds.POD_CPU, pod_uid="seen") == [], "its group tells"
    await PodUsage(node.shared, node.known, node.scan).collect()
    assert node.known.pods is not None
    assert (node.known.pods.cores, node.known.pods.memory_bytes) == (0.5, 5000)


async def test_nobody_is_asked_while_all_groups_are_there(node: CollectingNode, runtime: FakeRuntime) -> None:
    node.pods(make_pod("seen"))

    assert await RuntimeUsageCollector(node.shared, node.known).collect()

    assert runtime.asked == []
    assert node.known.unseen_pods is None


async def test_a_runtime_that_refuses_costs_figures_and_nothing_else(
    node: CollectingNode, runtime: FakeRuntime
) -> None:
    collector = RuntimeUsageCollector(node.shared, node.known)

    assert not await collector.collect()

    runtime.answers["ListContainerStats"] = ListContainerStatsResponse((container_stats("vm-0", 100, 1),))
    assert await collector.collect(), "an old one tells of containers only"
    runtime.answers["ListContainerStats"] = ListContainerStatsResponse((container_stats("vm-0", 102, 2),))
    await collector.collect()
    assert node.values(kinds.POD_CPU, pod_uid="vm") == [0.5]


def test_a_reading_without_all_figures_is_none() -> None:
    own = container_stats("x", 1, 1, None)
    assert runtime_usage.reading(own.cpu, own.memory) is not None, "the working set will do"
    assert runtime_usage.reading(None, own.memory) is None
    found = runtime_usage.readings(Runtime.CRI_O, RuntimeUsage((), (cri.ContainerStats(), own)))
    assert list(found.containers) == ["cri-o://x"]


def test_a_counter_that_went_backwards_gives_no_rate() -> None:
    last = runtime_usage.UsageReading(10, 100, 5)
    assert runtime_usage.UsageReading(20, 90, 5).cores_since(last) is None
    assert runtime_usage.UsageReading(10, 110, 5).cores_since(last) is None
