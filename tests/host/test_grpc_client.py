"""Our gRPC client: beside servers of grpcio and of ours, and beside servers that misbehave."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host import http2
from koordinator.host.errors import CallError, GrpcCode
from koordinator.host.grpc_client import Channel
from koordinator.host.grpc_server import UnaryServer
from koordinator.host.grpc_sockets import MESSAGE_BYTES_MAX

METHOD = "/test.Service/Method"
Handle = Callable[[bytes, Any], Awaitable[bytes]]


class OneMethod(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers METHOD of a grpcio server."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._handle) if details.method == METHOD else None


@contextlib.asynccontextmanager
async def grpcio(path: Path, handle: Handle, **options: int) -> AsyncIterator[Any]:
    """Run a server of grpcio."""
    limits = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1, **options}
    server = grpc.aio.server(options=tuple(limits.items()))
    server.add_generic_rpc_handlers((OneMethod(handle),))
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def channel(path: Path) -> AsyncIterator[Channel]:
    found = Channel(str(path))
    try:
        yield found
    finally:
        await found.close()


@contextlib.asynccontextmanager
async def raw_server(path: Path, answer: bytes) -> AsyncIterator[None]:
    """Run a server that says `answer` to whatever comes, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield
    finally:
        server.close()


async def echo(message: bytes, context: Any) -> bytes:
    return message


async def reversed_text(message: bytes, context: Any) -> bytes:
    return message[::-1]


async def failure(make: Awaitable[bytes]) -> CallError:
    with pytest.raises(CallError) as raised:
        await make
    return raised.value


