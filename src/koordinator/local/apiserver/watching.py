"""Watches: a stream of JSON lines (of frames in protobuf), one per change, encoded once for all watchers.

A client that does not read is cut off, so that it holds neither the others nor memory: the subscription's
buffer is bounded by the backend, what is handed to the socket by `WRITE_BYTES`, and a write that does not get
through within `STALL_S` closes the connection. The client then lists again, as after any broken watch.
"""

import asyncio
import random
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, ObjectRecord, RecordEvent, Subscription
from koordinator.cluster.protocol import EventType
from koordinator.local.apiserver import protobuf, query, tables, verbs
from koordinator.local.apiserver.calls import MediaForm, ResourceCall
from koordinator.local.apiserver.short_requests import AnyRequest, WatchRequest
from koordinator.local.schema.known import ByIdentity

STALL_S = 10.0  # a reader that takes nothing for so long is gone or stuck
TICK_S = 1.0  # how often streams are looked at; also the delay until a vanished client is noticed
WRITE_BYTES = (
    16 * 1024
)  # handed to a socket at once, and all that a client that does not read holds of our memory
STREAMS_MAX = 10_000  # each holds a socket; informers of a large cluster need some hundreds
MESSAGES_MAX = 256  # in protobuf, kept for the other watchers: they read an event within moments
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 1800, 3600  # as the API server draws it where the client names none

_JSON = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
_PROTOBUF = {**_JSON, "Content-Type": protobuf.WATCH_TYPE}
_PREFIX = {kind: b'{"type":"%s","object":' % kind.value.encode() for kind in EventType}


class Watches:
    """All open watch streams."""

    def __init__(self, backend: Backend, rng: random.Random) -> None:
        self._backend = backend
        self._rng = rng
        self._tables = tables.Tables(backend)
        self._messages: ByIdentity[bytes] = ByIdentity(MESSAGES_MAX)
        self._streams: set[_Stream] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._stopping = False
        self.cut_off_count = 0

    @property
    def open_count(self) -> int:
        return len(self._streams)

    def start(self) -> None:
        self._stopping = False
        self._ticker = asyncio.create_task(self._tick(), name="apiserver watch stalls")

    async def stop(self) -> None:
        """End all streams; their clients see a clean end of the answer."""
        self._stopping = True
        for stream in list(self._streams):
            stream.subscription.close()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    async def serve(self, call: ResourceCall) -> web.StreamResponse:
        """Answer one watch request until its time is over, the client leaves or falls behind. Raises: TooManyRequests
        when too many watches are open."""
        if len(self._streams) >= STREAMS_MAX:
            raise errors.TooManyRequests(
                f"too many watches: {STREAMS_MAX} are open",
                details=errors.StatusDetails(retry_after_seconds=1),
            )
        options = query.list_options(_selecting_name(call))
        timeout_s = query.integer(call.params, "timeoutSeconds") or self._rng.randint(
            TIMEOUT_S_MIN, TIMEOUT_S_MAX
        )
        answer = _answer_to(call.request, _PROTOBUF if call.wanted.protobuf else _JSON)
        encoder = self._encoder(call, initial=bool(options.send_initial_events))
        try:
            subscription = self._backend.watch(call.resource, call.target.namespace, options)
        except errors.Gone as error:
            await answer.begin()
            await answer.write(encoder.error(error))
            return answer.response
        stream = _Stream(answer, subscription)
        timer = asyncio.get_running_loop().call_later(max(0, timeout_s), subscription.close)
        self._streams.add(stream)
        try:
            await answer.begin()
            await self._pump(stream, encoder)
        except (TimeoutError, ConnectionError):
            pass  # the client left, or was cut off
        finally:
            timer.cancel()
            subscription.close()
            self._streams.discard(stream)
        return answer.response

    def _encoder(self, call: ResourceCall, *, initial: bool) -> "_Encoder":
        if call.wanted.protobuf:
            return _Frames(call, self._messages, initial=initial)
        return _Lines(call, self._tables, initial=initial)

    async def _pump(self, stream: "_Stream", encoder: "_Encoder") -> None:
        loop, answer = asyncio.get_running_loop(), stream.answer
        try:
            async for batch in stream.subscription:
                for chunk in encoder.chunks(batch):
                    stream.writing_since = loop.time()
                    await answer.write(chunk)
                    del chunk  # nor the batch, below: whoever waits for the next one holds nothing
                    await answer.drain()
                    stream.writing_since = None
                del batch
                if self._stopping:
                    return
        except errors.ApiError as error:
            self.cut_off_count += 1
            stream.writing_since = loop.time()
            await answer.write(encoder.error(error))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            for stream in list(self._streams):
                stalled = stream.writing_since is not None and loop.time() - stream.writing_since > STALL_S
                if stalled:
                    self.cut_off_count += 1
                stream.check(stalled=stalled)


