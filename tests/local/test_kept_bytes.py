"""What the store keeps of the past is bounded by bytes, and kept as text; what clients see is the same."""

import asyncio
import sys
from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors, garbage
from koordinator.cluster.backend import ListOptions, ObjectRecord, PackedRecord
from koordinator.local import change_log, registry
from koordinator.local.registry import ObjectRegistry, kinds
from koordinator.local.registry.kinds import EVENTS_MAX
from koordinator.local.store import PAST_S, SETTLE_S, ObjectStore, Table
from tests.local.registry_builders import create


def event(name: str, about: str = "web", message: str = "said") -> dict[str, Any]:
    meta = {"name": name, "namespace": "default"}
    return {
        "metadata": meta,
        "involvedObject": {"name": about},
        "message": message,
        "reason": "R",
        "type": "Normal",
    }


def filled(table: Table, count: int, text: str = "x" * 100) -> None:
    for number in range(count):
        table.put(
            "ns", f"o{number % 50}", {"metadata": {"name": f"o{number % 50}"}, "n": number, "text": text}
        )


def test_a_packed_record_is_what_it_was() -> None:
    record = ObjectRecord({"metadata": {"name": "a"}, "text": "ü"}, 7)
    packed = PackedRecord(record)

    assert (packed.obj, packed.version, packed.json()) == (record.obj, 7, record.json())
    assert packed.obj is not packed.obj  # nobody keeps the object alive
    packed.obj["text"] = "changed"
    assert packed.obj["text"] == "ü"


def test_old_changes_are_kept_as_text_and_replayed_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "RECENT", 10)
    seen: dict[bool, list[Any]] = {}
    for packs in (False, True):
        store = ObjectStore(packs=packs)
        table = store.table("t")
        filled(table, 200)
        table.remove("ns", "o3")
        watch = table.watch(50)
        seen[packs] = [(e.type, e.version, e.record and e.record.obj) for e in watch._take()]
        kinds = [type(change.new) for change in table._history._changes if change.new is not None]
        assert kinds.count(PackedRecord) == (191 if packs else 0)

    assert seen[True] == seen[False]
    assert len(seen[True]) == 152


def test_a_list_at_an_earlier_version_reads_packed_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "RECENT", 5)
    table = ObjectStore().table("t")
    filled(table, 60)
    was = {record.obj["metadata"]["name"]: record.obj["n"] for record in table.records(version=31)}

    assert was == {f"o{number}": number for number in range(30)}


def packed_bytes(table: Table) -> int:
    return sum(change.bytes for channel in table.channels() for change in channel._changes[: channel._packed])


def test_history_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "RECENT", 10)
    monkeypatch.setattr(change_log, "BYTES_PER_OBJECT", 0)
    monkeypatch.setattr(change_log, "BYTES_LEAST", 50_000)
    store = ObjectStore()
    table = store.table("t")
    filled(table, 2_000, "x" * 1_000)

    channel = table._history
    assert store.past is not None
    assert 0 < packed_bytes(table) == store.past.bytes <= 50_000
    assert channel.base + len(channel._changes) == 2_000
    with pytest.raises(errors.Gone, match="too old resource version: 3"):
        table.watch(3)
    table.watch(channel.floor)


def test_the_bound_is_one_for_all_tables_and_the_busiest_forgets_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_log, "RECENT", 10)
    monkeypatch.setattr(change_log, "BYTES_PER_OBJECT", 0)
    monkeypatch.setattr(change_log, "BYTES_LEAST", 100_000)
    store = ObjectStore()
    quiet, busy = store.table("quiet"), [store.table(f"busy-{number}") for number in range(5)]
    filled(quiet, 20)
    with_version = store.version
    watches = [table.watch(store.version, index=("metadata.namespace", "ns")) for table in busy]
    for _ in range(10):
        for table in busy:
            filled(table, 50, "x" * 1_000)

    assert store.past is not None
    assert 50_000 < sum(map(packed_bytes, (quiet, *busy))) == store.past.bytes <= 100_000
    quiet.watch(with_version - 20)
    for table in busy:
        with pytest.raises(errors.Gone):
            table.watch(with_version)

    for watch in watches:
        watch.close()
    assert store.past.bytes == sum(map(packed_bytes, (quiet, *busy))), (
        "what nobody watches any more counts no more"
    )


def test_what_changed_last_is_kept_as_text_too_when_it_has_been_read() -> None:
    store = ObjectStore()
    table = store.table("t")
    filled(table, 20)
    watch = table.watch(1)
    store.settle()
    assert packed_bytes(table) == 0, "watchers may still have to read it"
    filled(table, 5)
    store.settle()

    changes = table._history._changes
    assert [type(change.new) for change in changes] == [PackedRecord] * 20 + [ObjectRecord] * 5
    events = [*watch._take(), *watch._take()]
    assert [event.record and event.record.obj["n"] for event in events] == [*range(20), *range(5)]
    store.settle()
    assert table._history._packed == 25


def test_more_objects_have_a_longer_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "RECENT", 10)
    monkeypatch.setattr(change_log, "BYTES_LEAST", 50_000)
    store = ObjectStore()
    busy, many = store.table("busy"), store.table("many")
    filled(busy, 500, "x" * 1_000)
    assert packed_bytes(busy) <= 50_000 + 50 * change_log.BYTES_PER_OBJECT

    for number in range(500):
        many.put("ns", f"m{number}", {"metadata": {"name": f"m{number}"}})
    filled(busy, 500, "x" * 1_000)
    assert packed_bytes(busy) > 50_000 + 50 * change_log.BYTES_PER_OBJECT
    for number in range(500):
        many.remove("ns", f"m{number}")
    for number in range(50):
        busy.remove("ns", f"o{number}")
    assert store.past is not None
    assert store.past.objects == 0


