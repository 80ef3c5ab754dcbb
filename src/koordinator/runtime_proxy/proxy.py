"""The proxy: a gRPC server that hands each call to the container runtime, some of them with hooks before and after.

Calls that no hook belongs to are passed on as bytes in both directions, whatever they are: methods that nobody knew
when this was written, and streams, too. Source: behaviour/koordlet-act 23.
"""

import asyncio
import contextlib
import importlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from koordinator.host import grpc_sockets, protobuf_messages
from koordinator.host.cri_messages import (
    RUNTIME_SERVICE,
    ContainerIDMessage,
    CreateContainerRequest,
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
from koordinator.runtime_proxy.checkpoints import Checkpoints, ContainerInfo, SandboxInfo
from koordinator.runtime_proxy.dispatch import Checkpoint
from koordinator.runtime_proxy.hook_client import HookClient
from koordinator.runtime_proxy.interception import (
    CreateContainer,
    Interception,
    OfContainer,
    OfSandbox,
    RunSandbox,
    UpdateContainer,
)

log = logging.getLogger(__name__)

STOP_S = 3.0
"""Calls under way may end when the proxy is asked to."""
_OWN_METADATA = frozenset(("user-agent", "grpc-accept-encoding", "grpc-encoding", "grpc-timeout"))
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
        self._grpc: Any = importlib.import_module("grpc")
        self._rpc_error: Any = importlib.import_module("grpc.aio").AioRpcError
        self._checkpoints = Checkpoints()
        self.hooks = HookClient(config.hook_directory, syscalls)
        self._backend = Backend(grpc_sockets.path_of(config.backend), self._checkpoints)
        self.is_serving = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled. Raises: SocketError when the runtime's socket is not to be trusted, or ours cannot be
        made."""
        problem = grpc_sockets.problem_of_socket(self._backend.path)
        if problem:
            raise SocketError("remote-runtime-service-endpoint", problem)
        path = grpc_sockets.path_of(self._config.endpoint)
        server = grpc_sockets.server(path, _AnyMethod(self))
        async with asyncio.TaskGroup() as group:
            await self.hooks.refresh()
            following = group.create_task(self.hooks.follow(), name="hook servers")
            await server.start()
            log.info("runtime proxy started", extra={"socket": path, "runtime": self._backend.path})
            self.is_serving.set()
            try:
                await server.wait_for_termination()
            finally:
                following.cancel()
                await server.stop(STOP_S)
                await self.hooks.close()
                await self._backend.close()

    # Calls that go through

    async def passed(self, method: str, requests: Any, context: Any) -> AsyncIterator[bytes]:
        """Yield what the runtime answers to a call; requests are passed on as they come."""
        call = self._backend.channel.stream_stream(method)(
            requests, timeout=context.time_remaining(), metadata=_metadata(context)
        )
        try:
            async for answer in call:
                yield answer
            context.set_trailing_metadata(await call.trailing_metadata())
        except self._rpc_error as error:
            await self._refused(context, error)
        finally:
            call.cancel()  # without effect on one that has ended

    # Calls with hooks

    async def hooked(self, method: str, raw: bytes, context: Any) -> bytes:
        """Answer a call that hooks may belong to."""
        try:
            call = await self._intercepted(method, raw)
        except ContentError as error:
            log.warning("call not understood", extra={"method": method, "problem": str(error)})
            call = None
        if call is None:
            return await self.asked(f"{_PREFIX}{method}", raw, context)
        path = dispatch.route(method, self.hooks.by_stage, call.labels, self._config.skip)
        call = await self._before(path, call, context)
        try:
            response = await self.asked(f"{_PREFIX}{method}", call.request(), context)
        finally:
            if path.checkpoint is Checkpoint.DELETE:
                call.delete(self._checkpoints)
        if path.checkpoint is Checkpoint.STORE:
            with contextlib.suppress(ContentError):  # kubelet will see for itself
                call.store(response, self._checkpoints)
        if path.after and path.after in self.hooks.by_stage:
            await self.hooks.call(path.after, call.hook_request())
        return response

    async def _before(self, path: dispatch.Route, call: Interception, context: Any) -> Interception:
        """Return the call as its hook wants it; ends it where the hook failed and that is to count."""
        if not path.before:
            return call
        outcome = await self.hooks.call(path.before, call.hook_request())
        problem = outcome.problem
        if not problem:
            try:
                return call.with_answer(outcome.answer)
            except ContentError as error:
                problem = f"hook {path.before}: its answer is damaged: {error}"
                log.warning("hook failed", extra={"problem": problem})
        if dispatch.calls(path, outcome.policy, hook_fails=True).is_error:
            await context.abort(self._grpc.StatusCode.INTERNAL, problem)
        return call

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
                create = decode(CreateContainerRequest, raw)
                sandbox = await self._sandbox_of(create)
                if sandbox is None or create.config is None:
                    return None
                return CreateContainer(create, ContainerInfo.of_config(create.config, sandbox))
            case "UpdateContainerResources":
                update = decode(UpdateContainerResourcesRequest, raw)
                container = await self._backend.container(update.container_id)
                return UpdateContainer.of(update, container) if container is not None else None
        container = await self._backend.container(decode(ContainerIDMessage, raw).container_id)
        return OfContainer(raw, container) if container is not None else None

    async def _sandbox_of(self, create: CreateContainerRequest) -> SandboxInfo | None:
        """Return the sandbox of a new container: the kubelet tells it again, with the cgroup parent."""
        known = self._checkpoints.sandboxes.get(create.pod_sandbox_id)
        if known is not None and known.cgroup_parent:
            return known
        if create.sandbox_config is None:
            return await self._backend.sandbox(create.pod_sandbox_id)
        found = SandboxInfo.of_config(create.sandbox_config)
        self._checkpoints.sandboxes.put(create.pod_sandbox_id, found)
        return found

    async def asked(self, method: str, request: bytes, context: Any) -> bytes:
        """Return the runtime's answer to one request."""
        call = self._backend.channel.unary_unary(method)(
            request, timeout=context.time_remaining(), metadata=_metadata(context)
        )
        try:
            response: bytes = await call
        except self._rpc_error as error:
            await self._refused(context, error)
            raise AssertionError("abort raises") from error
        context.set_trailing_metadata(await call.trailing_metadata())
        return response

    async def _refused(self, context: Any, error: Any) -> None:
        """Give the kubelet the runtime's own error."""
        trailing = tuple(error.trailing_metadata() or ())
        await context.abort(error.code(), error.details() or "", trailing)


class _AnyMethod:
    """gRPC's handler of all methods: those with hooks are unary, all others may be anything."""

    def __init__(self, proxy: RuntimeProxy) -> None:
        self._proxy = proxy
        self._grpc: Any = importlib.import_module("grpc")

    def service(self, details: Any) -> Any:
        """Return how a call is handled."""
        method, proxy = details.method, self._proxy
        name = method.removeprefix(_PREFIX)
        if method.startswith(_PREFIX) and name in dispatch.STAGES:

            async def hooked(request: bytes, context: Any) -> bytes:
                return await proxy.hooked(name, request, context)

            return self._grpc.unary_unary_rpc_method_handler(hooked)

        if method in dispatch.UNARY:

            async def asked(request: bytes, context: Any) -> bytes:
                return await proxy.asked(method, request, context)

            return self._grpc.unary_unary_rpc_method_handler(asked)

        async def passed(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for answer in proxy.passed(method, requests, context):
                yield answer

        return self._grpc.stream_stream_rpc_method_handler(passed)


def _metadata(context: Any) -> tuple[tuple[str, Any], ...]:
    """Return the caller's metadata, without what gRPC writes itself."""
    return tuple(
        (name, value) for name, value in context.invocation_metadata() or () if name not in _OWN_METADATA
    )
