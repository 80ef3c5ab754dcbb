"""The versioned object store: what etcd and the watch cache are to an API server.

Every write gets the next resourceVersion of one counter. Objects are immutable: a write stores a new
`ObjectRecord` and appends a `LoggedWrite` to the log of its table. Watches do not have buffers of their own: each is a
position in a log that all share, so a write costs the same with one watcher or a thousand, and a watcher that
falls behind the end of the log is cut off (`Gone`) without having cost anything.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord, PackedRecord, RecordEvent
from koordinator.cluster.protocol import EventType
from koordinator.local.change_log import Channel, Key, LoggedWrite, Matches, WatchWindow

IndexKey = tuple[str, str]
"""Name of an index (a field path) and the value looked for."""

HISTORY_MAX = 16_384
"""Changes kept per table: more than a minute of heartbeats of 5,000 nodes at 200/s."""

CHANNEL_MAX = 2_048
"""Changes kept for watchers of one index value (the pods of one node): far fewer happen there."""

SETTLE_S = 2.0
"""For watchers to read a change before it is kept as text."""

PAST_S = 300.0
"""Longest time that changes are kept, as the API server lets etcd keep them."""

BATCH_MAX = 1_024
"""Changes handed to a watcher at once, so that encoding a batch does not hold the loop for long."""

ADDED_SPARE = 1_024
"""Keys of new objects kept beyond half the number of objects before those of deleted ones are dropped."""


class Journal(Protocol):
    """Keeps changes beyond the life of the process (`local.persistence`)."""

    def record(
        self, table: str, namespace: str, name: str, version: int, record: ObjectRecord | None
    ) -> None:
        """Remember a change (`record` None: the object is gone); becomes durable with the next commit.

        Raises: InternalError when the object cannot be kept; nothing is remembered then.
        """

    async def committed(self) -> None:
        """Return when everything recorded so far is on disk. Raises: InternalError when it cannot be."""

    async def close(self) -> None:
        """Save what is left, and end."""


class Table:
    """All objects of one kind, in the order of their keys when read as a whole.

    `indexes` maps the name of an index to the function that takes an object's value out of it; an object is
    found by such a value without a scan, and a watch of one value is woken for nothing else. With `packed` objects
    are kept as text: many that are rarely read.
    """

    def __init__(
        self,
        store: "ObjectStore",
        name: str,
        indexes: dict[str, Callable[[dict[str, Any]], str]],
        history_max: int,
        *,
        packed: bool,
    ) -> None:
        self.name = name
        self._store = store
        self._spaces: dict[str, dict[str, ObjectRecord]] = {}
        self._count = 0
        self._order: list[Key] = []
        self._added: list[Key] = []
        self._has_removed = False
        self._getters = indexes
        self._indexed: dict[IndexKey, dict[Key, ObjectRecord]] = {}
        self._packed = packed and store.packs
        self.text_bytes = 0
        """Size of the objects that are kept as text."""
        self._history = Channel(store.version, history_max, store.past)
        self._channels: dict[IndexKey, Channel] = {}

    def __len__(self) -> int:
        return self._count

    def get(self, namespace: str, name: str) -> ObjectRecord | None:
        space = self._spaces.get(namespace)
        return None if space is None else space.get(name)

    def put(self, namespace: str, name: str, obj: dict[str, Any]) -> ObjectRecord:
        """Create or replace an object. `obj` and its `metadata` dictionary become the store's."""
        store = self._store
        store.version = version = store.version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        record = ObjectRecord(obj, version)
        if store.journal is not None:  # first: what it does not take is not there at all
            store.journal.record(self.name, namespace, name, version, record)
        old = self._place((namespace, name), record)
        self._publish(LoggedWrite(version, (namespace, name), old, record))
        return record

    def remove(self, namespace: str, name: str) -> ObjectRecord:
        """Delete an object that is there; returns its last state at the version of the deletion."""
        store = self._store
        old = self._spaces[namespace][name]
        store.version = version = store.version + 1
        if store.journal is not None:
            store.journal.record(self.name, namespace, name, version, None)
        del self._spaces[namespace][name]
        self._counted(-1)
        if self._packed:
            self.text_bytes -= len(old.json())
        self._has_removed = True
        if self._getters:
            self._reindex((namespace, name), old, None)
        change = LoggedWrite(version, (namespace, name), old, None)
        self._publish(change)
        record = change.left().record
        assert record is not None
        return record

    def load(self, namespace: str, name: str, record: ObjectRecord) -> None:
        """Put an object back that was stored before this process started; no event is sent."""
        self._place((namespace, name), record)

    def _place(self, key: Key, record: ObjectRecord) -> ObjectRecord | None:
        namespace, name = key
        if self._packed:
            record = PackedRecord(record)
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = {}
        old = space.get(name)
        space[name] = record
        if self._packed:
            self.text_bytes += len(record.json()) - (0 if old is None else len(old.json()))
        if old is None:
            self._counted(1)
            self._added.append(key)
            if len(self._added) > self._count // 2 + ADDED_SPARE:
                self._keys_in_order()  # nobody reads the table as a whole: keys of what is gone would pile up
        if self._getters:
            self._reindex(key, old, record)
        return old

    def _counted(self, more: int) -> None:
        self._count += more
        if self._store.past is not None and not self._packed:
            self._store.past.objects += more

    def _reindex(self, key: Key, old: ObjectRecord | None, new: ObjectRecord | None) -> None:
        for index, getter in self._getters.items():
            if old is not None:
                was = (index, getter(old.obj))
                bucket = self._indexed[was]
                if new is not None and getter(new.obj) == was[1]:
                    bucket[key] = new
                    continue
                del bucket[key]
                if not bucket:
                    del self._indexed[was]
            if new is not None:
                self._indexed.setdefault((index, getter(new.obj)), {})[key] = new

    def _publish(self, change: LoggedWrite) -> None:
        self._history.append(change)
        if self._channels:
            self._publish_by_index(change)

    def _publish_by_index(self, change: LoggedWrite) -> None:
        keys = {("metadata.namespace", change.namespace): None, ("metadata.name", change.name): None}
        for index, getter in self._getters.items():
            for record in (change.old, change.new):
                if record is not None:
                    keys[(index, getter(record.obj))] = None
        for key in keys:
            channel = self._channels.get(key)
            if channel is not None:
                channel.append(change)

    # Reading the whole table

    def indexed(self, key: IndexKey) -> list[ObjectRecord] | None:
        """Return the objects with one value of an index, in key order; None when there is no such index."""
        if key[0] not in self._getters:
            return None
        return [record for _, record in sorted(self._indexed.get(key, {}).items(), key=_key_of)]

    def in_namespace(self, namespace: str) -> Iterator[ObjectRecord]:
        """Return the objects of one namespace (not ordered); safe against writes while iterating."""
        return iter(list(self._spaces.get(namespace, {}).values()))

    def records(
        self, namespace: str = "", after: Key | None = None, version: int = 0
    ) -> Iterator[ObjectRecord]:
        """Objects in key order, behind the key `after`; as of an earlier `version` when one is given.

        Raises: KeyError when the log no longer reaches back to `version`.
        """
        was = self._undone(version) if version and version < self._store.version else {}
        order = self._keys_in_order()
        gone = [key for key in was if key[1] not in self._spaces.get(key[0], ())]
        if gone:
            order = sorted([*order, *gone])
        start = 0 if after is None else bisect_right(order, after)
        if namespace and after is None:
            start = bisect_right(order, (namespace, ""))
        for i in range(start, len(order)):
            key = order[i]
            if namespace and key[0] != namespace:
                if key[0] > namespace:
                    return
                continue
            found = was[key] if key in was else self._spaces[key[0]].get(key[1])
            if found is not None:
                yield found

    def _keys_in_order(self) -> list[Key]:
        # Sorting is nearly free here: the list is in order but for the keys added since the last read.
        if self._has_removed:
            kept = (key for key in {*self._order, *self._added} if key[1] in self._spaces[key[0]])
            self._order = sorted(kept)
        elif self._added:
            self._order = sorted([*self._order, *self._added])
        self._added = []
        self._has_removed = False
        return self._order

    def _undone(self, version: int) -> dict[Key, ObjectRecord | None]:
        """State as of `version` of the objects that changed since."""
        if version < self._history.floor:
            raise KeyError(version)
        was: dict[Key, ObjectRecord | None] = {}
        for change in self._history.backwards():
            if change.version <= version:
                break
            was[(change.namespace, change.name)] = change.old
        return was

    # Following

    @property
    def position(self) -> int:
        """Return how many changes there were so far: equal means that nothing changed in between."""
        return self._history.end

    def changes_since(self, position: int) -> Sequence[LoggedWrite] | None:
        """Return the changes after a position, in order; None when the log no longer reaches back to it."""
        return None if position < self._history.base else self._history.since(position)

    # Watching

    def watch(
        self,
        version: int,
        *,
        matches: Matches | None = None,
        index: IndexKey | None = None,
        first: Sequence[RecordEvent] = (),
        bookmark_s: float | None = None,
    ) -> "StoreWatch":
        """Changes after `version`, preceded by the events in `first`.

        `index` may name an index value, `metadata.namespace` or `metadata.name` that every matching object
        has (all changes of such objects reach the watch); `matches` is still asked.
        Raises: Gone when the log no longer reaches back to `version`.
        """
        if version < self._history.floor:
            raise too_old(version, self._history.floor)
        replay = self._history.since(self._history.after(version))
        seen = [change.event() if matches is None else change.seen_by(matches) for change in replay]
        pending = [*first, *(event for event in seen if event is not None)]
        channel = self._history if index is None else self._channel(index)
        return StoreWatch(self._store, channel, matches, pending, bookmark_s, lambda: self._release(index))

    def _channel(self, index: IndexKey) -> Channel:
        channel = self._channels.get(index)
        if channel is None:
            channel = self._channels[index] = Channel(self._store.version, CHANNEL_MAX, self._store.past)
        channel.subscriptions += 1
        return channel

    def close(self) -> None:
        """End all watches."""
        for channel in self.channels():
            channel.close()

    def channels(self) -> tuple[Channel, ...]:
        """Return the logs of the table."""
        return (self._history, *self._channels.values())

    def _release(self, index: IndexKey | None) -> None:
        if index is None:
            return
        channel = self._channels[index]
        channel.subscriptions -= 1
        if not channel.subscriptions:
            del self._channels[index]
            channel.forget()


