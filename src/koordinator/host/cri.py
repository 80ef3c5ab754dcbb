"""Stopping containers through the runtime's own socket (CRI), for when the API server is not to be asked.

gRPC is loaded when the first container is stopped, since it costs 17 MB. Source: behaviour/koordlet-act 3.1 and 5.5.
"""

import asyncio
import importlib
from collections.abc import Mapping
from typing import Any

from koordinator.host import protobuf_messages
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.cri_messages import RUNTIME_SERVICE, StopContainerRequest
from koordinator.host.files import Files, HostRoots

CALL_S_MAX = 10.0
"""A runtime that hangs must not hold up the loop; killing takes it milliseconds."""
SERVICES = (RUNTIME_SERVICE, "runtime.v1alpha2.RuntimeService")
"""Newest first; containerd before 1.6 knows only the second."""
_GRPC, _AIO = "grpc", "grpc.aio"

_SOCKETS = {
    Runtime.CONTAINERD: ("containerd/containerd.sock",),
    Runtime.DOCKER: ("cri-dockerd.sock", "dockershim.sock"),
    Runtime.CRI_O: ("crio/crio.sock",),
    Runtime.POUCH: ("pouchcri.sock",),
}
"""Below /var/run and /run."""


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
            path = given.removeprefix("unix://")
            return path if self._files.exists(path) else None
        places = [f"{base}/{name}" for base in self._bases for name in _SOCKETS[runtime]]
        return next((path for path in places if self._files.exists(path)), None)

    def problem(self, runtime: Runtime) -> str:
        """Return why no container of a runtime can be stopped; empty when it can be tried."""
        if self.socket(runtime) is None:
            return f"no socket of {runtime} below {' or '.join(self._bases)}"
        try:
            importlib.import_module(_AIO)
        except ImportError:
            return "grpcio is not installed (pip install '.[node]')"
        return ""

    async def stop(self, container: ContainerID, grace_s: int = 0) -> str:
        """Stop a container, killing it after the grace period; empty when it does not run any more, else why not."""
        problem = self.problem(container.runtime)
        if problem:
            return problem
        path, grpc = self.socket(container.runtime), importlib.import_module(_GRPC)
        request = protobuf_messages.encode(StopContainerRequest(container.id, grace_s))
        try:
            async with (
                asyncio.timeout(CALL_S_MAX + grace_s),
                grpc.aio.insecure_channel(f"unix://{path}") as channel,
            ):
                return await _call(grpc, channel, request)
        except TimeoutError:
            return f"{path} did not answer within {CALL_S_MAX + grace_s:.0f} s"


async def _call(grpc: Any, channel: Any, request: bytes) -> str:
    problem = ""
    for service in SERVICES:
        try:
            await channel.unary_unary(f"/{service}/StopContainer")(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return ""  # it has ended and been removed meanwhile
            problem = f"{service}: {error.code().name}: {error.details()}"
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                return problem
        else:
            return ""
    return problem
