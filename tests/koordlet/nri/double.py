"""A runtime with NRI on a socket: it registers plugins, configures and synchronizes them, and calls them."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TypeVar

from koordinator.host.protobuf_messages import Message, decode, encode
from koordinator.koordlet.nri import frames, messages
from koordinator.koordlet.nri.frames import (
    PLUGIN_CONNECTION,
    RUNTIME_CONNECTION,
    Frame,
    FrameReader,
    MessageType,
)
from koordinator.koordlet.nri.messages import Empty, Request, Response

A = TypeVar("A", bound=Message)


class Refused(Exception):
    """The plugin answered with a status."""


class Connection:
    """One plugin, as the runtime sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader()
        self._waiting: list[Frame] = []
        self._stream = 1
        self.registered = messages.RegisterPluginRequest()
        self.events = 0

    async def next(self) -> Frame:
        """The next message. Raises: EOFError."""
        while not self._waiting:
            data = await self._reader.read(1 << 16)
            if not data:
                raise EOFError
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)

    async def call(self, method: str, request: Message, answer: type[A], service: str = "") -> A:
        """Call the plugin. Raises: Refused, EOFError."""
        call = Request(service or messages.PLUGIN_SERVICE, method, encode(request))
        frame = Frame(PLUGIN_CONNECTION, self._stream, MessageType.REQUEST, encode(call))
        self._stream += 2
        self.writer.write(frames.written(frame))
        came = await self.next()
        assert (came.connection, came.stream) == (PLUGIN_CONNECTION, frame.stream)
        response = decode(Response, came.content)
        if response.status is not None and response.status.code:
            raise Refused(f"{response.status.code}: {response.status.message}")
        return decode(answer, response.payload)

    async def register(self, config: str = "", parts: int = 1) -> None:
        """What a runtime does with a new plugin; `parts` messages tell what there is."""
        frame = await self.next()
        assert frame.connection == RUNTIME_CONNECTION
        request = decode(Request, frame.content)
        self.registered = decode(messages.RegisterPluginRequest, request.payload)
        self.writer.write(
            frames.written(Frame(RUNTIME_CONNECTION, frame.stream, MessageType.RESPONSE, encode(Response())))
        )
        configured = await self.call(
            "Configure", messages.ConfigureRequest(config, "double", "1"), messages.ConfigureResponse
        )
        self.events = configured.events
        for part in range(parts):
            told = messages.SynchronizeRequest(more=part < parts - 1)
            answer = await self.call("Synchronize", told, messages.SynchronizeResponse)
            assert answer.more == told.more

    async def state_change(self, event: int, pod: messages.PodSandbox) -> None:
        await self.call("StateChange", messages.StateChangeEvent(event, pod), Empty)


class Runtime:
    """The server: `connections` has plugins that arrived, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._open: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        """Listen on a new socket."""
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, str(self.path))
        os.chmod(self.path, 0o600)

    async def stop(self) -> None:
        """Close all connections, and listen no more."""
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()
        self._open.clear()
        with contextlib.suppress(ConnectionError):
            await self._server.wait_closed()

    async def plugin(self) -> Connection:
        """The next plugin that connects."""
        async with asyncio.timeout(60):
            return await self.connections.get()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        self.connections.put_nowait(Connection(reader, writer))
