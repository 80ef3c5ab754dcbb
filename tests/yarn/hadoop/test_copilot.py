"""The agent of YARN and the node agent's eviction beside a real NodeManager and the containers of a real job.

Hadoop's native launcher is not published as a jar, so what it does is done here: processes of a container are moved to
its group, and groups of ended containers are removed.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from koordinator.api.copilot import is_master, is_yarn_id
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import HostRoots
from koordinator.host.host import open_host
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from koordinator.koordlet.states.copilots import CopilotsState
from koordinator.yarn import eviction
from tests.kernel.conftest import files as files
from tests.kernel.conftest import group as group
from tests.kernel.conftest import make
from tests.kernel.conftest import real as real
from tests.kernel.strategy_node import StrategyNode
from tests.kernel.test_yarn_copilot import Copilot, copilot
from tests.koordlet.qos.acting_node import FakeApi, RecordedEvents
from tests.koordlet.qos.pods import BE
from tests.yarn.hadoop.bed import Bed, NodeSize, hadoop, until

GIB = 1 << 30
YARN = f"{BE}/hadoop-yarn"


class Launcher:
    """Keeps one group for each container of a bed, as LinuxContainerExecutor does."""

    def __init__(self, cgroups: Cgroups, path: str, folder: Path) -> None:
        self._cgroups, self._path, self._mark = cgroups, path, str(folder).encode()

    async def run(self) -> None:
        while True:
            found = self._processes()
            for container_id, pids in found.items():
                group = f"{self._path}/{container_id}"
                if not self._cgroups.exists(group):
                    make(self._cgroups, group)
                for pid in set(pids) - set(self._cgroups.procs(group) or ()):
                    self._cgroups.move(pid, group)
            for container_id in self.groups():
                if container_id not in found:
                    self._cgroups.remove(f"{self._path}/{container_id}")
            await asyncio.sleep(0.1)

    def groups(self) -> list[str]:
        names = [each.rpartition("/")[2] for each in self._cgroups.children(self._path) or ()]
        return [name for name in names if is_yarn_id(name)]

    def _processes(self) -> dict[str, list[int]]:
        """By container: its environment names it, and the folder of our bed tells it from those of others."""
        found: dict[str, list[int]] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{name}/environ").read_bytes()
                words = dict(each.partition(b"=")[::2] for each in environment.split(b"\0"))
                if b"CONTAINER_ID" in words and self._mark in environment:
                    found.setdefault(words[b"CONTAINER_ID"].decode(), []).append(int(name))
        return found


class NodeAgent(StrategyNode):
    """The node agent's knowledge of containers, and its eviction for memory; `restart` forgets all."""

    def __init__(self, group: str, directory: Path) -> None:
        roots = msgspec.structs.replace(
            HostRoots.below(""), kubepods_below=group, var_run=str(directory / "run")
        )
        host = open_host(roots, hot_files_max=64)
        super().__init__(group, directory / "restore.jsonl", gates="BEMemoryEvict=true", host=host)
        amounts = {"cpu": "4", "memory": "100Gi"}
        status = {"capacity": amounts, "allocatable": amounts}
        self.view.node = from_builtins({"metadata": {"name": "n"}, "status": status}, Node)
        self.make_classes()
        self.make(YARN)
        self.know()
        self.patch_slo(resourceUsedThresholdWithBE={"enable": True})
        self.told = RecordedEvents()
        self.restart()

    def restart(self) -> None:
        parts: dict[str, Any] = {"cluster": FakeApi(), "events": self.told}
        shared = msgspec.structs.replace(self.shared, **parts)
        self.state, self.strategy = CopilotsState(self.shared), MemoryEvict(shared, Evictor(shared))
        self.view.foreign = {}

    async def known(self) -> list[str]:
        await self.state.sync()
        return sorted(self.view.foreign)

    async def evict(self, node_gib: float) -> None:
        """A round at this use of memory; containers use what they asked for."""
        self.clock.now_s += 1
        self.store.ring(kinds.NODE_MEMORY).append(int(self.clock.now_s * 1000), node_gib * GIB)
        await self.strategy.run()

    @property
    def ended(self) -> list[str]:
        return [
            next(word for word in message.split() if is_yarn_id(word))
            for _, reason, message in self.told.recorded
            if reason == "evictPodSuccess"
        ]


