"""Our small gRPC server, called by gRPC's own client."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.host.errors import CallError, GrpcCode
from koordinator.host.grpc_server import UnaryServer
from tests import grpcio_sockets

grpc = pytest.importorskip("grpc")


def refuse(raw: bytes) -> bytes:
    raise CallError(GrpcCode.INVALID_ARGUMENT, "100 % wrong: naïve")


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    handlers = {"/s/Echo": lambda raw: raw, "/s/Twice": lambda raw: raw * 2, "/s/Refuse": refuse}
    server = UnaryServer(handlers, message_bytes_max=300_000)
    await server.start(str(tmp_path / "s.sock"))
    yield str(tmp_path / "s.sock")
    server.close()


@pytest.fixture
async def channel(path: str) -> AsyncIterator[Any]:
    async with grpcio_sockets.channel(path) as made:
        yield made


@pytest.mark.parametrize("size", [0, 1, 20_000, 150_000])
async def test_messages_of_any_size_come_back(channel: Any, size: int) -> None:
    for _ in range(3):
        assert await channel.unary_unary("/s/Twice")(b"x" * size, timeout=10) == b"x" * size * 2


@pytest.mark.parametrize(
    ("method", "code", "words"),
    [
        ("/s/Refuse", "INVALID_ARGUMENT", "100 % wrong: naïve"),
        ("/s/None", "UNIMPLEMENTED", "no method '/s/None'"),
    ],
)
async def test_a_failure_is_told_with_code_and_reason(
    channel: Any, method: str, code: str, words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(method)(b"x", timeout=10)

    assert (raised.value.code().name, raised.value.details()) == (code, words)


async def test_a_message_above_the_limit_ends_its_connection_and_no_other(channel: Any, path: str) -> None:
    async with grpcio_sockets.channel(path) as other:
        assert await other.unary_unary("/s/Echo")(b"before", timeout=10) == b"before"

        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/s/Echo")(b"x" * 400_000, timeout=10)

        assert await other.unary_unary("/s/Echo")(b"after", timeout=10) == b"after"
