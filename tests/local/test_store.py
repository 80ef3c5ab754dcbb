"""The store: versions, order, indexes, the past, and watches that cost the writer nothing."""

import asyncio
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord, RecordEvent
from koordinator.cluster.protocol import EventType
from koordinator.local.selectors import text_at
from koordinator.local.store import CHANNEL_MAX, ObjectStore, StoreWatch, Table


def obj(name: str, namespace: str = "shop", node: str = "", **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node}}


def put(table: Table, name: str, namespace: str = "shop", node: str = "", **labels: str) -> ObjectRecord:
    return table.put(namespace, name, obj(name, namespace, node, **labels))


def table(history_max: int = 100) -> Table:
    store = ObjectStore(history_max=history_max)
    return store.table("pods", {"spec.nodeName": text_at("spec.nodeName")})


def names(records: Any) -> list[str]:
    return [record.obj["metadata"]["name"] for record in records]


async def drained(watch: StoreWatch) -> list[RecordEvent]:
    """All events up to now."""
    events: list[RecordEvent] = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                events += await anext(watch)
        except TimeoutError:
            return events


def story(events: list[RecordEvent]) -> list[str]:
    return [f"{e.type.value} {e.record.obj['metadata']['name']}" for e in events if e.record]


def is_web(record: ObjectRecord) -> bool:
    return bool(record.obj["metadata"]["labels"].get("app") == "web")


def test_every_write_gets_the_next_version_of_one_counter_for_all_tables() -> None:
    store = ObjectStore()
    first = store.table("pods").put("shop", "a", obj("a"))
    second = store.table("nodes").put("", "n", obj("n", ""))
    gone = store.table("pods").remove("shop", "a")

    assert [first.version, second.version, gone.version] == [2, 3, 4]
    assert gone.obj["metadata"]["resourceVersion"] == "4"
    assert first.obj["metadata"]["resourceVersion"] == "2"


def test_objects_are_read_in_the_order_of_their_keys() -> None:
    pods = table()
    for namespace, name in [("b", "1"), ("a", "2"), ("b", "0"), ("a", "1")]:
        put(pods, name, namespace)
    pods.remove("a", "2")
    put(pods, "3", "a")

    keys = [(r.obj["metadata"]["namespace"], r.obj["metadata"]["name"]) for r in pods.records()]

    assert keys == [("a", "1"), ("a", "3"), ("b", "0"), ("b", "1")]
    assert names(pods.records("b")) == ["0", "1"]
    assert names(pods.records(after=("a", "1"))) == ["3", "0", "1"]


def test_an_index_follows_its_field() -> None:
    pods = table()
    put(pods, "a", node="n1")
    put(pods, "b", node="n1")
    put(pods, "a", node="n2")
    pods.remove("shop", "b")

    assert pods.indexed(("spec.nodeName", "n1")) == []
    assert names(pods.indexed(("spec.nodeName", "n2"))) == ["a"]
    assert pods.indexed(("spec.image", "x")) is None


def test_the_past_can_be_read_as_long_as_the_log_reaches_back() -> None:
    pods = table(history_max=4)
    put(pods, "a")
    then = put(pods, "b").version
    pods.remove("shop", "a")
    put(pods, "c")

    assert names(pods.records(version=then)) == ["a", "b"]
    for _ in range(10):
        put(pods, "c")
    with pytest.raises(KeyError):
        list(pods.records(version=then))


async def test_a_watch_resumes_after_a_version() -> None:
    pods = table()
    first = put(pods, "a")
    put(pods, "a")
    watch = pods.watch(first.version)
    put(pods, "b")
    pods.remove("shop", "a")

    assert story(await drained(watch)) == ["MODIFIED a", "ADDED b", "DELETED a"]


async def test_an_object_that_starts_or_stops_matching_comes_and_goes() -> None:
    pods = table()
    watch = pods.watch(1, matches=is_web)
    put(pods, "a")
    put(pods, "a", app="web")
    put(pods, "a", app="web", tier="x")
    last = put(pods, "a", app="api")

    events = await drained(watch)

    assert story(events) == ["ADDED a", "MODIFIED a", "DELETED a"]
    gone = events[-1].record
    assert gone is not None
    assert gone.obj["metadata"]["labels"] == {"app": "web", "tier": "x"}
    assert gone.obj["metadata"]["resourceVersion"] == str(last.version)


async def test_a_watch_of_one_index_value_sees_objects_come_and_go() -> None:
    pods = table()

    def on_n1(record: ObjectRecord) -> bool:
        return bool(record.obj["spec"]["nodeName"] == "n1")

    watch = pods.watch(1, matches=on_n1, index=("spec.nodeName", "n1"))
    put(pods, "a")
    put(pods, "a", node="n1")
    put(pods, "other", node="n2")
    put(pods, "a", node="n2")

    assert story(await drained(watch)) == ["ADDED a", "DELETED a"]


