"""Objects that go by themselves: events, an hour after they were last written."""

from collections import deque

from koordinator.cluster.backend import Record
from koordinator.local.store import Table

EVENT_LIFE_S = 3_600.0
"""As the API server's `--event-ttl`."""


class Expiry:
    """Removes what was not written for `life_s`.

    It works off its queue whenever something is written to the table: a table that rests keeps its last objects.
    """

    def __init__(self, table: Table, life_s: float) -> None:
        self.table = table
        self._life_s = life_s
        # One entry per write, oldest first; a later write of the same object makes the earlier entry void.
        self._writes: deque[tuple[float, Record]] = deque()

    def written(self, record: Record, now_s: float) -> None:
        """Note a write, and remove what is over by now."""
        self._writes.append((now_s, record))
        while self._writes and self._writes[0][0] + self._life_s <= now_s:
            _, old = self._writes.popleft()
            meta = old.obj["metadata"]
            if self.table.get(meta["namespace"], meta["name"]) is old:
                self.table.remove(meta["namespace"], meta["name"])
