"""YARN containers and batch pods are victims in one order, and each is ended by whoever runs it."""

import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos.cpu_evict import CPUEvict
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from koordinator.koordlet.states.copilots import CopilotsState
from tests.host import host_tree
from tests.koordlet.copilot_double import CopilotDouble, told, yarn_id
from tests.koordlet.qos.acting_node import ActingNode, make_pod, threshold

GIB = 1 << 30
GROUP = "kubepods/besteffort/hadoop-yarn"


class YarnNode:
    """A node of 100 GiB and 10 CPUs, with batch pods and YARN's agent."""

    def __init__(self, node: ActingNode, copilot: CopilotDouble) -> None:
        self.node, self.copilot = node, copilot
        self.state = CopilotsState(node.shared)
        self.evictor = Evictor(node.shared)

    async def know(self, *containers: dict[str, Any], pods: Mapping[str, float] | None = None) -> None:
        """Let the agent tell of containers, and pods use so many GiB."""
        self.copilot.containers = list(containers)
        await self.state.sync()
        self.node.set_pods([make_pod(name) for name in pods or {}])
        self.use_memory(pods or {})

    def use_memory(self, gib: Mapping[str, float]) -> None:
        self.node.measure_pods(kinds.POD_MEMORY, {uid: value * GIB for uid, value in gib.items()})

    def measure(self, kind: str, used: Mapping[int, float]) -> None:
        for number, value in used.items():
            self.node.measure(kind, value, container_id=yarn_id(number))

    async def evict_memory(self, node_gib: float, gates: str = "BEMemoryEvict") -> None:
        """One round, with the thresholds at 70 and 68 percent unless others are set."""
        node = self.node
        node.measure(kinds.NODE_MEMORY, node_gib * GIB)
        if node.view.slo is None:
            node.view.slo = threshold(memory_evict_threshold_percent=70, memory_evict_lower_percent=60)
        await MemoryEvict(node.shared, self.evictor).run()


@pytest.fixture
async def yarn(tmp_path: Path) -> AsyncIterator[YarnNode]:
    gates = "BEMemoryEvict=true,CPUEvict=true,CPUAllocatableEvict=true"
    node = ActingNode(tmp_path, gates=gates)
    socket = Path(node.host.roots.var_run) / "yarn-copilot" / "yarn-copilot.sock"
    async with CopilotDouble().served(socket) as copilot:
        yield YarnNode(node, copilot)


async def test_yarn_goes_before_batch_pods_and_those_that_use_most_first(yarn: YarnNode) -> None:
    await yarn.know(told(2), told(3), told(4), pods={"batch": 50})
    yarn.measure(kinds.FOREIGN_MEMORY, {2: 4 * GIB, 3: 6 * GIB, 4: 5 * GIB})

    await yarn.evict_memory(70)  # 10 GiB too much

    assert yarn.copilot.killed == [yarn_id(3), yarn_id(4)]
    assert yarn.node.api.evicted == []
    assert "BEMemoryEvict" in yarn.copilot.reasons[0]


async def test_a_master_goes_after_all_tasks_and_before_batch_pods(yarn: YarnNode) -> None:
    await yarn.know(told(1), told(2), pods={"batch": 50})
    yarn.measure(kinds.FOREIGN_MEMORY, {1: 8 * GIB, 2: 1 * GIB})

    await yarn.evict_memory(78)  # 18 GiB too much

    assert yarn.copilot.killed == [yarn_id(2), yarn_id(1)]
    assert yarn.node.api.names == ["batch"]


async def test_what_is_not_measured_counts_as_requested(yarn: YarnNode) -> None:
    await yarn.know(told(2, memory="12Gi"), told(3, memory="2Gi"), pods={"batch": 50})
    await yarn.evict_memory(70)
    assert yarn.copilot.killed == [yarn_id(2)]


async def test_what_ends_already_counts_and_nobody_goes_in_its_place(yarn: YarnNode) -> None:
    await yarn.know(told(2), told(3), pods={"batch": 50})
    yarn.measure(kinds.FOREIGN_MEMORY, {2: 12 * GIB, 3: 11 * GIB})

    await yarn.evict_memory(70)
    await yarn.evict_memory(70)

    assert yarn.copilot.killed == [yarn_id(2)]


async def test_a_container_that_cannot_be_ended_is_passed_over(yarn: YarnNode) -> None:
    await yarn.know(told(2), told(3), pods={"batch": 50})
    yarn.measure(kinds.FOREIGN_MEMORY, {2: 12 * GIB, 3: 11 * GIB})
    yarn.copilot.refuses = {yarn_id(2)}

    await yarn.evict_memory(70)

    assert yarn.copilot.killed == [yarn_id(3)]
    assert ("node", "evictPodFail") in yarn.node.events.reasons()


