"""Short writes get, byte for byte, the answers that the general server gives; all else is handed over to it."""

import asyncio
import gc
import re
import socket
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest

from koordinator.api.core import Pod
from koordinator.cluster.backend import ListOptions, ObjectRecord, RecordEvent
from koordinator.cluster.protocol import EventType
from koordinator.local.apiserver import ApiServer, short_requests
from tests.local.apiserver.fake import FakeBackend
from tests.local.apiserver.requests import POD, PODS_PATH, pod


class Line:
    """A connection on which a test says what it wants, in the pieces that it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, *pieces: bytes) -> None:
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(0.02)  # so that they arrive one by one
            self.writer.write(piece)

    async def read(self) -> tuple[bytes, bytes]:
        """Head and body of the next answer."""
        async with asyncio.timeout(5):
            head = await self.reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"Content-Length: (\d+)", head)
            assert found, head
            return head, await self.reader.readexactly(int(found[1]))


@pytest.fixture
async def line(server: ApiServer) -> AsyncIterator[Line]:
    opened = Line(*await asyncio.open_connection("127.0.0.1", port_of(server)))
    yield opened
    opened.writer.close()


def port_of(server: ApiServer) -> int:
    return int(server.url.rpartition(":")[2])


def request(method: str, path: str, body: bytes = b"", *headers: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def create(name: str, *headers: str) -> bytes:
    return request("POST", PODS_PATH, msgspec.json.encode(pod(name)), *headers)


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was handed to the general server."""
    seen: list[bytes] = []
    original = short_requests._Connection._hand_over

    def hand_over(self: short_requests._Connection, data: bytes) -> None:
        seen.append(data)
        original(self, data)

    monkeypatch.setattr(short_requests._Connection, "_hand_over", hand_over)
    return seen


JSON_TYPE = "Content-Type: application/json"
MERGE = "Content-Type: application/merge-patch+json"
PAIRS = [
    pytest.param(create("web", JSON_TYPE), id="a create"),
    pytest.param(create("web", JSON_TYPE, "Accept: application/yaml"), id="an answer in YAML"),
    pytest.param(request("PATCH", POD, b'{"metadata":{"labels":{"a":"b"}}}', MERGE), id="an unknown pod"),
    pytest.param(request("PATCH", POD, b"{}", "Content-Type: text/plain"), id="an unknown patch"),
    pytest.param(request("DELETE", POD, b"{}", JSON_TYPE), id="a delete"),
    pytest.param(request("POST", PODS_PATH, b"{", JSON_TYPE), id="half a JSON"),
    pytest.param(request("POST", PODS_PATH + "?dryRun=None", b"{}", JSON_TYPE), id="a bad option"),
    pytest.param(request("PUT", PODS_PATH, b"{}", JSON_TYPE), id="a method it does not have"),
    pytest.param(request("POST", "/apis/nobody/v1/things", b"{}", JSON_TYPE), id="an unknown resource"),
    pytest.param(request("POST", "/api/v1", b"{}", JSON_TYPE), id="a page"),
    pytest.param(
        request("POST", PODS_PATH, b"{}", JSON_TYPE, host="evil.example"),
        id="under another name of the server",
    ),
    pytest.param(request("POST", PODS_PATH, b"{}", JSON_TYPE, "Accept: image/png"), id="an unknown answer"),
]


@pytest.mark.parametrize("asked", PAIRS)
async def test_an_answer_is_the_same_whether_the_request_came_in_one_piece_or_two(
    asked: bytes, taken_over: list[bytes]
) -> None:
    answers = []
    for pieces in ([asked], [asked[:30], asked[30:]]):
        server = ApiServer(FakeBackend())
        await server.start()
        line = Line(*await asyncio.open_connection("127.0.0.1", port_of(server)))
        await line.say(*pieces)
        answers.append(await line.read())
        line.writer.close()
        await server.stop()

    (short_head, short_body), (head, body) = answers
    assert comparable(short_head) == comparable(head)
    assert comparable(short_body) == comparable(body)
    assert len(taken_over) == 1  # the one in two pieces


