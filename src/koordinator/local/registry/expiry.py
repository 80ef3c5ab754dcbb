"""Objects that go by themselves: events, an hour after they were last written, or when there are too many."""

from collections import deque

from koordinator.cluster.backend import ObjectRecord
from koordinator.local.store import Table

EVENT_LIFE_S = 3_600.0
"""As the API server's `--event-ttl`."""
EVENTS_MAX = 10_000
"""The newest stay: some 10 MB. An hour of a busy cluster would be ten times as much."""


class Expiry:
    """Removes what was not written for `life_s`, and the oldest beyond `count_max`.

    It works off its queue whenever something is written to the table: a table that rests keeps its last objects.
    """

    def __init__(self, table: Table, life_s: float, count_max: int) -> None:
        self.table = table
        self._life_s = life_s
        self._count_max = count_max
        # One entry per write (time, namespace, name, version), oldest first; a later write of the same object makes the
        # earlier entry void.
        self._writes: deque[tuple[float, str, str, int]] = deque()

    def written(self, record: ObjectRecord, now_s: float) -> None:
        """Note a write, and remove what is over by now."""
        table, meta = self.table, record.obj["metadata"]
        self._writes.append((now_s, meta["namespace"], meta["name"], record.version))
        while self._writes and (self._writes[0][0] + self._life_s <= now_s or len(table) > self._count_max):
            _, namespace, name, version = self._writes.popleft()
            found = table.get(namespace, name)
            if found is not None and found.version == version:
                table.remove(namespace, name)
