"""Lists and watches of `KubeCluster` against a server scripted for faults."""

import asyncio
import random
from typing import Any

import pytest
from aiohttp import web

from koordinator.cluster import errors, informer, kube, wire
from koordinator.cluster.informer import Informer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import EventType, WatchEvent
from koordinator.cluster.transport import HttpRequest
from tests.cluster.fake_backend import PodView
from tests.cluster.scripted_pods import connected, pod, pod_list
from tests.cluster.scripted_server import (
    line,
    ok,
    scripted,
    status,
    stream,
)

pytestmark = pytest.mark.usefixtures("short_pauses")


# Lists


async def test_a_list_is_fetched_in_chunks() -> None:
    pages = [ok(pod_list(pod("a"), more="next")), ok(pod_list(pod("b"), version=10))]
    async with scripted(*pages) as server, connected(server) as cluster:
        page = await cluster.list(PodView, label_selector="app=web", field_selector="spec.nodeName=n1")

        assert [obj.metadata.name for obj in page.items] == ["a", "b"]
        assert page.resource_version == "10"
        assert server.asked[1].query == {
            "labelSelector": "app=web",
            "fieldSelector": "spec.nodeName=n1",
            "limit": "500",
            "continue": "next",
        }


async def test_while_a_page_is_read_the_next_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [ok(pod_list(pod("a"), more="next")), ok(pod_list(pod("b")))]
    async with scripted(*pages) as server, connected(server) as cluster:
        steps: list[str] = []
        send, read_page = cluster.transport.send, wire.read_page

        async def sent(call: HttpRequest) -> bytes:
            steps.append("ask")
            return await send(call)

        def read(view: type[PodView], data: bytes) -> Any:
            steps.append("read")
            return read_page(view, data)

        monkeypatch.setattr(cluster.transport, "send", sent)
        monkeypatch.setattr(wire, "read_page", read)
        await cluster.list(PodView)

        assert steps == ["ask", "ask", "read", "read"]


async def test_a_list_whose_metadata_comes_last_has_all_its_pages() -> None:
    first = {"items": [pod("a")], "metadata": {"resourceVersion": "5", "continue": "next"}}
    async with scripted(ok(first), ok(pod_list(pod("b")))) as server, connected(server) as cluster:
        page = await cluster.list(PodView)

        assert [obj.metadata.name for obj in page.items] == ["a", "b"]


async def test_a_page_that_is_no_list_ends_what_is_on_its_way() -> None:
    broken = {"metadata": {"continue": "next"}, "items": {"a": 1}}
    async with scripted(ok(broken), ok(pod_list(pod("b")))) as server, connected(server) as cluster:
        with pytest.raises(errors.InternalError, match="not a list of pods"):
            await cluster.list(PodView)

        assert len([task for task in asyncio.all_tasks() if "send" in str(task)]) == 0


async def test_a_list_that_expires_midway_is_fetched_again_as_a_whole() -> None:
    answers = [ok(pod_list(pod("a"), more="next")), status(410, "Expired"), ok(pod_list(pod("b")))]
    async with scripted(*answers) as server, connected(server) as cluster:
        page = await cluster.list(PodView)

        assert [obj.metadata.name for obj in page.items] == ["b"]
        assert server.asked[2].query == {}


async def test_one_unreadable_object_costs_a_page_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    answer = ok(pod_list(pod("a"), pod("b", priority="high"), pod("c")))
    async with scripted(answer) as server, connected(server) as cluster:
        page = await cluster.list(PodView)

        assert [obj.metadata.name for obj in page.items] == ["a", "c"]
        assert page.unreadable == (("shop", "b"),)
        assert "Pod shop/b: $.spec.priority" in caplog.text


# Watches


async def follow(cluster: KubeCluster) -> list[WatchEvent[PodView]]:
    seen: list[WatchEvent[PodView]] = []
    async for batch in cluster.watch(PodView, resource_version="5"):
        seen += batch
    return seen


