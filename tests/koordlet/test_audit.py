"""The audit log: rotation, pages and tokens, full disks, and its HTTP form."""

import os
import random
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from koordinator.clock import FixedClock
from koordinator.koordlet import audit, http
from koordinator.koordlet.audit import AuditFilter, AuditLog, AuditPage, AuditQuery, QueryError


def filled(directory: str, count: int, clock: FixedClock | None = None, text: str = "") -> AuditLog:
    log = AuditLog(clock or FixedClock(), directory=directory)
    for number in range(count):
        log.pod(0, "default", f"pod-{number}", "evicted", text)
    return log


def query_of(log: AuditLog, clock: FixedClock | None = None, **limits: int) -> AuditQuery:
    return AuditQuery(log, clock or FixedClock(), random.Random(1), **limits)


def names(query: AuditQuery, size: str, token: str = "") -> tuple[list[str], str]:
    page = query.page(size, token)
    return [event.name for event in page.events], page.next_page_token


def test_a_line_has_the_documented_members_and_no_empty_ones(tmp_path: Path) -> None:
    log = AuditLog(FixedClock(0.0), directory=str(tmp_path))
    log.group(3, "kubepods", "UpdateCgroups", "update x to 1")
    log.flush()

    assert msgspec.json.decode((tmp_path / "audit.log").read_bytes()) == {
        "createdAt": "1970-01-01T00:00:00.000000Z",
        "type": "group",
        "level": 3,
        "name": "kubepods",
        "reason": "UpdateCgroups",
        "message": "update x to 1",
    }


def test_events_above_the_level_are_dropped_and_a_disabled_log_takes_none(tmp_path: Path) -> None:
    log = AuditLog(FixedClock(), directory=str(tmp_path), verbose=1)
    log.node(2, "UpdateResctrl", "too detailed")
    log.node(1, "AdjustBEByNodeCPUUsage", "kept")
    off = AuditLog(FixedClock(), is_enabled=False)
    off.node(0, "evicted", "")

    assert [audit.decode(line).reason for line in log.newest_first()] == ["AdjustBEByNodeCPUUsage"]
    assert list(off.newest_first()) == []


@pytest.mark.parametrize("on_disk", [True, False])
def test_pages_go_from_the_newest_to_the_oldest_without_gaps(tmp_path: Path, on_disk: bool) -> None:
    log = filled(str(tmp_path) if on_disk else "", 10)
    query = query_of(log)

    first, token = names(query, "4")
    log.pod(0, "default", "later", "evicted", "")
    second, token = names(query, "4", token)
    third, end = names(query, "4", token)

    assert first + second + third == [f"pod-{number}" for number in range(9, -1, -1)]
    assert end == ""


@pytest.mark.parametrize("on_disk", [True, False])
def test_what_happened_to_a_pod_can_be_asked(tmp_path: Path, on_disk: bool) -> None:
    clock = FixedClock()
    log = AuditLog(clock, directory=str(tmp_path) if on_disk else "")
    for number in range(20):
        for name in ("web", "web-2", 'odd"name'):
            log.pod(3, "default", name, "UpdateCgroups", f"web {number}", container=f"c{number % 2}")
        log.pod(3, "other", "web", "UpdateCgroups", "default")
        log.node(1, "web", "default")
    query = query_of(log)

    of_web = AuditFilter(namespace="default", name="web", container="c1")
    first = query.page("4", "", of_web)
    rest = query.page("100", first.next_page_token)

    assert [each.message for each in (*first.events, *rest.events)] == [f"web {n}" for n in range(19, 0, -2)]
    assert {each.name for each in rest.events} == {"web"}
    assert len(query.page("100", "", AuditFilter(name='odd"name')).events) == 20
    of_node = query.page("1", "", AuditFilter(reason="web", type="node"))
    assert [each.type for each in of_node.events] == ["node"]
    assert query.page("1", "", AuditFilter(name="nobody")) == AuditPage("", [])


