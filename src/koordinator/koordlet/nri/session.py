"""One connection with a runtime: its calls are answered in their order, ours are awaited.

Source: github.com/containerd/ttrpc, PROTOCOL.md.
"""

import asyncio
from collections.abc import Callable

from koordinator.api.errors import KoordinatorError
from koordinator.cluster.supervise import Guard
from koordinator.host import protobuf_messages
from koordinator.host.errors import ContentError, GrpcCode
from koordinator.koordlet.nri import frames
from koordinator.koordlet.nri.frames import (
    PLUGIN_CONNECTION,
    RUNTIME_CONNECTION,
    Frame,
    FrameError,
    FrameReader,
    MessageType,
)
from koordinator.koordlet.nri.messages import Request, Response, Status

Handler = Callable[[str, bytes], bytes]
"""Method and payload → payload of the answer. Raises: KoordinatorError."""

SEND_S_MAX = 5.0
"""A runtime that does not read its answers is given up."""
_READ_BYTES = 1 << 16
_STREAMS_MAX = 1 << 32


class CallFailed(KoordinatorError):
    """The runtime refused a call."""


class UnknownMethod(KoordinatorError):
    """The runtime calls what this plugin does not have."""


class Session:
    """A connection from its opening to its end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: str, handler: Handler
    ) -> None:
        """`handler` answers the calls of one service."""
        self._reader, self._writer = reader, writer
        self._service, self._handler = service, handler
        self._guard = Guard("NRI")
        self._answers: dict[int, asyncio.Future[Response]] = {}
        self._stream = 1  # odd numbers are those of who calls

    async def run(self) -> None:
        """Answer calls until the runtime closes the connection. Raises: FrameError, OSError, TimeoutError."""
        frames_of = FrameReader()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for frame in frames_of.feed(data):
                    await self._received(frame)
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the runtime closed the connection"))
            self._writer.close()

    async def call(self, service: str, method: str, payload: bytes) -> bytes:
        """Call the runtime. Raises: CallFailed, OSError (also when the connection ends), TimeoutError."""
        stream, self._stream = self._stream, (self._stream + 2) % _STREAMS_MAX
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._answers[stream] = answer
        try:
            request = protobuf_messages.encode(Request(service, method, payload))
            await self._send(Frame(RUNTIME_CONNECTION, stream, MessageType.REQUEST, request))
            response = await answer
        finally:
            del self._answers[stream]
        if response.status is not None and response.status.code != 0:
            raise CallFailed(f"{method}: {response.status.message} (code {response.status.code})")
        return response.payload

    async def _received(self, frame: Frame) -> None:
        if frame.connection == PLUGIN_CONNECTION and frame.type == MessageType.REQUEST:
            response = self._guard.answer(self._answer, frame.content, otherwise=_broken)
            content = protobuf_messages.encode(response)
            await self._send(Frame(PLUGIN_CONNECTION, frame.stream, MessageType.RESPONSE, content))
        elif frame.connection == RUNTIME_CONNECTION and frame.type == MessageType.RESPONSE:
            awaited = self._answers.get(frame.stream)
            if awaited is not None and not awaited.done():
                try:
                    awaited.set_result(protobuf_messages.decode(Response, frame.content))
                except ContentError as error:
                    raise FrameError(f"an answer that is no message: {error}") from error
        # other types are ignored, as ttrpc asks for the sake of later versions

    def _answer(self, content: bytes) -> Response:
        try:
            request = protobuf_messages.decode(Request, content)
            if request.service != self._service:
                raise UnknownMethod(f"no service {request.service[:80]!r}")
            return Response(payload=self._handler(request.method, request.payload))
        except UnknownMethod as error:
            return Response(Status(GrpcCode.UNIMPLEMENTED, str(error)))
        except ContentError as error:
            return Response(Status(GrpcCode.INVALID_ARGUMENT, str(error)))
        except KoordinatorError as error:
            return Response(Status(GrpcCode.UNKNOWN, str(error)))

    async def _send(self, frame: Frame) -> None:
        self._writer.write(frames.written(frame))
        if self._writer.transport.get_write_buffer_size():
            async with asyncio.timeout(SEND_S_MAX):
                await self._writer.drain()


def _broken(error: Exception) -> Response:
    return Response(Status(GrpcCode.INTERNAL, f"{type(error).__name__}: {error}"))
