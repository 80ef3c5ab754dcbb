"""Short writes and watches read without the general HTTP server: what schedulers and controllers send all day, and what
they leave open.

A write that arrives in one piece, in the form in which clients send it, is read here at some 60 µs of CPU less; a watch
takes half of the memory for as long as it is open. At the first request of a connection that is anything else (a read,
a body in pieces, an `Expect`, nonsense), the general server takes the connection over and keeps it, so what clients
get is the same, faults included.
"""

import asyncio
import email.utils
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import msgspec
from aiohttp import http, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from koordinator.clock import Clock
from koordinator.cluster.resource_path import parse_path

BODY_BYTES_MAX = 64 << 10
HEAD_BYTES_MAX = 8 << 10
KEEP_ALIVE_S = 3630.0
"""Time that a connection may be silent: as the general server."""
CHECK_S_MIN = 1.0
_PENDING_BYTES_MAX = 256 << 10

_LINE = re.compile(
    rb"(GET|POST|PUT|PATCH|DELETE) (/apis?/[A-Za-z0-9/._~:-]+)(\?[A-Za-z0-9/._~:=&,-]*)? HTTP/1\.1"
)
_WATCH = re.compile(rb"[?&]watch=(1|true)(&|$)")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d{1,8})(?=\r\n)", re.IGNORECASE)
_FIELD = re.compile(rb"([A-Za-z0-9-]+):[ \t]*([\x20-\x7e]*)")
# They change how the rest is read.
_SPECIAL = frozenset({"transfer-encoding", "expect", "upgrade", "content-encoding", "te", "trailer"})
_NO_QUERY: Mapping[str, str] = {}