def test_files_rotate_at_two_megabytes_also_across_restarts_and_the_oldest_go(tmp_path: Path) -> None:
    clock = FixedClock()
    for _ in range(5):
        log = AuditLog(clock, directory=str(tmp_path), disk_mb_max=4)
        for number in range(1_500):
            log.node(0, "evicted", f"{number} " + "x" * 1_000)
        log.flush()
        clock.now_s += 1

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert len(sizes) == 2
    assert max(sizes.values()) <= audit.ROTATE_BYTES
    assert sum(1 for _ in log.newest_first()) > 1_500


def test_a_reader_keeps_its_place_while_files_rotate(tmp_path: Path) -> None:
    clock = FixedClock()
    log = filled(str(tmp_path), 3_000, clock, "x" * 500)
    query = query_of(log, clock)
    first, token = names(query, "1000")

    for _ in range(20_000):
        log.node(0, "noise", "y" * 1_000)
    log.flush()
    clock.now_s += 1
    second, _ = names(query, "2000", token)

    assert first + second == [f"pod-{number}" for number in range(2_999, -1, -1)]
    query.close()


def test_wrong_sizes_and_unknown_tokens_are_refused() -> None:
    query = query_of(filled("", 3), size_max=100)

    for size, text in (
        ("101", "size(101) exceeds the limit(100)"),
        ("-1", "invalid size"),
        ("x", "invalid size"),
    ):
        with pytest.raises(QueryError, match=r".*") as caught:
            query.page(size)
        assert caught.value.status == 400
        assert text in str(caught.value)
    with pytest.raises(QueryError) as caught:
        query.page("1", "no-such-token")
    assert caught.value.status == 409


def test_tokens_expire_after_ten_minutes_without_use() -> None:
    clock = FixedClock()
    query = query_of(filled("", 10), clock)
    _, token = names(query, "1")
    clock.now_s += 599
    names(query, "1", token)
    clock.now_s += 599
    names(query, "1", token)
    clock.now_s += 601

    with pytest.raises(QueryError):
        query.page("1", token)


def test_a_reader_too_many_closes_the_oldest_and_no_descriptor_leaks(tmp_path: Path) -> None:
    clock = FixedClock()
    query = query_of(filled(str(tmp_path), 10), clock, readers_max=2)
    before = len(os.listdir("/proc/self/fd"))
    tokens = []
    for _ in range(6):
        tokens.append(names(query, "1")[1])
        clock.now_s += 1

    with pytest.raises(QueryError):
        query.page("1", tokens[3])
    assert names(query, "1", tokens[4])[0] == ["pod-8"]
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    query.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_disk_that_fails_costs_events_but_no_exception(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = filled(str(tmp_path / "file"), 3_000, text="x" * 1_000)

    assert log.problem is not None
    assert log.dropped_count > 0
    assert audit.decode(next(log.newest_first())).name == "pod-2999"


async def test_events_are_served_as_lines_and_as_json(tmp_path: Path) -> None:
    application = web.Application()
    application.router.add_get("/events", http.audit_events(query_of(filled(str(tmp_path), 3))))
    async with TestClient(TestServer(application)) as client:
        lines = await client.get("/events?size=2")
        text = await lines.text()
        rest = await client.get(
            "/events", params={"size": "2", "pageToken": lines.headers["Next-Page-Token"]}
        )
        whole = await (await client.get("/events", headers={"Accept": "application/json"})).json()
        refused = await client.get("/events?size=99999")

        assert lines.content_type == "text/plain"
        assert [msgspec.json.decode(line)["name"] for line in text.splitlines()] == ["pod-2", "pod-1"]
        assert "Next-Page-Token" not in rest.headers
        assert whole["NextPageToken"] == ""
        assert len(whole["Events"]) == 3
        assert (refused.status, await refused.text()) == (400, "size(99999) exceeds the limit(2048)")
