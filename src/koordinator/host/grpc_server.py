"""A small gRPC server on a unix socket: unary calls of one service, on the event loop.

It is there because the hook server must outlive whatever comes (the loop of grpcio 1.85 ends with a method that is no
text) and answer in a fraction of a millisecond. Source: gRPC over HTTP/2; RFC 9113.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping

from koordinator.host import grpc_sockets, http2
from koordinator.host.errors import CallError, ContentError, GrpcCode
from koordinator.host.grpc_connection import GrpcConnection, OpenCall
from koordinator.host.http2 import Frame

log = logging.getLogger(__name__)

STREAMS_MAX = 1_000
_HEADERS = http2.literals((("content-type", "application/grpc"),))
_TRAILERS = http2.literals((("grpc-status", "0"),))[1:]
Handler = Callable[[bytes], bytes | Awaitable[bytes]]
"""From message to message, at once or later. Raises: CallError."""


class _Call(OpenCall):
    """A call: its path, and the body so far."""

    path: str
    body: bytearray
    task: asyncio.Task[None] | None = None


class UnaryConnection(GrpcConnection[_Call]):
    """One caller. `handlers` are by path; messages have at most `message_bytes_max`."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        message_bytes_max: int,
        lost: Callable[["UnaryConnection"], None],
    ) -> None:
        """`lost` is told when the connection is at its end."""
        super().__init__()
        self._lost = lost
        self._handlers = handlers
        self._bytes_max = message_bytes_max
        self._preface = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send(http2.SETTINGS, 0, 0, http2.setting(http2.MAX_CONCURRENT_STREAMS, STREAMS_MAX))

    def connection_lost(self, _: Exception | None) -> None:
        for call in self._calls.values():
            if call.task is not None:
                call.task.cancel()
        self._calls.clear()
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            left = len(http2.PREFACE) - len(self._preface)
            self._preface += data[:left]
            if not http2.PREFACE.startswith(self._preface):
                raise ContentError("http2", "the connection begins with something else")
            for found in self._reader.feed(data[left:] if left else data):
                self._take(found)
        except ContentError as error:
            log.debug("connection closed", extra={"problem": str(error)})
            self.close()

    def close(self) -> None:
        """End the connection, and the calls on it."""
        self._hang_up()

    def _take(self, found: Frame) -> None:
        match found.kind:
            case http2.HEADERS | http2.CONTINUATION:
                self._begin_call(found)
            case http2.DATA:
                self._data(found)
            case http2.RST_STREAM:
                call = self._calls.pop(found.stream, None)
                if call is not None and call.task is not None:
                    call.task.cancel()
            case _:
                super()._take(found)

    def _begin_call(self, found: Frame) -> None:
        headers = self._headers.read(found)
        if headers is None:
            return
        if found.stream in self._calls or len(self._calls) >= STREAMS_MAX:
            raise ContentError("http2", f"stream {found.stream} begins twice, or is one too many")
        path = bytes(headers.get(b":path", b"")).decode("latin-1")
        call = self._calls[found.stream] = _Call(self._stream_window, path, bytearray())
        if found.kind == http2.HEADERS and found.flags & http2.END_STREAM:
            self._begin(found.stream, call)

    def _data(self, found: Frame) -> None:
        self._give_back(found.size, http2.WINDOW_BYTES // 2)
        call = self._calls.get(found.stream)
        if call is None or call.task is not None:
            return  # given up already
        call.body += http2.content(found)
        if len(call.body) > self._bytes_max:
            raise ContentError("http2", f"a message of more than {self._bytes_max} bytes")
        if found.flags & http2.END_STREAM:
            self._begin(found.stream, call)
        elif found.size:
            self._write(http2.window_update(found.stream, found.size))

    def _begin(self, stream: int, call: _Call) -> None:
        """Answer a call; where nothing has to be waited for, no task is made for it."""
        try:
            found = self._handled(call)
        except CallError as error:
            self._end(stream, http2.refusal(error.code, error.reason))
            return
        if isinstance(found, bytes):
            body = http2.grpc_message(found)
            size = len(body)
            if size <= min(http2.CHUNK_BYTES, self._window, call.window):
                self._window -= size
                head = http2.frame(http2.HEADERS, http2.END_HEADERS, stream, _HEADERS)
                self._end(stream, _TRAILERS, head + http2.frame(http2.DATA, 0, stream, body))
                return
        call.task = asyncio.ensure_future(self._answer(stream, call, found))
        call.task.add_done_callback(functools.partial(self._done, found))

    def _done(self, found: bytes | Awaitable[bytes], task: asyncio.Task[None]) -> None:
        if inspect.iscoroutine(found):
            found.close()  # it has not begun where the call was given up at once
        if not task.cancelled() and task.exception() is not None:
            log.error("call failed", exc_info=task.exception())
            self.close()

    async def _answer(self, stream: int, call: _Call, found: bytes | Awaitable[bytes]) -> None:
        try:
            answer = found if isinstance(found, bytes) else await found
        except CallError as error:
            self._end(stream, http2.refusal(error.code, error.reason))
            return
        unsent = await self._send_body(stream, call, http2.grpc_message(answer))
        self._end(stream, _TRAILERS, unsent)

    def _end(self, stream: int, trailers: bytes, unsent: bytes = b"") -> None:
        """End a call, in one write with what is left to send."""
        flags = http2.END_HEADERS | http2.END_STREAM
        self._write(unsent + http2.frame(http2.HEADERS, flags, stream, trailers))
        self._calls.pop(stream, None)

    def _handled(self, call: _Call) -> bytes | Awaitable[bytes]:
        handler = self._handlers.get(call.path)
        if handler is None:
            raise CallError(GrpcCode.UNIMPLEMENTED, f"no method {call.path[:200]!r}")
        message = http2.of_grpc(bytes(call.body))
        if message is None:
            raise CallError(GrpcCode.UNIMPLEMENTED, "expected one message, not compressed")
        return handler(message)

    async def _send_body(self, stream: int, call: _Call, body: bytes) -> bytes:
        """Send headers and body as far as windows let them; return what is left to send, at once with the trailers."""
        unsent = http2.frame(http2.HEADERS, http2.END_HEADERS, stream, _HEADERS)
        for start in range(0, len(body), http2.CHUNK_BYTES):
            chunk = body[start : start + http2.CHUNK_BYTES]
            if len(unsent) >= http2.CHUNK_BYTES or min(self._window, call.window) < len(chunk):
                self._write(unsent)
                unsent = b""
            while min(self._window, call.window) < len(chunk):
                await self._changed()
            self._window -= len(chunk)
            call.window -= len(chunk)
            unsent += http2.frame(http2.DATA, 0, stream, chunk)
        return unsent


class UnaryServer:
    """All callers of a socket."""

    def __init__(self, handlers: Mapping[str, Handler], message_bytes_max: int) -> None:
        self._handlers = handlers
        self._bytes_max = message_bytes_max
        self._connections: set[UnaryConnection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, path: str) -> None:
        """Listen. Raises: SocketError when the socket cannot be made."""
        listener = grpc_sockets.listening(path)
        self._server = await asyncio.get_running_loop().create_unix_server(self._connected, sock=listener)

    def close(self) -> None:
        """End all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for each in tuple(self._connections):
            each.close()

    def _connected(self) -> UnaryConnection:
        made = UnaryConnection(self._handlers, self._bytes_max, self._connections.discard)
        self._connections.add(made)
        return made
