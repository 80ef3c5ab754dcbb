"""A CRI server below a tree's /run, on a real gRPC server: containers stop, other calls get the answers set here."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordinator.host import cri, protobuf_messages
from koordinator.host.cri_messages import (
    ContainerAttributes,
    ContainerStats,
    CPUUsage,
    LinuxPodSandboxStats,
    MemoryUsage,
    PodSandboxAttributes,
    PodSandboxMetadata,
    PodSandboxStats,
)
from koordinator.host.protobuf_messages import Message

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc.aio")
NS = 1_000_000_000


class FakeRuntime:
    """Answers StopContainer, and what `answers` has by method, of the services that it knows."""

    def __init__(self, root: Path, services: tuple[str, ...] = cri.SERVICES[:1]) -> None:
        self.path = root / "run/containerd/containerd.sock"
        self.path.parent.mkdir(parents=True)
        self.services = services
        self.answers: dict[str, Message] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.failures: dict[bytes, Any] = {}
        self.hang = False
        self.on_stop: Callable[[str], None] = lambda _: None
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        for service in self.services:
            methods = {
                name: grpc.unary_unary_rpc_method_handler(self._answer(service, name))
                for name in ("StopContainer", "ListPodSandboxStats", "ListContainerStats", "ListImages")
            }
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
        self._server.add_insecure_port(f"unix://{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def _answer(self, service: str, method: str) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            self.asked.append((service, request))
            if self.hang:
                await asyncio.sleep(60)
            if method != "StopContainer":
                if method not in self.answers:
                    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
                return protobuf_messages.encode(self.answers[method])
            for ending, code in self.failures.items():
                if request.endswith(ending):
                    await context.abort(code, "as told")
            self.on_stop(request[2 : 2 + request[1]].decode())
            return b""

        return answer


def container_stats(own_id: str, at_s: float, cpu_s: float, rss: int | None = 1000) -> ContainerStats:
    """What a container has used by a time."""
    return ContainerStats(ContainerAttributes(own_id), *_used(at_s, cpu_s, rss))


def sandbox_stats(uid: str, at_s: float, cpu_s: float, *containers: ContainerStats) -> PodSandboxStats:
    """What a pod has used by a time."""
    attributes = PodSandboxAttributes("sandbox", PodSandboxMetadata(uid=uid))
    return PodSandboxStats(attributes, LinuxPodSandboxStats(*_used(at_s, cpu_s, 5000), containers))


def _used(at_s: float, cpu_s: float, rss: int | None) -> tuple[CPUUsage, MemoryUsage]:
    at_ns = int(at_s * NS)
    return CPUUsage(at_ns, int(cpu_s * NS)), MemoryUsage(at_ns, 9000, rss)
