"""The agent of YARN as a process, with real groups laid out as a NodeManager does and processes in them."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koordinator.api.copilot import is_yarn_id
from koordinator.host.cgroup_knobs import V1
from koordinator.host.cgroups import Cgroups
from tests.kernel.conftest import Spawn, make
from tests.yarn.copilot.node_manager_double import NodeManagerDouble, container, container_id

START_S = 60.0
"""An emulated machine imports for a quarter of a minute and more."""
SPIN = "while True: pass"
HOLD = "x = bytearray({} << 20)\nimport time\ntime.sleep(100)"
FORKS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()  # a group of processes of its own, as daemons have
        time.sleep(100)
time.sleep(100)
"""


class Copilot:
    """The console script, at its socket."""

    def __init__(
        self, socket: Path, process: subprocess.Popen[bytes], session: aiohttp.ClientSession
    ) -> None:
        self.socket, self.process, self._session = socket, process, session

    async def get(self, path: str) -> Any:
        async with self._session.get(f"http://node{path}") as answer:
            return await answer.json()

    async def post(self, path: str, body: Any) -> Any:
        async with self._session.post(f"http://node{path}", json=body) as answer:
            return await answer.json()


@contextlib.asynccontextmanager
async def copilot(socket: Path, group: str, endpoint: str, *flags: str) -> AsyncIterator[Copilot]:
    command = [sys.executable, "-m", "koordinator.cli.yarn_copilot", f"--server-endpoint={socket}"]
    command += [f"--yarn-container-cgroup-path={group}", f"--node-manager-endpoint={endpoint}", *flags]
    process = _started(command)
    try:
        await until(socket.exists, START_S)
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(socket))) as session:
            yield Copilot(socket, process, session)
    finally:
        process.terminate()
        process.wait()


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


async def until(is_so: Callable[[], bool], within_s: float = 15.0) -> None:
    end_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


@pytest.fixture
def yarn(real: Cgroups, group: str) -> str:
    """YARN's group, with one group for each of three containers."""
    path = f"{group}/hadoop-yarn"
    make(real, path)
    for number in (1, 2, 3):
        make(real, f"{path}/{container_id(number)}")
    return path


def runs(real: Cgroups, yarn: str, number: int) -> bool:
    return bool(real.procs(f"{yarn}/{container_id(number)}"))


async def test_all_processes_of_a_container_end_whatever_group_of_processes_they_are_in(
    real: Cgroups, yarn: str, spawn: Spawn, tmp_path: Path
) -> None:
    master, task = (f"{yarn}/{container_id(number)}" for number in (1, 2))
    spawn(master)
    spawn(task, FORKS)
    await until(lambda: len(real.procs(task) or ()) == 4)

    async with (
        NodeManagerDouble(container(1), container(2)).served() as manager,
        copilot(tmp_path / "yarn.sock", yarn, manager.endpoint) as agent,
    ):
        created = (await agent.get(f"/v1/container?containerID={container_id(2)}"))["createTimestamp"]
        answer = await agent.post("/v1/killContainer", {"containerID": container_id(2)})

    assert not created.startswith("0001")
    assert [each["name"] for each in answer["items"]] == [container_id(2)]
    await until(lambda: not runs(real, yarn, 2))
    assert runs(real, yarn, 1)


async def test_memory_is_given_back_by_those_that_use_most_and_by_a_master_last(
    real: Cgroups, yarn: str, spawn: Spawn, tmp_path: Path
) -> None:
    for number, mb in ((1, 150), (2, 40), (3, 80)):
        spawn(f"{yarn}/{container_id(number)}", HOLD.format(mb))

    def used_mb(number: int) -> float:
        found = real.memory_stat(f"{yarn}/{container_id(number)}")
        return 0.0 if found is None else found.usage_bytes / (1 << 20)

    await until(lambda: used_mb(1) > 140 and used_mb(2) > 35 and used_mb(3) > 75)
    async with (
        NodeManagerDouble(*map(container, (1, 2, 3))).served() as manager,
        copilot(tmp_path / "yarn.sock", yarn, manager.endpoint) as agent,
    ):
        ask = {"resources": {"memory": "60Mi"}, "reason": "test"}
        first = await agent.post("/v1/killContainersByResource", ask)
        await until(lambda: not runs(real, yarn, 3))
        manager.containers = [container(1), container(2)]
        rest = await agent.post("/v1/killContainersByResource", {"resources": {"memory": "100Gi"}})

    assert [each["name"] for each in first["items"]] == [container_id(3)]
    assert "shortfall" not in first
    assert [each["name"] for each in rest["items"]] == [container_id(2), container_id(1)]
    assert rest["shortfall"]


