"""Log the changes of a table in the order of their versions, in bounded logs that all watches share."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator

from koordinator.cluster.backend import ObjectRecord, PackedRecord, RecordEvent
from koordinator.cluster.protocol import EventType

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

Matches = Callable[[ObjectRecord], bool]

RECENT = 512
"""Changes kept as they are: nearly all watchers read those only. Older ones are kept as text."""
BYTES_LEAST, BYTES_PER_OBJECT = 2 << 20, 2_000
"""Memory of older changes in all logs of a store: 1,200 changes of pods, and as many more as there are objects."""
CHANGE_BYTES = 400
"""Memory of a change beside its text."""


class LoggedWrite:
    """One write: the object before and after (None: was not, is not there)."""

    __slots__ = ("_event", "_left", "name", "namespace", "new", "old", "version")

    def __init__(self, version: int, key: Key, old: ObjectRecord | None, new: ObjectRecord | None) -> None:
        self.version = version
        self.namespace, self.name = key
        self.old = old
        self.new = new
        self._event: RecordEvent | None = None
        self._left: RecordEvent | None = None

    def pack(self) -> int:
        """Keep only the text of both states; returns `bytes`."""
        self._event = self._left = None
        if self.old is not None and type(self.old) is ObjectRecord:
            self.old = PackedRecord(self.old)
        if self.new is not None and type(self.new) is ObjectRecord:
            self.new = PackedRecord(self.new)
        return self.bytes

    @property
    def bytes(self) -> int:
        """Return the bytes that this change alone holds: the state before is the state after an earlier one."""
        kept = self.new if self.new is not None else self.old
        return CHANGE_BYTES + (0 if kept is None else len(kept.json()))

    def event(self) -> RecordEvent:
        """Return what a watcher without a selector sees; made once for all of them."""
        if self._event is None:
            if self.new is None:
                self._event = self.left()
            else:
                kind = EventType.ADDED if self.old is None else EventType.MODIFIED
                self._event = RecordEvent(kind, self.new, self.version)
        return self._event

    def left(self) -> RecordEvent:
        """DELETED with the last matching state at this change's version; made once."""
        if self._left is None:
            assert self.old is not None, (self.version, self.name)
            self._left = RecordEvent(EventType.DELETED, at_version(self.old, self.version), self.version)
        return self._left

    def seen_by(self, matches: Matches) -> RecordEvent | None:
        """Return what a watcher with a selector sees: an object that starts or stops matching comes or goes."""
        is_in = self.new is not None and matches(self.new)
        was_in = self.old is not None and matches(self.old)
        if is_in and was_in:
            return self.event()
        if is_in:
            return self.event() if self.old is None else RecordEvent(EventType.ADDED, self.new, self.version)
        return self.left() if was_in else None


def at_version(record: ObjectRecord, version: int) -> ObjectRecord:
    """Return the same object under another resourceVersion."""
    meta = {**record.obj["metadata"], "resourceVersion": str(version)}
    return ObjectRecord({**record.obj, "metadata": meta}, version)


class WatchWindow:
    """The text that the logs of a store keep, bounded in all: where one thing changes much, others keep their past."""

    def __init__(self) -> None:
        self.bytes = 0
        self.objects = 0
        """Number of objects; those that are kept as text anyway are not counted."""
        self._bytes_of: dict[Channel, int] = {}

    def grew(self, channel: "Channel", count: int) -> None:
        """Count a change of so many bytes that a log packed (or dropped: below 0); the largest ones forget their oldest
        while it is too much."""
        self._bytes_of[channel] = self._bytes_of.get(channel, 0) + count
        self.bytes += count
        while self.bytes > BYTES_LEAST + BYTES_PER_OBJECT * self.objects:
            max(self._bytes_of, key=self._bytes_of.__getitem__).drop_oldest()

    def ended(self, channel: "Channel") -> None:
        """Note that a log is kept no more."""
        self.bytes -= self._bytes_of.pop(channel, 0)


class Channel:
    """A log of changes, bounded by number and (with a `past`, where older ones are kept as text) bytes, with the
    watchers that wait for more."""

    __slots__ = (
        "_changes",
        "_max",
        "_packed",
        "_past",
        "_settled",
        "base",
        "floor",
        "is_closed",
        "subscriptions",
        "waiters",
    )

    def __init__(self, floor: int, changes_max: int, past: WatchWindow | None = None) -> None:
        self.base = 0  # position of _changes[0] since the beginning of time
        self.floor = floor  # all changes after this version are in the log
        self.subscriptions = 0
        self.is_closed = False
        self._changes: list[LoggedWrite] = []
        self._max = changes_max
        self._past = past
        self._packed = 0  # how many at the beginning are kept as text
        self._settled = 0  # position of the end when `settle` looked last
        self.waiters: dict[asyncio.Future[None], None] = {}
        """Futures that the next change resolves; a dict, which wakes in the order of arrival."""

    @property
    def end(self) -> int:
        return self.base + len(self._changes)

    def append(self, change: LoggedWrite) -> None:
        changes = self._changes
        changes.append(change)
        if self._past is not None and len(changes) - self._packed > RECENT:
            self._pack(self._past)
        if len(changes) > 2 * self._max:  # drop half at once: constant cost per change
            self._drop(self._max)
        if self.waiters:
            self._wake()

    def settle(self) -> None:
        """Keep as text what was there at the last call already: whoever watches has read it."""
        past, end = self._past, self.end
        while past is not None and self.base + self._packed < self._settled:
            self._pack(past)
        self._settled = end

    def _pack(self, past: WatchWindow) -> None:
        packed = self._changes[self._packed].pack()
        self._packed += 1
        past.grew(self, packed)

    def drop_oldest(self) -> None:
        """Forget half of what is kept as text."""
        self._drop((self._packed + 1) // 2)

    def drop_until(self, version: int) -> None:
        """Forget the changes up to a version."""
        if count := bisect_right(self._changes, version, key=_version_of):
            self._drop(count)

    def _drop(self, count: int) -> None:
        """Forget the oldest changes."""
        changes = self._changes
        self.floor = changes[count - 1].version
        self.base += count
        packed, self._packed = changes[: min(count, self._packed)], max(0, self._packed - count)
        del changes[:count]
        if self._past is not None:
            self._past.grew(self, -sum(change.bytes for change in packed))

    def close(self) -> None:
        """Nothing will change any more: watches end after what is left."""
        self.is_closed = True
        self.forget()
        self._wake()

    def forget(self) -> None:
        """Nobody will ask for the past any more."""
        if self._past is not None:
            self._past.ended(self)

    def _wake(self) -> None:
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def after(self, version: int) -> int:
        """Position of the first change after a version that is not below `floor`."""
        return self.base + bisect_right(self._changes, version, key=_version_of)

    def since(self, position: int, count_max: int | None = None) -> list[LoggedWrite]:
        """Changes from a position that is not below `base`."""
        start = position - self.base
        return self._changes[start : None if count_max is None else start + count_max]

    def backwards(self) -> Iterator[LoggedWrite]:
        return reversed(self._changes)


def _version_of(change: LoggedWrite) -> int:
    return change.version
