"""Kubelet, proxy, runtime and hook servers on real sockets: what passes, what hooks change, what failures do."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.host import protobuf_messages
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cri_messages import (
    ContainerIDMessage,
    CreateContainerRequest,
    LinuxContainerResources,
    PodSandboxRequest,
    RunPodSandboxRequest,
    StopContainerRequest,
    UpdateContainerResourcesRequest,
)
from koordinator.host.grpc_sockets import SocketError
from koordinator.host.hook_messages import HOOK_SERVICE
from koordinator.runtime_proxy.proxy import RuntimeProxy
from tests import grpcio_sockets
from tests.runtime_proxy.fake_runtime import (
    PARENT,
    UNKNOWN,
    Caller,
    FakeRuntime,
    container_request,
    sandbox_config,
)
from tests.runtime_proxy.proxied_node import ProxiedNode

grpc = pytest.importorskip("grpc")


class Node(ProxiedNode):
    """A runtime, a proxy before it, and a folder for hook servers."""

    def __init__(self, root: Path) -> None:
        self.runtime = FakeRuntime(root / "runtime.sock")
        super().__init__(root, self.runtime.path)
        self.kubelet = Caller(self.socket)

    async def start_proxy(self) -> asyncio.Task[Any]:
        return await self.start(RuntimeProxy)

    async def close(self) -> None:
        await self.kubelet.channel.close()
        await self.end_tasks()
        await self.runtime.stop()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.runtime.start()
    yield made
    await made.close()


RUN = RunPodSandboxRequest(sandbox_config(), unknown=UNKNOWN)


# What passes


async def test_calls_without_hooks_pass_unchanged_known_or_not(node: Node) -> None:
    await node.start_proxy()

    for method in ("ListMetricDescriptors", "InventedTomorrow"):
        assert (
            await node.kubelet.call(method, b"\xff no message", metadata=(("tenant", "x"),))
            == b"\xff no message"
        )

    assert node.runtime.asked == [
        ("ListMetricDescriptors", b"\xff no message"),
        ("InventedTomorrow", b"\xff no message"),
    ]
    assert node.runtime.metadata["tenant"] == "x"


async def test_streams_pass_message_by_message(node: Node) -> None:
    await node.start_proxy()
    call = node.kubelet.channel.stream_stream("/runtime.v1.RuntimeService/GetContainerEvents")()

    for each in (b"a", b"b"):
        await call.write(each)
        assert await call.read() == each
    await call.done_writing()

    assert await call.read() is grpc.aio.EOF
    assert ("cost", "7") in tuple(await call.trailing_metadata())


@pytest.mark.parametrize("method", ["CreateContainer", "ListContainers"])
async def test_the_runtimes_own_errors_reach_the_kubelet(node: Node, method: str) -> None:
    await node.start_proxy()
    node.runtime.failure = (grpc.StatusCode.RESOURCE_EXHAUSTED, "no space left")

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.kubelet.call(method, container_request())

    assert (raised.value.code(), raised.value.details()) == node.runtime.failure


async def test_without_hook_servers_a_container_is_made_as_it_was_asked_for(node: Node) -> None:
    await node.start_proxy()

    await node.kubelet.call("RunPodSandbox", RUN)
    await node.kubelet.call("CreateContainer", container_request())

    assert node.runtime.last("RunPodSandbox", RunPodSandboxRequest) == RUN
    assert node.runtime.last("CreateContainer", CreateContainerRequest) == container_request()


async def test_a_call_that_the_kubelet_gives_up_is_given_up_at_the_runtime(node: Node) -> None:
    await node.start_proxy()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    node.runtime.on_call = lambda method: hang()
    call = asyncio.create_task(node.kubelet.call("PullImage", b""))
    await begun.wait()
    call.cancel()

    async with asyncio.timeout(10):
        await ended.wait()


# What hooks change


async def test_a_batch_container_has_its_limits_when_it_is_created(node: Node) -> None:
    await node.start_koordlet()
    await node.start_proxy()

    await node.kubelet.call("RunPodSandbox", RUN)
    await node.kubelet.call("CreateContainer", container_request())

    made = node.runtime.last("CreateContainer", CreateContainerRequest)
    assert made.config is not None and made.config.linux is not None
    assert made.config.linux.resources == LinuxContainerResources(
        cpu_period=100_000,
        cpu_shares=512,
        cpu_quota=50_000,
        memory_limit_in_bytes=2**30,
        oom_score_adj=1000,
        unknown=UNKNOWN,
    )
    assert (made.config.unknown, made.unknown) == (UNKNOWN, UNKNOWN)
    assert made.config.envs == container_request().config.envs  # type: ignore[union-attr]


async def test_a_pods_own_group_is_written_before_its_sandbox_runs(node: Node) -> None:
    agent = await node.start_koordlet()
    await node.start_proxy()
    seen = []
    node.runtime.on_call = lambda method: seen.append(agent.says(Knob.CPU_BVT, PARENT.strip("/")))

    await node.kubelet.call("RunPodSandbox", RUN)

    assert seen == ["-1"]
    assert agent.says(Knob.CPU_SHARES, PARENT.strip("/")) == "512"
    assert 'hook="BatchResource",mode="proxy"} 1' in "\n".join(agent.shared.metrics.hook_delivery.lines())


async def test_an_update_keeps_what_is_known_of_the_container(node: Node) -> None:
    await node.start_koordlet()
    await node.start_proxy()
    await node.kubelet.call("RunPodSandbox", RUN)
    await node.kubelet.call("CreateContainer", container_request())

    update = UpdateContainerResourcesRequest("c1", LinuxContainerResources(cpuset_cpus="0-1", cpu_shares=2))
    await node.kubelet.call("UpdateContainerResources", update)

    sent = node.runtime.last("UpdateContainerResources", UpdateContainerResourcesRequest).linux
    assert sent is not None
    assert (sent.cpu_shares, sent.cpu_quota, sent.memory_limit_in_bytes) == (512, 50_000, 2**30)
    assert sent.cpuset_cpus == "0-1"


async def test_a_new_proxy_learns_from_the_runtime_what_the_old_one_knew(node: Node) -> None:
    await node.start_koordlet()
    first = await node.start_proxy()
    await node.kubelet.call("RunPodSandbox", RUN)
    await node.kubelet.call("CreateContainer", container_request())
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await node.start_proxy()
    await node.kubelet.channel.close()  # it may write to the lost connection once more: UNAVAILABLE
    node.kubelet = Caller(node.socket)

    update = UpdateContainerResourcesRequest("c1", LinuxContainerResources(cpu_shares=2))
    await node.kubelet.call("UpdateContainerResources", update)

    sent = node.runtime.last("UpdateContainerResources", UpdateContainerResourcesRequest).linux
    assert sent is not None
    assert (sent.cpu_shares, sent.cpu_quota, sent.oom_score_adj) == (512, 50_000, 1000)


async def test_a_pod_with_the_skip_label_meets_no_hook(node: Node) -> None:
    node.register("broken", "/nowhere.sock", "PreRunPodSandbox", "PreCreateContainer", policy="Fail")
    await node.start_proxy()
    config = sandbox_config(**{"runtimeproxy.koordinator.sh/skip-hookserver": "true"})

    await node.kubelet.call("RunPodSandbox", RunPodSandboxRequest(config))
    await node.kubelet.call("CreateContainer", container_request())

    assert node.runtime.methods() == ["RunPodSandbox", "CreateContainer"]


async def test_stopping_a_container_tells_its_hook_afterwards(node: Node) -> None:
    told: list[tuple[str, set[str]]] = []
    is_told = (asyncio.Event(), asyncio.Event())

    class Server:
        def service(self, details: Any) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                told.append((details.method, set(node.runtime.methods())))
                is_told[len(told) - 1].set()
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    socket = str(node.root / "hooks.sock")
    server = grpcio_sockets.server(socket, Server())
    await server.start()
    node.register("a", socket, "PostStopContainer", "PostStopPodSandbox")
    await node.start_proxy()
    await node.kubelet.call("RunPodSandbox", RUN)
    await node.kubelet.call("CreateContainer", container_request())

    async with asyncio.timeout(10):
        await node.kubelet.call("StopContainer", StopContainerRequest("c1"))
        await is_told[0].wait()
        await node.kubelet.call("StopPodSandbox", PodSandboxRequest("s1"))
        await is_told[1].wait()

    await server.stop(None)
    made = {"RunPodSandbox", "CreateContainer", "StopContainer"}
    assert told == [
        (f"/{HOOK_SERVICE}/PostStopContainerHook", made),
        (f"/{HOOK_SERVICE}/PostStopPodSandboxHook", made | {"StopPodSandbox"}),
    ]


# What failures do


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_a_hook_server_that_is_away_counts_as_its_policy_says(node: Node, policy: str) -> None:
    node.register("away", str(node.root / "away.sock"), "PreRunPodSandbox", policy=policy)
    await node.start_proxy()

    if policy == "Ignore":
        await node.kubelet.call("RunPodSandbox", RUN)
        assert node.runtime.last("RunPodSandbox", RunPodSandboxRequest) == RUN
    else:
        with pytest.raises(grpc.aio.AioRpcError, match=r"hook PreRunPodSandbox of away\.json"):
            await node.kubelet.call("RunPodSandbox", RUN)
        assert node.runtime.asked == []


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_a_hook_server_that_answers_nonsense_counts_as_its_policy_says(node: Node, policy: str) -> None:
    class Server:
        def service(self, details: Any) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                return b"\xff\xff"

            return grpc.unary_unary_rpc_method_handler(answer)

    socket = str(node.root / "hooks.sock")
    server = grpcio_sockets.server(socket, Server())
    await server.start()
    node.register("mad", socket, "PreCreateContainer", policy=policy)
    await node.start_proxy()

    with contextlib.suppress(grpc.aio.AioRpcError):
        await node.kubelet.call("CreateContainer", container_request())

    await server.stop(None)
    assert node.runtime.methods() == ([] if policy == "Fail" else ["CreateContainer"])


async def test_hook_servers_come_and_go_while_the_proxy_runs(node: Node) -> None:
    await node.start_proxy()
    await node.start_koordlet()

    async def shares() -> int:
        await node.kubelet.call("CreateContainer", container_request())
        resources = node.runtime.resources["c1"]
        return resources.cpu_shares

    async with asyncio.timeout(10):
        while await shares() != 512:  # noqa: ASYNC110 - the proxy is told by the kernel
            await asyncio.sleep(0.01)
        os.unlink(node.hooks / "koordlet.json")
        while await shares() != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_call_that_makes_no_sense_is_the_runtimes_to_refuse(node: Node) -> None:
    node.register("away", str(node.root / "away.sock"), "PreCreateContainer")
    await node.start_proxy()

    await node.kubelet.call("StopContainer", b"\xff\xff")

    assert node.runtime.asked == [("StopContainer", b"\xff\xff")]


async def test_a_container_that_the_runtime_does_not_know_is_its_to_refuse(node: Node) -> None:
    await node.start_proxy()

    await node.kubelet.call("StartContainer", ContainerIDMessage("gone"))

    assert node.runtime.methods() == ["ListContainers", "StartContainer"]


# Sockets


async def test_our_socket_is_for_root_alone(node: Node) -> None:
    await node.start_proxy()

    assert node.socket.stat().st_mode & 0o777 == 0o660


async def test_a_stale_socket_is_replaced_and_anything_else_is_not(node: Node) -> None:
    task = await node.start_proxy()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    node.socket.unlink(missing_ok=True)
    node.socket.write_text("precious")

    with pytest.raises(SocketError, match="no socket"):
        await node.start_proxy()

    assert node.socket.read_text() == "precious"


@pytest.mark.parametrize("damage", ["a runtime's socket for everybody", "a hook file for everybody"])
async def test_what_anybody_could_have_put_there_is_not_used(node: Node, damage: str) -> None:
    if damage.startswith("a runtime"):
        node.runtime.path.chmod(0o666)
        with pytest.raises(SocketError, match="written by everybody"):
            await node.start_proxy()
        return
    node.register("evil", str(node.root / "away.sock"), "PreRunPodSandbox", policy="Fail")
    (node.hooks / "evil.json").chmod(0o666)
    await node.start_proxy()

    await node.kubelet.call("RunPodSandbox", RUN)

    assert node.runtime.methods() == ["RunPodSandbox"]
    assert protobuf_messages.encode(RUN) == node.runtime.asked[0][1]
