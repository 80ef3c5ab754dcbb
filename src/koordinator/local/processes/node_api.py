"""Answer what others ask of the process node: its pods, their logs, commands inside them."""

from collections.abc import AsyncIterator
from typing import Any

from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord
from koordinator.local.apiserver.pod_streams import Command, ExecOptions, LogOptions, NoCommands, NoLogs
from koordinator.local.processes import log_reading
from koordinator.local.processes.container import ContainerLife
from koordinator.local.processes.container_state import ContainerWaiting, Running
from koordinator.local.processes.exec_command import ExecCommand
from koordinator.local.processes.groups import GroupError
from koordinator.local.processes.launch import StartError
from koordinator.local.processes.log_reading import LogRange
from koordinator.local.processes.pod_worker import PodWorker
from koordinator.local.processes.process_node import ProcessNode


class NodeApi:
    """The process node towards its callers: the API server in this process, and its own HTTP server."""

    def __init__(self, node: ProcessNode) -> None:
        self._node = node

    def pods(self) -> dict[str, Any]:
        """Return all pods of the node as a PodList, with their status as it is now."""
        items = [{**worker.pod.to_json(), "status": worker.status} for worker in self._node.workers.values()]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}

    def worker(self, namespace: str, name: str) -> PodWorker:
        """Return the pod of that name. Raises: NotFound."""
        for worker in self._node.workers.values():
            meta = worker.pod.raw.metadata
            if (meta.namespace, meta.name) == (namespace, name):
                return worker
        raise errors.NotFound(f'pod "{name}" not found on node {self._node.name}')

    def open_log(self, namespace: str, name: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Return the log of a container. Raises: NotFound, BadRequest in the kubelet's words."""
        worker = self.worker(namespace, name)
        life = _container(worker, options.container)
        run = _run(worker, life, previous=options.previous)
        since_s = options.since_time_s
        if options.since_s:
            since_s = self._node.now_s() - options.since_s
        selection = LogRange(
            tail_lines=options.tail_lines,
            limit_bytes=options.limit_bytes,
            since_time_s=since_s,
            timestamps=options.timestamps,
            follow=options.follow and run == life.log_run,
        )
        return log_reading.read(
            worker.files.log(life.name, run), selection, lambda: run != life.log_run or not life.is_writing
        )

    def start_command(self, namespace: str, name: str, options: ExecOptions) -> ExecCommand:
        """Run a command in a container. Raises: NotFound, BadRequest, InternalError."""
        life = _container(self.worker(namespace, name), options.container)
        if life.process is None:
            raise errors.BadRequest(f'container not found ("{options.container}"): it does not run')
        try:
            return ExecCommand(life, options)
        except (StartError, GroupError, OSError) as error:
            raise errors.InternalError(
                f"Internal error occurred: error executing command in container: {error}"
            ) from error


class NodeStreams:
    """Logs and commands of pods on the process node, for the API server; those of other nodes are refused."""

    def __init__(self, api: NodeApi, node_name: str) -> None:
        self._api = api
        self._node_name = node_name

    async def start(self, pod: ObjectRecord, options: ExecOptions) -> Command:
        """Raises: ApiError."""
        if not self._has(pod):
            return await NoCommands().start(pod, options)
        meta = pod.obj["metadata"]
        return self._api.start_command(meta["namespace"], meta["name"], options)

    def _has(self, pod: ObjectRecord) -> bool:
        return bool((pod.obj.get("spec") or {}).get("nodeName") == self._node_name)

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        """Raises: ApiError."""
        if not self._has(pod):
            return await NoLogs().open(pod, options)
        meta = pod.obj["metadata"]
        return self._api.open_log(meta["namespace"], meta["name"], options)


def _container(worker: PodWorker, name: str) -> ContainerLife:
    life = worker.lives.get(name)
    if life is None:
        meta = worker.pod.raw.metadata
        raise errors.BadRequest(f'container "{name}" in pod "{meta.name}" is not available')
    return life


def _run(worker: PodWorker, life: ContainerLife, *, previous: bool) -> int:
    """Return the number of the run whose log is meant. Raises: BadRequest."""
    name, state = worker.pod.raw.metadata.name, life.record.state
    if previous:
        run = life.log_run if isinstance(state, ContainerWaiting) else life.log_run - 1
        if run < 0 or not worker.files.log(life.name, run).exists():
            raise errors.BadRequest(f'previous terminated container "{life.name}" in pod "{name}" not found')
        return run
    if life.log_run < 0:
        why = (
            state.reason
            if isinstance(state, ContainerWaiting)
            else "it did not run since the node was started"
        )
        assert not isinstance(state, Running), state
        raise errors.BadRequest(f'container "{life.name}" in pod "{name}" is waiting to start: {why}')
    return life.log_run
