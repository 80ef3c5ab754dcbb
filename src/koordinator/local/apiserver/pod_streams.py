"""Streams of pods: `pods/NAME/log`, what a container wrote; `pods/NAME/exec`, a command in a container.

A command's streams go over a WebSocket (`v5.channel.k8s.io` and v4). A message is a byte that names the channel, then
data: 0 input, 1 output, 2 errors, 3 how it ended, 4 the terminal's size; with v5, 255 and a channel's number say that
the channel ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec
from aiohttp import WSMsgType, web

from koordinator import clock
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, ObjectRecord
from koordinator.local.apiserver import query
from koordinator.local.apiserver.calls import ResourceCall

log = logging.getLogger(__name__)


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a container's log that is wanted; 0 and None mean all of it."""

    container: str
    previous: bool = False
    tail_lines: int | None = None
    limit_bytes: int = 0
    since_s: int = 0
    """Only what was written in the last so many seconds."""
    since_time_s: float | None = None
    """Only what was written from this moment on."""
    timestamps: bool = False
    follow: bool = False


async def pod_log(call: ResourceCall, backend: Backend, streams: "PodStreams") -> web.StreamResponse:
    """Answer a request for a container's log. Raises: NotFound, BadRequest."""
    target = call.target
    pod = backend.get(call.resource, target.namespace, target.name)
    options = options_of(container_of(pod, call.params.get("container", "")), call.params)
    pieces = await streams.open(pod, options)
    request = call.request
    assert isinstance(request, web.BaseRequest), "only the general server streams"
    return await send(request, pieces)


def options_of(container: str, params: Mapping[str, str]) -> LogOptions:
    """Return the options of a query for logs, of the API server's as of the kubelet's. Raises: BadRequest."""
    return LogOptions(
        container=container,
        previous=bool(query.boolean(params, "previous")),
        tail_lines=query.integer(params, "tailLines") if params.get("tailLines") else None,
        limit_bytes=query.integer(params, "limitBytes"),
        since_s=query.integer(params, "sinceSeconds"),
        since_time_s=_time(params.get("sinceTime", "")),
        timestamps=bool(query.boolean(params, "timestamps")),
        follow=bool(query.boolean(params, "follow")),
    )


async def send(request: web.BaseRequest, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send a log as it comes, until its end or until the client leaves."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        async for piece in pieces:
            if piece:
                await response.write(piece)
            elif request.transport is None or request.transport.is_closing():
                return response
        await response.write_eof()
    return response


def _time(text: str) -> float | None:
    try:
        return clock.parse_rfc3339(text) if text else None
    except ValueError:
        raise errors.BadRequest(f'parsing time "{text}" as RFC 3339: cannot parse it') from None


def container_of(pod: ObjectRecord, asked: str) -> str:
    """Return the container that is meant: the named one, or the only one. Raises: BadRequest."""
    spec, name = pod.obj.get("spec") or {}, pod.obj["metadata"]["name"]
    names = [item["name"] for key in ("initContainers", "containers") for item in spec.get(key) or []]
    main: list[str] = [item["name"] for item in spec.get("containers") or []]
    if asked:
        if asked not in names:
            raise errors.BadRequest(f"container {asked} is not valid for pod {name}")
        return asked
    if len(main) != 1:
        raise errors.BadRequest(
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]"
        )
    return main[0]


STDIN, STDOUT, STDERR, ENDED, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_INPUT_BYTES_MAX = 4 * 2**20


class ExecOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command that is wanted, and its streams."""

    container: str
    command: tuple[str, ...]
    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False


class Command(Protocol):
    """A command that runs."""

    def outputs(self) -> Mapping[int, AsyncIterator[bytes]]:
        """Return what it writes, by channel, each to its end."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input; lost when it does not read any more."""
        ...

    def close_input(self) -> None: ...

    def resize(self, columns: int, rows: int) -> None: ...

    async def wait(self) -> int:
        """Return its exit code, once it has ended."""
        ...

    def abandon(self) -> None:
        """Nobody listens any more: end it if it runs, and close everything."""
        ...


