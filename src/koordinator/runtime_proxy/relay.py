"""One connection of the kubelet, and the connection to the runtime that belongs to it: frames pass as they come.

Streams have the same number on both sides, and headers pass in their order, so both ends keep one table for
their compression. Of an intercepted call the headers pass, the body is held until hooks have changed it, the answer
passes and is read beside. Windows are kept right where a changed body is longer or shorter than the kubelet's.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import msgspec

from koordinator.host import http2
from koordinator.host.errors import ContentError, GrpcCode
from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX
from koordinator.host.http2 import Frame, FrameReader, HeaderReader

log = logging.getLogger(__name__)

HELD_BYTES_FREE = 16_384
"""A body may wait so far on account of the connection's window; the rest of a longer one is paid for by us."""
HEADERS_BYTES_MAX = 256 * 1024
LATER_S = 0.005
"""Time that frames of no use alone wait for those that follow."""
HELD_MAX = 1_000
"""Calls with hooks at once; a kubelet makes some dozens."""


class Refused(Exception):
    """A hook failed whose failures count; the kubelet is told why."""


class Exchange(Protocol):
    """An intercepted call whose hooks have run."""

    @property
    def request(self) -> bytes:
        """Return the message for the runtime."""
        ...

    def answered(self, response: bytes | None) -> Awaitable[object] | None:
        """Note the runtime's message, None where it refused; return the call of a hook that comes after, if any."""
        ...


Intercept = Callable[[str, bytes], Awaitable[Exchange]]
"""From method and message. Raises: Refused."""
Concerns = Callable[[bytes], str]
"""The method of a path that is to be intercepted, empty for all others."""


class _Held(msgspec.Struct):
    """A call that is intercepted: its body so far, then its answer."""

    method: str
    body: bytearray
    padded: int = 0
    """Bytes of the body as windows count them."""
    credited: int = 0
    """Part of these that the kubelet got back for the connection already."""
    window: int = 0
    task: asyncio.Future[Any] | None = None
    exchange: Exchange | None = None
    is_settled: bool = False
    """The windows are right again, as if the kubelet had sent what the runtime gets."""


