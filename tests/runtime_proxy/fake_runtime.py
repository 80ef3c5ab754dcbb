"""A container runtime that answers what it is told to, and keeps what it was asked; and whoever calls as a kubelet."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import (
    RUNTIME_SERVICE,
    Container,
    ContainerConfig,
    ContainerIDMessage,
    ContainerMetadata,
    ContainerResources,
    ContainerStatus,
    ContainerStatusResponse,
    CreateContainerRequest,
    KeyValue,
    LinuxContainerConfig,
    LinuxContainerResources,
    LinuxPodSandboxConfig,
    ListContainersResponse,
    ListPodSandboxResponse,
    PodSandbox,
    PodSandboxConfig,
    PodSandboxMetadata,
    RunPodSandboxRequest,
    RunPodSandboxResponse,
)
from koordinator.host.protobuf_messages import Message
from tests import grpcio_sockets

M = TypeVar("M", bound=Message)
UNKNOWN = b"\xf2\x3f\x03new"
"""Field 1022 of a CRI to come."""
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
LABELS = {"koordinator.sh/qosClass": "BE"}
ANNOTATIONS = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {"containers": {"main": {"requests": BATCH, "limits": BATCH}}}
    )
}
PARENT = "/kubepods/besteffort/podu1"


def sandbox_config(**labels: str) -> PodSandboxConfig:
    return PodSandboxConfig(
        PodSandboxMetadata("job", "u1", "shop"),
        labels={**LABELS, **labels},
        annotations=ANNOTATIONS,
        linux=LinuxPodSandboxConfig(PARENT),
        unknown=UNKNOWN,
    )


def container_request() -> CreateContainerRequest:
    """A container as a kubelet asks for one that requests only batch resources."""
    config = ContainerConfig(
        ContainerMetadata("main"),
        envs=(KeyValue("PATH", "/bin"), KeyValue("B", "2")),
        annotations={"a": "1"},
        linux=LinuxContainerConfig(
            LinuxContainerResources(cpu_period=100_000, cpu_shares=2, oom_score_adj=1000, unknown=UNKNOWN),
            unknown=UNKNOWN,
        ),
        unknown=UNKNOWN,
    )
    return CreateContainerRequest("s1", config, sandbox_config(), unknown=UNKNOWN)


class FakeRuntime:
    """Serves any method; what has no answer in `answers` is echoed, message by message."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[str, bytes]] = []
        self.metadata: dict[str, str] = {}
        self.sandboxes: dict[str, PodSandbox] = {}
        self.containers: dict[str, Container] = {}
        self.resources: dict[str, LinuxContainerResources] = {}
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self.on_call: Callable[[str], Any] = lambda _: None
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpcio_sockets.server(str(self.path), self)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]

        async def answer(requests: Any, context: Any) -> AsyncIterator[bytes]:
            self.metadata = dict(context.invocation_metadata())
            async for request in requests:
                self.asked.append((method, request))
                await self.before(method, context)
                yield self.answer(method, request)
            context.set_trailing_metadata((("cost", "7"),))

        return grpc.stream_stream_rpc_method_handler(answer)

    def forget(self, _: str) -> None:
        """For `on_call`: keep nothing."""
        self.asked.clear()

    async def before(self, method: str, context: Any) -> None:
        happened = self.on_call(method)
        if happened is not None:
            await happened
        if self.failure is not None:
            await context.abort(*self.failure)

    def answer(self, method: str, request: bytes) -> bytes:
        match method:
            case "RunPodSandbox":
                config = protobuf_messages.decode(RunPodSandboxRequest, request).config
                assert config is not None
                self.sandboxes["s1"] = PodSandbox(
                    "s1", config.metadata, labels=config.labels, annotations=config.annotations
                )
                return protobuf_messages.encode(RunPodSandboxResponse("s1"))
            case "CreateContainer":
                config = protobuf_messages.decode(CreateContainerRequest, request).config
                assert config is not None and config.linux is not None and config.linux.resources is not None
                self.containers["c1"] = Container(
                    "c1", "s1", config.metadata, labels=config.labels, annotations=config.annotations
                )
                self.resources["c1"] = config.linux.resources
                return protobuf_messages.encode(ContainerIDMessage("c1"))
            case "ListPodSandbox":
                return protobuf_messages.encode(ListPodSandboxResponse(tuple(self.sandboxes.values())))
            case "ListContainers":
                return protobuf_messages.encode(ListContainersResponse(tuple(self.containers.values())))
            case "ContainerStatus":
                resources = ContainerResources(self.resources.get("c1"))
                return protobuf_messages.encode(ContainerStatusResponse(ContainerStatus(resources=resources)))
        return request

    def last(self, method: str, kind: type[M]) -> M:
        """What it was asked last."""
        return protobuf_messages.decode(kind, [raw for name, raw in self.asked if name == method][-1])

    def methods(self) -> list[str]:
        return [name for name, _ in self.asked]


class Caller:
    """Calls a socket as a kubelet does."""

    def __init__(self, path: Path) -> None:
        self.channel = grpcio_sockets.channel(str(path))

    async def call(self, method: str, request: Message | bytes, **options: Any) -> bytes:
        raw = request if isinstance(request, bytes) else protobuf_messages.encode(request)
        call = self.channel.unary_unary(f"/{RUNTIME_SERVICE}/{method}")
        answer: bytes = await call(raw, timeout=10, **options)
        return answer