def test_the_past_ends_after_five_minutes() -> None:
    store = ObjectStore()
    table = store.table("t")
    filled(table, 20)
    then, calls = store.version, int(PAST_S / SETTLE_S)
    for _ in range(calls):
        store.settle()
    table.watch(then - 5)
    store.settle()

    table.watch(then)
    with pytest.raises(errors.Gone):
        table.watch(then - 5)
    assert store.past is not None
    assert (store.past.bytes, len(store._settled)) == (0, calls)


async def kept_events(api: ObjectRegistry) -> list[str]:
    events = api.resolve("", "v1", "events")
    return [record.obj["metadata"]["name"] for record in api.list(events, "default", ListOptions()).records]


async def test_the_newest_events_stay_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordinator.local.registry.kinds.EVENTS_MAX", 20)
    api = registry.in_memory(FixedClock())
    for number in range(50):
        await create(api, "events", event(f"e{number:02d}"), "default")

    assert await kept_events(api) == [f"e{number:02d}" for number in range(30, 50)]


async def test_an_event_that_is_written_again_is_young_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordinator.local.registry.kinds.EVENTS_MAX", 3)
    api = registry.in_memory(FixedClock())
    events = api.resolve("", "v1", "events")
    for name in ("a", "b", "c"):
        await create(api, "events", event(name), "default")
    await api.update(events, "default", "a", event("a", message="again"))
    await create(api, "events", event("d"), "default")

    assert await kept_events(api) == ["a", "c", "d"]
    assert EVENTS_MAX == 10_000


async def test_events_are_bounded_by_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordinator.local.registry.kinds.EVENTS_BYTES_MAX", 20_000)
    api = registry.in_memory(FixedClock())
    events, table = api.resolve("", "v1", "events"), api.store.table("events")
    for number in range(50):
        await create(api, "events", event(f"e{number:02d}", message="m" * 1_000), "default")
    await api.update(events, "default", "e49", event("e49", message="short"))
    await api.delete(events, "default", "e48")

    names = await kept_events(api)
    assert 10 < len(names) < 20
    assert names == [f"e{number:02d}" for number in range(50 - len(names) - 1, 50) if number != 48]
    assert table.text_bytes == sum(len(record.json()) for record in table.records()) <= 20_000


async def test_events_that_others_delete_or_write_often_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kinds, "GONE_SPARE", 10)
    api = registry.in_memory(FixedClock())
    events, table = api.resolve("", "v1", "events"), api.store.table("events")
    for number in range(100):
        await create(api, "events", event(f"e{number}"), "default")
        await api.delete(events, "default", f"e{number}")
    await create(api, "events", event("often"), "default")
    for number in range(100):
        await api.update(events, "default", "often", event("often", message=f"for the {number}th time"))

    kind, _ = api.kinds.find("", "v1", "events")
    assert kind.expiry is not None
    assert len(kind.expiry._writes) <= 2 * len(table) + 10


async def test_events_of_one_object_are_found_without_reading_all() -> None:
    api = registry.in_memory(FixedClock())
    for number in range(40):
        await create(api, "events", event(f"e{number}", about=f"pod-{number % 4}"), "default")
    events = api.resolve("", "v1", "events")
    found = api.list(events, "default", ListOptions(field_selector="involvedObject.name=pod-3"))

    assert len(found.records) == 10
    assert all(record.obj["involvedObject"]["name"] == "pod-3" for record in found.records)


async def test_a_stored_event_takes_little_more_than_its_text() -> None:
    api = registry.in_memory(FixedClock())
    await create(api, "events", event("e", message="m" * 500), "default")
    record = api.store.table("events").get("default", "e")

    assert isinstance(record, PackedRecord)
    assert sys.getsizeof(record) + sys.getsizeof(record.json()) < 1_500


class Memory:
    """A process that holds some of its memory, and keeps what was freed until it is trimmed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held, self.freed, self.collections = 100, 0, 0
        monkeypatch.setattr(garbage, "GIVE_BACK_S", 0.005)
        monkeypatch.setattr(garbage, "resident_bytes", lambda: self.held + self.freed)
        monkeypatch.setattr(garbage, "_busy_s", lambda: 0.0)
        monkeypatch.setattr(garbage, "_trim", lambda: setattr(self, "freed", 0))
        monkeypatch.setattr(garbage.gc, "collect", self._collect)

    def _collect(self) -> None:
        self.collections += 1


async def test_memory_is_given_back_when_little_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch)
    task = asyncio.create_task(garbage.giving_back())
    await asyncio.sleep(0.02)
    assert memory.collections == 0, "nothing has grown"

    memory.held, memory.freed = 150, 50
    await asyncio.sleep(0.05)
    assert (memory.freed, memory.collections) == (0, 1)

    # What is freed after a look at the peak is no growth, and goes back all the same.
    memory.held, memory.freed = 100, 50
    await asyncio.sleep(0.05)
    assert (memory.freed, memory.collections) == (0, 1)
    task.cancel()


async def test_memory_is_not_looked_at_while_much_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "GIVE_BACK_S", 0.01)
    sizes, busy = iter(range(100, 10_000, 50)), iter(range(10_000))
    monkeypatch.setattr(garbage, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(garbage, "_busy_s", lambda: float(next(busy)))
    monkeypatch.setattr(garbage, "_trim", lambda: pytest.fail("work goes first"))
    task = asyncio.create_task(garbage.giving_back())
    await asyncio.sleep(0.1)
    task.cancel()