async def test_a_watch_puts_lines_together_from_any_cut() -> None:
    whole = line("ADDED", pod("a", 6)) + line("MODIFIED", pod("a", 7)) + line("DELETED", pod("ü", 8))
    for cut in (1, 20, len(whole) // 2, len(whole) - 1):
        chunks = [whole[at : at + cut] for at in range(0, len(whole), cut)]
        async with scripted(stream(*chunks, pause_s=0)) as server, connected(server) as cluster:
            events = await follow(cluster)

        assert [e.type.value for e in events] == ["ADDED", "MODIFIED", "DELETED"]
        assert [e.resource_version for e in events] == ["6", "7", "8"]
        assert events[2].obj is not None
        assert events[2].obj.metadata.name == "ü"


async def test_a_watch_asks_for_bookmarks_and_an_end() -> None:
    async with scripted(stream()) as server, connected(server) as cluster:
        await follow(cluster)

        query = server.asked[0].query
        assert (query["watch"], query["allowWatchBookmarks"], query["resourceVersion"]) == ("1", "true", "5")
        assert 300 <= int(query["timeoutSeconds"]) <= 600


async def test_bookmarks_only_tell_the_version() -> None:
    obj = {"kind": "Pod", "metadata": {"resourceVersion": "42"}, "spec": {"priority": None}}
    bookmark = line("BOOKMARK", obj)
    async with scripted(stream(bookmark)) as server, connected(server) as cluster:
        assert await follow(cluster) == [WatchEvent(EventType.BOOKMARK, None, "42")]


@pytest.mark.parametrize("said", [(), (line("ADDED", pod("a", 6)),)], ids=["never", "any more"])
async def test_a_watch_that_says_nothing_ends(
    said: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "SILENT_S_MAX", 0.2)
    async with scripted(stream(*said, end="hang")) as server, connected(server) as cluster:
        async with asyncio.timeout(5):
            events = await follow(cluster)

        assert len(events) == len(said)


async def test_a_watch_that_speaks_in_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "SILENT_S_MAX", 0.4)
    bookmark = line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "42"}})
    chunks = [bookmark] * 5 + [line("ADDED", pod("a"))]
    async with scripted(stream(*chunks, pause_s=0.15)) as server, connected(server) as cluster:
        assert len(await follow(cluster)) == 6


async def test_after_a_watch_that_hung_from_its_start_the_next_tells_what_was_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kube, "SILENT_S_MAX", 0.2)
    monkeypatch.setattr(informer, "WATCH_S_MIN", 0.1)
    missed = stream(line("ADDED", pod("a", 10)), end="hang")
    answers = [ok(pod_list(version=9)), stream(end="hang"), missed]
    async with scripted(*answers) as server, connected(server) as cluster:
        pods = Informer(cluster, PodView, rng=random.Random(1))
        seen = asyncio.Event()
        pods.add_handler(on_add=lambda _: seen.set())
        task = asyncio.create_task(pods.run())
        try:
            async with asyncio.timeout(5):
                await seen.wait()
        finally:
            task.cancel()

        assert pods.list_count == 1
        assert pods.guard.failure_count == 0
        assert [asked.query["resourceVersion"] for asked in server.asked[1:3]] == ["9", "9"]


async def test_a_watch_whose_answer_never_begins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    monkeypatch.setattr(kube, "SILENT_S_MAX", 0.2)
    async with scripted(hangs) as server, connected(server) as cluster:
        with pytest.raises(errors.ConnectionFailed):
            await follow(cluster)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param({"code": 410, "reason": "Expired", "message": "too old"}, errors.Gone, id="expired"),
        pytest.param({"code": 410, "reason": "Gone", "message": "too old"}, errors.Gone, id="gone"),
        pytest.param({"code": 500, "message": "etcd"}, errors.InternalError, id="internal"),
        pytest.param({"code": "x"}, errors.InternalError, id="a strange status"),
    ],
)
async def test_an_error_event_is_raised(body: dict[str, Any], error: type[errors.ApiError]) -> None:
    answer = stream(line("ADDED", pod("a", 6)), line("ERROR", {"kind": "Status", **body}))
    async with scripted(answer) as server, connected(server) as cluster:
        with pytest.raises(error):
            await follow(cluster)


async def test_gone_before_the_watch_begins_is_raised_too() -> None:
    async with scripted(status(410, "Expired")) as server, connected(server) as cluster:
        with pytest.raises(errors.Gone):
            await follow(cluster)


@pytest.mark.parametrize(
    "garbage",
    [b"<html>\n", b"{}\n", b'{"type":"ADDED"\n', b'{"type":"NEWS","object":{}}\n', b"[1]\n", b"\xff\xfe\n"],
)
async def test_garbage_in_a_watch_is_an_error_that_shows_it(garbage: bytes) -> None:
    async with scripted(stream(garbage)) as server, connected(server) as cluster:
        with pytest.raises(errors.InternalError):
            await follow(cluster)


async def test_a_reset_in_mid_watch_is_a_failed_connection() -> None:
    answer = stream(line("ADDED", pod("a", 6)), end="reset")
    async with scripted(answer) as server, connected(server) as cluster:
        with pytest.raises(errors.ConnectionFailed):
            await follow(cluster)


async def test_an_unreadable_object_in_a_watch_comes_as_progress_and_its_deletion_by_name() -> None:
    bad = pod("a", 7, priority="high")
    chunk = line("ADDED", pod("b", 6)) + line("MODIFIED", bad) + line("DELETED", bad)
    async with scripted(stream(chunk)) as server, connected(server) as cluster:
        added, modified, deleted = await follow(cluster)

    assert added.obj is not None
    assert (modified.type, modified.obj, modified.resource_version) == (EventType.BOOKMARK, None, "7")
    assert deleted.type is EventType.DELETED
    assert deleted.obj is not None
    assert deleted.obj.metadata.name == "a"


async def test_a_line_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordinator.cluster.wire.LINE_BYTES_MAX", 1000)
    async with scripted(stream(b"x" * 600, b"x" * 600)) as server, connected(server) as cluster:
        with pytest.raises(errors.InternalError, match="more than 1000 bytes"):
            await follow(cluster)
