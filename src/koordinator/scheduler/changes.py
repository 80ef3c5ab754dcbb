"""Which rows of the node table changed, in order, and in what respect."""

import enum

import msgspec

CHANGES_MAX = 16_384
"""Entries kept. Who is further behind evaluates all rows anew, which costs about as much as replaying."""


class Change(enum.IntFlag):
    """What changed on a row; plugins say which kinds their Filter and Score read (`Plugin.reads`)."""

    NODE = 1
    """The node object: labels, taints, allocatable, its very existence."""
    PODS = 2
    """The pods on it."""
    USAGE = 4
    """Its measured usage."""


_NUMBER = {kind: int(kind) for kind in Change}


class Changes(msgspec.Struct, frozen=True):
    """Rows that changed (ascending, each once) with the union of the kinds."""

    rows: tuple[int, ...]
    kinds: int


class ChangeLog:
    """A bounded log with growing sequence numbers."""

    def __init__(self) -> None:
        self._first = 0
        self._entries: list[tuple[int, int]] = []

    @property
    def sequence(self) -> int:
        """Number of the next entry."""
        return self._first + len(self._entries)

    def add(self, row: int, kind: Change) -> None:
        # Plain integers: this is the hot path, and flags are slow.
        self._entries.append((row, _NUMBER[kind]))
        if len(self._entries) > CHANGES_MAX:
            dropped = CHANGES_MAX // 2
            del self._entries[:dropped]
            self._first += dropped

    def rewind(self, sequence: int) -> None:
        """Forget the entries from `sequence` on: what they tell was undone, and nobody has read them.

        When some of them were dropped already, what is left stays, as readers cannot be brought back.
        """
        if sequence >= self._first:
            del self._entries[sequence - self._first :]

    def since(self, sequence: int) -> Changes | None:
        """What changed from `sequence` on; None when that is no longer known."""
        start = sequence - self._first
        if start < 0:
            return None
        rows: set[int] = set()
        kinds = 0
        for row, kind in self._entries[start:]:
            rows.add(row)
            kinds |= kind
        return Changes(tuple(sorted(rows)), kinds)