async def test_a_watch_of_an_index_value_survives_any_number_of_other_changes() -> None:
    pods = table(history_max=10)
    watch = pods.watch(1, matches=lambda r: r.obj["spec"]["nodeName"] == "n1", index=("spec.nodeName", "n1"))
    for _ in range(500):
        put(pods, "other", node="n2")
    put(pods, "mine", node="n1")

    assert story(await drained(watch)) == ["ADDED mine"]


async def test_a_watch_that_falls_behind_is_cut_off_and_the_others_are_not() -> None:
    pods = table(history_max=10)
    slow, quick = pods.watch(1), pods.watch(1)
    seen = 0
    for _ in range(100):
        put(pods, "a")
        seen += len(await anext(quick))

    with pytest.raises(errors.Gone, match="too old resource version"):
        await anext(slow)
    with pytest.raises(StopAsyncIteration):
        await anext(slow)
    assert seen == 100


async def test_what_a_slow_watch_costs_is_bounded() -> None:
    pods = table(history_max=10)
    watch = pods.watch(1, matches=is_web, index=("metadata.name", "a"))
    for _ in range(5 * CHANNEL_MAX):
        put(pods, "a", app="web")

    with pytest.raises(errors.Gone):
        await anext(watch)


def test_a_version_that_is_no_longer_kept_is_gone() -> None:
    pods = table(history_max=2)
    for _ in range(10):
        put(pods, "a")

    with pytest.raises(errors.Gone, match=r"too old resource version: 3 \(\d+\)"):
        pods.watch(3)


async def test_changes_of_one_loop_iteration_arrive_as_one_batch() -> None:
    pods = table()
    watch = pods.watch(1)
    reader = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    for name in "abc":
        put(pods, name)

    assert story(list(await reader)) == ["ADDED a", "ADDED b", "ADDED c"]


async def test_closing_a_watch_wakes_its_reader() -> None:
    watch = table().watch(1)
    reader = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    watch.close()

    with pytest.raises(StopAsyncIteration):
        await reader


async def test_a_cancelled_reader_loses_nothing() -> None:
    pods = table()
    watch = pods.watch(1)
    reader = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    reader.cancel()
    put(pods, "a")

    assert story(list(await anext(watch))) == ["ADDED a"]


async def test_an_idle_watch_is_told_how_far_it_is() -> None:
    pods = table()
    watch = pods.watch(1, matches=is_web, bookmark_s=0.01)
    last = put(pods, "a")

    (event,) = await anext(watch)

    assert (event.type, event.record, event.version) == (EventType.BOOKMARK, None, last.version)


async def test_the_watches_of_a_dropped_table_end() -> None:
    pods = table()
    watch = pods.watch(1)
    pods.close()

    with pytest.raises(StopAsyncIteration):
        await anext(watch)


Step = tuple[str, str, str]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), st.sampled_from("abcd"), st.sampled_from(["web", "api"])),
    max_size=40,
)


def play(pods: Table, steps: list[Step]) -> list[dict[str, str]]:
    """Carry the steps out; the label of each object after each version."""
    states: list[dict[str, str]] = [{}]
    for action, name, app in steps:
        if action == "put":
            put(pods, name, app=app)
        elif pods.get("shop", name) is not None:
            pods.remove("shop", name)
        else:
            continue
        states.append({n: r.obj["metadata"]["labels"]["app"] for r in pods.records() for n in names([r])})
    return states


@given(steps=STEPS, start=st.integers(0, 40), selects=st.booleans())
def test_events_from_any_version_lead_to_the_same_state(steps: list[Step], start: int, selects: bool) -> None:
    pods = table()
    states = play(pods, steps)
    start = min(start, len(states) - 1)
    chosen = [{n: a for n, a in state.items() if a == "web" or not selects} for state in states]

    async def apply() -> dict[str, str]:
        state = dict(chosen[start])
        watch = pods.watch(1 + start, matches=is_web if selects else None)
        put(pods, "end", app="web")  # so that there is always something to read
        while "end" not in state:
            for event in await anext(watch):
                assert event.record is not None
                name = event.record.obj["metadata"]["name"]
                # An event of the wrong kind would add what is there or change what is not.
                assert (name in state) == (event.type is not EventType.ADDED), (event, state)
                if event.type is EventType.DELETED:
                    del state[name]
                else:
                    state[name] = event.record.obj["metadata"]["labels"]["app"]
        return state

    assert asyncio.run(apply()) == {**chosen[-1], "end": "web"}


@given(steps=STEPS, at=st.integers(0, 40))
def test_the_state_of_any_kept_version_can_be_read(steps: list[Step], at: int) -> None:
    pods = table()
    states = play(pods, steps)
    at = min(at, len(states) - 1)

    then = {
        r.obj["metadata"]["name"]: r.obj["metadata"]["labels"]["app"] for r in pods.records(version=1 + at)
    }

    assert then == states[at]


def test_objects_that_come_and_go_leave_nothing_behind_although_nobody_lists() -> None:
    pods = table()

    def churn(first: int, count: int) -> None:
        for number in range(first, first + count):
            put(pods, f"pod-{number}")
            pods.remove("shop", f"pod-{number}")

    churn(0, 5_000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        churn(5_000, 20_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 500_000
