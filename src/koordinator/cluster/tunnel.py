"""Join a caller's connection to a server's: bytes go both ways as they are, whatever protocol the two speak.

`kubectl exec`, `attach` and `port-forward` upgrade their HTTP request to SPDY or to a WebSocket; whoever stands between
the two ends need not know either.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from koordinator.cluster.exchange import Origin

_PIECE_BYTES = 64 << 10

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def taken_over(request: web.BaseRequest) -> AsyncIterator[Connection]:
    """Take a request's connection from the HTTP server, which hears that it ended; inside, it is ours. The caller must
    not speak before it has an answer. Raises: ConnectionResetError when the caller is gone."""
    transport, loop = request.transport, asyncio.get_running_loop()
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the caller is gone")
    server = transport.get_protocol()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    try:
        yield reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    finally:
        transport.close()
        assert server is not None, "a served connection has a protocol"
        server.connection_lost(None)


@contextlib.asynccontextmanager
async def connected(origin: Origin, timeout_s: float) -> AsyncIterator[Connection]:
    """Connect to a server; closed on the way out. Raises: OSError, TimeoutError."""
    name = (origin.server_name or None) if origin.tls is not None else None
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(
            origin.host, origin.port, ssl=origin.tls, server_hostname=name
        )
    try:
        yield reader, writer
    finally:
        writer.close()


class Answer(msgspec.Struct, frozen=True):
    """The answer to an upgrade request; `head` as it came, `body` only of one that refuses."""

    status: int
    head: bytes
    body: bytes = b""


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read the head of an answer, and the body that says why when it refuses. Raises: EOFError, ValueError, OSError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"the head of the answer is too long: {error}") from error
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1])
    if status == 101:
        return Answer(status, head)
    found = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    length = int(found.get("content-length", "0"))
    return Answer(status, head, await reader.readexactly(min(length, _PIECE_BYTES)))


async def join(one: Connection, other: Connection) -> None:
    """Carry bytes both ways until either side closes; what was sent before that still arrives."""
    ways = [asyncio.ensure_future(_carry(one[0], other[1])), asyncio.ensure_future(_carry(other[0], one[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # either side is gone, which ends both
        while piece := await source.read(_PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