WATCH_PATH = f"{PODS_PATH}?watch=true&resourceVersion=0"
PROTOBUF = "Accept: application/vnd.kubernetes.protobuf;type=watch"
WATCHES = [
    pytest.param(WATCH_PATH, [], id="JSON"),
    pytest.param(WATCH_PATH, [PROTOBUF], id="protobuf"),
    pytest.param(f"{PODS_PATH}?watch=true&resourceVersion=1&timeoutSeconds=x", [], id="a bad option"),
    pytest.param("/apis/nobody/v1/things?watch=1", [], id="an unknown resource"),
    pytest.param(f"{PODS_PATH}?watch=false&watch=true", [], id="a list, as the first value counts"),
]


@pytest.mark.parametrize(("path", "headers"), WATCHES)
async def test_a_watch_is_the_same_whether_the_request_came_in_one_piece_or_two(
    path: str, headers: list[str], taken_over: list[bytes]
) -> None:
    asked = "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode()
    answers = []
    for pieces in ([asked], [asked[:30], asked[30:]]):
        backend = FakeBackend()
        server = ApiServer(backend)
        await server.start()
        line = Line(*await asyncio.open_connection("127.0.0.1", port_of(server)))
        await line.say(*pieces)
        async with asyncio.timeout(5):
            head = await line.reader.readuntil(b"\r\n\r\n")
            for subscription in backend.subscriptions:
                subscription.queue.put_nowait([RecordEvent(EventType.BOOKMARK, None, 7)])
                await asyncio.sleep(0.05)
                subscription.close()
            # One connection goes on with other requests when a watch is over.
            await line.say(create("web", JSON_TYPE))
            rest = await line.reader.readuntil(b"HTTP/1.1 201 Created")
        answers.append((sorted(comparable(head).split(b"\r\n")), rest))
        line.writer.close()
        await server.stop()

    assert answers[0] == answers[1]
    assert len(taken_over) == 1


@pytest.mark.parametrize("path", [f"{POD}/log?watch=true", "/version?watch=true", f"{PODS_PATH}?watch=0"])
async def test_other_reads_are_handed_over(path: str, line: Line, taken_over: list[bytes]) -> None:
    asked = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    await line.say(asked)
    async with asyncio.timeout(5):
        assert await line.reader.readuntil(b"\r\n")
    assert taken_over == [asked]


async def test_a_watch_goes_on_when_its_client_reads_again(server: ApiServer, backend: FakeBackend) -> None:
    opened = Line(*await asyncio.open_connection("127.0.0.1", port_of(server), limit=1 << 16))
    opened.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await opened.say(f"GET {WATCH_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    async with asyncio.timeout(5):
        while not backend.subscriptions:  # noqa: ASYNC110 (what is waited for tells nobody)
            await asyncio.sleep(0.005)
    large = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "web", "annotations": {"a": "x" * 60_000}},
    }
    total = 400
    changes = [RecordEvent(EventType.ADDED, ObjectRecord(large, number), number) for number in range(total)]
    backend.subscriptions[0].queue.put_nowait(changes)
    await asyncio.sleep(0.3)
    backend.subscriptions[0].close()

    opened.writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(10):
        text = await opened.reader.readuntil(b"\r\n\r\n")
        found = 0
        while size := int(await opened.reader.readline(), 16):
            text = await opened.reader.readexactly(size + 2)
            found += text.count(b'"type":"ADDED"')
    assert found == total
    opened.writer.close()


