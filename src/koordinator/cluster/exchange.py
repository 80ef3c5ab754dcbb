"""Short HTTP/1.1 exchanges at little cost: writes to an API server, scrapes of metrics.

A general HTTP client spends some 100 µs of CPU more on a request, which for a scheduler is more than deciding. Here a
request is one write of bytes that the caller composed, and an answer is read as a whole; a connection carries one
request at a time and is kept for the next. Redirects, proxies, compression and streams are left to the general client.
"""

import asyncio
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

# A peer that vanished without a word is noticed after 30 + 3 × 10 s also by a connection that only listens.
KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
# More than any server sends; what is longer is no HTTP.
HEAD_BYTES_MAX = 64 << 10

_BODILESS = (204, 304)


class HttpResponse(msgspec.Struct, frozen=True, gc=False):
    """The answer of a server. `retry_after` is the header of that name, empty without it."""

    status: int
    body: bytes
    retry_after: str = ""


class NotReached(OSError):
    """No connection could be made, so the server did not see the request."""


class NoAnswer(OSError):
    """The connection ended, or brought something that is no HTTP, before the answer was complete."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint to which a pool connects. `server_name`: the name expected in the certificate, if not `host`."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str = ""


class ConnectionPool:
    """Connections to one server, at most `connections_max`; more exchanges wait for one.

    Idle connections are used for `keep_alive_s`, the one used last first. An answer with a body above `body_bytes_max`
    is none.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        connections_max: int,
        connect_timeout_s: float,
        keep_alive_s: float,
        body_bytes_max: float = math.inf,
    ) -> None:
        self._origin = origin
        self._body_bytes_max = body_bytes_max
        self._connections_max = connections_max
        self._connect_timeout_s = connect_timeout_s
        self._keep_alive_s = keep_alive_s
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._connecting_count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def exchange(
        self, request: bytes, timeout_s: float, check: Callable[[], None] | None = None
    ) -> HttpResponse:
        """Send a whole request and read its answer; `check` has the last word before it goes.

        Raises: NotReached, NoAnswer, TimeoutError (`timeout_s` passed), OSError; what `check` raises.
        """
        connection = self._take() or await self._connected(timeout_s)
        try:
            if check is not None:
                check()
            return await connection.send(request, timeout_s)
        except BaseException:
            connection.abort()  # what comes late must not be taken for the answer to the next request
            raise
        finally:
            self._busy.discard(connection)
            if connection.is_usable:
                self._idle.append(connection)
            self._wake()

    def close(self) -> None:
        """Close all connections; exchanges under way end with NoAnswer."""
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()

    def _take(self) -> "_Connection | None":
        """Return an idle connection that is still good."""
        oldest_s = asyncio.get_running_loop().time() - self._keep_alive_s
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.used_s > oldest_s:
                self._busy.add(connection)
                return connection
            connection.abort()
        return None

    async def _connected(self, timeout_s: float) -> "_Connection":
        """Return a new connection, or one that somebody gives back."""
        async with asyncio.timeout(timeout_s):
            while len(self._busy) + self._connecting_count >= self._connections_max:
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                try:
                    await waiter
                except BaseException:
                    if waiter.done() and not waiter.cancelled():
                        self._wake()  # the turn that we were given goes to the next one
                    raise
            connection = self._take()
            if connection is not None:
                return connection
            self._connecting_count += 1
            try:
                connection = await self._connect()
            except (OSError, TimeoutError) as error:
                self._wake()
                origin = self._origin
                text = str(error) or type(error).__name__
                raise NotReached(f"cannot connect to {origin.host}:{origin.port}: {text}") from error
            finally:
                self._connecting_count -= 1
            self._busy.add(connection)
            return connection

    async def _connect(self) -> "_Connection":
        loop, origin = asyncio.get_running_loop(), self._origin
        name = (origin.server_name or None) if origin.tls is not None else None
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._body_bytes_max),
                origin.host,
                origin.port,
                ssl=origin.tls,
                server_hostname=name,
            )
        return connection

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class _Connection(asyncio.Protocol):
    """One connection: a request out, its answer in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, body_bytes_max: float) -> None:
        self._body_bytes_max = body_bytes_max
        self._answer_bytes = 0
        self.is_usable = False
        self.used_s = 0.0
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received = bytearray()
        self._head: _Head | None = None

    def send(self, request: bytes, timeout_s: float) -> asyncio.Future[HttpResponse]:
        """Return the answer to come; nothing else may be under way."""
        assert self._answer is None and self._transport is not None, "one request at a time"
        self._answer = self._loop.create_future()
        self._timer = self._loop.call_later(
            timeout_s, self._fail, TimeoutError(f"no answer in {timeout_s:g} s")
        )
        self._transport.write(request)
        return self._answer

    def abort(self) -> None:
        """Close at once; an answer still to come fails."""
        self._fail(NoAnswer("the connection was closed"))

    # As asyncio calls it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_usable = cast(asyncio.Transport, transport), True
        made = transport.get_extra_info("socket")
        if made is not None and made.family in (socket.AF_INET, socket.AF_INET6):
            keep_alive(made)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self._fail(NoAnswer("the server spoke without being asked"))
            return
        self._received += data
        self._answer_bytes += len(data)
        if self._answer_bytes > self._body_bytes_max + HEAD_BYTES_MAX:
            self._fail(NoAnswer(f"the server's answer has more than {self._body_bytes_max} bytes"))
            return
        try:
            self._read()
        except ValueError as error:
            self._fail(NoAnswer(f"the server's answer is no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        head = self._head
        if error is None and head is not None and head.ends_with_connection:
            self._finish(bytes(self._received))
        self._fail(NoAnswer(str(error) if error else "the server closed the connection"))

    def _read(self) -> None:
        """Look whether the answer is complete. Raises: ValueError when it is no HTTP."""
        while self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                if len(self._received) > HEAD_BYTES_MAX:
                    raise ValueError("its head has no end")
                return
            head = _Head.read(bytes(self._received[:end]))
            del self._received[: end + 4]
            if head.status >= 200:  # others announce, the answer follows
                self._head = head
        head, received = self._head, self._received
        if head.chunks is not None:
            used, is_complete = head.chunks.read(received)
            del received[:used]
            if is_complete:
                self._finish(b"".join(head.chunks.pieces))
        elif not head.ends_with_connection and len(received) >= head.length:
            with memoryview(received) as view:
                body = bytes(view[: head.length])
            del received[: head.length]
            self._finish(body)

    def _finish(self, body: bytes) -> None:
        head, answer = self._head, self._answer
        assert head is not None and answer is not None, "nothing was asked"
        self.is_usable = self.is_usable and not head.closes and not self._received
        self.used_s = self._loop.time()
        self._reset()
        if not answer.done():
            answer.set_result(HttpResponse(head.status, body, head.retry_after))
        if not self.is_usable and self._transport is not None:
            self._transport.close()

    def _fail(self, error: OSError) -> None:
        self.is_usable = False
        answer = self._answer
        self._reset()
        if answer is not None and not answer.done():
            answer.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _reset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._answer = self._timer = self._head = None
        self._answer_bytes = 0
        self._received.clear()


class _Head(msgspec.Struct, kw_only=True):
    """The head of an answer: how its body ends, and what else matters."""

    status: int
    length: int = 0
    chunks: "_Chunks | None" = None
    ends_with_connection: bool = False
    closes: bool = False
    retry_after: str = ""

    @classmethod
    def read(cls, text: bytes) -> "_Head":
        """Raises: ValueError."""
        first, *lines = text.split(b"\r\n")
        if not first.startswith(b"HTTP/1.") or not first[9:12].isdigit():
            raise ValueError(f"it begins with {first[:40]!r}")
        head = cls(status=int(first[9:12]), closes=first[7:8] == b"0")
        length: int | None = None
        for line in lines:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            if name == b"content-length":
                if not value.isdigit() or length not in (None, int(value)):
                    raise ValueError(f"Content-Length {value!r}")
                length = int(value)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise ValueError(f"Transfer-Encoding {value!r}")
                head.chunks = _Chunks()
            elif name == b"connection":
                head.closes = value.lower() == b"close" or (head.closes and value.lower() != b"keep-alive")
            elif name == b"retry-after":
                head.retry_after = value.decode("latin-1")
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise ValueError(f"Content-Encoding {value!r}, which nobody asked for")
        if head.status in _BODILESS or head.status < 200:
            head.chunks, length = None, 0
        head.length = length or 0
        head.ends_with_connection = head.chunks is None and length is None
        head.closes = head.closes or head.ends_with_connection
        return head


class _Chunks:
    """A body that comes in chunks."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._in_trailer = False

    def read(self, received: bytearray) -> tuple[int, bool]:
        """Take what is complete: how many bytes were used, and whether the body is. Raises: ValueError."""
        at = 0
        while True:
            end = received.find(b"\r\n", at)
            if end < 0:
                if len(received) - at > HEAD_BYTES_MAX:
                    raise ValueError("a chunk's head has no end")
                return at, False
            if self._in_trailer:
                if end == at:
                    return end + 2, True
                at = end + 2
                continue
            size = int(bytes(received[at:end]).partition(b";")[0], 16)
            if size == 0:
                self._in_trailer = True
                at = end + 2
                continue
            begin = end + 2
            if size < 0 or len(received) < begin + size + 2:
                if size < 0:
                    raise ValueError("a chunk of negative size")
                return at, False
            self.pieces.append(bytes(received[begin : begin + size]))
            if received[begin + size : begin + size + 2] != b"\r\n":
                raise ValueError("a chunk without an end")
            at = begin + size + 2


def keep_alive(made: socket.socket) -> None:
    """Have the system ask a silent peer whether it is still there."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_OPTIONS:
        if hasattr(socket, name):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
