"""Short exchanges: every way in which an answer can come, and what becomes of the connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from koordinator.cluster.exchange import ConnectionPool, NoAnswer, NotReached, Origin

REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Says the pieces of its script for each request, on as many connections as come."""

    def __init__(self, pieces: list[bytes], pause_s: float = 0.0) -> None:
        self.pieces, self.pause_s = pieces, pause_s
        self.connection_count = self.request_count = 0
        self.open_count = self.open_count_max = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readexactly(len(REQUEST))
                self.request_count += 1
                self.open_count += 1
                self.open_count_max = max(self.open_count_max, self.open_count)
                await asyncio.sleep(self.pause_s)
                self.open_count -= 1
                for piece in self.pieces:
                    if piece == CLOSE:
                        writer.close()
                        return
                    writer.write(piece)
                    await asyncio.sleep(0.001)


CLOSE = b"<close>"


@contextlib.asynccontextmanager
async def pool_of(server: Server, *, connections_max: int = 4) -> AsyncIterator[ConnectionPool]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    pool = ConnectionPool(
        Origin(host="127.0.0.1", port=port),
        connections_max=connections_max,
        connect_timeout_s=5,
        keep_alive_s=30,
    )
    try:
        yield pool
    finally:
        pool.close()
        listener.close()


OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS = [
    pytest.param([OK + b"Content-Length: 5\r\n\r\nhello"], b"hello", 1, id="at once"),
    pytest.param([OK + b"content-length:5\r\n", b"\r\nhe", b"llo"], b"hello", 1, id="in pieces"),
    pytest.param([OK + b"Content-Length: 0\r\n\r\n"], b"", 1, id="empty"),
    pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], b"", 1, id="without a body"),
    pytest.param(
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok"],
        b"ok",
        1,
        id="announced",
    ),
    pytest.param(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"],
        b"hello world",
        1,
        id="in chunks",
    ),
    pytest.param(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n5\r", b"\nhel", b"lo\r\n0\r\nTrailer: t\r\n", b"\r\n"],
        b"hello",
        1,
        id="in chunks that are cut",
    ),
    pytest.param(
        [OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", CLOSE], b"ok", 2, id="and good-bye"
    ),
    pytest.param([OK + b"\r\nuntil ", b"the end", CLOSE], b"until the end", 2, id="that ends with the line"),
    pytest.param([b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", CLOSE], b"ok", 2, id="of an old server"),
]


@pytest.mark.parametrize(("pieces", "body", "connections"), ANSWERS)
async def test_an_answer_is_read_and_the_connection_used_again_where_it_may_be(
    pieces: list[bytes], body: bytes, connections: int
) -> None:
    server = Server(pieces)
    async with pool_of(server) as pool:
        for _ in range(2):
            answer = await pool.exchange(REQUEST, 5)
            assert (answer.status // 100, answer.body) == (2, body)
    assert server.connection_count == connections


BAD = [
    pytest.param([CLOSE], "closed the connection", id="closed"),
    pytest.param([OK + b"Content-Length: 5\r\n\r\nhel", CLOSE], "closed the connection", id="cut short"),
    pytest.param([b"SSH-2.0-server\r\n\r\n"], "no HTTP", id="another protocol"),
    pytest.param([OK + b"Content-Length: -1\r\n\r\n"], "Content-Length", id="a negative length"),
    pytest.param(
        [OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"], "Content-Length", id="two lengths"
    ),
    pytest.param([OK + b"Transfer-Encoding: gzip\r\n\r\n"], "Transfer-Encoding", id="an unknown coding"),
    pytest.param([OK + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"], "nobody asked", id="packed"),
    pytest.param([OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], "no HTTP", id="a chunk of no size"),
    pytest.param(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n"], "negative", id="a chunk of negative size"
    ),
    pytest.param(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"], "end", id="a chunk that is longer"
    ),
    pytest.param([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000], "no end", id="an endless head"),
]


@pytest.mark.parametrize(("pieces", "reason"), BAD)
async def test_what_is_no_answer_is_said_and_the_connection_dropped(pieces: list[bytes], reason: str) -> None:
    server = Server(pieces)
    async with pool_of(server) as pool:
        for _ in range(2):
            with pytest.raises(NoAnswer, match=reason):
                await pool.exchange(REQUEST, 5)
    assert server.connection_count == 2


async def test_a_server_that_says_too_much_is_not_listened_to_again() -> None:
    server = Server([OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"])
    async with pool_of(server) as pool:
        bodies = [(await pool.exchange(REQUEST, 5)).body for _ in range(3)]
    assert bodies == [b"ok"] * 3
    assert server.connection_count == 3


async def test_a_late_answer_is_never_taken_for_the_next_one() -> None:
    server = Server([OK + b"Content-Length: 2\r\n\r\nok"], pause_s=0.05)
    async with pool_of(server) as pool:
        with pytest.raises(TimeoutError):
            await pool.exchange(REQUEST, 0.01)
        task = asyncio.create_task(pool.exchange(REQUEST, 5))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.exchange(REQUEST, 5)
    assert server.connection_count == 3


async def test_exchanges_beyond_the_limit_wait_for_a_connection() -> None:
    server = Server([OK + b"Content-Length: 2\r\n\r\nok"], pause_s=0.005)
    async with pool_of(server, connections_max=3) as pool:
        waiting = [asyncio.create_task(pool.exchange(REQUEST, 5)) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[10].cancel()  # one that waits
        waiting[0].cancel()  # one that connects
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in ended) == 2
    assert server.request_count == 18
    assert server.open_count_max <= 3


async def test_a_failure_to_connect_lets_the_next_one_try() -> None:
    server = Server([OK + b"Content-Length: 2\r\n\r\nok"])
    async with pool_of(server) as pool:
        pass
    closed = ConnectionPool(pool._origin, connections_max=1, connect_timeout_s=5, keep_alive_s=30)
    ended = await asyncio.gather(*(closed.exchange(REQUEST, 5) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(one, NotReached) for one in ended)


async def test_a_connection_that_was_idle_for_long_is_not_used() -> None:
    server = Server([OK + b"Content-Length: 2\r\n\r\nok"])
    async with pool_of(server) as pool:
        pool._keep_alive_s = 0.01
        await pool.exchange(REQUEST, 5)
        await asyncio.sleep(0.03)
        await pool.exchange(REQUEST, 5)
    assert server.connection_count == 2


async def test_closing_the_pool_ends_what_is_under_way() -> None:
    server = Server([], pause_s=10)
    async with pool_of(server) as pool:
        task = asyncio.create_task(pool.exchange(REQUEST, 5))
        await asyncio.sleep(0.02)
        pool.close()
        with pytest.raises(NoAnswer):
            await task
