"""The CRI socket of the process node on real groups: by itself, behind the runtime proxy, and for the node agent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from koordinator.clock import SystemClock
from koordinator.host import cri_messages as cri
from koordinator.host import protobuf_messages
from koordinator.host.cgroup_knobs import V1, V2
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.cri import ContainerRuntimes
from koordinator.host.files import HostRoots
from koordinator.host.protobuf_messages import Message
from koordinator.host.syscalls import LinuxSyscalls
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.collect.runtime_usage import RuntimeUsageCollector
from koordinator.local.processes.cri import CriService
from koordinator.runtime_proxy.proxy import ProxyConfig, RuntimeProxy
from tests.kernel.process_world import ProcessWorld, process_world, sh
from tests.koordlet.collect.collecting_node import CollectingNode
from tests.runtime_proxy.fake_runtime import Caller

grpc = pytest.importorskip("grpc")
M = TypeVar("M", bound=Message)


class CriNode:
    """The socket, and whoever calls it."""

    def __init__(self, world: ProcessWorld, path: Path) -> None:
        self.world, self.path = world, path
        self.caller = Caller(path)

    async def ask(self, method: str, request: Message, kind: type[M]) -> M:
        return protobuf_messages.decode(kind, await self.caller.call(method, request))

    async def sandbox(self) -> str:
        """A sandbox below the best-effort pods."""
        below = self.world.node.groups.root.removeprefix(self.world.node.groups.parent)
        config = cri.PodSandboxConfig(
            cri.PodSandboxMetadata("job", "u1", "shop"),
            labels={"app": "job"},
            linux=cri.LinuxPodSandboxConfig(f"{below}/besteffort/podu1"),
        )
        made = await self.ask("RunPodSandbox", cri.RunPodSandboxRequest(config), cri.RunPodSandboxResponse)
        return made.pod_sandbox_id

    async def container(self, sandbox: str, *command: str) -> str:
        resources = cri.LinuxContainerResources(
            cpu_shares=512,
            cpu_period=100_000,
            cpu_quota=50_000,
            memory_limit_in_bytes=64 << 20,
            oom_score_adj=900,
        )
        config = cri.ContainerConfig(
            cri.ContainerMetadata("main"),
            cri.ImageSpec("job:1"),
            command,
            envs=(cri.KeyValue("WHO", "me"),),
            linux=cri.LinuxContainerConfig(resources),
        )
        request = cri.CreateContainerRequest(sandbox, config)
        return (await self.ask("CreateContainer", request, cri.ContainerIDMessage)).container_id

    async def exec(self, own_id: str, *command: str, timeout: int = 0) -> cri.ExecSyncResponse:
        return await self.ask("ExecSync", cri.ExecSyncRequest(own_id, command, timeout), cri.ExecSyncResponse)

    async def status(self, own_id: str) -> cri.ContainerStatus:
        answer = await self.ask(
            "ContainerStatus", cri.ContainerIDMessage(own_id), cri.ContainerStatusResponse
        )
        assert answer.status is not None
        return answer.status

    async def until_exited(self, own_id: str) -> cri.ContainerStatus:
        async with asyncio.timeout(20):
            while (found := await self.status(own_id)).state != cri.ContainerState.EXITED:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        return found


@contextlib.asynccontextmanager
async def runtime(group: str, folder: Path) -> AsyncIterator[CriNode]:
    async with process_world(group, folder) as world:
        service = CriService(world.node, world.host, SystemClock())
        await service.start(folder / "cri.sock")
        made = CriNode(world, folder / "cri.sock")
        try:
            yield made
        finally:
            await made.caller.channel.close()
            await service.close()


async def test_a_container_lives_by_calls_with_its_limits(group: str, tmp_path: Path) -> None:
    async with runtime(group, tmp_path) as node:
        sandbox = await node.sandbox()
        own_id = await node.container(sandbox, "sh", "-c", "trap 'exit 3' TERM; sleep 100 & wait")
        assert (await node.status(own_id)).state == cri.ContainerState.CREATED
        await node.ask("StartContainer", cri.ContainerIDMessage(own_id), Message)

        told = await node.exec(
            own_id, "sh", "-c", "echo $WHO; cat /proc/self/oom_score_adj; echo no >&2; exit 4"
        )
        assert (told.stdout, told.stderr, told.exit_code) == (b"me\n900\n", b"no\n", 4)
        below = node.world.node.groups
        at = below.container_group(f"{below.root}/besteffort/podu1", ContainerID(Runtime.CONTAINERD, own_id))
        cgroups = node.world.host.cgroups
        assert cgroups.shares(at) == {V1: 512, V2: 500}[cgroups.version], "weights of v2 are coarser"
        assert (cgroups.quota_us(at), cgroups.memory_limit_bytes(at)) == (50_000, 64 << 20)
        update = cri.UpdateContainerResourcesRequest(own_id, cri.LinuxContainerResources(cpu_quota=70_000))
        await node.ask("UpdateContainerResources", update, Message)
        assert cgroups.quota_us(at) == 70_000

        listed = await node.ask("ListContainerStats", cri.ListByID(), cri.ListContainerStatsResponse)
        [used] = listed.stats
        assert used.cpu is not None and used.memory is not None
        assert (used.cpu.usage_core_nano_seconds or 0) > 0 and (used.memory.working_set_bytes or 0) > 0

        await node.ask("StopContainer", cri.StopContainerRequest(own_id, 10), Message)
        assert (await node.until_exited(own_id)).exit_code == 3
        await node.ask("RemovePodSandbox", cri.PodSandboxRequest(sandbox), Message)
        assert (await node.ask("ListContainers", cri.ListByID(), cri.ListContainersResponse)).containers == ()


async def test_what_is_wrong_is_told_and_touches_nothing(group: str, tmp_path: Path) -> None:
    async with runtime(group, tmp_path) as node:
        for parent in ("/other", "../../x", f"{node.world.node.groups.root}/../x"):
            config = cri.PodSandboxConfig(linux=cri.LinuxPodSandboxConfig(parent))
            with pytest.raises(grpc.aio.AioRpcError, match=r"is not below|leads out"):
                await node.ask("RunPodSandbox", cri.RunPodSandboxRequest(config), cri.RunPodSandboxResponse)
        with pytest.raises(grpc.aio.AioRpcError, match="no container"):
            await node.status("unknown")
        own_id = await node.container(await node.sandbox(), "sleep", "100")
        await node.ask("StartContainer", cri.ContainerIDMessage(own_id), Message)
        with pytest.raises(grpc.aio.AioRpcError, match="too long"):
            await node.exec(own_id, "sleep", "100", timeout=1)
        with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
            await node.caller.call("ExecSync", b"\x0a\xff")


async def test_the_node_agent_stops_a_pods_container_and_the_pod_starts_it_again(
    group: str, tmp_path: Path
) -> None:
    async with runtime(group, tmp_path) as node:
        await node.world.create("web", sh("sleep 1000"))
        pod = await node.world.until("web", lambda p: p.status.phase == "Running")
        own_id = pod.status.container_statuses[0].container_id.removeprefix("containerd://")
        assert (await node.exec(own_id, "echo", "in")).stdout == b"in\n"
        images = await node.caller.channel.unary_unary(f"/{cri.IMAGE_SERVICE}/ListImages")(b"")
        assert [each.id for each in protobuf_messages.decode(cri.ListImagesResponse, images).images] == [
            "any"
        ]
        host = node.world.host
        agents = ContainerRuntimes(
            host.files, HostRoots.below(""), {Runtime.CONTAINERD: f"unix://{node.path}"}
        )

        assert await agents.stop(ContainerID(Runtime.CONTAINERD, own_id)) == ""

        await node.world.until("web", lambda p: p.status.container_statuses[0].restart_count == 1)
        await node.world.delete("web", grace_s=0)


async def test_the_node_agent_reads_the_use_of_pods_whose_groups_it_does_not_see(
    group: str, tmp_path: Path
) -> None:
    async with runtime(group, tmp_path) as node:
        await node.world.create("web", sh("x=$(head -c 8000000 /dev/zero | tr '\\0' x); while :; do :; done"))
        pod = await node.world.until("web", lambda p: p.status.phase == "Running")
        blind = CollectingNode(tmp_path / "agent", SystemClock())
        socket = tmp_path / "agent/run/containerd/containerd.sock"
        socket.parent.mkdir(parents=True)
        socket.symlink_to(node.path)
        view = blind.shared.view
        record = node_pods.record(pod, view.driver)
        view.pods, view.has_pods = {record.uid: record}, True
        collector = RuntimeUsageCollector(blind.shared, blind.known)
        known = (kinds.POD_CPU, kinds.POD_MEMORY)

        async with asyncio.timeout(20):
            while not all(any(blind.values(kind, pod_uid=record.uid)) for kind in known):
                assert await collector.collect()

        await node.world.delete("web", grace_s=0)


async def test_the_runtime_proxy_can_be_tried_on_it(group: str, tmp_path: Path) -> None:
    async with runtime(group, tmp_path) as node:
        config = ProxyConfig(
            endpoint=str(tmp_path / "proxy.sock"),
            backend=str(node.path),
            hook_directory=str(tmp_path / "hooks"),
        )
        proxy = RuntimeProxy(config, LinuxSyscalls())
        task = asyncio.create_task(proxy.run())
        await proxy.is_serving.wait()
        through = CriNode(node.world, tmp_path / "proxy.sock")

        own_id = await through.container(await through.sandbox(), "sleep", "100")
        await through.ask("StartContainer", cri.ContainerIDMessage(own_id), Message)
        version = await through.ask("Version", Message(), cri.VersionResponse)
        assert (version.runtime_name, (await through.exec(own_id, "echo", "hi")).stdout) == (
            "koordinator-process-node",
            b"hi\n",
        )

        await through.caller.channel.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
