"""`koord-scheduler` as processes: a leader that was frozen must not act on what it knew."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from koordinator.api.core import Node, Pod
from koordinator.cluster.memory import MemoryCluster
from tests.free_ports import free_port
from tests.manager import doors
from tests.manager.doors import Door

pytestmark = pytest.mark.timeout(180)

PODS = 60
"""More than are bound by the time that the leader is frozen."""
START_S = 60.0
"""Of CPU time it takes about one second, which is long on a machine that does much else."""
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {qps: 30, burst: 10}
leaderElection: {leaseDuration: 4s, renewDeadline: 3s, retryPeriod: 500ms}
profiles: [{schedulerName: koord-scheduler}]
"""


class Process:
    """A scheduler with a door of its own to the API."""

    def __init__(self, door: Door, process: asyncio.subprocess.Process, port: int) -> None:
        self.door, self.process, self._port = door, process, port

    async def leads(self) -> bool:
        url = f"http://127.0.0.1:{self._port}/apis/v1/__services__"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


class World:
    """A cluster with a node, and schedulers."""

    def __init__(self, backend: doors.ObjectRegistry, client: MemoryCluster, folder: Path) -> None:
        self.client, self._backend, self._folder = client, backend, folder
        self.processes: list[Process] = []

    async def scheduler(self) -> Process:
        kubeconfig, config = self._folder / f"kubeconfig-{len(self.processes)}", self._folder / "config.yaml"
        config.write_text(CONFIG)
        door, port = await doors.opened(self._backend, kubeconfig), free_port()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "koordinator.cli.scheduler", "--config", str(config)),
            *("--kubeconfig", str(kubeconfig), "--address", "127.0.0.1", "--port", str(port)),
            *("--secure-port", "0"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self.processes.append(Process(door, process, port))
        return self.processes[-1]

    async def add_pod(self, name: str, cpu: str) -> None:
        container = {"name": "main", "image": "web", "resources": {"requests": {"cpu": cpu}}}
        spec = {"schedulerName": "koord-scheduler", "containers": [container]}
        await self.client.create(Pod, {"metadata": {"name": name}, "spec": spec}, "default")

    async def pods(self) -> list[Pod]:
        return (await self.client.list(Pod, "default")).items

    async def close(self) -> None:
        for each in self.processes:
            if each.process.returncode is None:
                each.process.kill()
                await each.process.communicate()
            await each.door.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend, client = await doors.cluster()
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "500"}
    status = {"capacity": amounts, "allocatable": amounts}
    await client.create(Node, {"metadata": {"name": "node-0"}, "status": status})
    found = World(backend, client, tmp_path)
    yield found
    await found.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(START_S):
        while not await holds():  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)


async def test_a_leader_that_was_frozen_changes_nothing_when_it_wakes_up(world: World) -> None:
    first = await world.scheduler()
    await until(first.leads)
    second = await world.scheduler()
    for number in range(PODS):
        await world.add_pod(f"pod-{number}", "10m")
    await until(lambda: bound(world, 1))
    first.process.send_signal(signal.SIGSTOP)  # with hundreds of decisions made or about to be made
    await until(second.leads)
    await until(lambda: bound(world, PODS))
    before = len(first.door.decisions())
    first.process.send_signal(signal.SIGCONT)

    _, stderr = await first.process.communicate()
    assert b"is leader no more" in stderr
    assert first.door.decisions()[before:] == []


async def bound(world: World, count: int) -> bool:
    return sum(bool(pod.spec.node_name) for pod in await world.pods()) >= count