class PodStreams(Protocol):
    """Whoever runs pods for real."""

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        """Return what a container wrote, in pieces; with `follow` until it has ended, an empty piece now and then
        meanwhile.

        Raises: ApiError where there is no log.
        """
        ...

    async def start(self, pod: ObjectRecord, options: ExecOptions) -> Command:
        """Raises: ApiError."""
        ...


class NoStreams:
    """Nobody runs pods for real: their node simulates containers."""

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        """Refuse, since there is nothing to read. Raises: BadRequest."""
        name = pod.obj["metadata"]["name"]
        raise errors.BadRequest(
            f'container "{options.container}" in pod "{name}" has no log: this node simulates its containers'
        )

    async def start(self, pod: ObjectRecord, options: ExecOptions) -> Command:
        """Refuse, since nothing can be run. Raises: BadRequest."""
        name = pod.obj["metadata"]["name"]
        raise errors.BadRequest(f'nothing can be run in pod "{name}": its node simulates containers')


class _Size(msgspec.Struct, rename="pascal"):
    width: int = 80
    height: int = 24


async def serve(
    request: web.BaseRequest, pod: ObjectRecord, options: ExecOptions, streams: PodStreams
) -> web.WebSocketResponse:
    """Run a command for a client, from its start to its end. Raises: BadRequest for what is no WebSocket request."""
    if not options.command:
        raise errors.BadRequest("you must specify at least one command for the container")
    response = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_INPUT_BYTES_MAX)
    if not response.can_prepare(request):
        raise errors.BadRequest(
            "unable to upgrade: this server speaks WebSocket only, use kubectl 1.31 or newer"
        )
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        try:
            command = await streams.start(pod, options)
        except errors.ApiError as error:  # an HTTP status would make clients try an older protocol
            await _end(response, error.status())
            return response
        try:
            await _converse(response, command)
        finally:
            command.abandon()
    return response


async def _end(response: web.WebSocketResponse, status: object) -> None:
    await response.send_bytes(bytes((ENDED,)) + msgspec.json.encode(status))
    await response.close()


async def _converse(response: web.WebSocketResponse, command: Command) -> None:
    pumps = [asyncio.create_task(_pump(response, *each)) for each in command.outputs().items()]
    listening = asyncio.create_task(_listen(response, command))
    ending = asyncio.create_task(_until_end(pumps, command))
    try:
        await asyncio.wait((listening, ending), return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            await _end(response, _status(ending.result()))
    finally:
        for task in (*pumps, listening, ending):
            task.cancel()
        await asyncio.gather(*pumps, listening, ending, return_exceptions=True)


async def _until_end(pumps: list[asyncio.Task[None]], command: Command) -> int:
    await asyncio.gather(*pumps)
    return await command.wait()


async def _pump(response: web.WebSocketResponse, channel: int, pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        await response.send_bytes(bytes((channel,)) + piece)


async def _listen(response: web.WebSocketResponse, command: Command) -> None:
    """Listen to what the client sends, until it leaves."""
    async for message in response:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN:
            await command.write(data)
        elif channel == CLOSE and data[:1] == bytes((STDIN,)):
            command.close_input()
        elif channel == RESIZE:
            with contextlib.suppress(msgspec.MsgspecError):
                size = msgspec.json.decode(data, type=_Size)
                command.resize(size.width, size.height)


def ending_of(status: bytes) -> tuple[int, bytes]:
    """Return the exit code that a stream's last message tells, and for a command that never ran (1) why."""
    try:
        ended = msgspec.json.decode(status, type=_Ended)
    except msgspec.MsgspecError:
        return 1, status
    if ended.status == "Success":
        return 0, b""
    codes = [each.message for each in ended.details.causes if each.reason == "ExitCode"]
    return (int(codes[0]), b"") if codes and codes[0].isdecimal() else (1, f"{ended.message}\n".encode())


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Causes(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] = ()


class _Ended(msgspec.Struct, frozen=True):
    status: str = ""
    message: str = ""
    details: _Causes = _Causes()


def _status(code: int) -> dict[str, object]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
