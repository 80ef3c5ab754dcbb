"""Eviction for memory with YARN containers as victims: the agent of YARN is a process, groups and memory are real."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import HostRoots
from koordinator.host.host import open_host
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect.group_usage import GroupScan
from koordinator.koordlet.collect.pod_usage import ForeignUsage
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from koordinator.koordlet.states.copilots import CopilotsState
from tests.kernel.conftest import Spawn
from tests.kernel.strategy_node import StrategyNode, pod_object
from tests.kernel.test_evict import HOLD, MIB
from tests.kernel.test_yarn_copilot import Copilot, copilot
from tests.koordlet.qos.acting_node import FakeApi, RecordedEvents
from tests.koordlet.qos.pods import BE
from tests.yarn.copilot.node_manager_double import NodeManagerDouble, container, container_id

CAPACITY_MIB = 300
SERVICE = "service"
HELD_MIB: dict[str | int, int] = {SERVICE: 50, "batch": 30, 1: 60, 2: 40, 3: 60}
"""80 % of the node, where eviction starts at 70 %. By number: containers, of which 1 is the master."""
YARN = f"{BE}/hadoop-yarn"


class YarnNode(StrategyNode):
    """A service, a batch pod and three containers that really hold memory."""

    def __init__(self, group: str, directory: Path, spawn: Spawn) -> None:
        roots = msgspec.structs.replace(
            HostRoots.below(""), kubepods_below=group, var_run=str(directory / "run")
        )
        host = open_host(roots, hot_files_max=64)
        super().__init__(group, directory / "restore.jsonl", gates="BEMemoryEvict=true", host=host)
        amounts = {"cpu": str(self.cpu_count), "memory": f"{CAPACITY_MIB}Mi"}
        status = {"capacity": amounts, "allocatable": amounts}
        self.view.node = from_builtins({"metadata": {"name": "n"}, "status": status}, Node)
        self.make_classes()
        self.make(YARN)
        pods = (pod_object(SERVICE, "LS"), pod_object("batch", "BE", "BestEffort"))
        self.groups: dict[str | int, str] = {pod.metadata.uid: self.make_pod(pod) for pod in pods}
        for number in (1, 2, 3):
            self.groups[number] = f"{YARN}/{container_id(number)}"
            self.make(self.groups[number])
        self.know(*pods)
        self.pids = {
            key: spawn(f"{group}/{self.groups[key]}", HOLD.format(mib=mib)) for key, mib in HELD_MIB.items()
        }
        self.patch_slo(resourceUsedThresholdWithBE={"enable": True})
        self.state = CopilotsState(self.shared)
        self.api = FakeApi()
        self.told = RecordedEvents()
        parts = {"cluster": self.api, "events": self.told}
        shared = msgspec.structs.replace(self.shared, **parts)
        self.strategy = MemoryEvict(shared, Evictor(shared))
        self.collector = ForeignUsage(self.shared, GroupScan(self.host.cgroups, lambda: 64.0))

    def used_mib(self, key: str | int) -> float:
        stat = self.host.cgroups.memory_stat(self.groups[key])
        return 0.0 if stat is None else stat.usage_bytes / MIB

    async def settle(self) -> None:
        deadline = time.monotonic() + 60  # emulated machines are slow
        while not all(self.used_mib(key) >= mib for key, mib in HELD_MIB.items()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def round(self) -> None:
        """A second passes: all is known and measured, and the strategy acts."""
        await self.state.sync()
        self.clock.now_s += 1
        at_ms = int(self.clock.now_s * 1000)
        used = {key: self.used_mib(key) * MIB for key in HELD_MIB}
        self.store.ring(kinds.NODE_MEMORY).append(at_ms, sum(used.values()))
        for uid in (SERVICE, "batch"):
            self.store.ring(kinds.POD_MEMORY, {kinds.POD_UID: uid}).append(at_ms, used[uid])
        self.collector.collect()
        await asyncio.sleep(0.02)
        self.collector.collect()
        await self.strategy.run()

    def alive(self) -> set[str | int]:
        return {key for key, group in self.groups.items() if self.host.cgroups.procs(group)}


@pytest.fixture
async def node(real: Cgroups, group: str, tmp_path: Path, spawn: Spawn) -> AsyncIterator[YarnNode]:
    made = YarnNode(group, tmp_path, spawn)
    await made.settle()
    yield made
    made.host.close()


@pytest.fixture
async def agent(node: YarnNode) -> AsyncIterator[Copilot]:
    socket = Path(node.host.roots.var_run) / "yarn-copilot" / "yarn-copilot.sock"
    group = f"{node.group}/{YARN}"
    async with (
        NodeManagerDouble(*map(container, (1, 2, 3))).served() as manager,
        copilot(socket, group, manager.endpoint) as served,
    ):
        yield served


async def test_the_task_that_holds_most_goes_and_the_master_and_pods_stay(
    node: YarnNode, agent: Copilot
) -> None:
    await node.round()
    await node.round()

    assert node.alive() == {SERVICE, "batch", 1, 2}
    assert [(name, reason) for name, reason, _ in node.told.recorded] == [("n", "evictPodSuccess")]
    assert node.api.asked == []


async def test_a_killed_agent_takes_no_protection_away(node: YarnNode, agent: Copilot) -> None:
    await node.round()  # it knows the containers now
    node.strategy = MemoryEvict(node.strategy._shared, Evictor(node.strategy._shared))
    assert 3 not in node.alive()
    agent.process.kill()
    agent.process.wait()
    assert node.view.node is not None
    amounts = {"cpu": "4", "memory": "220Mi"}  # now 180 of 220 MiB are in use
    status = {"capacity": amounts, "allocatable": amounts}
    node.view.node = from_builtins({"metadata": {"name": "n"}, "status": status}, Node)

    await node.round()

    assert node.alive() == {SERVICE, "batch", 1}
    assert "no answer" in node.state.problem
