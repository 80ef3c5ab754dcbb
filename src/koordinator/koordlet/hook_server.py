"""The server that the runtime proxy asks: one unary call per stage, on a unix socket.

It runs the hooks that the reconciler runs, with contexts made of the request. A file in the proxy's folder says where
it is and for which stages it wants to be asked. Source: behaviour/koordlet-act 13.4, 13.5 and 23.5.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.host import grpc_sockets, protobuf_messages
from koordinator.host.cri_messages import LinuxContainerResources
from koordinator.host.errors import CallError, ContentError, GrpcCode
from koordinator.host.grpc_sockets import SocketError
from koordinator.host.hook_messages import (
    HOOK_SERVICE,
    ContainerResourceHookResponse,
    HookContainerMetadata,
    PodSandboxHookResponse,
)
from koordinator.host.protobuf_messages import Entries, Message
from koordinator.koordlet import hook_pods, wakeups
from koordinator.koordlet.config import HookServerConfig
from koordinator.koordlet.hook_pods import CalledPods, ContainerCall, PodCall
from koordinator.koordlet.hooks import runtime_calls
from koordinator.koordlet.hooks.all import DeliveryMode, RuntimeHooks
from koordinator.koordlet.hooks.contexts import HookResponse, HookStage
from koordinator.koordlet.view import NodeView

log = logging.getLogger(__name__)

FILE = "koordlet.json"
CHECK_S, RETRY_S = 1.0, 10.0
_DOCKER_TYPE, _DOCKER = "io.kubernetes.docker.type", "docker"
POD_STAGES = (HookStage.PRE_RUN_POD_SANDBOX, HookStage.POST_STOP_POD_SANDBOX)
CONTAINER_STAGES = (
    HookStage.PRE_CREATE_CONTAINER,
    HookStage.PRE_START_CONTAINER,
    HookStage.POST_START_CONTAINER,
    HookStage.PRE_UPDATE_CONTAINER_RESOURCES,
    HookStage.POST_STOP_CONTAINER,
)
M = TypeVar("M", bound=Message)


class HookServer:
    """Serves until cancelled; what fails is tried again, and the socket is made again when somebody removes it."""

    def __init__(self, config: HookServerConfig, hooks: RuntimeHooks, view: NodeView) -> None:
        self._config = config
        self._hooks = hooks
        self._pods = CalledPods(view)
        self._problem = ""

    async def run(self) -> NoReturn:
        """Serve, and tell the proxy about it."""
        while True:
            try:
                await self._serve()
            except ImportError:
                self._failed("hpack is not installed (pip install '.[node]')")
                await asyncio.sleep(RETRY_S)
            except (SocketError, OSError) as error:
                self._failed(str(error))
                await asyncio.sleep(RETRY_S)

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("hook server not started", extra={"problem": problem})
            self._problem = problem

    async def _serve(self) -> None:
        path = grpc_sockets.path_of(self._config.address)
        if not os.path.isdir(os.path.dirname(path)):
            raise SocketError(path, "its folder does not exist (mount it, or set --runtime-hooks-addr)")
        grpc_server = importlib.import_module("koordinator.host.grpc_server")  # needs hpack
        server = grpc_server.UnaryServer(self._handlers(), grpc_sockets.MESSAGE_BYTES_MAX)
        await server.start(path)
        stages = served_stages(self._hooks.registry.stages(), self._config.disabled_stages)
        try:
            register(self._config, stages)
            self._problem = ""
            log.info("hook server started", extra={"path": path, "stages": stages})
            while os.path.exists(path):
                await wakeups.sleep(CHECK_S)
            log.warning("socket of the hook server removed; it is made again", extra={"path": path})
        finally:
            self._hooks.delivered(DeliveryMode.PROXY, False)
            server.close()

    def _handlers(self) -> Any:
        def handler(
            stage: HookStage, kind: type[M], answered: Callable[[HookStage, M], Message]
        ) -> Callable[[bytes], bytes]:
            def answer(raw: bytes) -> bytes:
                try:
                    return protobuf_messages.encode(answered(stage, protobuf_messages.decode(kind, raw)))
                except ContentError as error:
                    raise CallError(GrpcCode.INVALID_ARGUMENT, str(error)) from error
                except KoordinatorError as error:
                    raise CallError(GrpcCode.INTERNAL, str(error)) from error

            return answer

        prefix = f"/{HOOK_SERVICE}/"
        found = {f"{prefix}{stage}Hook": handler(stage, PodCall, self.of_pod) for stage in POD_STAGES}
        for stage in CONTAINER_STAGES:
            found[f"{prefix}{stage}Hook"] = handler(stage, ContainerCall, self.of_container)
        return found

    def of_pod(self, stage: HookStage, request: PodCall) -> PodSandboxHookResponse:
        """Answer for a sandbox. Raises: HookFailed."""
        self._hooks.delivered(DeliveryMode.PROXY, True)  # every container begins with a sandbox
        pod = self._pods.of(request.pod, request.runtime_handler)
        response = self._hooks.at_runtime(stage, pod).accepted()
        resources = protobuf_messages.decode(LinuxContainerResources, b"".join(request.resources))
        return PodSandboxHookResponse(
            labels=request.labels,
            annotations=request.annotations,
            cgroup_parent=request.cgroup_parent,
            resources=overwritten(resources, response),
        )

    def of_container(self, stage: HookStage, request: ContainerCall) -> ContainerResourceHookResponse:
        """Answer for a container. Raises: HookFailed."""
        meta = request.container_meta or HookContainerMetadata()
        resources = request.container_resources or LinuxContainerResources()
        container = runtime_calls.container_context(
            self._pods.of(request.pod),
            meta.name,
            self._whole_id(meta.id, request.container_annotations),
            hook_pods.current(resources),
        )
        response = self._hooks.at_runtime(stage, container).accepted()
        return ContainerResourceHookResponse(
            container_annotations=request.container_annotations,
            container_resources=overwritten(resources, response),
            pod_cgroup_parent=request.pod_cgroup_parent,
            container_envs=with_variables(request.container_envs, response.environment),
        )

    def _whole_id(self, own: str, annotations: Entries) -> str:
        if not own or "://" in own:
            return own
        is_docker = _DOCKER_TYPE in protobuf_messages.texts(annotations)
        runtime = _DOCKER if is_docker else self._config.runtime_type
        return f"{runtime}://{own}"


def served_stages(hooked: Sequence[HookStage], disabled: Sequence[str]) -> list[str]:
    """Return the stages that the proxy is to ask for: with a hook, known to the proxy, and not switched off."""
    offered = {*POD_STAGES, *CONTAINER_STAGES}
    return [stage.value for stage in hooked if stage in offered and stage.value not in disabled]


def register(config: HookServerConfig, stages: Sequence[str]) -> None:
    """Write the file that tells the proxy of us, in one step. Raises: OSError."""
    os.makedirs(config.directory, mode=0o755, exist_ok=True)
    body = {
        "remote-endpoint": config.host_endpoint,
        "failure-policy": config.failure_policy,
        "runtime-hooks": list(stages),
    }
    path = os.path.join(config.directory, FILE)
    beside = f"{path}.new"  # the proxy reads names that end with .json
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    with open(beside, "x", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        json.dump(body, file)
    os.replace(beside, path)


def with_variables(given: Entries, answered: Mapping[str, str]) -> Entries:
    """Return the environment of a request with what hooks answered. Raises: ContentError."""
    if not answered:
        return given
    return protobuf_messages.entries({**protobuf_messages.texts(given), **answered})


def overwritten(resources: LinuxContainerResources, response: HookResponse) -> LinuxContainerResources:
    """Return the resources of a request with what hooks answered."""
    changes: dict[str, Any] = {
        "cpu_shares": response.shares,
        "cpu_quota": response.quota_us,
        "cpuset_cpus": response.cpuset,
        "memory_limit_in_bytes": response.memory_bytes,
        "oom_score_adj": response.oom_score_adj,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return msgspec.structs.replace(resources, **given)
