"""A CRI socket of the process node: its pods' containers, and sandboxes and containers that callers make themselves.

Good enough for a node agent that stops containers and reads their use, and for trying the runtime proxy: there are no
images (commands are those of this machine), no namespaces, and no streams. Source: k8s.io/cri-api, `runtime.v1`.
"""

import asyncio
import importlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from koordinator import __version__
from koordinator.clock import Clock
from koordinator.host import cri_messages as cri
from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import IMAGE_SERVICE, RUNTIME_SERVICE, ContainerState, PodSandboxState
from koordinator.host.errors import CallError, ContentError, GrpcCode, HostError
from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX
from koordinator.host.host import Host
from koordinator.host.protobuf_messages import Message
from koordinator.local.processes import cri_containers
from koordinator.local.processes.container import ContainerLife
from koordinator.local.processes.container_state import Running, Terminated
from koordinator.local.processes.cri_containers import CallRefused, Container, NodeServices, Sandbox
from koordinator.local.processes.pod_worker import PodWorker
from koordinator.local.processes.process_node import ProcessNode

log = logging.getLogger(__name__)

NAME = "koordinator-process-node"
M = TypeVar("M", bound=Message)
Answer = Callable[[Any], Awaitable[Message]]
_ID_BYTES = 32
_DONE = Message()


class Unknown(CallRefused):
    """The object that a call names is not there."""


