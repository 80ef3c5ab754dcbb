"""Frames between kubelet and runtime: windows stay right, whatever hooks make of a body; damage ends a connection."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host import http2
from koordinator.host.http2 import Frame, FrameReader
from koordinator.runtime_proxy.relay import Refused, Relay

PATH = "/runtime.v1.RuntimeService/CreateContainer"


class Peer(asyncio.Protocol):
    """One end; keeps the frames that it gets."""

    def __init__(self, preface: bytes = b"") -> None:
        self.frames: list[Frame] = []
        self.reads: list[list[int]] = []
        """Kinds of frames that came at once."""
        self.is_lost = asyncio.Event()
        self._left = len(preface)
        self._reader = FrameReader()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost.set()

    def data_received(self, data: bytes) -> None:
        skipped = min(self._left, len(data))
        self._left -= skipped
        found = list(self._reader.feed(data[skipped:]))
        self.frames += found
        self.reads.append([each.kind for each in found])

    def of(self, kind: int) -> list[Frame]:
        return [each for each in self.frames if each.kind == kind]

    async def until(self, kind: int, count: int = 1) -> list[Frame]:
        async with asyncio.timeout(5):
            while len(self.of(kind)) < count:  # noqa: ASYNC110 - frames come by the loop
                await asyncio.sleep(0.001)
        return self.of(kind)


class Changed:
    """A call whose body becomes another one."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.response: bytes | None = None

    def answered(self, response: bytes | None) -> None:
        self.response = response


