"""`pods/NAME/exec`: a command in a container, its streams over a WebSocket (`v5.channel.k8s.io` and v4).

A message is a byte that names the channel, then data: 0 input, 1 output, 2 errors, 3 how it ended, 4 the terminal's
size; with v5, 255 and a channel's number say that the channel ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec
from aiohttp import WSMsgType, web

from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord

log = logging.getLogger(__name__)

STDIN, STDOUT, STDERR, ENDED, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
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
        """Its exit code, once it has ended."""
        ...

    def abandon(self) -> None:
        """Nobody listens any more: end it if it runs, and close everything."""
        ...


class ContainerCommands(Protocol):
    """Whoever runs pods for real."""

    async def start(self, pod: ObjectRecord, options: ExecOptions) -> Command:
        """Raises: ApiError."""
        ...


class NoCommands:
    """Nobody runs pods for real."""

    async def start(self, pod: ObjectRecord, options: ExecOptions) -> Command:
        """Refuse, since the node simulates containers. Raises: BadRequest."""
        name = pod.obj["metadata"]["name"]
        raise errors.BadRequest(f'nothing can be run in pod "{name}": its node simulates containers')


class _Size(msgspec.Struct, rename="pascal"):
    width: int = 80
    height: int = 24


async def serve(
    request: web.BaseRequest, pod: ObjectRecord, options: ExecOptions, commands: ContainerCommands
) -> web.WebSocketResponse:
    """Run a command for a client, from its start to its end. Raises: BadRequest for what is no WebSocket request."""
    if not options.command:
        raise errors.BadRequest("you must specify at least one command for the container")
    response = web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=_INPUT_BYTES_MAX)
    if not response.can_prepare(request):
        raise errors.BadRequest(
            "unable to upgrade: this server speaks WebSocket only, use kubectl 1.31 or newer"
        )
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        try:
            command = await commands.start(pod, options)
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