class Relay:
    """The two connections. `kubelet` and `runtime` are the protocols of their sockets."""

    def __init__(
        self,
        intercept: Intercept,
        concerns: Concerns,
        socket: str,
        closed: Callable[["Relay"], None] = lambda _: None,
    ) -> None:
        """`closed` is told when both connections are at their end."""
        self._closed = closed
        self.kubelet = _Side(self._of_kubelet, self.close, has_begun=False)
        self.runtime = _Side(self._of_runtime, self.close)
        self.kubelet.other, self.runtime.other = self.runtime, self.kubelet
        self._intercept = intercept
        self._concerns = concerns
        self._socket = socket
        self._frames = {True: FrameReader(), False: FrameReader()}
        self._headers = HeaderReader(HEADERS_BYTES_MAX)
        self._preface = b""
        self._held: dict[int, _Held] = {}
        self._window = http2.WINDOW_BYTES
        """Bytes that may be sent to the runtime on this connection."""
        self._stream_window = http2.WINDOW_BYTES
        self._owed = 0
        """Bytes of window that the runtime will give back for data that the kubelet did not send, or got
        back already."""
        self._more = asyncio.Event()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._opening = asyncio.get_running_loop().create_task(self._open(), name="runtime's connection")

    async def _open(self) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self.runtime, self._socket)
            self.kubelet.begin()
        except OSError as error:
            log.warning("runtime not reached", extra={"socket": self._socket, "problem": str(error)})
            self.close()

    def close(self) -> None:
        """Close both connections, and end what waits for them."""
        for task in (*self._tasks, self._opening):
            task.cancel()
        self.kubelet.close()
        self.runtime.close()
        self._closed(self)

    # From the kubelet

    def _of_kubelet(self, data: bytes) -> None:
        if len(self._preface) < len(http2.PREFACE):
            left = len(http2.PREFACE) - len(self._preface)
            self._preface += data[:left]
            if not http2.PREFACE.startswith(self._preface):
                raise ContentError("http2", "the connection begins with something else")
            self.runtime.send(data[:left])
            data = data[left:]
        for found in self._frames[True].feed(data):
            self._frame_of_kubelet(found)

    def _frame_of_kubelet(self, found: Frame) -> None:
        match found.kind:
            case http2.DATA:
                held = self._held.get(found.stream)
                if held is not None:
                    self._hold(found, held)
                    return
                self._window -= found.size
            case http2.HEADERS | http2.CONTINUATION:
                self._begin_call(found)
                if found.stream in self._held:
                    self.runtime.send_later(found.whole)  # the runtime can do nothing before it has the body
                    return
            case http2.RST_STREAM:
                self._forget(found.stream)
            case http2.WINDOW_UPDATE if self.runtime.waits:
                self.runtime.send_later(found.whole)
                return
        self.runtime.send(found.whole)

    def _begin_call(self, found: Frame) -> None:
        headers = self._headers.read(found)
        if headers is None:
            return
        method = self._concerns(bytes(headers.get(b":path", b"")))
        if method and found.stream not in self._held and not found.flags & http2.END_STREAM:
            if len(self._held) >= HELD_MAX:
                raise ContentError("http2", f"more than {HELD_MAX} calls at once")
            self._held[found.stream] = _Held(method, bytearray(), window=self._stream_window)

    def _hold(self, found: Frame, held: _Held) -> None:
        if held.task is not None:
            raise ContentError("http2", f"stream {found.stream} goes on after its end")
        held.body += http2.content(found)
        held.padded += found.size
        if len(held.body) > MESSAGE_BYTES_MAX:
            raise ContentError("http2", f"a request of more than {MESSAGE_BYTES_MAX} bytes")
        if not found.flags & http2.END_STREAM:
            if found.size:
                self.kubelet.send(http2.window_update(found.stream, found.size))
            due = held.padded - HELD_BYTES_FREE - held.credited
            if due > 0:
                held.credited += due
                self.kubelet.send(http2.window_update(0, due))
            return
        held.task = self._start(functools.partial(self._intercepted, found.stream, held))

    async def _intercepted(self, stream: int, held: _Held) -> None:
        """Ask the hooks, then send the body on; what is no plain message is the runtime's to refuse."""
        body = bytes(held.body)
        message = http2.of_grpc(body)
        if message is not None:
            try:
                held.exchange = await self._intercept(held.method, message)
            except Refused as refused:
                self._refuse(stream, held, str(refused))
                self._flush()
                return
            body = http2.grpc_message(held.exchange.request)
        self._settle(held, len(body))
        held.body.clear()
        await self._send_body(stream, held, body)
        self._flush()

    def _flush(self) -> None:
        self.kubelet.flush()
        self.runtime.flush()

    async def _send_body(self, stream: int, held: _Held, body: bytes) -> None:
        """Send a body as far as the runtime's windows let it."""
        for start in range(0, max(len(body), 1), http2.CHUNK_BYTES):
            chunk = body[start : start + http2.CHUNK_BYTES]
            while min(self._window, held.window) < len(chunk):
                self._more.clear()
                self._flush()
                try:
                    await self._more.wait()
                except asyncio.CancelledError:
                    self._give_back(len(body) - start)
                    self._flush()
                    raise
            self._window -= len(chunk)
            held.window -= len(chunk)
            is_last = start + len(chunk) >= len(body)
            self.runtime.send(http2.frame(http2.DATA, http2.END_STREAM if is_last else 0, stream, chunk))

    def _settle(self, held: _Held, size: int) -> None:
        """Keep the kubelet's window right: the runtime gets `size` bytes for those that were held."""
        held.is_settled = True
        more = size - (held.padded - held.credited)
        if more > 0:
            self._owed += more
        else:
            self._give_back(-more)

    def _give_back(self, size: int) -> None:
        """Let the kubelet send what the runtime will never account for."""
        given = min(size, self._owed)
        self._owed -= given
        if size > given:
            self.kubelet.send(http2.window_update(0, size - given))

    def _refuse(self, stream: int, held: _Held, problem: str) -> None:
        """End a call with an error of ours: trailers for the kubelet, a reset for the runtime."""
        self._settle(held, 0)
        self.runtime.send(http2.frame(http2.RST_STREAM, 0, stream, http2.CANCEL.to_bytes(4, "big")))
        block = http2.refusal(GrpcCode.INTERNAL, problem)
        flags = http2.END_HEADERS | http2.END_STREAM
        self.kubelet.send(http2.frame(http2.HEADERS, flags, stream, block))
        del self._held[stream]

    # From the runtime

    def _of_runtime(self, data: bytes) -> None:
        ended: list[_Held] = []
        for found in self._frames[False].feed(data):
            if not self._passes(found, ended):
                continue
            if self._is_of_no_use_yet(found):
                self.kubelet.send_later(found.whole)
            else:
                self.kubelet.send(found.whole)
        if ended:
            self.kubelet.flush()
            for held in ended:  # before the kubelet can call again, which it does when this has returned
                self._answered(held)

    def _is_of_no_use_yet(self, found: Frame) -> bool:
        """Return whether the kubelet can do nothing with a frame without what follows: a short answer that has not
        ended."""
        held = self._held.get(found.stream)
        if held is None:
            return found.kind == http2.WINDOW_UPDATE and self.kubelet.waits
        return found.kind in (http2.HEADERS, http2.DATA) and len(held.body) <= http2.CHUNK_BYTES

    def _passes(self, found: Frame, ended: list[_Held]) -> bool:
        """Take note of a frame, and of a call whose answer is complete; False when the kubelet is not to see it (as it
        is)."""
        held = self._held.get(found.stream)
        match found.kind:
            case http2.SETTINGS if not found.flags & http2.ACK:
                self._take_settings(http2.settings(found))
            case http2.WINDOW_UPDATE:
                return self._take_window(found, held)
            case http2.DATA if held is not None and held.exchange is not None:
                held.body += http2.content(found)
        if (held is not None and found.kind == http2.RST_STREAM) or (
            held is not None and found.kind in (http2.DATA, http2.HEADERS) and found.flags & http2.END_STREAM
        ):
            del self._held[found.stream]
            self._stop(held)
            ended.append(held)
        return True

    def _take_settings(self, found: dict[int, int]) -> None:
        self._stream_window = found.get(http2.INITIAL_WINDOW_SIZE, self._stream_window)
        table = found.get(http2.HEADER_TABLE_SIZE)
        if table is not None:
            self._headers.allow_table(table)

    def _take_window(self, found: Frame, held: _Held | None) -> bool:
        size = http2.increment(found)
        if found.stream:
            if held is not None:
                held.window += size
                self._more.set()
            return held is None
        self._window += size
        self._more.set()
        swallowed = min(size, self._owed)
        self._owed -= swallowed
        if not swallowed:
            return True
        if size > swallowed:
            self.kubelet.send(http2.window_update(0, size - swallowed))
        return False

    def _answered(self, held: _Held) -> None:
        """Remember what became of a call."""
        if held.exchange is not None:
            after = held.exchange.answered(http2.of_grpc(bytes(held.body)))
            if after is not None:
                self._start(lambda: after)

    def _forget(self, stream: int) -> None:
        """The kubelet has given up a call."""
        held = self._held.pop(stream, None)
        if held is not None:
            self._stop(held)
            if held.exchange is not None:
                held.exchange.answered(None)  # no hook comes after what failed

    def _stop(self, held: _Held) -> None:
        """Send no more of a body."""
        if held.task is not None and not held.task.done():
            held.task.cancel()
            self._tasks.discard(held.task)  # it may not have begun
        if not held.is_settled:
            self._settle(held, 0)

    def _start(self, work: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        task = asyncio.get_running_loop().create_task(self._done(work))
        self._tasks.add(task)
        return task

    async def _done(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Wait for work; to be called back at its end would take another round of the loop."""
        try:
            await work()
        except Exception:
            log.exception("call failed")
            self.close()
        finally:
            self._tasks.discard(cast(asyncio.Task[None], asyncio.current_task()))


class _Side(asyncio.Protocol):
    """One end: what comes is handed over; while the other end takes nothing more, nothing is read."""

    def __init__(
        self, take: Callable[[bytes], None], close: Callable[[], None], *, has_begun: bool = True
    ) -> None:
        self.other: _Side | None = None
        self._take = take
        self._close = close
        self._transport: asyncio.Transport | None = None
        self._has_begun = has_begun
        self._waiting = b""
        self._unsent: list[bytes] = []
        self._is_due = False
        """Some of what is not sent yet is of use now."""
        self._later: asyncio.TimerHandle | None = None
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is none of its subclasses
        if self._is_closed:
            transport.close()
            return

    def begin(self) -> None:
        """Hand over what came, now that there is somebody to hand it to."""
        self._has_begun = True
        waiting, self._waiting = self._waiting, b""
        self.data_received(waiting)
        if self._transport is not None and not self._is_closed:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._waiting += data
            if self._transport is not None:
                self._transport.pause_reading()
            return
        try:
            self._take(data)
        except ContentError as error:
            log.warning("connection closed", extra={"problem": str(error)})
            self._close()
            return
        self.end_round()
        if self.other is not None:
            self.other.end_round()

    def connection_lost(self, _: Exception | None) -> None:
        self._close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other._transport is not None and not self.other._is_closed:
            self.other._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send with the next `flush`, in one write with whatever else is sent then: each write wakes the other end."""
        self._is_due = True
        self._unsent.append(data)

    def send_later(self, data: bytes) -> None:
        """Send in its order, in one write with what comes next, or after a moment without that."""
        self._unsent.append(data)

    def end_round(self) -> None:
        """Send what is due, as nothing more came with it; let the rest wait for a moment."""
        if self._is_due:
            self.flush()
        elif self._unsent and self._later is None:
            self._later = asyncio.get_running_loop().call_later(LATER_S, self.flush)

    @property
    def waits(self) -> bool:
        """Return whether something is to be sent later."""
        return bool(self._unsent) and not self._is_due

    def flush(self) -> None:
        """Send all that is not sent yet."""
        self._is_due = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._transport is not None and self._unsent and not self._is_closed:
            unsent, self._unsent = self._unsent, []
            self._transport.write(b"".join(unsent))

    def close(self) -> None:
        """Close; what was sent is delivered first."""
        self.flush()
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()
