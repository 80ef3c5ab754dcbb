"""Watch streams: what is written, when they end, and that a slow reader hurts nobody else."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from koordinator.clock import SystemClock
from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord, RecordEvent
from koordinator.cluster.protocol import EventType
from koordinator.local.apiserver import ApiServer, tls, watching
from tests.local.apiserver.fake import FakeBackend, FakeSubscription

PATH = "/api/v1/namespaces/default/pods?watch=true"


def event(type_: EventType, name: str, version: int, **fields: Any) -> RecordEvent:
    meta = {"name": name, "resourceVersion": str(version)}
    return RecordEvent(
        type_, ObjectRecord({"kind": "Pod", "apiVersion": "v1", "metadata": meta, **fields}, version), version
    )


async def subscription_of(backend: FakeBackend, count: int = 1) -> FakeSubscription:
    await until(lambda: len(backend.subscriptions) >= count)
    return backend.subscriptions[-1]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (what is waited for tells nobody)
            await asyncio.sleep(0.005)


async def next_event(response: aiohttp.ClientResponse) -> dict[str, Any]:
    return msgspec.json.decode(await response.content.readline())


async def test_changes_are_written_as_lines_and_the_end_of_the_subscription_ends_the_answer(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    async with http.get(PATH) as response:
        subscription = await subscription_of(backend)
        subscription.queue.put_nowait([event(EventType.ADDED, "a", 11), event(EventType.DELETED, "a", 12)])
        subscription.queue.put_nowait([RecordEvent(EventType.BOOKMARK, None, 13)])

        added, deleted, bookmark = [await next_event(response) for _ in range(3)]
        subscription.close()
        rest = await response.read()

    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert (deleted["type"], deleted["object"]["metadata"]["resourceVersion"]) == ("DELETED", "12")
    assert bookmark["type"] == "BOOKMARK"
    assert (bookmark["object"]["kind"], bookmark["object"]["metadata"]["resourceVersion"]) == ("Pod", "13")
    assert rest == b""


@pytest.mark.parametrize(
    "path", [PATH, "/api/v1/namespaces/default/pods?watch=True"]
)  # the usual text, and another
async def test_over_tls_a_watch_goes_on_for_as_long_as_its_client_reads(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(watching, "STALL_S", 0.3)
    monkeypatch.setattr(watching, "TICK_S", 0.05)
    secured = tls.self_signed(tmp_path, SystemClock())
    server = ApiServer(backend, tls=secured)
    await server.start()
    trusting = ssl.create_default_context(cadata=secured.ca_certificate.decode())
    connector = aiohttp.TCPConnector(ssl=trusting)
    async with aiohttp.ClientSession(server.url, connector=connector) as http, http.get(path) as response:
        subscription = await subscription_of(backend)
        for number in range(4):
            subscription.queue.put_nowait([event(EventType.ADDED, f"p{number}", number + 1)])
            assert (await next_event(response))["object"]["metadata"]["name"] == f"p{number}"
            await asyncio.sleep(0.4)
    await server.stop()


async def test_the_first_bookmark_of_a_streaming_list_ends_the_initial_events(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with http.get(PATH + query) as response:
        subscription = await subscription_of(backend)
        subscription.queue.put_nowait([RecordEvent(EventType.BOOKMARK, None, 13)] * 2)

        first, second = [await next_event(response) for _ in range(2)]

    assert first["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert "annotations" not in second["object"]["metadata"]


async def test_a_version_that_is_gone_is_an_error_event(http: aiohttp.ClientSession) -> None:
    async with http.get(PATH + "&resourceVersion=1") as response:
        assert response.status == 200
        error = await next_event(response)
        assert await response.read() == b""

    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_watch_ends_after_its_time(http: aiohttp.ClientSession, backend: FakeBackend) -> None:
    async with http.get(PATH + "&timeoutSeconds=1") as response:
        async with asyncio.timeout(3):
            assert await response.read() == b""

    assert backend.subscriptions[0].closed


async def test_a_name_in_the_path_is_a_selection_and_the_legacy_path_works(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    async with http.get("/api/v1/watch/namespaces/default/pods/web"):
        await subscription_of(backend)

    (_, _, namespace, options) = backend.calls[0]
    assert (namespace, options.field_selector) == ("default", "metadata.name=web")


async def test_a_subscription_that_fell_behind_ends_with_410(
    http: aiohttp.ClientSession, backend: FakeBackend, server: ApiServer
) -> None:
    async with http.get(PATH) as response:
        subscription = await subscription_of(backend)
        subscription.queue.put_nowait(errors.Gone("too old resource version"))
        error = await next_event(response)
        assert await response.read() == b""

    assert error["object"]["code"] == 410
    assert server.watches.cut_off_count == 1


async def test_a_client_that_left_is_noticed(
    http: aiohttp.ClientSession, backend: FakeBackend, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = await http.get(PATH)
    subscription = await subscription_of(backend)

    response.close()
    await until(lambda: not server.watches.open_count)

    assert subscription.closed


@pytest.fixture
def short_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STALL_S", 0.2)
    monkeypatch.setattr(watching, "TICK_S", 0.05)


async def test_a_reader_that_takes_nothing_is_cut_off_while_others_go_on(
    short_stall: None, backend: FakeBackend
) -> None:
    server = ApiServer(backend)
    await server.start()
    port = int(server.url.rpartition(":")[2])
    slow = socket.create_connection(("127.0.0.1", port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(slow, f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    stuck = await subscription_of(backend)
    batch = [event(EventType.ADDED, f"p{i}", i, spec={"x": "y" * 1000}) for i in range(20_000)]
    async with aiohttp.ClientSession(server.url) as session, session.get(PATH) as response:
        lively = await subscription_of(backend, 2)
        stuck.queue.put_nowait(batch)
        lively.queue.put_nowait(batch[:100])

        names = [(await next_event(response))["object"]["metadata"]["name"] for _ in range(100)]
        await until(lambda: stuck.closed)

        assert names[-1] == "p99"
        assert not lively.closed
        assert server.watches.cut_off_count == 1
    with pytest.raises(ConnectionResetError):  # the kernel does not keep what was not read, either
        while await loop.sock_recv(slow, 65_536):
            pass
    slow.close()
    await server.stop()


async def test_each_object_is_encoded_once_for_all_watchers(
    http: aiohttp.ClientSession, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = event(EventType.ADDED, "a", 11)
    async with http.get(PATH) as one, http.get(PATH) as two:
        await subscription_of(backend, 2)
        for subscription in backend.subscriptions:
            subscription.queue.put_nowait([change])

        assert await next_event(one) == await next_event(two)
    assert change.record is not None
    assert change.record.json() is change.record.json()


async def test_a_table_watch_names_its_columns_once(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    async with http.get(PATH, headers=accept) as response:
        subscription = await subscription_of(backend)
        subscription.queue.put_nowait([event(EventType.ADDED, "a", 11), event(EventType.MODIFIED, "a", 12)])

        first, second = [(await next_event(response))["object"] for _ in range(2)]

    assert first["columnDefinitions"][0]["name"] == "Name"
    assert second["columnDefinitions"] == []
    assert second["rows"][0]["cells"][0] == "a"


async def test_there_is_a_limit_of_open_watches(
    http: aiohttp.ClientSession, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "STREAMS_MAX", 1)

    async with http.get(PATH):
        await subscription_of(backend)
        async with http.get(PATH) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "1")


async def test_stopping_the_server_ends_watches_cleanly(backend: FakeBackend) -> None:
    server = ApiServer(backend)
    await server.start()
    async with aiohttp.ClientSession(server.url) as session, session.get(PATH) as response:
        await subscription_of(backend)
        stopping = asyncio.create_task(server.stop())
        async with asyncio.timeout(3):
            assert await response.read() == b""
    await stopping
