"""`koord-manager` as processes: who leads, what they serve, what they survive."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.core import Node
from koordinator.api.groups import Lease
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster.memory import MemoryCluster
from tests.free_ports import free_port
from tests.manager import doors
from tests.manager.doors import Door

pytestmark = pytest.mark.timeout(180)

START_S = 60.0
"""Of CPU time it takes about one second, which is long on a machine that does much else."""
LEASE_FLAGS = (
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=500ms",
)


class Process:
    """A manager with a door of its own to the API."""

    def __init__(self, door: Door, process: asyncio.subprocess.Process, ports: dict[str, int]) -> None:
        self.door, self.process = door, process
        self._ports = ports

    async def get(self, path: str, what: str = "metrics") -> tuple[int, str]:
        """Status and text; 0 while nobody answers."""
        url = f"http://127.0.0.1:{self._ports[what]}{path}"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def is_ready(self) -> bool:
        return (await self.get("/readyz", "health-probe"))[0] == 200

    async def leads(self) -> bool:
        return "\nkoordinator_manager_is_leader 1\n" in (await self.get("/internal-metrics"))[1]

    async def ended(self) -> tuple[int | None, str]:
        """Exit status and standard error."""
        async with asyncio.timeout(START_S):
            _, stderr = await self.process.communicate()
        return self.process.returncode, stderr.decode()


class World:
    """A cluster, and the managers that a test starts; they end with it."""

    def __init__(self, backend: Any, client: MemoryCluster, folder: Path) -> None:
        self.client = client
        self._backend, self._folder = backend, folder
        self.processes: list[Process] = []

    async def manager(self, *flags: str) -> Process:
        kubeconfig = self._folder / f"kubeconfig-{len(self.processes)}"
        door = await doors.opened(self._backend, kubeconfig)
        ports = {name: free_port() for name in ("metrics", "health-probe", "pprof")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "koordinator.cli.manager", "--kubeconfig", str(kubeconfig)),
            *(f"--{name}-addr=127.0.0.1:{port}" for name, port in ports.items()),
            *LEASE_FLAGS,
            *flags,
            env={
                **os.environ,
                "WEBHOOK_PORT": str(free_port()),
                "WEBHOOK_CERT_DIR": str(self._folder / f"certs-{len(self.processes)}"),
            },
            stderr=asyncio.subprocess.PIPE,
        )
        started = Process(door, process, ports)
        self.processes.append(started)
        await until(started.is_ready, started)
        return started

    async def add_node(self, name: str) -> None:
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {"capacity": amounts, "allocatable": dict(amounts)}
        await self.client.create(Node, {"metadata": {"name": name}, "status": status})

    async def metrics(self) -> set[str]:
        return {metric.metadata.name for metric in (await self.client.list(NodeMetric)).items}

    async def close(self) -> None:
        for each in self.processes:
            if each.process.returncode is None:
                each.process.kill()
                await each.process.communicate()
            await each.door.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend, client = await doors.cluster()
    found = World(backend, client, tmp_path)
    yield found
    await found.close()
    await backend.close()


async def until(holds: Callable[[], Awaitable[bool]], *processes: Process) -> None:
    """Wait until it holds; a process that ended meanwhile fails the test with its own words."""
    async with asyncio.timeout(START_S):
        while not await holds():
            for each in processes:
                assert each.process.returncode is None, await each.ended()
            await asyncio.sleep(0.05)


async def test_one_leads_until_it_is_killed_and_never_both_write(world: World) -> None:
    first = await world.manager()
    await until(first.leads, first)
    second = await world.manager()
    await world.add_node("a")
    await until(lambda: has(world, "a"), first, second)
    assert not await second.leads()

    first.process.kill()
    await first.ended()
    killed_s = asyncio.get_running_loop().time()
    await world.add_node("b")
    await until(second.leads, second)
    await until(lambda: has(world, "a", "b"), second)

    assert first.door.decisions() and second.door.decisions()
    assert all(write.at_s >= killed_s for write in second.door.decisions())
    assert any(agent.startswith("koordinator-manager/") for agent in second.door.agents)


async def has(world: World, *names: str) -> bool:
    return {*names} <= await world.metrics()


async def test_a_leader_that_is_told_to_stop_hands_over_at_once(world: World) -> None:
    first = await world.manager()
    await until(first.leads, first)
    second = await world.manager()

    first.process.send_signal(signal.SIGTERM)

    assert (await first.ended())[0] == 0
    lease = await world.client.get(Lease, "koordinator-manager", "koordinator-system")
    assert lease.spec.holder_identity == "" or await second.leads()
    await until(second.leads, second)


async def test_a_replica_that_goes_still_answers_while_others_learn_of_it(world: World) -> None:
    first = await world.manager("--shutdown-delay-duration=20s")
    await until(first.leads, first)
    second = await world.manager()

    first.process.send_signal(signal.SIGTERM)
    await until(second.leads, first, second)

    assert "[-]shutdown failed: stopping" in (await first.get("/readyz", "health-probe"))[1]
    assert (await first.get("/readyz/webhook-ready", "health-probe"))[0] == 200
    await world.add_node("a")
    await until(lambda: has(world, "a"), second)
    assert not first.door.decisions()
    first.process.send_signal(signal.SIGTERM)  # asked twice, it does not linger
    assert (await first.ended())[0] == 0


async def test_a_leader_whose_lease_was_taken_ends_and_says_so(world: World) -> None:
    process = await world.manager()
    await until(process.leads, process)

    stolen = {"spec": {"holderIdentity": "thief", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    await world.client.patch(Lease, "koordinator-manager", stolen, "koordinator-system")

    status, stderr = await process.ended()
    assert status == 1
    assert "is leader no more: thief holds it now" in stderr


async def test_a_leader_that_was_frozen_changes_nothing_when_it_wakes_up(world: World) -> None:
    first = await world.manager()
    await until(first.leads, first)
    second = await world.manager()
    first.process.send_signal(signal.SIGSTOP)
    await until(second.leads, second)
    before = len(first.door.decisions())
    for number in range(20):  # the frozen one hears of them when it wakes up
        await world.add_node(f"node-{number}")

    first.process.send_signal(signal.SIGCONT)

    status, stderr = await first.ended()
    assert status == 1 and "is leader no more" in stderr
    assert len(first.door.decisions()) == before
    await until(lambda: has(world, *(f"node-{number}" for number in range(20))), second)


async def test_an_api_server_that_comes_back_is_followed_again(world: World) -> None:
    process = await world.manager("--enable-leader-election=false")
    await world.add_node("a")
    await until(lambda: has(world, "a"), process)

    await process.door.stop()
    await world.add_node("b")
    await asyncio.sleep(0.3)
    assert process.process.returncode is None
    assert (await process.get("/healthz", "health-probe"))[0] == 200
    await process.door.start()

    await until(lambda: has(world, "a", "b"), process)


async def test_without_webhooks_no_configuration_of_them_is_needed(world: World) -> None:
    for view in (MutatingWebhookConfiguration, ValidatingWebhookConfiguration):
        for found in (await world.client.list(view)).items:
            await world.client.delete(view, found.metadata.name)

    process = await world.manager("--feature-gates=WebhookFramework=false", "--enable-leader-election=false")

    await world.add_node("a")
    await until(lambda: has(world, "a"), process)


async def test_health_metrics_and_profiles_are_served_where_the_flags_say(world: World) -> None:
    process = await world.manager("--enable-leader-election=false", "--v=2")
    await world.add_node("a")
    await until(lambda: has(world, "a"), process)

    runtime, everything = (await process.get("/metrics"))[1], (await process.get("/all-metrics"))[1]
    for name in (
        "process_resident_memory_bytes",
        'rest_client_requests_total{code="201"',
        'workqueue_adds_total{name="nodemetric"}',
        "kubernetes_feature_enabled",
    ):
        assert name in runtime and name in everything, name
    assert "koordinator_manager_is_leader 1" in everything
    assert (await process.get("/debug/pprof/goroutine", "pprof"))[0] == 200
    verbose = (await process.get("/readyz?verbose", "health-probe"))[1]
    assert (
        "[+]informer-sync ok" in verbose
        and "[+]webhook-ready ok" in verbose
        and "readyz check passed" in verbose
    )
    with contextlib.suppress(ProcessLookupError):
        process.process.terminate()
    assert (await process.ended())[0] == 0
