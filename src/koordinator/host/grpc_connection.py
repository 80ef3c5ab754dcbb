"""Both ends of a gRPC connection: frames cut and sent, windows kept. Source: RFC 9113, 5.2 and 6."""

import asyncio
from typing import Generic, TypeVar, cast

import msgspec

from koordinator.host import http2
from koordinator.host.http2 import Frame, FrameReader, HeaderReader

HEADERS_BYTES_MAX = 64 * 1024


class OpenCall(msgspec.Struct):
    """A call under way."""

    window: int
    """Bytes that may be sent on its stream."""


C = TypeVar("C", bound=OpenCall)


class GrpcConnection(asyncio.Protocol, Generic[C]):
    """One end. Errors of the methods that take frames: ContentError, for damaged ones."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader, self._headers = FrameReader(http2.CHUNK_BYTES), HeaderReader(HEADERS_BYTES_MAX)
        self._window = self._stream_window = http2.WINDOW_BYTES
        """Bytes that may be sent on the connection, and at first on a stream."""
        self._taken = 0
        """Bytes that the other end may not send again yet on this connection."""
        self._calls: dict[int, C] = {}
        """Calls under way, by stream."""
        self._more = asyncio.Event()
        """Set when windows or calls have changed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is none of its subclasses

    def _take(self, found: Frame) -> None:
        """Take a frame of those that mean the same to both ends; others mean nothing."""
        match found.kind:
            case http2.SETTINGS if not found.flags & http2.ACK:
                self._take_settings(found)
            case http2.PING if not found.flags & http2.ACK:
                self._send(http2.PING, http2.ACK, 0, found.payload)
            case http2.WINDOW_UPDATE:
                self._take_window(found)

    def _take_settings(self, found: Frame) -> dict[int, int]:
        """Take settings, which change the windows of calls under way, too; return them."""
        wanted = http2.settings(found)
        window = wanted.get(http2.INITIAL_WINDOW_SIZE, self._stream_window)
        for call in self._calls.values():
            call.window += window - self._stream_window
        self._stream_window = window
        self._send(http2.SETTINGS, http2.ACK, 0, b"")
        self._more.set()
        return wanted

    def _take_window(self, found: Frame) -> None:
        size, call = http2.increment(found), self._calls.get(found.stream)
        if found.stream == 0:
            self._window += size
        elif call is not None:
            call.window += size
        self._more.set()

    def _give_back(self, size: int, owed_max: int) -> None:
        """Let the other end send again what it has sent, once that is `owed_max` bytes."""
        self._taken += size
        if self._taken >= owed_max:
            self._write(http2.window_update(0, self._taken))
            self._taken = 0

    async def _changed(self) -> None:
        """Wait until windows or calls have changed."""
        self._more.clear()
        await self._more.wait()

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._write(http2.frame(kind, flags, stream, payload))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()