class _Answer(Protocol):
    """An answer in pieces. `response` is what the server gets in the end."""

    @property
    def response(self) -> web.StreamResponse: ...

    @property
    def transport(self) -> asyncio.Transport | None: ...

    async def begin(self) -> None: ...

    async def write(self, chunk: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until the socket has taken everything."""
        ...


class _GeneralAnswer:
    """Through the general server."""

    __slots__ = ("_request", "response")

    def __init__(self, request: web.BaseRequest, headers: Mapping[str, str]) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=headers)
        self.response.enable_chunked_encoding()

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._request.transport

    async def begin(self) -> None:
        if self._request.transport is not None:
            # So that `drain` waits for everything; 0 would pause TLS connections with nothing left.
            self._request.transport.set_write_buffer_limits(high=1)
        await self.response.prepare(self._request)

    async def write(self, chunk: bytes) -> None:
        await self.response.write(chunk)

    async def drain(self) -> None:
        await self._request.writer.drain()


class _PlainAnswer:
    """Straight to the connection, which takes half of the memory."""

    __slots__ = ("_headers", "_request")

    def __init__(self, request: WatchRequest, headers: Mapping[str, str]) -> None:
        self._request = request
        self._headers = headers

    @property
    def response(self) -> web.StreamResponse:
        return web.StreamResponse(headers=self._headers)

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._request.transport

    async def begin(self) -> None:
        self._request.begin(self._headers)

    async def write(self, chunk: bytes) -> None:
        self._request.write(chunk)

    async def drain(self) -> None:
        await self._request.drain()


def _answer_to(request: AnyRequest, headers: Mapping[str, str]) -> _Answer:
    if isinstance(request, WatchRequest):
        return _PlainAnswer(request, headers)
    assert isinstance(request, web.BaseRequest), "watches are read as such"
    return _GeneralAnswer(request, headers)


class _Stream:
    """An open watch: where it reads from and since when it waits for the client to read."""

    __slots__ = ("answer", "subscription", "writing_since")

    def __init__(self, answer: "_Answer", subscription: Subscription) -> None:
        self.answer = answer
        self.subscription = subscription
        self.writing_since: float | None = None

    def check(self, *, stalled: bool) -> None:
        transport = self.answer.transport
        if transport is not None and stalled:
            _reset_on_close(transport)
            transport.abort()
        if transport is None or stalled or transport.is_closing():
            self.subscription.close()


def _reset_on_close(transport: asyncio.BaseTransport) -> None:
    """Have the kernel drop what the client did not read: without this it keeps megabytes for minutes."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is not None:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _Encoder(ABC):
    """Events as they stand on the wire, in pieces of about `WRITE_BYTES`."""

    def __init__(self, call: ResourceCall, *, initial: bool) -> None:
        self._call = call
        self._initial = initial

    def chunks(self, batch: Sequence[RecordEvent]) -> Iterator[bytes]:
        lines: list[bytes] = []
        size = 0
        for event in batch:
            line = self._line(event)
            lines.append(line)
            size += len(line)
            if size >= WRITE_BYTES:
                yield b"".join(lines)
                lines, size = [], 0
        if lines:
            yield b"".join(lines)

    @abstractmethod
    def error(self, error: errors.ApiError) -> bytes:
        """Return the last event of a watch that cannot go on."""

    @abstractmethod
    def _line(self, event: RecordEvent) -> bytes: ...

    def _bookmark(self, version: int) -> dict[str, Any]:
        """Return the object of a bookmark."""
        meta: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if self._initial:
            # The first bookmark after `sendInitialEvents` says that the initial state is complete.
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
            self._initial = False
        kind, api_version = _shape(self._call.wanted.form, self._call.resource)
        return {"kind": kind, "apiVersion": api_version, "metadata": meta}


class _Lines(_Encoder):
    """JSON lines in the form that the client wants."""

    def __init__(self, call: ResourceCall, tables_: tables.Tables, *, initial: bool) -> None:
        super().__init__(call, initial=initial)
        self._tables = tables_
        self._with_columns = True

    def error(self, error: errors.ApiError) -> bytes:
        return b'{"type":"ERROR","object":' + msgspec.json.encode(error.status()) + b"}\n"

    def _line(self, event: RecordEvent) -> bytes:
        record = event.record
        form = self._call.wanted.form
        if event.type is EventType.BOOKMARK or record is None:
            bookmark = msgspec.json.encode(self._bookmark(event.version))
            if form is MediaForm.TABLE:
                bookmark = self._tables.encode(self._call, [], {"resourceVersion": str(event.version)})
            return _PREFIX[EventType.BOOKMARK] + bookmark + b"}\n"
        if form is MediaForm.OBJECT:
            return _PREFIX[event.type] + record.json() + b"}\n"
        if form is MediaForm.TABLE:
            meta = {"resourceVersion": str(event.version)}
            body = self._tables.encode(self._call, [record], meta, with_columns=self._with_columns)
            self._with_columns = False
        else:
            body = msgspec.json.encode(verbs.metadata_only(record.obj))
        return _PREFIX[event.type] + body + b"}\n"


class _Frames(_Encoder):
    """Frames in protobuf. `known` are the messages of late, shared by all watchers."""

    def __init__(self, call: ResourceCall, known: ByIdentity[bytes], *, initial: bool) -> None:
        super().__init__(call, initial=initial)
        self._known = known

    def error(self, error: errors.ApiError) -> bytes:
        return protobuf.watch_frame("ERROR", protobuf.encode(error.status()))

    def _line(self, event: RecordEvent) -> bytes:
        record = event.record
        if event.type is EventType.BOOKMARK or record is None:
            bookmark = protobuf.encode(self._bookmark(event.version))
            return protobuf.watch_frame(EventType.BOOKMARK.value, bookmark)
        return protobuf.watch_frame(event.type.value, self._message(record))

    def _message(self, record: ObjectRecord) -> bytes:
        if self._call.wanted.form is not MediaForm.OBJECT:
            return protobuf.encode(verbs.metadata_only(record.obj))
        found = self._known.get(record)
        if found is None:
            found = protobuf.encode(record.obj)
            self._known.put(record, found)
        return found


def _shape(form: MediaForm, resource: Resource) -> tuple[str, str]:
    if form is MediaForm.OBJECT:
        return resource.kind, resource.api_version
    return "PartialObjectMetadata", "meta.k8s.io/v1"


def _selecting_name(call: ResourceCall) -> dict[str, str]:
    """Return the query with a name in the path turned into a field selector."""
    params = dict(call.params)
    if call.target.name:
        selector = f"metadata.name={call.target.name}"
        params["fieldSelector"] = ",".join(filter(None, [params.get("fieldSelector", ""), selector]))
    return params