async def test_each_eviction_is_told_on_the_node_and_in_the_audit_log(yarn: YarnNode) -> None:
    await yarn.know(told(2), pods={"batch": 50})
    yarn.measure(kinds.FOREIGN_MEMORY, {2: 12 * GIB})

    await yarn.evict_memory(70)

    ((on, reason, message),) = yarn.node.events.recorded
    assert (on, reason) == ("node", "evictPodSuccess")
    assert yarn_id(2) in message
    logged = [line.decode() for line in yarn.node.audit.newest_first()]
    assert any(yarn_id(2) in each and "evicted" in each for each in logged)


async def test_a_dry_run_ends_nobody(tmp_path: Path) -> None:
    node = ActingNode(tmp_path, gates="BEMemoryEvict=true", dry_run=True)
    socket = Path(node.host.roots.var_run) / "yarn-copilot" / "yarn-copilot.sock"
    async with CopilotDouble().served(socket) as copilot:
        dry = YarnNode(node, copilot)
        await dry.know(told(2), pods={"batch": 50})
        dry.measure(kinds.FOREIGN_MEMORY, {2: 12 * GIB})
        await dry.evict_memory(70)
    assert copilot.killed == []
    assert yarn_id(2) in str(node.recorded)


async def test_features_that_evict_by_priority_know_yarn_too(yarn: YarnNode) -> None:
    yarn.node.view.slo = threshold(
        memory_evict_threshold_percent=None,
        cpu_evict_threshold_percent=70,
        cpu_evict_lower_percent=60,
        evict_enabled_priority_threshold=5999,
    )
    await yarn.know(told(1), told(2), told(3))
    yarn.node.set_pods([make_pod("batch")])
    yarn.node.measure_pods(kinds.POD_CPU, {"batch": 4.0})
    yarn.measure(kinds.FOREIGN_CPU, {1: 3.0, 2: 0.4, 3: 0.7})
    yarn.node.measure(kinds.NODE_CPU, 7.0)  # one CPU too much

    strategy = CPUEvict(yarn.node.shared, yarn.evictor)
    strategy.rests_first = False
    await strategy.run()

    assert yarn.copilot.killed == [yarn_id(3), yarn_id(2)]


def _asleep() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "30"])


async def test_a_container_whose_agent_died_is_ended_by_its_group(tmp_path: Path) -> None:
    node = ActingNode(tmp_path, gates="BEMemoryEvict=true")
    socket = Path(node.host.roots.var_run) / "yarn-copilot" / "yarn-copilot.sock"
    sleeping = _asleep()
    try:
        async with CopilotDouble().served(socket) as copilot:
            dead = YarnNode(node, copilot)
            await dead.know(told(2), pods={"batch": 50})
        group = f"{GROUP}/{yarn_id(2)}"
        host_tree.group(tmp_path, 1, group)
        Path(f"{node.host.cgroups.directory(group)}/cgroup.procs").write_text(f"{sleeping.pid}\n")
        dead.measure(kinds.FOREIGN_MEMORY, {2: 12 * GIB})

        await dead.evict_memory(70)

        assert sleeping.wait(5) == -9
        assert node.api.evicted == []
    finally:
        sleeping.kill()
        sleeping.wait()


@pytest.mark.parametrize(
    ("origin", "killed"),
    [
        # 9 CPUs are lent, of which YARN has 6 and the pod 2: allocatable is the 3 that YARN left.
        pytest.param('{"resources":{"kubernetes.io/batch-cpu":"9000"}}', [], id="both fit what is lent"),
        pytest.param(
            '{"resources":{"kubernetes.io/batch-cpu":"4000"}}', [3, 2], id="less is lent than they have"
        ),
    ],
)
async def test_requests_of_both_are_held_against_what_the_node_lends_in_all(
    yarn: YarnNode, origin: str, killed: list[int]
) -> None:
    node = yarn.node
    assert node.view.node is not None
    node.view.node = msgspec.structs.replace(
        node.view.node,
        metadata=msgspec.structs.replace(
            node.view.node.metadata, annotations={"node.koordinator.sh/originExtendedAllocatable": origin}
        ),
        status=msgspec.structs.replace(
            node.view.node.status, allocatable={"kubernetes.io/batch-cpu": "3000"}
        ),
    )
    node.view.slo = threshold(
        cpu_allocatable_evict_threshold_percent=100,
        cpu_allocatable_evict_lower_percent=90,
        allocatable_evict_priority_threshold=5999,
    )
    await yarn.know(told(2, cpu="3"), told(3, cpu="3"))
    node.set_pods([make_pod("batch", requests={"kubernetes.io/batch-cpu": "2000"})])
    node.measure_pods(kinds.POD_CPU, {"batch": 1.0})

    strategy = CPUEvict(node.shared, yarn.evictor)
    strategy.rests_first = False
    await strategy.run()

    assert yarn.copilot.killed == [yarn_id(number) for number in killed]