def _key_of(item: tuple[Key, ObjectRecord]) -> Key:
    return item[0]


def too_old(version: int, oldest: int) -> errors.Gone:
    """Return the API server's answer to a version that is no longer kept."""
    return errors.Gone(f"too old resource version: {version} ({oldest})")


class StoreWatch:
    """An open watch: iterating yields batches of events (`backend.Subscription`).

    Closing it, or being cut off, ends it for good. The position moves only when the subscriber reads.
    """

    def __init__(
        self,
        store: "ObjectStore",
        channel: Channel,
        matches: Matches | None,
        pending: list[RecordEvent],
        bookmark_s: float | None,
        release: Callable[[], None],
    ) -> None:
        self._store = store
        self._channel = channel
        self._matches = matches
        self._pending = pending
        self._position = channel.end
        self._version = store.version  # everything up to here was delivered or is pending
        self._bookmark_s = bookmark_s
        self._bookmark_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._release: Callable[[], None] | None = release
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> "StoreWatch":
        return self

    async def __anext__(self) -> Sequence[RecordEvent]:
        while self._release is not None:
            batch = self._take()
            if batch:
                return batch
            if self._channel.is_closed:
                self.close()
            else:
                await self._wait()
        raise StopAsyncIteration

    def close(self) -> None:
        """End the watch; a reader that waits is woken and sees the end."""
        if self._release is None:
            return
        self._release()
        self._release = None
        self._pending = []
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> Sequence[RecordEvent]:
        if self._pending:
            batch, self._pending = self._pending[:BATCH_MAX], self._pending[BATCH_MAX:]
            return batch
        channel = self._channel
        if self._position < channel.base:
            self.close()
            raise too_old(self._version, channel.floor)
        changes = channel.since(self._position, BATCH_MAX)
        self._position += len(changes)
        if changes:
            self._version = changes[-1].version
        matches = self._matches
        if matches is None:
            batch = [change.event() for change in changes]
        else:
            batch = [event for change in changes if (event := change.seen_by(matches)) is not None]
        if self._bookmark_due and self._position == channel.end:
            self._bookmark_due = False
            self._version = self._store.version
            batch.append(RecordEvent(EventType.BOOKMARK, None, self._version))
        return batch

    async def _wait(self) -> None:
        if self._position < self._channel.end:
            return  # a batch in which nothing matched: go on with the next
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        if self._bookmark_s is not None and self._timer is None:
            self._timer = loop.call_later(self._bookmark_s, self._ring)
        waiters = self._channel.waiters
        waiters[self._waiter] = None
        try:
            await self._waiter
        finally:
            waiters.pop(self._waiter, None)
            self._waiter = None

    def _ring(self) -> None:
        self._timer = None
        self._bookmark_due = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ObjectStore:
    """Tables that share one version counter.

    `version` is the resourceVersion of the last write. `journal`, when given, learns of every change. `packs`: what is
    rarely read is kept as text, which costs a write some microseconds and saves nine tenths of its memory.
    """

    def __init__(
        self,
        version: int = 1,
        journal: Journal | None = None,
        history_max: int = HISTORY_MAX,
        *,
        packs: bool = True,
    ) -> None:
        assert version > 0, version  # 0 means "any version" in the protocol
        self.version = version
        self.journal = journal
        self.packs = packs
        self.past = WatchWindow() if packs else None
        self._history_max = history_max
        self._settled: deque[int] = deque()  # versions at the last calls of `settle`
        self._tables: dict[str, Table] = {}

    def table(
        self,
        name: str,
        indexes: dict[str, Callable[[dict[str, Any]], str]] | None = None,
        *,
        packed: bool = False,
    ) -> Table:
        """Return the table of that name, made on first use; `indexes` and `packed` count on first use only."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = Table(self, name, indexes or {}, self._history_max, packed=packed)
        return table

    def settle(self) -> None:
        """Keep as text what changed before the last call, and forget what is older than `PAST_S`; to be called every
        `SETTLE_S`."""
        self._settled.append(self.version)
        is_full = len(self._settled) > PAST_S / SETTLE_S
        too_old = self._settled.popleft() if is_full else 0
        for table in self._tables.values():
            for channel in table.channels():
                channel.settle()
                channel.drop_until(too_old)

    def drop(self, name: str) -> None:
        """Forget an empty table (its CustomResourceDefinition is gone) and end its watches."""
        table = self._tables.pop(name, None)
        if table is not None:
            assert not len(table), name
            table.close()