class CriService:
    """`start` and `close`; calls are answered in between."""

    def __init__(self, node: ProcessNode, host: Host, clock: Clock) -> None:
        self._node, self._host, self._clock = node, host, clock
        self._kit = NodeServices(node.groups, host.processes)
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._waits: set[asyncio.Task[None]] = set()
        self._server: Any = None

    async def start(self, path: Path) -> None:
        """Listen. Raises: SocketError; ImportError where hpack is not installed."""
        grpc_server = importlib.import_module("koordinator.host.grpc_server")  # needs hpack
        self._server = grpc_server.UnaryServer(self._handlers(), MESSAGE_BYTES_MAX)
        await self._server.start(str(path))
        log.info("CRI socket of the process node", extra={"path": str(path)})

    async def close(self) -> None:
        """End all that callers made, and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in self._waits:
            task.cancel()
        for sandbox in self._sandboxes.values():
            try:
                await sandbox.remove()
            except HostError as error:
                log.warning("sandbox not removed", extra={"sandbox": sandbox.id, "problem": str(error)})

    def _handlers(self) -> Mapping[str, Any]:
        def handler(kind: type[Message], answer: Answer) -> Callable[[bytes], Awaitable[bytes]]:
            async def handled(raw: bytes) -> bytes:
                try:
                    return protobuf_messages.encode(await answer(protobuf_messages.decode(kind, raw)))
                except ContentError as error:
                    raise CallError(GrpcCode.INVALID_ARGUMENT, str(error)) from error
                except Unknown as error:
                    raise CallError(GrpcCode.NOT_FOUND, str(error)) from error
                except TimeoutError as error:
                    raise CallError(GrpcCode.DEADLINE_EXCEEDED, "it took too long") from error
                except (HostError, OSError) as error:
                    raise CallError(GrpcCode.INTERNAL, str(error)) from error

            return handled

        runtime: dict[str, tuple[type[Message], Answer]] = {
            "Version": (Message, self._version),
            "Status": (Message, self._status),
            "RunPodSandbox": (cri.RunPodSandboxRequest, self._run_sandbox),
            "StopPodSandbox": (cri.PodSandboxRequest, self._stop_sandbox),
            "RemovePodSandbox": (cri.PodSandboxRequest, self._remove_sandbox),
            "PodSandboxStatus": (cri.PodSandboxStatusRequest, self._sandbox_status),
            "ListPodSandbox": (cri.ListByID, self._list_sandboxes),
            "CreateContainer": (cri.CreateContainerRequest, self._create),
            "StartContainer": (cri.ContainerIDMessage, self._start),
            "StopContainer": (cri.StopContainerRequest, self._stop),
            "RemoveContainer": (cri.ContainerIDMessage, self._remove),
            "ListContainers": (cri.ListByID, self._list),
            "ContainerStatus": (cri.ContainerIDMessage, self._container_status),
            "UpdateContainerResources": (cri.UpdateContainerResourcesRequest, self._update),
            "ExecSync": (cri.ExecSyncRequest, self._exec),
            "ContainerStats": (cri.ContainerIDMessage, self._stats),
            "ListContainerStats": (cri.ListByID, self._list_stats),
        }
        found = {f"/{RUNTIME_SERVICE}/{name}": handler(*each) for name, each in runtime.items()}
        found[f"/{IMAGE_SERVICE}/ListImages"] = handler(Message, self._images)
        return found

    def _now_ns(self) -> int:
        return int(self._clock.now() * 1e9)

    # The runtime

    async def _version(self, _: Message) -> cri.VersionResponse:
        return cri.VersionResponse(runtime_name=NAME, runtime_version=__version__)

    async def _status(self, _: Message) -> cri.StatusResponse:
        ready = tuple(cri.RuntimeCondition(name, True) for name in ("RuntimeReady", "NetworkReady"))
        return cri.StatusResponse(cri.RuntimeStatus(ready))

    async def _images(self, _: Message) -> cri.ListImagesResponse:
        names = {each.spec.image for _, each in self._lives() if each.spec.image}
        names |= {
            each.config.image.image for each in self._containers.values() if each.config.image is not None
        }
        return cri.ListImagesResponse(tuple(cri.Image(name, (name,)) for name in sorted(names)))

    # Sandboxes

    def _sandbox(self, own_id: str) -> Sandbox:
        found = self._sandboxes.get(own_id)
        if found is None:
            raise Unknown(f"no sandbox {own_id!r} was made by a call")
        return found

    async def _run_sandbox(self, request: cri.RunPodSandboxRequest) -> cri.RunPodSandboxResponse:
        config = request.config or cri.PodSandboxConfig()
        own_id = secrets.token_hex(_ID_BYTES)
        made = Sandbox(self._kit, own_id, config, request.runtime_handler, self._now_ns())
        made.start()
        self._sandboxes[own_id] = made
        return cri.RunPodSandboxResponse(own_id)

    async def _stop_sandbox(self, request: cri.PodSandboxRequest) -> Message:
        if request.pod_sandbox_id in self._sandboxes:  # who is gone is stopped
            await self._sandbox(request.pod_sandbox_id).stop()
        return _DONE

    async def _remove_sandbox(self, request: cri.PodSandboxRequest) -> Message:
        own_id = request.pod_sandbox_id
        if own_id in self._sandboxes:
            await self._sandbox(own_id).remove()
            del self._sandboxes[own_id]
            for each in [each for each in self._containers.values() if each.sandbox.id == own_id]:
                del self._containers[each.id]
        return _DONE

    async def _sandbox_status(self, request: cri.PodSandboxStatusRequest) -> cri.PodSandboxStatusResponse:
        found, config = self._sandbox(request.pod_sandbox_id), self._sandbox(request.pod_sandbox_id).config
        state = PodSandboxState.READY if found.is_ready else PodSandboxState.NOT_READY
        status = cri.PodSandboxStatus(found.id, config.metadata, state, found.created_ns)
        return cri.PodSandboxStatusResponse(_marked(status, config.labels, config.annotations))

    async def _list_sandboxes(self, request: cri.ListByID) -> cri.ListPodSandboxResponse:
        listed = []
        for each in self._sandboxes.values():
            state = PodSandboxState.READY if each.is_ready else PodSandboxState.NOT_READY
            made = cri.PodSandbox(each.id, each.config.metadata, state, each.created_ns)
            listed.append(_marked(made, each.config.labels, each.config.annotations))
        for worker in self._node.workers.values():
            state = PodSandboxState.NOT_READY if worker.is_over else PodSandboxState.READY
            meta = worker.pod.raw.metadata
            found = cri.PodSandbox(worker.pod.uid, _metadata_of(worker), state)
            listed.append(_marked(found, meta.labels, meta.annotations))
        return cri.ListPodSandboxResponse(tuple(each for each in listed if _is_asked(each.id, request)))

    # Containers

    def _lives(self) -> Iterator[tuple[PodWorker, ContainerLife]]:
        """Containers of pods that have an id."""
        for worker in self._node.workers.values():
            for life in worker.lives.values():
                if life.record.id:
                    yield worker, life

    def _life(self, own_id: str) -> ContainerLife:
        for _, life in self._lives():
            if _bare(life.record.id) == own_id:
                return life
        raise Unknown(f"there is no container {own_id!r}")

    async def _create(self, request: cri.CreateContainerRequest) -> cri.ContainerIDMessage:
        sandbox, own_id = self._sandbox(request.pod_sandbox_id), secrets.token_hex(_ID_BYTES)
        config = request.config or cri.ContainerConfig()
        self._containers[own_id] = Container(self._kit, own_id, sandbox, config, self._now_ns())
        return cri.ContainerIDMessage(own_id)

    async def _start(self, request: cri.ContainerIDMessage) -> Message:
        container = self._containers.get(request.container_id)
        if container is None:
            raise Unknown(f"no container {request.container_id!r} was made by a call")
        task = asyncio.ensure_future(self._until_end(container, container.start(self._now_ns())))
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)
        return _DONE

    async def _until_end(self, container: Container, process: Any) -> None:
        container.ended = await process.wait()
        container.finished_ns = self._now_ns()

    async def _stop(self, request: cri.StopContainerRequest) -> Message:
        """A container of a pod is started again as its policy says: who stops it here is not the pod's owner."""
        container = self._containers.get(request.container_id)
        if container is not None:
            await container.stop(request.timeout)
            return _DONE
        life = self._life(request.container_id)
        if life.process is not None:
            await cri_containers.end(self._node.groups, life.group, life.process, request.timeout)
        return _DONE

    async def _remove(self, request: cri.ContainerIDMessage) -> Message:
        container = self._containers.pop(request.container_id, None)
        if container is not None:
            await container.remove()
        return _DONE

    async def _update(self, request: cri.UpdateContainerResourcesRequest) -> Message:
        wanted = request.linux or cri.LinuxContainerResources()
        container = self._containers.get(request.container_id)
        if container is not None:
            container.update(wanted)
        else:
            self._kit.set_resources(self._life(request.container_id).group, wanted)
        return _DONE

    async def _exec(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        container = self._containers.get(request.container_id)
        command = list(request.cmd)
        if container is not None:
            return cri.ExecSyncResponse(*await container.run(command, request.timeout))
        life = self._life(request.container_id)
        if life.process is None:
            raise CallRefused(f"container {request.container_id} does not run")
        outcome = await cri_containers.output_of(
            lambda words, out, err: life.start_inside(words, (out.fileno(), err.fileno())),
            command,
            request.timeout,
        )
        return cri.ExecSyncResponse(*outcome)

    async def _list(self, request: cri.ListByID) -> cri.ListContainersResponse:
        listed = [
            _marked(
                cri.Container(
                    each.id,
                    each.sandbox.id,
                    each.config.metadata,
                    each.config.image,
                    state=each.state,
                    created_at=each.created_ns,
                ),
                each.config.labels,
                each.config.annotations,
            )
            for each in self._containers.values()
        ]
        for worker, life in self._lives():
            state = (
                ContainerState.RUNNING if isinstance(life.record.state, Running) else ContainerState.EXITED
            )
            metadata = cri.ContainerMetadata(life.name, life.record.restarts)
            image = cri.ImageSpec(life.spec.image)
            listed.append(cri.Container(_bare(life.record.id), worker.pod.uid, metadata, image, state=state))
        return cri.ListContainersResponse(tuple(each for each in listed if _is_asked(each.id, request)))

    async def _container_status(self, request: cri.ContainerIDMessage) -> cri.ContainerStatusResponse:
        container = self._containers.get(request.container_id)
        if container is None:
            return cri.ContainerStatusResponse(_status_of(self._life(request.container_id)))
        config, ended = container.config, container.ended
        status = cri.ContainerStatus(
            container.id,
            config.metadata,
            container.state,
            container.created_ns,
            container.started_ns,
            container.finished_ns,
            ended.code if ended is not None else 0,
            config.image,
            resources=cri.ContainerResources(container.resources),
        )
        return cri.ContainerStatusResponse(_marked(status, config.labels, config.annotations))

    # Use

    async def _stats(self, request: cri.ContainerIDMessage) -> cri.ContainerStatsResponse:
        found = [each for each in self._all_stats() if _id_of(each) == request.container_id]
        if not found:
            raise Unknown(f"there is no container {request.container_id!r}")
        return cri.ContainerStatsResponse(found[0])

    async def _list_stats(self, request: cri.ListByID) -> cri.ListContainerStatsResponse:
        return cri.ListContainerStatsResponse(
            tuple(each for each in self._all_stats() if _is_asked(_id_of(each), request))
        )

    def _all_stats(self) -> Iterator[cri.ContainerStats]:
        for each in self._containers.values():
            yield self._used(each.id, each.config.metadata, each.group)
        for _, life in self._lives():
            if life.process is not None:
                metadata = cri.ContainerMetadata(life.name, life.record.restarts)
                yield self._used(_bare(life.record.id), metadata, life.group)

    def _used(self, own_id: str, metadata: cri.ContainerMetadata | None, group: str) -> cri.ContainerStats:
        cgroups, now_ns = self._host.cgroups, self._now_ns()
        memory = cgroups.memory_stat(group)
        set_bytes = None if memory is None else memory.usage_bytes + memory.active_file
        return cri.ContainerStats(
            cri.ContainerAttributes(own_id, metadata),
            cri.CPUUsage(now_ns, cgroups.cpu_usage_ns(group)),
            cri.MemoryUsage(now_ns, set_bytes),
        )


def _is_asked(own_id: str, request: cri.ListByID) -> bool:
    return request.filter is None or request.filter.id in ("", own_id)


def _id_of(found: cri.ContainerStats) -> str:
    return found.attributes.id if found.attributes is not None else ""


def _bare(container_id: str) -> str:
    """Return an id without the name of a runtime."""
    return container_id.partition("://")[2]


def _marked(found: M, labels: Mapping[str, str], annotations: Mapping[str, str]) -> M:
    return msgspec.structs.replace(found, labels=labels, annotations=annotations)


def _metadata_of(worker: PodWorker) -> cri.PodSandboxMetadata:
    meta = worker.pod.raw.metadata
    return cri.PodSandboxMetadata(meta.name, worker.pod.uid, meta.namespace or "")


def _status_of(life: ContainerLife) -> cri.ContainerStatus:
    state, metadata = life.record.state, cri.ContainerMetadata(life.name, life.record.restarts)
    found = cri.ContainerStatus(
        _bare(life.record.id), metadata, ContainerState.UNKNOWN, image=cri.ImageSpec(life.spec.image)
    )
    if isinstance(state, Running):
        started_ns = int(state.since_s * 1e9)
        return msgspec.structs.replace(found, state=ContainerState.RUNNING, started_at=started_ns)
    if isinstance(state, Terminated):
        times = {"started_at": int(state.started_s * 1e9), "finished_at": int(state.finished_s * 1e9)}
        return msgspec.structs.replace(
            found, state=ContainerState.EXITED, exit_code=state.exit_code, reason=state.reason, **times
        )
    return found
