"""The proxy: hands each call of the kubelet to the container runtime, some of them with hooks before and after.

Calls that no hook belongs to are passed on as bytes in both directions, whatever they are: methods that nobody knew
when this was written, and streams, too. Source: behaviour/koordlet-act 23.
"""

import asyncio
import logging

import msgspec

from koordinator.host import grpc_sockets, protobuf_messages
from koordinator.host.cri_messages import (
    RUNTIME_SERVICE,
    ContainerIDMessage,
    PodSandboxConfig,
    PodSandboxRequest,
    RunPodSandboxRequest,
    UpdateContainerResourcesRequest,
)
from koordinator.host.errors import ContentError
from koordinator.host.grpc_sockets import SocketError
from koordinator.host.syscalls import Syscalls
from koordinator.runtime_proxy import dispatch
from koordinator.runtime_proxy.backend import Backend
from koordinator.runtime_proxy.checkpoints import Checkpoints, SandboxInfo
from koordinator.runtime_proxy.creation import CreateContainer, CreatePart
from koordinator.runtime_proxy.hook_client import HookClient
from koordinator.runtime_proxy.hooked import HookedCalls
from koordinator.runtime_proxy.interception import (
    Interception,
    OfContainer,
    OfSandbox,
    RunSandbox,
    UpdateContainer,
)
from koordinator.runtime_proxy.relay import Exchange, Relay

log = logging.getLogger(__name__)

_PREFIX = f"/{RUNTIME_SERVICE}/"


class ProxyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The proxy's options; paths of sockets, and the label of pods that never reach hook servers."""

    endpoint: str = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    backend: str = "/var/run/containerd/containerd.sock"
    hook_directory: str = "/etc/runtime/hookserver.d"
    skip: tuple[str, str] = (dispatch.SKIP_LABEL, dispatch.SKIP_VALUE)


class RuntimeProxy:
    """`run` until cancelled. gRPC must be installed."""

    def __init__(self, config: ProxyConfig, syscalls: Syscalls) -> None:
        self._config = config
        self._checkpoints = Checkpoints()
        self.hooks = HookClient(config.hook_directory, syscalls)
        self._calls = HookedCalls(self.hooks, self._checkpoints, config.skip)
        self._backend = Backend(grpc_sockets.path_of(config.backend), self._checkpoints)
        self._relays: set[Relay] = set()
        self.is_serving = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled. Raises: SocketError when the runtime's socket is not to be trusted, or ours cannot be
        made."""
        problem = grpc_sockets.problem_of_socket(self._backend.path)
        if problem:
            raise SocketError("remote-runtime-service-endpoint", problem)
        path = grpc_sockets.path_of(self._config.endpoint)
        listener = grpc_sockets.listening(path)
        await self.hooks.refresh()
        server = await asyncio.get_running_loop().create_unix_server(self._connected, sock=listener)
        log.info("runtime proxy started", extra={"socket": path, "runtime": self._backend.path})
        self.is_serving.set()
        try:
            await self.hooks.follow()
        finally:
            server.close()
            for relay in tuple(self._relays):
                relay.close()
            await self.hooks.close()
            await self._backend.close()

    def _connected(self) -> asyncio.Protocol:
        """Return what talks to a kubelet that has connected."""
        relay = Relay(self.intercept, concerned, self._backend.path, self._relays.discard)
        self._relays.add(relay)
        return relay.kubelet

    async def intercept(self, method: str, raw: bytes) -> Exchange:
        """Return a call as its hook wants it. Raises: Refused where the hook failed and that is to count."""
        try:
            call = await self._intercepted(method, raw)
        except ContentError as error:
            log.warning("call not understood", extra={"method": method, "problem": str(error)})
            call = None
        if call is None:
            return Unread(raw)
        return await self._calls.begun(method, call)

    async def _intercepted(self, method: str, raw: bytes) -> Interception | None:
        """Return what a call is about; None when that cannot be found out. Raises: ContentError."""
        decode = protobuf_messages.decode
        match method:
            case "RunPodSandbox":
                run = decode(RunPodSandboxRequest, raw)
                return RunSandbox(
                    run, SandboxInfo.of_config(run.config or PodSandboxConfig(), run.runtime_handler)
                )
            case "StopPodSandbox":
                own_id = decode(PodSandboxRequest, raw).pod_sandbox_id
                sandbox = await self._backend.sandbox(own_id)
                return OfSandbox(raw, own_id, sandbox) if sandbox is not None else None
            case "CreateContainer":
                create = decode(CreatePart, raw)
                sandbox = await self._sandbox_of(create)
                if sandbox is None or create.config is None:
                    return None
                return CreateContainer.of(create, create.config, sandbox)
            case "UpdateContainerResources":
                update = decode(UpdateContainerResourcesRequest, raw)
                container = await self._backend.container(update.container_id)
                return UpdateContainer.of(update, container) if container is not None else None
        container = await self._backend.container(decode(ContainerIDMessage, raw).container_id)
        return OfContainer(raw, container) if container is not None else None

    async def _sandbox_of(self, create: CreatePart) -> SandboxInfo | None:
        """Return the sandbox of a new container: the kubelet tells it again, with the cgroup parent."""
        known = self._checkpoints.sandboxes.get(create.pod_sandbox_id)
        if known is not None and known.cgroup_parent:
            return known
        if not create.sandbox_config:
            return await self._backend.sandbox(create.pod_sandbox_id)
        config = protobuf_messages.decode(PodSandboxConfig, b"".join(create.sandbox_config))
        found = SandboxInfo.of_config(config)
        self._checkpoints.sandboxes.put(create.pod_sandbox_id, found)
        return found


class Unread(msgspec.Struct, frozen=True):
    """A call that goes on as it came: what it is about cannot be found out."""

    request: bytes

    def answered(self, response: bytes | None) -> None:
        """Nothing is remembered, and nobody is told."""


def concerned(path: bytes) -> str:
    """Return the method of a path to which hooks may belong, empty for all others."""
    name = path.decode("latin-1").removeprefix(_PREFIX)
    return name if name in dispatch.STAGES else ""