@pytest.mark.parametrize("size", [0, 3, 16_379, 16_380, 70_000, 1_000_000, MESSAGE_BYTES_MAX - 5])
async def test_messages_of_all_sizes_go_to_grpcio_and_back(tmp_path: Path, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with grpcio(tmp_path / "s", echo), channel(tmp_path / "s") as calls:
        assert await calls.call(METHOD, message, 20) == message
        assert await calls.call(METHOD, b"again", 20) == b"again"


async def test_our_own_server_answers_too(tmp_path: Path) -> None:
    server = UnaryServer({METHOD: lambda message: message[::-1]}, MESSAGE_BYTES_MAX)
    await server.start(str(tmp_path / "s"))
    async with channel(tmp_path / "s") as calls:
        assert await calls.call(METHOD, b"abc" * 100_000, 10) == b"cba" * 100_000
    server.close()


async def test_many_calls_share_a_connection_within_the_servers_limit(tmp_path: Path) -> None:
    at_once = most = 0

    async def slow(message: bytes, context: Any) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return message[::-1]

    limit = {"grpc.max_concurrent_streams": 7}
    async with grpcio(tmp_path / "s", slow, **limit), channel(tmp_path / "s") as calls:
        await calls.call(METHOD, b"", 10)  # the limit comes with the server's settings
        texts = [f"call {each}".encode() for each in range(60)]
        answers = await asyncio.gather(*(calls.call(METHOD, each, 10) for each in texts))
    assert answers == [each[::-1] for each in texts]
    assert most == 7


async def test_a_refusal_keeps_its_code_and_its_words(tmp_path: Path) -> None:
    async def refuse(message: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "100 % naïve: no")
        raise AssertionError("abort raises")

    async with grpcio(tmp_path / "s", refuse), channel(tmp_path / "s") as calls:
        error = await failure(calls.call(METHOD, b"", 10))
        unknown = await failure(calls.call("/test.Service/Other", b"", 10))
    assert (error.code, error.reason) == (GrpcCode.FAILED_PRECONDITION, "100 % naïve: no")
    assert unknown.code is GrpcCode.UNIMPLEMENTED


async def test_a_server_that_hangs_costs_the_time_limit_and_hears_that_nobody_waits(tmp_path: Path) -> None:
    is_given_up = asyncio.Event()

    async def hang(message: bytes, context: Any) -> bytes:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_given_up.set()
            raise
        return b""

    async with grpcio(tmp_path / "s", hang), channel(tmp_path / "s") as calls:
        error = await failure(calls.call(METHOD, b"", 0.1))
        await asyncio.wait_for(is_given_up.wait(), 10)
    assert (error.code, error.reason) == (GrpcCode.DEADLINE_EXCEEDED, "no answer within 0.1 s")


async def test_a_call_that_is_cancelled_leaves_the_connection_to_others(tmp_path: Path) -> None:
    async def maybe_hang(message: bytes, context: Any) -> bytes:
        await asyncio.sleep(60 if message == b"hang" else 0)
        return message

    async with grpcio(tmp_path / "s", maybe_hang), channel(tmp_path / "s") as calls:
        waiting = asyncio.create_task(calls.call(METHOD, b"hang", 60))
        await calls.call(METHOD, b"first", 10)
        waiting.cancel()
        assert await calls.call(METHOD, b"next", 10) == b"next"


async def test_without_a_server_calls_fail_at_once_and_succeed_when_it_is_there(tmp_path: Path) -> None:
    async with channel(tmp_path / "s") as calls:
        absent = await failure(calls.call(METHOD, b"", 10))
        async with grpcio(tmp_path / "s", echo):
            assert await calls.call(METHOD, b"one", 10) == b"one"
        (tmp_path / "s").unlink(missing_ok=True)
        gone = await failure(calls.call(METHOD, b"", 10))
        async with grpcio(tmp_path / "s", reversed_text):
            assert await calls.call(METHOD, b"two", 10) == b"owt"
    assert {absent.code, gone.code} == {GrpcCode.UNAVAILABLE}
    assert str(tmp_path / "s") in absent.reason


class SlowServer:
    """Answers a call 0.2 s after it has begun."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    async def answer(self, message: bytes, context: Any) -> bytes:
        self.has_begun.set()
        await asyncio.sleep(0.2)
        return message


async def test_a_server_that_ends_still_answers_what_it_has_begun(tmp_path: Path) -> None:
    slow = SlowServer()
    async with grpcio(tmp_path / "s", slow.answer) as server, channel(tmp_path / "s") as calls:
        waiting = asyncio.create_task(calls.call(METHOD, b"begun", 10))
        await slow.has_begun.wait()
        await server.stop(5)
        assert await waiting == b"begun"


async def test_closing_waits_for_calls_under_way(tmp_path: Path) -> None:
    slow = SlowServer()
    async with grpcio(tmp_path / "s", slow.answer):
        calls = Channel(str(tmp_path / "s"))
        waiting = asyncio.create_task(calls.call(METHOD, b"begun", 10))
        await slow.has_begun.wait()
        await calls.close(5)
        assert await waiting == b"begun"


def frames(*parts: tuple[int, int, int, bytes]) -> bytes:
    return b"".join(http2.frame(*each) for each in parts)


STATUS_OK = http2.literals((("grpc-status", "0"),))
ENDS = http2.END_HEADERS | http2.END_STREAM


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", GrpcCode.UNAVAILABLE),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1_000_000, GrpcCode.INTERNAL),
        (frames((http2.HEADERS, ENDS, 1, STATUS_OK)), GrpcCode.INTERNAL),
        (frames((http2.HEADERS, ENDS, 1, http2.literals(()))), GrpcCode.UNKNOWN),
        (frames((http2.HEADERS, ENDS, 1, b"\x8d")), GrpcCode.UNKNOWN),
        (frames((http2.HEADERS, ENDS, 1, b"\xff" * 20)), GrpcCode.INTERNAL),
        (frames((http2.DATA, http2.END_STREAM, 1, b"")), GrpcCode.UNKNOWN),
        (frames((http2.RST_STREAM, 0, 1, b"\0\0\0\x07")), GrpcCode.UNAVAILABLE),
        (frames((http2.RST_STREAM, 0, 1, b"\0\0\0\x08")), GrpcCode.CANCELLED),
        (frames((http2.GOAWAY, 0, 0, bytes(8))), GrpcCode.UNAVAILABLE),
        (frames((http2.DATA, http2.PADDED, 1, b"")), GrpcCode.INTERNAL),
        (frames((http2.SETTINGS, 0, 0, b"odd")), GrpcCode.INTERNAL),
        (frames((http2.RST_STREAM, 0, 1, bytes(5_000))), GrpcCode.INTERNAL),
        (frames((http2.GOAWAY, 0, 0, b"")), GrpcCode.INTERNAL),
    ],
)
async def test_each_wrong_answer_is_an_error_with_a_code(
    tmp_path: Path, answer: bytes, code: GrpcCode
) -> None:
    async with raw_server(tmp_path / "s", answer), channel(tmp_path / "s") as calls:
        assert (await failure(calls.call(METHOD, b"message", 10))).code is code


async def test_calls_that_wait_for_their_turn_end_with_the_connection(tmp_path: Path) -> None:
    no_room = frames((http2.SETTINGS, 0, 0, http2.setting(http2.MAX_CONCURRENT_STREAMS, 0)))
    async with raw_server(tmp_path / "s", no_room), channel(tmp_path / "s") as calls:
        ended = await asyncio.gather(*(failure(calls.call(METHOD, b"", 10)) for _ in range(3)))
    assert {each.code for each in ended} == {GrpcCode.UNAVAILABLE}


async def test_an_answer_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async def flood(message: bytes, context: Any) -> bytes:
        return bytes(MESSAGE_BYTES_MAX + 1)

    async with grpcio(tmp_path / "s", flood), channel(tmp_path / "s") as calls:
        assert (await failure(calls.call(METHOD, b"", 20))).code is GrpcCode.RESOURCE_EXHAUSTED


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 3), st.binary(max_size=40)),
        max_size=8,
    ),
    st.binary(max_size=30),
)
def test_whatever_a_server_says_a_call_ends(answers: list[tuple[int, int, int, bytes]], rest: bytes) -> None:
    async def check(path: Path) -> None:
        async with raw_server(path, frames(*answers) + rest), channel(path) as calls:
            try:
                await calls.call(METHOD, b"message", 5)
            except CallError as error:
                assert error.code is not GrpcCode.DEADLINE_EXCEEDED

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check(Path(directory) / "s"))