class Line:
    """Kubelet, relay, runtime. `body` is what hooks make of any message; None refuses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.body: bytes | None = b""
        self.problem = "no, 100 % no"
        self.kubelet, self.runtime = Peer(), Peer(http2.PREFACE)
        self.last: Changed | None = None
        self.encoder = hpack.Encoder()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        runtime, front = str(self.folder / "r.sock"), str(self.folder / "f.sock")
        self._servers = [await loop.create_unix_server(lambda: self.runtime, runtime)]

        def connected() -> asyncio.Protocol:
            return Relay(self.intercept, lambda path: "Create" if b"Create" in path else "", runtime).kubelet

        self._servers.append(await loop.create_unix_server(connected, front))
        await loop.create_unix_connection(lambda: self.kubelet, front)
        self.kubelet.transport.write(http2.PREFACE)

    async def intercept(self, method: str, raw: bytes) -> Changed:
        if self.body is None:
            raise Refused(self.problem)
        self.last = Changed(self.body)
        return self.last

    def call(self, stream: int, message: bytes, path: str = PATH) -> None:
        """Headers and body as a kubelet sends them."""
        headers = self.encoder.encode([(":method", "POST"), (":path", path), ("tenant", "x" * 50)])
        body = http2.grpc_message(message)
        write = self.kubelet.transport.write
        write(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, headers))
        for start in range(0, len(body), http2.CHUNK_BYTES):
            chunk = body[start : start + http2.CHUNK_BYTES]
            end = http2.END_STREAM if start + len(chunk) == len(body) else 0
            write(http2.frame(http2.DATA, end, stream, chunk))

    def granted(self) -> int:
        """What the kubelet may send more on its connection."""
        return sum(http2.increment(each) for each in self.kubelet.of(http2.WINDOW_UPDATE) if not each.stream)

    async def close(self) -> None:
        self.kubelet.transport.close()
        for each in self._servers:
            each.close()


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    made = Line(tmp_path)
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize("sizes", [(10, 10), (10, 500), (500, 10), (40_000, 20), (20, 40_000), (0, 0)])
async def test_the_kubelet_may_send_again_exactly_what_it_sent(line: Line, sizes: tuple[int, int]) -> None:
    sent, changed = sizes
    line.body = b"c" * changed

    for stream in (1, 3):
        line.call(stream, b"k" * sent)
        got = 0
        async with asyncio.timeout(5):
            while got < changed + 5:
                got = sum(len(each.payload) for each in line.runtime.of(http2.DATA) if each.stream == stream)
                await asyncio.sleep(0.001)
        line.runtime.transport.write(http2.window_update(0, got))

    line.kubelet.transport.write(http2.frame(6, 0, 0, b"ping-pon"))
    await line.runtime.until(6)
    line.runtime.transport.write(http2.frame(6, 1, 0, b"ping-pon"))
    await line.kubelet.until(6)
    assert line.granted() == 2 * (sent + 5)


async def test_a_refused_call_is_an_error_for_the_kubelet_and_a_reset_for_the_runtime(line: Line) -> None:
    line.body = None

    line.call(1, b"k" * 100)

    [trailers] = await line.kubelet.until(http2.HEADERS)
    headers = dict(hpack.Decoder().decode(trailers.payload))
    assert (headers["grpc-status"], headers["grpc-message"]) == ("13", "no, 100 %25 no")
    assert (await line.runtime.until(http2.RST_STREAM))[0].stream == 1
    assert line.granted() == 105


async def test_an_error_as_long_as_a_hook_likes_can_be_read(line: Line) -> None:
    line.body, line.problem = None, "\N{BALLOT X}" * 10_000

    line.call(1, b"k")

    [trailers] = await line.kubelet.until(http2.HEADERS)
    assert dict(hpack.Decoder().decode(trailers.payload))["grpc-message"].startswith("%E2%9C%97")


async def test_an_answer_is_read_on_its_way(line: Line) -> None:
    line.body = b"changed"
    line.call(1, b"k")
    [body] = await line.runtime.until(http2.DATA)
    assert body.payload == http2.grpc_message(b"changed")

    answer, trailers = http2.grpc_message(b"made"), http2.literals((("grpc-status", "0"),))
    line.runtime.transport.write(http2.frame(http2.DATA, 0, 1, answer))
    line.runtime.transport.write(
        http2.frame(http2.HEADERS, http2.END_STREAM | http2.END_HEADERS, 1, trailers)
    )

    assert (await line.kubelet.until(http2.HEADERS))[0].payload == trailers
    assert line.last is not None and line.last.response == b"made"


async def test_headers_wait_for_the_body_that_hooks_change_but_only_a_moment(line: Line) -> None:
    line.body = b"changed"
    line.call(1, b"k")
    await line.runtime.until(http2.DATA)
    assert line.runtime.reads[-1] == [http2.HEADERS, http2.DATA]

    [headers] = line.runtime.of(http2.HEADERS)
    line.kubelet.transport.write(
        http2.frame(http2.HEADERS, http2.END_HEADERS, 3, headers.payload) + http2.window_update(0, 7)
    )
    await line.runtime.until(http2.WINDOW_UPDATE)
    assert line.runtime.reads[-1] == [http2.HEADERS, http2.WINDOW_UPDATE]


def test_the_same_bytes_are_other_headers_once_the_table_is_another_one() -> None:
    reader = http2.HeaderReader(1_000)

    def read(block: bytes) -> dict[bytes, bytes] | None:
        return reader.read(
            Frame(http2.HEADERS, http2.END_HEADERS, 1, http2.frame(http2.HEADERS, 0, 1, block))
        )

    newest = b"\xbe"
    for name in (b"one", b"two"):
        read(b"\x40\x03" + name + b"\x01v")  # RFC 7541, 6.2.1: this one enters the table
        assert read(newest) == read(newest) == {name: b"v"}


async def test_a_long_body_waits_for_the_runtimes_window(line: Line) -> None:
    line.body = b"c" * 100_000

    line.call(1, b"k")
    await asyncio.sleep(0.05)
    sent = sum(len(each.payload) for each in line.runtime.of(http2.DATA))
    assert sent <= http2.WINDOW_BYTES
    line.runtime.transport.write(http2.window_update(0, 100_000) + http2.window_update(1, 100_000))

    async with asyncio.timeout(5):
        while sum(len(each.payload) for each in line.runtime.of(http2.DATA)) < 100_005:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_headers_refer_to_earlier_ones_also_beside_intercepted_calls(line: Line) -> None:
    for stream in (1, 3, 5):
        line.call(stream, b"k", PATH if stream == 3 else "/other/List")

    decoder = hpack.Decoder()
    found = [dict(decoder.decode(each.payload)) for each in await line.runtime.until(http2.HEADERS, 3)]
    assert [each[":path"] for each in found] == ["/other/List", PATH, "/other/List"]


@pytest.mark.parametrize(
    "damage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        http2.PREFACE + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff" * 20),
        http2.PREFACE + http2.frame(http2.DATA, http2.PADDED, 1, b""),
        http2.PREFACE + http2.frame(http2.HEADERS, 0, 1, b"\0" * 200_000) * 2,
    ],
    ids=["another protocol", "headers", "padding", "endless headers"],
)
async def test_damage_ends_the_connection(tmp_path: Path, damage: bytes) -> None:
    line = Line(tmp_path)
    await line.start()
    if damage.startswith(http2.PREFACE):
        damage = damage[len(http2.PREFACE) :]
        line.call(1, b"k")
        held = http2.frame(http2.HEADERS, http2.END_HEADERS, 3, line.encoder.encode([(":path", PATH)]))
        line.kubelet.transport.write(held + damage.replace(b"\0\0\0\1", b"\0\0\0\3", 1))
    else:
        line.kubelet = Peer()
        await asyncio.get_running_loop().create_unix_connection(
            lambda: line.kubelet, str(tmp_path / "f.sock")
        )
        line.kubelet.transport.write(damage)

    async with asyncio.timeout(5):
        await line.kubelet.is_lost.wait()
    await line.close()


@given(chunks=st.lists(st.binary(max_size=30), max_size=10), cut=st.integers(1, 20))
def test_frames_come_out_however_the_bytes_are_cut(chunks: list[bytes], cut: int) -> None:
    wire = b"".join(http2.frame(http2.DATA, 0, index, each) for index, each in enumerate(chunks))
    reader = FrameReader()

    found = [each for start in range(0, len(wire), cut) for each in reader.feed(wire[start : start + cut])]

    assert [each.payload for each in found] == chunks
    assert b"".join(each.whole for each in found) == wire
