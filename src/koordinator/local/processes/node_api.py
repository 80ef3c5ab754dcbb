"""Answer what others ask of the process node: its pods, their logs, commands inside them, each with its streams."""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord
from koordinator.local.apiserver.pod_streams import (
    STDERR,
    STDOUT,
    Command,
    ExecOptions,
    LogOptions,
    NoStreams,
)
from koordinator.local.processes import launch, logs
from koordinator.local.processes.container import ContainerLife
from koordinator.local.processes.container_state import ContainerWaiting, Running
from koordinator.local.processes.groups import GroupError
from koordinator.local.processes.launch import Process, StartError
from koordinator.local.processes.pod_worker import PodWorker
from koordinator.local.processes.process_node import ProcessNode

_READ_BYTES = 32 * 1024


class ExecCommand:
    """Runs in a container as soon as it is made. Raises: as `start_inside`."""

    def __init__(self, inside: ContainerLife, options: ExecOptions) -> None:
        self._outputs: dict[int, int] = {}
        self._input = -1
        self._terminal = -1
        self._open: list[int] = []
        given: list[int] = []
        try:
            self._process = self._start(inside, options, given)
        except BaseException:
            self._close_all()
            raise
        finally:
            for end in given:
                os.close(end)

    def _start(self, inside: ContainerLife, options: ExecOptions, given: list[int]) -> Process:
        if options.tty:
            terminal, slave = os.openpty()
            given.append(slave)
            self._keep(terminal)
            self._terminal = self._outputs[STDOUT] = terminal
            self._input = terminal if options.stdin else -1
            # The first process of the new session opens the terminal by name, and so is controlled by it.
            return inside.start_inside(list(options.command), (slave, slave), os.ttyname(slave))
        outputs = []
        for channel in (STDOUT, STDERR):
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            given.append(write_end)
            self._outputs[channel] = self._keep(read_end)
            outputs.append(write_end)
        stdin = launch.OPEN_INPUT if options.stdin else launch.NO_INPUT
        process = inside.start_inside(list(options.command), (outputs[0], outputs[1]), stdin)
        self._input = self._keep(process.input) if options.stdin else -1
        return process

    def outputs(self) -> Mapping[int, AsyncIterator[bytes]]:
        return {channel: _pieces(end) for channel, end in self._outputs.items()}

    async def write(self, data: bytes) -> None:
        while data and self._input >= 0:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                await _ready(self._input, to_write=True)
            except OSError:
                self.close_input()

    def close_input(self) -> None:
        end, self._input = self._input, -1
        if end >= 0 and end != self._terminal:
            self._open.remove(end)
            os.close(end)

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal >= 0:
            size = struct.pack("HHHH", min(rows, 0xFFFF), min(columns, 0xFFFF), 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    async def wait(self) -> int:
        return (await self._process.wait()).code

    def abandon(self) -> None:
        self._process.send(signal.SIGKILL)
        self._close_all()

    def _keep(self, end: int) -> int:
        os.set_blocking(end, False)
        self._open.append(end)
        return end

    def _close_all(self) -> None:
        self._input = -1
        while self._open:
            os.close(self._open.pop())


async def _pieces(end: int) -> AsyncIterator[bytes]:
    """Yield what can be read, to the end."""
    while True:
        try:
            data = os.read(end, _READ_BYTES)
        except BlockingIOError:
            await _ready(end)
            continue
        except OSError as error:
            if error.errno == errno.EIO:  # nobody has the terminal open any more
                return
            raise
        if not data:
            return
        yield data


async def _ready(end: int, *, to_write: bool = False) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(end, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(end)


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
        selection = msgspec.structs.replace(
            options,
            since_time_s=self._node.now_s() - options.since_s if options.since_s else options.since_time_s,
            follow=options.follow and run == life.log_run,
        )
        return logs.read(
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
            return await NoStreams().start(pod, options)
        meta = pod.obj["metadata"]
        return self._api.start_command(meta["namespace"], meta["name"], options)

    def _has(self, pod: ObjectRecord) -> bool:
        return bool((pod.obj.get("spec") or {}).get("nodeName") == self._node_name)

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        """Raises: ApiError."""
        if not self._has(pod):
            return await NoStreams().open(pod, options)
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
