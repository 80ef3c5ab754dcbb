"""Evictions in shadow: whatever is measured, the bill names those whom the live strategy evicts, and nobody goes."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, NodeStatus
from koordinator.api.slo import NodeSLOSpec
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Strategy
from koordinator.koordlet.qos.cpu_evict import CPUEvict
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.qos.shadow_bill import StrategyHour
from tests.cluster import virtual_loop
from tests.koordlet.qos.acting_node import ActingNode, make_pod, threshold
from tests.koordlet.qos.acting_node import acting as strategies_of
from tests.koordlet.qos.test_batch_gpu_evict import LendingNode, holder
from tests.koordlet.qos.test_psi_evict import PressedNode

GIB = 2**30
ROUNDS_MAX = 8
"""A round each ten seconds at most: evicted pods that stay count as leaving for two minutes."""
pytestmark = pytest.mark.usefixtures("folders_of_examples")


class Watched:
    """A node and one strategy on it, live or in shadow."""

    def __init__(self, node: ActingNode, name: str, *, is_shadow: bool) -> None:
        self.node, self.name, self.is_shadow = node, name, is_shadow
        self.mode = ShadowMode(node.shared)
        self.strategy: Strategy = next(
            each for each in strategies_of(node.shared, self.mode) if each.name == name
        )

    async def round(self) -> None:
        spec = self.node.view.slo or NodeSLOSpec()
        names = [self.name] if self.is_shadow else []
        self.node.view.slo = msgspec.structs.replace(
            spec, extensions={**spec.extensions, "shadow": {"strategies": names}}
        )
        result = self.strategy.run()
        assert result is not None
        await result

    def hours(self) -> list[StrategyHour]:
        """Return the bill without the number of writes, which is counted in shadow only."""
        hours = self.mode.bill.strategies(is_shadow=self.is_shadow).get(self.name, [])
        return [msgspec.structs.replace(each, writes=0) for each in hours]


async def same_evictions(
    name: str, make: Callable[[Path], ActingNode], plan: list[Callable[[Any], None]], pause_s: float
) -> None:
    """Both nodes live through the plan; each step says what is measured before a round."""
    live, double = (
        Watched(make(Path(tempfile.mkdtemp())), name, is_shadow=is_shadow) for is_shadow in (False, True)
    )
    for step in plan:
        await asyncio.sleep(pause_s)
        for each in (live, double):
            step(each.node)
            await each.round()
    assert double.hours() == live.hours()
    billed = [pod.pod for hour in double.hours() for pod in hour.evicted]
    assert billed == [f"n/{name}" for name in live.node.api.names]
    assert not double.node.api.asked and not double.node.events.recorded
    assert not double.node.shared.metrics.eviction.values
    assert not double.mode.bill.strategies(is_shadow=False).get(name)


PERCENT = st.integers(0, 100)
PODS = st.lists(
    st.tuples(
        st.sampled_from(["LS", "BE", "BE", ""]), st.integers(3_000, 9_500), st.integers(0, 4_000), PERCENT
    ),
    min_size=1,
    max_size=6,
)
NODE_ROUND = st.tuples(
    PERCENT,  # of the node in use
    st.tuples(st.integers(0, 3_000), st.integers(0, 10_000), st.integers(500, 10_000)),  # best-effort pods
    st.sampled_from([0, 1_000, 20_000]),  # batch-cpu that is lent
)


def crowded(drawn: list[Any], gates: tuple[str, ...]) -> Callable[[Path], ActingNode]:
    """Make a node of 10 CPUs and 100 GiB with such pods, and all features of a strategy on."""

    def make(root: Path) -> ActingNode:
        node = ActingNode(root, gates=",".join(f"{gate}=true" for gate in gates))
        node.set_pods(
            make_pod(
                f"p{at}",
                qos=qos,
                priority=priority,
                requests={"kubernetes.io/batch-cpu": str(batch), "kubernetes.io/batch-memory": f"{batch}Mi"},
            )
            for at, (qos, priority, batch, _) in enumerate(drawn)
        )
        node.view.slo = threshold(
            memory_evict_threshold_percent=60,
            cpu_evict_threshold_percent=60,
            evict_enabled_priority_threshold=8_000,
            cpu_allocatable_evict_threshold_percent=110,
            cpu_allocatable_evict_lower_percent=100,
            memory_allocatable_evict_threshold_percent=110,
            memory_allocatable_evict_lower_percent=100,
            allocatable_evict_priority_threshold=5_999,
            cpu_evict_be_satisfaction_lower_percent=50,
            cpu_evict_be_satisfaction_upper_percent=90,
            cpu_evict_time_window_seconds=10,
        )
        return node

    return make


def measured(drawn: list[Any], round_: tuple[Any, ...]) -> Callable[[ActingNode], None]:
    percent, best_effort, lent = round_

    def step(node: ActingNode) -> None:
        amounts = {"kubernetes.io/batch-cpu": str(lent), "kubernetes.io/batch-memory": f"{lent}Mi"}
        known = node.view.node
        assert known is not None
        status = NodeStatus(capacity=known.status.capacity, allocatable=amounts)
        node.view.node = Node(metadata=known.metadata, status=status)
        node.measure(kinds.NODE_CPU, percent / 10)
        node.measure(kinds.NODE_MEMORY, percent * GIB)
        node.measure_best_effort(*best_effort)
        node.measure_pods(kinds.POD_CPU, {f"p{at}": each[3] / 30 for at, each in enumerate(drawn)})
        node.measure_pods(kinds.POD_MEMORY, {f"p{at}": each[3] * GIB / 4 for at, each in enumerate(drawn)})

    return step


rounds = st.lists(NODE_ROUND, min_size=2, max_size=ROUNDS_MAX)


@settings(max_examples=20, deadline=None)
@given(PODS, rounds)
def test_by_cpu(drawn: list[Any], plan: list[Any]) -> None:
    steps = [measured(drawn, each) for each in plan]
    virtual_loop.run(same_evictions("CPUEvict", crowded(drawn, CPUEvict.gates), steps, pause_s=10))


@settings(max_examples=20, deadline=None)
@given(PODS, rounds)
def test_by_memory(drawn: list[Any], plan: list[Any]) -> None:
    steps = [measured(drawn, each) for each in plan]
    virtual_loop.run(same_evictions("MemoryEvict", crowded(drawn, MemoryEvict.gates), steps, pause_s=10))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.integers(50, 100), st.integers(0, 60), st.integers(60, 100), st.integers(0, 100)),
        min_size=1,
        max_size=ROUNDS_MAX,
    ),
)
def test_by_pressure(sizes: list[int], plan: list[Any]) -> None:
    used = {f"p{at}": size for at, size in enumerate(sizes)}

    def make(root: Path) -> ActingNode:
        return PressedNode(root, {"cpuSomeAvg10Percent": 60, "cpuDurationSeconds": 20}, **used)

    def pressed(avg10: int, avg60: int, node_gib: int, waits: int) -> Callable[[PressedNode], None]:
        def step(node: PressedNode) -> None:
            node.memory_stalls(avg10, avg60)
            node.service_waits(waits)
            node.measure(kinds.NODE_MEMORY, node_gib * GIB)
            node.measure_pods(kinds.POD_MEMORY, {uid: gib * GIB for uid, gib in used.items()})
            node.measure_pods(kinds.POD_CPU, {uid: gib / 10 for uid, gib in used.items()})

        return step

    virtual_loop.run(same_evictions("PSIEvict", make, [pressed(*each) for each in plan], pause_s=10))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(5, 50), st.integers(1, 30)), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 100), st.integers(0, 60), st.integers(0, 40)),
        min_size=1,
        max_size=ROUNDS_MAX,
    ),
)
def test_by_gpus_that_were_lent(batch: list[Any], plan: list[Any]) -> None:
    def make(root: Path) -> ActingNode:
        return LendingNode(root, *(holder(f"p{at}", *part) for at, part in enumerate(batch)))

    def wanted(core: int, gib: int, batch_core: int) -> Callable[[LendingNode], None]:
        used = {"web": (core, gib), **{f"p{at}": (batch_core, each[1]) for at, each in enumerate(batch)}}
        return lambda node: node.use(used)

    virtual_loop.run(same_evictions("BatchGPUEvict", make, [wanted(*each) for each in plan], pause_s=10))