async def test_a_waiting_watch_takes_less_memory_than_with_the_general_server(
    server: ApiServer, backend: FakeBackend
) -> None:
    sockets = []

    async def blocks_each(*headers: str) -> float:
        asked = "\r\n".join([f"GET {WATCH_PATH} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode()
        before = 0
        for number in range(200):
            if number == 100:
                gc.collect()
                before = sys.getallocatedblocks()
            count = len(backend.subscriptions)
            sockets.append(client := socket.create_connection(("127.0.0.1", port_of(server))))
            client.sendall(asked)
            while len(backend.subscriptions) == count:  # noqa: ASYNC110 (what is waited for tells nobody)
                await asyncio.sleep(0)
        gc.collect()
        return (sys.getallocatedblocks() - before) / 100

    async with asyncio.timeout(20):
        plain, general = await blocks_each(), await blocks_each("Connection: close")
    for client in sockets:
        client.close()
    assert plain < general * 0.7, (plain, general)


def comparable(text: bytes) -> bytes:
    """Without what differs from run to run: uids and times."""
    text = re.sub(rb"[0-9a-f]{8}-[0-9a-f-]{27}", b"UID", text)
    text = re.sub(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", b"TIME", text)
    return re.sub(rb"Date: [^\r]*", b"Date: NOW", text)


async def test_requests_sent_without_waiting_are_answered_in_order(line: Line) -> None:
    await line.say(b"".join(create(f"p{number}", JSON_TYPE) for number in range(5)))
    names = [msgspec.json.decode((await line.read())[1])["metadata"]["name"] for _ in range(5)]
    assert names == [f"p{number}" for number in range(5)]


async def test_a_read_after_writes_is_handed_over_with_what_follows_it(
    line: Line, taken_over: list[bytes]
) -> None:
    get = f"GET {POD} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    await line.say(create("web", JSON_TYPE) + get + create("other", JSON_TYPE))
    codes = [(await line.read())[0][9:12] for _ in range(3)]
    assert codes == [b"201", b"200", b"201"]
    assert len(taken_over) == 1
    assert taken_over[0].startswith(b"GET ")


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(create("web", JSON_TYPE, "Expect: 100-continue"), id="expects to be told to go on"),
        pytest.param(create("web", JSON_TYPE, "Connection: close"), id="wants to close"),
        pytest.param(create("web", JSON_TYPE, "X: \xfc"), id="a header that is not plain"),
        pytest.param(create("web", JSON_TYPE, " folded: yes"), id="a folded header"),
        pytest.param(create("web", JSON_TYPE, "Content-Length: 7"), id="two lengths"),
        pytest.param(create("web", JSON_TYPE, "Transfer-Encoding: chunked"), id="chunks and a length"),
        pytest.param(request("POST", "/api/v1/../x", b"{}"), id="a path with dots"),
        pytest.param(request("POST", PODS_PATH + "?fieldManager=a%20b", b"{}"), id="an escape"),
        pytest.param(create("web").replace(b"HTTP/1.1", b"HTTP/1.0"), id="an older protocol"),
        pytest.param(b"\x16\x03\x01\x02\x00" + bytes(40), id="no HTTP"),
    ],
)
async def test_what_needs_a_closer_look_is_handed_over(
    asked: bytes, line: Line, taken_over: list[bytes]
) -> None:
    await line.say(asked)
    async with asyncio.timeout(5):
        assert await line.reader.readuntil(b"\r\n")
    assert taken_over == [asked]


async def test_stopping_closes_idle_connections(server: ApiServer) -> None:
    line = Line(*await asyncio.open_connection("127.0.0.1", port_of(server)))
    await line.say(create("web", JSON_TYPE))
    await line.read()
    await server.stop()
    async with asyncio.timeout(5):
        assert await line.reader.read() == b""
    line.writer.close()


async def test_a_silent_connection_is_closed(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_requests, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(short_requests, "CHECK_S_MIN", 0.01)
    line = Line(*await asyncio.open_connection("127.0.0.1", port_of(server)))
    async with asyncio.timeout(5):
        assert await line.reader.read() == b""
    line.writer.close()


async def test_a_client_that_does_not_read_gets_no_more_answers_until_it_does(
    server: ApiServer, backend: FakeBackend
) -> None:
    opened = Line(*await asyncio.open_connection("127.0.0.1", port_of(server), limit=1 << 24))
    opened.writer.transport.pause_reading()  # type: ignore[attr-defined]
    large = msgspec.json.encode(pod("web", metadata={"name": "web", "annotations": {"a": "x" * 60_000}}))
    total = 400
    for number in range(total):
        body = large.replace(b'"name":"web"', b'"name":"web-%d"' % number)
        opened.writer.write(request("POST", PODS_PATH, body, JSON_TYPE))
    await asyncio.sleep(0.3)
    made = len(backend.list(Pod.resource, "default", ListOptions()).records)
    assert made < total

    opened.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(total):
        head, _ = await opened.read()
        assert head[9:12] == b"201"
    opened.writer.close()
