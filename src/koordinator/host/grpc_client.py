"""A small gRPC client for unix sockets: unary calls over one connection, on the event loop.

grpcio has threads of its own, and each of its calls wakes them a dozen times, while a kubelet waits for its container.
Source: gRPC over HTTP/2; RFC 9113.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

from koordinator.host import http2
from koordinator.host.errors import CallError, ContentError, GrpcCode
from koordinator.host.grpc_connection import GrpcConnection, OpenCall
from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX
from koordinator.host.http2 import Frame

_STREAM_MAX = 0x7FFF_FFFF
_STREAM_WINDOW = MESSAGE_BYTES_MAX + http2.WINDOW_BYTES
"""Enough for the longest message, so that windows of streams are never enlarged, and for seeing that one is longer."""
_GREETING = (
    http2.PREFACE
    + http2.frame(
        http2.SETTINGS,
        0,
        0,
        http2.setting(http2.ENABLE_PUSH, 0) + http2.setting(http2.INITIAL_WINDOW_SIZE, _STREAM_WINDOW),
    )
    + http2.window_update(0, MESSAGE_BYTES_MAX)
)
_RETRY_PAUSES_S = (0.002, 0.01, 0.05, 0.25)
"""Before calls that the server had no room for are made again."""


class _NotLookedAt(CallError):
    """The server has refused a stream, so that the call may be made again."""


class _Call(OpenCall):
    """A call: the answer so far."""

    answer: asyncio.Future[bytes]
    body: bytearray


class Channel:
    """Calls to the server of a socket. The first call connects; so does the next one after a connection was lost."""

    def __init__(self, path: str, problem_of: Callable[[str], str] = lambda _: "") -> None:
        """`problem_of` a socket says why it is not to be connected to, empty when it may be."""
        self._path = path
        self._problem_of = problem_of
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    def call(self, path: str, message: bytes, timeout_s: float) -> Awaitable[bytes]:
        """Begin a call of a method, `/package.Service/Method`: at once where nothing has to be waited for.

        Return its answer. Raises when awaited: CallError.
        """
        connection = self._connection
        begun = connection.begin(path, message, timeout_s) if connection is not None else None
        return self._answered(begun, path, message, timeout_s)

    async def _answered(
        self, begun: Awaitable[bytes] | None, path: str, message: bytes, timeout_s: float
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                for pause_s in _RETRY_PAUSES_S:
                    try:
                        return await (begun or (await self._connected()).call(path, message, timeout_s))
                    except _NotLookedAt:
                        begun = None
                        await asyncio.sleep(pause_s)
                return await (await self._connected()).call(path, message, timeout_s)
        except TimeoutError as error:
            raise CallError(GrpcCode.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from error

    async def _connected(self) -> "_Connection":
        if self._connection is not None and self._connection.is_open:
            return self._connection
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                loop = asyncio.get_running_loop()
                problem = self._problem_of(self._path)
                if problem:
                    raise CallError(GrpcCode.UNAVAILABLE, problem)
                try:
                    _, self._connection = await loop.create_unix_connection(_Connection, self._path)
                except OSError as error:
                    problem = f"{self._path}: {(error.strerror or str(error)).lower()}"
                    raise CallError(GrpcCode.UNAVAILABLE, problem) from error
            return self._connection

    async def close(self, grace_s: float = 0.0) -> None:
        """Close the connection, once its calls have ended or `grace_s` are over."""
        if self._connection is not None:
            await self._connection.close(grace_s)
            self._connection = None


class _Connection(GrpcConnection[_Call]):
    """One connection. `is_open` says whether calls can begin on it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self._next = 1
        self._streams_max = _STREAM_MAX

    def begin(self, path: str, message: bytes, timeout_s: float) -> Awaitable[bytes] | None:
        """Send a call in one write, and return its answer; None where something has to be waited for."""
        body = http2.grpc_message(message)
        if len(body) > min(http2.CHUNK_BYTES, self._window, self._stream_window) or not self._has_room:
            return None
        stream, call = self._opened()
        self._window -= len(body)
        call.window -= len(body)
        head = http2.frame(http2.HEADERS, http2.END_HEADERS, stream, _headers(path, timeout_s))
        self._write(head + http2.frame(http2.DATA, http2.END_STREAM, stream, body))
        return self._ended(stream, call)

    async def call(self, path: str, message: bytes, timeout_s: float) -> bytes:
        """Return the answer of a method. Raises: CallError."""
        while self.is_open and not self._has_room:
            await self._changed()
        if not self.is_open:
            raise CallError(GrpcCode.UNAVAILABLE, "the connection was closed")
        stream, call = self._opened()
        head = http2.frame(http2.HEADERS, http2.END_HEADERS, stream, _headers(path, timeout_s))
        return await self._ended(
            stream, call, self._send_body(head, stream, call, http2.grpc_message(message))
        )

    @property
    def _has_room(self) -> bool:
        """Return whether a call may begin."""
        return self.is_open and len(self._calls) < self._streams_max

    def _opened(self) -> tuple[int, _Call]:
        """Return a new stream, and its call."""
        stream, self._next = self._next, self._next + 2
        self.is_open = self._next <= _STREAM_MAX
        call = _Call(self._stream_window, asyncio.get_running_loop().create_future(), bytearray())
        self._calls[stream] = call
        return stream, call

    async def _ended(self, stream: int, call: _Call, sending: Awaitable[None] | None = None) -> bytes:
        """Wait until a call is sent and answered."""
        try:
            if sending is not None:
                await sending
            return await call.answer
        finally:
            if self._calls.pop(stream, None) is not None:  # given up, or refused by us
                self._send(http2.RST_STREAM, 0, stream, http2.CANCEL.to_bytes(4, "big"))
            self._more.set()
            if not self.is_open and not self._calls:
                self._hang_up()  # another connection has taken its place

    async def _send_body(self, head: bytes, stream: int, call: _Call, body: bytes) -> None:
        """Send a body as far as windows let it, its begin in one write with the `head`. An answer that comes before the
        end ends it."""
        for start in range(0, len(body), http2.CHUNK_BYTES):
            chunk = body[start : start + http2.CHUNK_BYTES]
            if min(self._window, call.window) < len(chunk):
                self._write(head)
                head = b""
            while min(self._window, call.window) < len(chunk) and not call.answer.done():
                await self._changed()
            if call.answer.done():
                return
            self._window -= len(chunk)
            call.window -= len(chunk)
            is_last = start + len(chunk) == len(body)
            self._write(head + http2.frame(http2.DATA, http2.END_STREAM if is_last else 0, stream, chunk))
            head = b""

    async def close(self, grace_s: float) -> None:
        """Close, once the calls under way have ended or `grace_s` are over."""
        self.is_open = False
        if self._calls and grace_s > 0:
            await asyncio.wait([each.answer for each in self._calls.values()], timeout=grace_s)
        self._hang_up()

    # From the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._write(_GREETING)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail_all(GrpcCode.UNAVAILABLE, f"the connection was lost{f': {error}' if error else ''}")

    def data_received(self, data: bytes) -> None:
        try:
            for found in self._reader.feed(data):
                self._take(found)
        except ContentError as error:
            self._fail_all(GrpcCode.INTERNAL, f"the server's answer is damaged: {error}")
            self._hang_up()

    def _fail_all(self, code: GrpcCode, reason: str) -> None:
        self.is_open = False
        for stream in tuple(self._calls):
            self._fail(stream, CallError(code, reason))
        self._more.set()

    def _fail(self, stream: int, error: CallError) -> None:
        call = self._calls.pop(stream, None)
        if call is not None and not call.answer.done():
            call.answer.set_exception(error)
        self._more.set()

    def _take(self, found: Frame) -> None:
        match found.kind:
            case http2.HEADERS | http2.CONTINUATION:
                headers = self._headers.read(found)
                if headers is not None:
                    self._take_headers(found, headers)
            case http2.DATA:
                self._take_data(found)
            case http2.SETTINGS if not found.flags & http2.ACK:
                wanted = self._take_settings(found)
                self._streams_max = wanted.get(http2.MAX_CONCURRENT_STREAMS, self._streams_max)
            case http2.RST_STREAM:
                self._fail(found.stream, _of_reset(http2.error_code(found)))
            case http2.GOAWAY:
                self.is_open = False  # what is under way may still be answered
                last = http2.last_stream(found)
                for stream in [each for each in self._calls if each > last]:
                    self._fail(stream, _NotLookedAt(GrpcCode.UNAVAILABLE, "the server is about to end"))
            case _:
                super()._take(found)

    def _take_headers(self, found: Frame, headers: Mapping[bytes, bytes]) -> None:
        """Take the headers of an answer, or the trailers that end it."""
        call = self._calls.get(found.stream)
        if call is None:
            return
        http_status = headers.get(b":status", b"200")
        if http_status != b"200":
            problem = f"HTTP status {http_status.decode('latin-1')}"
            self._fail(found.stream, CallError(GrpcCode.UNKNOWN, problem))
        elif b"grpc-status" in headers:
            self._end(found.stream, call, headers)
        elif found.flags & http2.END_STREAM:
            self._fail(found.stream, _no_status())

    def _end(self, stream: int, call: _Call, headers: Mapping[bytes, bytes]) -> None:
        code = GrpcCode.of(headers[b"grpc-status"])
        if code is not GrpcCode.OK:
            reason = unquote(headers.get(b"grpc-message", b"").decode("latin-1"), errors="replace")
            self._fail(stream, CallError(code, reason))
            return
        message = http2.of_grpc(bytes(call.body))
        if message is None:
            problem = "the answer is not one message, not compressed"
            self._fail(stream, CallError(GrpcCode.INTERNAL, problem))
            return
        del self._calls[stream]
        if not call.answer.done():
            call.answer.set_result(message)

    def _take_data(self, found: Frame) -> None:
        self._give_back(found.size, MESSAGE_BYTES_MAX // 2)
        call = self._calls.get(found.stream)
        if call is None:
            return  # given up already
        call.body += http2.content(found)
        if len(call.body) > MESSAGE_BYTES_MAX:
            self._send(http2.RST_STREAM, 0, found.stream, http2.CANCEL.to_bytes(4, "big"))
            problem = f"an answer of more than {MESSAGE_BYTES_MAX} bytes"
            self._fail(found.stream, CallError(GrpcCode.RESOURCE_EXHAUSTED, problem))
        elif found.flags & http2.END_STREAM:
            self._fail(found.stream, _no_status())


@functools.lru_cache(64)
def _headers(path: str, timeout_s: float) -> bytes:
    """Return the headers of a call, which leave the server's table alone."""
    return http2.request_headers(
        path,
        (
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{max(round(timeout_s * 1e3), 1)}m"),
        ),
    )


def _of_reset(reset: int) -> CallError:
    """Return what a reset means, by its error code of HTTP/2."""
    problem = f"the server has reset the call (error {reset})"
    if reset == http2.REFUSED_STREAM:
        return _NotLookedAt(GrpcCode.UNAVAILABLE, problem)
    return CallError(GrpcCode.CANCELLED if reset == http2.CANCEL else GrpcCode.INTERNAL, problem)


def _no_status() -> CallError:
    return CallError(GrpcCode.UNKNOWN, "the answer has no status")