@pytest.fixture
async def bed(tmp_path: Path, real: Cgroups) -> AsyncIterator[Bed]:
    keeping = {
        "yarn.nodemanager.recovery.enabled": "true",
        "yarn.nodemanager.recovery.supervised": "true",
        "yarn.nodemanager.recovery.dir": str(tmp_path / "recovery"),
        "yarn.nm.liveness-monitor.expiry-interval-ms": "120000",
    }
    async with hadoop(tmp_path / "hadoop", managers=1, nodes=[NodeSize(3, 1024)], more=keeping) as running:
        yield running


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path) -> NodeAgent:
    return NodeAgent(group, tmp_path)


@pytest.fixture
async def launcher(bed: Bed, node: NodeAgent, real: Cgroups) -> AsyncIterator[Launcher]:
    made = Launcher(real, f"{node.group}/{YARN}", bed.folder)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def listed(agent: Copilot) -> list[str]:
    return sorted(each["name"] for each in await agent.get("/v1/containers"))


async def told_by(web: str) -> list[str]:
    """What the NodeManager itself lists; nothing while it is away."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://{web}/ws/v1/node/containers") as answer:
                found = eviction.parse(await answer.json(content_type=None))
        except (aiohttp.ClientError, ProtocolError, ValueError):
            return []
    return sorted(each.id for each in found if not each.is_final)


async def test_containers_of_a_real_job_go_tasks_first_and_its_master_last(
    bed: Bed, node: NodeAgent, launcher: Launcher, tmp_path: Path
) -> None:
    [manager] = bed.nodes
    socket = tmp_path / "run" / "yarn-copilot" / "yarn-copilot.sock"
    path = f"{node.group}/{YARN}"
    await bed.sleep_job(tasks=2, seconds=300)

    async with copilot(socket, path, manager.web) as agent:

        async def all_run() -> bool:
            found = await listed(agent)
            return len(found) == 3 and sorted(launcher.groups()) == found

        await until(all_run, "ApplicationMaster and two tasks do not run in their groups")

        # One vcore is wanted back: a task goes, and YARN learns of it and starts another.
        answer = await agent.post("/v1/killContainersByResource", {"resources": {"cpu": "1"}})
        [gone] = [each["name"] for each in answer["items"]]
        assert not is_master(gone)

        async def is_replaced() -> bool:
            found = await listed(agent)
            return len(found) == 3 and gone not in found and sorted(launcher.groups()) == found

        await until(is_replaced, "YARN starts no other task")

        # The NodeManager hangs: what runs is told by the groups, within the time that the node agent waits.
        before = await listed(agent)
        manager.daemon.pause()
        assert await node.known() == before
        assert node.state.problem == ""
        manager.daemon.resume()

        # It is killed and comes back: containers go on, and it knows them again.
        await manager.daemon.kill()
        assert await node.known() == before
        await manager.daemon.start()

        async def is_back() -> bool:
            return await told_by(manager.web) == before and await listed(agent) == before

        await until(is_back, "the NodeManager does not come back with its containers")
        agent.process.kill()
        agent.process.wait()
        assert await node.known() == before  # by the groups, which are left
        assert "no answer" in node.state.problem

    socket.unlink(missing_ok=True)
    async with copilot(socket, path, manager.web) as agent:
        await until(lambda: _answers(agent), "the agent does not come back")
        node.restart()
        assert await node.known() == before

        await node.evict(68.3)  # 0.3 % above where it ends, and not yet where it begins
        assert node.ended == []
        await node.evict(99)

    assert [is_master(each) for each in node.ended] == [False, False, True]
    assert sorted(node.ended) == before


async def _answers(agent: Copilot) -> bool:
    return bool(await listed(agent))