class ShortRequest:
    """The part of a request that handlers need; `aiohttp.web.BaseRequest` has the same members."""

    __slots__ = ("body", "content_length", "headers", "method", "path", "query", "transport")

    def __init__(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: CIMultiDictProxy[str],
        body: bytes,
        transport: asyncio.Transport | None,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.content_length = len(body)
        self.transport = transport

    async def read(self) -> bytes:
        """Return the body."""
        return self.body


class WatchRequest(ShortRequest):
    """A request that is answered piece by piece."""

    __slots__ = ("_connection", "has_begun")

    def __init__(
        self, path: str, query: Mapping[str, str], headers: CIMultiDictProxy[str], connection: "_Connection"
    ) -> None:
        super().__init__("GET", path, query, headers, b"", connection.transport)
        self._connection = connection
        self.has_begun = False

    def begin(self, headers: Mapping[str, str]) -> None:
        """Send the head of the answer. Raises: ConnectionError when the client left."""
        self.has_begun = True
        self._connection.begin_stream(headers)

    def write(self, chunk: bytes) -> None:
        """Raises: ConnectionError when the client left."""
        self._connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    async def drain(self) -> None:
        """Wait until the socket has taken everything. Raises: ConnectionError when the client left."""
        await self._connection.drain()


AnyRequest = web.BaseRequest | ShortRequest

Answerer = Callable[[ShortRequest], Awaitable[web.StreamResponse]]


class ShortServer:
    """Makes the protocols of new connections; `general` makes those that take over."""

    def __init__(self, answer: Answerer, general: Callable[[], asyncio.Protocol], clock: Clock) -> None:
        self.answer = answer
        self.general = general
        self.connections: set[_Connection] = set()
        self.head: _Head | None = None
        """Head that was read last: clients open several connections."""
        self._clock = clock
        self._stamped_s = -1
        self._stamp = b""

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self)

    def stamp(self) -> bytes:
        """Return the headers that all answers end with."""
        now_s = int(self._clock.now())
        if now_s != self._stamped_s:
            self._stamped_s = now_s
            date = email.utils.formatdate(now_s, usegmt=True)
            self._stamp = f"Date: {date}\r\nServer: {http.SERVER_SOFTWARE}\r\n\r\n".encode()
        return self._stamp

    async def shutdown(self, timeout_s: float) -> None:
        """Close idle connections, and the others when they have answered, or after `timeout_s`."""
        tasks = [task for task in (each.stop() for each in list(self.connections)) if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for connection in list(self.connections):
            connection.abort()


class _Head(msgspec.Struct, frozen=True, gc=False):
    """Header lines as sent (without Content-Length) and as read: a client sends the same again and again."""

    text: bytes
    headers: CIMultiDictProxy[str]


class _Connection(asyncio.Protocol):
    """One connection, until it is handed over."""

    def __init__(self, server: ShortServer) -> None:
        self._server = server
        self.transport: asyncio.Transport | None = None
        self._head: _Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending = b""
        self._is_stopping = False
        self._is_clogged = False
        self._drained: asyncio.Future[None] | None = None
        self._used_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._watch_idleness()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        self._wake()

    def data_received(self, data: bytes) -> None:
        if self._task is None and not self._is_clogged:
            self._begin(data)
            return
        self._pending += data
        if len(self._pending) > _PENDING_BYTES_MAX and self.transport is not None:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read its answers: it gets no more until it does."""
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._wake()
        if self._task is None:
            self._go_on()

    def _wake(self) -> None:
        """Let a stream go on that waits for the client to read."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def stop(self) -> asyncio.Task[None] | None:
        """Close when nothing is under way; what is, if anything."""
        self._is_stopping = True
        if self._task is None and self.transport is not None:
            self.transport.close()
        return self._task

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def begin_stream(self, headers: Mapping[str, str]) -> None:
        """Send the head of an answer in chunks; `drain` waits until the socket has all of one."""
        self._stop_timer()
        if self.transport is not None:
            self.transport.set_write_buffer_limits(high=1)  # 0 would pause TLS connections with nothing left
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + "".join(lines)
        self.send(head.encode() + self._server.stamp())

    def send(self, data: bytes) -> None:
        """Raises: ConnectionResetError when the client left."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client left")
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough. Raises: ConnectionResetError when it left."""
        while self._is_clogged and self.transport is not None:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        self._drained = None
        if self.transport is None:
            raise ConnectionResetError("the client left")

    def _begin(self, data: bytes) -> None:
        """Answer the request that `data` starts with, or hand everything over."""
        found = self._read(data)
        if found is None:
            self._hand_over(data)
            return
        request, end = found
        self._pending = data[end:]
        self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: ShortRequest) -> None:
        try:
            response = await self._server.answer(request)
            if isinstance(request, WatchRequest) and request.has_begun:
                self._end_stream()
            else:
                assert isinstance(response, web.Response), response
                self._write(response)
        except BaseException:
            self.abort()
            raise
        self._task = None
        self._used_s = asyncio.get_running_loop().time()
        if not self._is_clogged:
            self._go_on()

    def _go_on(self) -> None:
        """Begin with what came meanwhile."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._is_stopping:
            transport.close()
        elif self._pending:
            data, self._pending = self._pending, b""
            transport.resume_reading()
            self._begin(data)

    def _end_stream(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"0\r\n\r\n")
            self.transport.set_write_buffer_limits()
            self._used_s = 0.0
            self._watch_idleness()

    def _write(self, response: web.Response) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        body = response.body or b""
        assert isinstance(body, bytes), type(body)
        lines = [f"HTTP/1.1 {response.status} {response.reason}\r\n"]
        lines += [
            f"{name}: {value}\r\n" for name, value in response.headers.items() if name != "Content-Length"
        ]
        lines.append(f"Content-Length: {len(body)}\r\n")
        self.transport.write(b"%b%b%b" % ("".join(lines).encode(), self._server.stamp(), body))

    def _read(self, data: bytes) -> tuple[ShortRequest, int] | None:
        """Return the request at the start of `data` and where it ends; None for what is not ours to read."""
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        line_end = data.find(b"\r\n", 0, HEAD_BYTES_MAX)
        line = _LINE.fullmatch(data, 0, line_end) if end > 0 else None
        if line is None:
            return None
        path = line[2]
        if b"//" in path or b"/." in path:
            return None
        query = URL(line[3].decode(), encoded=True).query if line[3] else _NO_QUERY
        if line[1] == b"GET":
            head = self._head_of(data[line_end:end]) if _is_watch(path, line[3]) else None
            return None if head is None else (WatchRequest(path.decode(), query, head.headers, self), end + 4)
        length = _LENGTH.search(data, line_end, end + 2)
        if length is None:
            return None
        stop = end + 4 + int(length[1])
        if stop > len(data) or stop - end > BODY_BYTES_MAX:
            return None
        head = self._head_of(data[line_end : length.start()] + data[length.end() : end])
        if head is None:
            return None
        body = data[end + 4 : stop]
        request = ShortRequest(line[1].decode(), path.decode(), query, head.headers, body, self.transport)
        return request, stop

    def _head_of(self, text: bytes) -> _Head | None:
        """Return header lines as read; None when they need a closer look."""
        for known in (self._head, self._server.head):
            if known is not None and known.text == text:
                self._head = known
                return known
        headers = _headers(text)
        if headers is None:
            return None
        self._head = self._server.head = _Head(text, headers)
        return self._head

    def _hand_over(self, data: bytes) -> None:
        """From here on the general server has the connection."""
        transport = self.transport
        assert transport is not None, "not connected"
        self._leave()
        general = self._server.general()
        transport.set_protocol(general)
        general.connection_made(transport)
        general.data_received(data)

    def _leave(self) -> None:
        self._server.connections.discard(self)
        self.transport = None
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_idleness(self) -> None:
        """Close when nothing was said for too long; look again when that can be."""
        loop = asyncio.get_running_loop()
        self._used_s = self._used_s or loop.time()
        left_s = self._used_s + KEEP_ALIVE_S - loop.time()
        if self._task is None and left_s <= 0 and self.transport is not None:
            self.transport.close()
            return
        self._timer = loop.call_later(max(left_s, CHECK_S_MIN), self._watch_idleness)


def _is_watch(path: bytes, params: bytes | None) -> bool:
    """Return whether it is a watch of objects: logs and streams of pods are not for here."""
    if params is None or not _WATCH.search(params):
        return False
    target = parse_path(path.decode())
    return target is not None and not target.subresource


def _headers(text: bytes) -> CIMultiDictProxy[str] | None:
    """Header lines as a dictionary; None when they need a closer look."""
    found: CIMultiDict[str] = CIMultiDict()
    for line in text.split(b"\r\n")[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        name, value = field[1].decode(), field[2].decode().rstrip()
        plain = name.lower()
        if plain in _SPECIAL or (plain == "connection" and value.lower() != "keep-alive"):
            return None
        if plain in ("content-length", "host") and name in found:
            return None
        found.add(name, value)
    if "Content-Length" in found or "Host" not in found:
        return None
    return CIMultiDictProxy(found)