async def test_cpu_in_use_decides_where_it_is_wanted(
    real: Cgroups, yarn: str, spawn: Spawn, tmp_path: Path
) -> None:
    if real.cpu_usage_ns(f"{yarn}/{container_id(1)}") is None:
        pytest.skip("this kernel counts no CPU time of groups")
    spawn(f"{yarn}/{container_id(2)}", SPIN)
    spawn(f"{yarn}/{container_id(3)}")
    # By what was asked for, 3 would go first.
    listed = (container(2, vcores=1), container(3, vcores=8))

    async with (
        NodeManagerDouble(*listed).served() as manager,
        copilot(tmp_path / "yarn.sock", yarn, manager.endpoint, "--metrics-addr=127.0.0.1:0") as agent,
    ):
        await asyncio.sleep(4.5)  # two samples
        ask = {"resources": {"cpu": "50m"}, "mode": "usage"}
        answer = await agent.post("/v1/killContainersByResource", ask)

    assert [each["name"] for each in answer["items"]] == [container_id(2)]


async def test_memory_groups_follow_cpu_groups_for_hadoop_2(
    real: Cgroups, group: str, spawn: Spawn, tmp_path: Path
) -> None:
    if real.version != V1:
        pytest.skip("groups of v2 have memory and CPU together")
    path = f"{group}/hadoop-yarn"
    cpu, memory = (Path(real.directory(path, each)) for each in ("cpu", "memory"))
    mine = container_id(2)
    cpu.mkdir()
    (cpu / mine).mkdir()
    sleeping = _started(["sleep", "30"])
    (cpu / mine / "cgroup.procs").write_text(str(sleeping.pid))
    try:
        async with (
            NodeManagerDouble(container(2, memory_mb=64, vcores=3)).served() as manager,
            copilot(
                tmp_path / "yarn.sock",
                path,
                manager.endpoint,
                "--sync-memory-cgroup",
                "--sync-cgroup-period=1s",
            ),
        ):
            await until(lambda: str(sleeping.pid) in _text(memory / mine / "cgroup.procs").split())
            assert _text(memory / mine / "memory.limit_in_bytes").strip() == str(64 << 20)
            assert _text(cpu / "cpu.shares").strip() == str(3 * 1024)

            sleeping.kill()
            sleeping.wait()
            await until(lambda: not _text(cpu / mine / "cgroup.procs").strip())
            (cpu / mine).rmdir()
            manager.containers = []
            await until(lambda: not (memory / mine).exists() and _text(cpu / "cpu.shares").strip() == "2")
    finally:
        sleeping.kill()
        sleeping.wait()
    assert not [name for name in os.listdir(memory) if is_yarn_id(name)]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


async def test_containers_go_on_while_their_agent_is_killed_and_started_again(
    real: Cgroups, yarn: str, spawn: Spawn, tmp_path: Path
) -> None:
    spawn(f"{yarn}/{container_id(2)}")
    socket = tmp_path / "yarn.sock"
    async with NodeManagerDouble(container(2)).served() as manager:
        async with copilot(socket, yarn, manager.endpoint) as agent:
            agent.process.kill()
            agent.process.wait()
        assert runs(real, yarn, 2)
        assert socket.exists()  # left behind
        async with copilot(socket, yarn, manager.endpoint) as agent:
            await until(lambda: agent.process.poll() is None)
            answer = await _answered(agent)
    assert [each["name"] for each in answer] == [container_id(2)]


async def _answered(agent: Copilot) -> Any:
    """The left-over socket exists before the new one listens."""
    for _ in range(300):
        with contextlib.suppress(aiohttp.ClientError):
            return await agent.get("/v1/containers")
        await asyncio.sleep(0.05)
    raise AssertionError("no answer")
