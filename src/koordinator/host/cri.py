"""Calls of a container runtime at its own socket (CRI): stop a container, tell what containers use, list images.

The client of gRPC is loaded with the first call, as hpack is an extra. Source: behaviour/koordlet-act 3.1 and 5.5;
k8s.io/cri-api.
"""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from koordinator.host import grpc_sockets, protobuf_messages
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.cri_messages import (
    IMAGE_SERVICE,
    RUNTIME_SERVICE,
    ContainerStats,
    Image,
    ListContainerStatsResponse,
    ListImagesResponse,
    ListPodSandboxStatsResponse,
    PodSandboxStats,
    StopContainerRequest,
)
from koordinator.host.errors import CallError, GrpcCode, RuntimeCallError
from koordinator.host.files import Files, HostRoots
from koordinator.host.protobuf_messages import Message

CALL_S_MAX = 10.0
"""A runtime that hangs must not hold up the loop; killing takes it milliseconds."""
SERVICES = (RUNTIME_SERVICE, "runtime.v1alpha2.RuntimeService")
"""Newest first; containerd before 1.6 knows only the second."""
IMAGE_SERVICES = (IMAGE_SERVICE, "runtime.v1alpha2.ImageService")
_CLIENT = "koordinator.host.grpc_client"
"""Needs hpack."""

_SOCKETS = {
    Runtime.CONTAINERD: ("containerd/containerd.sock",),
    Runtime.DOCKER: ("cri-dockerd.sock", "dockershim.sock"),
    Runtime.CRI_O: ("crio/crio.sock",),
    Runtime.POUCH: ("pouchcri.sock",),
}
"""Below /var/run and /run."""


class RuntimeUsage(NamedTuple):
    """The use of sandboxes and containers since their start; no sandboxes from runtimes that tell nothing of them."""

    sandboxes: tuple[PodSandboxStats, ...]
    containers: tuple[ContainerStats, ...]


class ContainerRuntimes:
    """The runtimes of a host. `endpoints` name sockets that are not in their usual place, as path or `unix://` URL."""

    def __init__(self, files: Files, roots: HostRoots, endpoints: Mapping[Runtime, str]) -> None:
        self._files = files
        self._bases = (roots.var_run, roots.run)
        self._endpoints = {runtime: text for runtime, text in endpoints.items() if text}

    def socket(self, runtime: Runtime) -> str | None:
        """Path of a runtime's socket; None when there is none."""
        given = self._endpoints.get(runtime)
        if given is not None:
            path = grpc_sockets.path_of(given)
            return path if self._files.exists(path) else None
        places = [f"{base}/{name}" for base in self._bases for name in _SOCKETS[runtime]]
        return next((path for path in places if self._files.exists(path)), None)

    def problem(self, runtime: Runtime) -> str:
        """Return why a runtime cannot be asked; empty when it can be tried."""
        if self.socket(runtime) is None:
            return f"no socket of {runtime} below {' or '.join(self._bases)}"
        try:
            importlib.import_module(_CLIENT)
        except ImportError:
            return "hpack is not installed (pip install '.[node]')"
        return ""

    def present(self) -> list[Runtime]:
        """Return the runtimes that have a socket."""
        return [each for each in Runtime if self.socket(each) is not None]

    async def stop(self, container: ContainerID, grace_s: int = 0) -> str:
        """Stop a container, killing it after the grace period; empty when it does not run any more, else why not."""
        request = StopContainerRequest(container.id, grace_s)
        try:
            await self._ask(container.runtime, SERVICES, "StopContainer", request, CALL_S_MAX + grace_s)
        except RuntimeCallError as error:
            # What is not found has ended and been removed meanwhile.
            return "" if error.code == GrpcCode.NOT_FOUND.name else str(error)
        return ""

    async def used(self, runtime: Runtime) -> RuntimeUsage:
        """Return what all sandboxes and containers have used. Raises: RuntimeCallError, ContentError.

        Runtimes that tell nothing of sandboxes (containerd before 1.6) are asked for containers only.
        """
        try:
            answer = await self._ask(runtime, SERVICES[:1], "ListPodSandboxStats", Message())
        except RuntimeCallError as error:
            if error.code != GrpcCode.UNIMPLEMENTED.name:
                raise
            answer = await self._ask(runtime, SERVICES, "ListContainerStats", Message())
            return RuntimeUsage((), protobuf_messages.decode(ListContainerStatsResponse, answer).stats)
        sandboxes = protobuf_messages.decode(ListPodSandboxStatsResponse, answer).stats
        linux = [each.linux for each in sandboxes if each.linux is not None]
        return RuntimeUsage(sandboxes, tuple(container for each in linux for container in each.containers))

    async def images(self, runtime: Runtime) -> tuple[Image, ...]:
        """Return the images of a runtime. Raises: RuntimeCallError, ContentError."""
        answer = await self._ask(runtime, IMAGE_SERVICES, "ListImages", Message())
        return protobuf_messages.decode(ListImagesResponse, answer).images

    async def _ask(
        self,
        runtime: Runtime,
        services: Sequence[str],
        method: str,
        request: Message,
        wait_s: float = CALL_S_MAX,
    ) -> bytes:
        """Return the answer of the first service that knows a method. Raises: RuntimeCallError."""
        if problem := self.problem(runtime):
            raise RuntimeCallError("", problem)
        path = self.socket(runtime) or ""
        channel = importlib.import_module(_CLIENT).Channel(path)
        try:
            async with asyncio.timeout(wait_s):
                return await _call(channel, services, method, protobuf_messages.encode(request), wait_s)
        except TimeoutError as error:
            raise RuntimeCallError("", f"{path} did not answer within {wait_s:.0f} s") from error
        finally:
            await channel.close()


async def _call(channel: Any, services: Sequence[str], method: str, request: bytes, wait_s: float) -> bytes:
    problem = RuntimeCallError(method, "no service was asked")
    for service in services:
        try:
            answer: bytes = await channel.call(f"/{service}/{method}", request, wait_s)
        except CallError as error:
            problem = RuntimeCallError(service, error.reason, error.code.name)
            if error.code is GrpcCode.DEADLINE_EXCEEDED:
                raise TimeoutError from error
            if error.code is not GrpcCode.UNIMPLEMENTED:
                break
        else:
            return answer
    raise problem
