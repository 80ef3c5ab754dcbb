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
BYTES_MAX = 16 << 20
"""Text of older changes that a log keeps."""


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
        """Keep only the text of both states; returns its bytes (an earlier change may hold the same text)."""
        self._event = self._left = None
        if self.old is not None and type(self.old) is ObjectRecord:
            self.old = PackedRecord(self.old)
        if self.new is not None and type(self.new) is ObjectRecord:
            self.new = PackedRecord(self.new)
        return self.bytes

    @property
    def bytes(self) -> int:
        """Return the bytes of the text that this change alone holds: the state before is the state after an earlier
        one.
        """
        kept = self.new if self.new is not None else self.old
        return 0 if kept is None else len(kept.json())

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
    """The same object under another resourceVersion."""
    meta = {**record.obj["metadata"], "resourceVersion": str(version)}
    return ObjectRecord({**record.obj, "metadata": meta}, version)


class Channel:
    """A log of changes, bounded by number and (with `packs`) bytes, with the watchers that wait for more."""

    __slots__ = (
        "_bytes",
        "_changes",
        "_max",
        "_packed",
        "_packs",
        "_waiters",
        "base",
        "floor",
        "is_closed",
        "subscriptions",
    )

    def __init__(self, floor: int, changes_max: int, *, packs: bool = False) -> None:
        self.base = 0  # position of _changes[0] since the beginning of time
        self.floor = floor  # all changes after this version are in the log
        self.subscriptions = 0
        self.is_closed = False
        self._changes: list[LoggedWrite] = []
        self._max = changes_max
        self._packs = packs
        self._packed = 0  # how many at the beginning are kept as text, and its bytes
        self._bytes = 0
        self._waiters: dict[asyncio.Future[None], None] = {}  # a dict: wakes in the order of arrival

    @property
    def end(self) -> int:
        return self.base + len(self._changes)

    def append(self, change: LoggedWrite) -> None:
        changes = self._changes
        changes.append(change)
        if self._packs and len(changes) - self._packed > RECENT:
            self._bytes += changes[self._packed].pack()
            self._packed += 1
            if self._bytes > BYTES_MAX:
                self._drop((self._packed + 1) // 2)
        if len(changes) > 2 * self._max:  # drop half at once: constant cost per change
            self._drop(self._max)
        if self._waiters:
            self._wake()

    def _drop(self, count: int) -> None:
        """Forget the oldest changes."""
        changes = self._changes
        self.floor = changes[count - 1].version
        self.base += count
        if self._packs:
            packed = min(count, self._packed)
            self._bytes -= sum(change.bytes for change in changes[:packed])
            self._packed -= packed
        del changes[:count]

    def close(self) -> None:
        """Nothing will change any more: watches end after what is left."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, {}
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

    async def wait(self, waiter: asyncio.Future[None]) -> None:
        """Return after the next change, or when somebody else resolves `waiter`."""
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)


def _version_of(change: LoggedWrite) -> int:
    return change.version
