"""Log which rows of the node table changed since when, and in what respect."""

import contextlib
import enum
import itertools
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.core import Node

RECENT_MAX = 32
"""Changes kept one by one. Who is further behind compares a number per row instead: a few µs at 5,000 rows."""


class RowChange(enum.IntFlag):
    """The kind of change on a row; plugins say which kinds their Filter and Score read (`Plugin.reads`)."""

    NODE = 1
    """The node object: labels, taints, allocatable, its very existence."""
    PODS = 2
    """The pods on it."""
    USAGE = 4
    """Its measured usage."""


_NUMBER = {kind: int(kind) for kind in RowChange}


class Changes(msgspec.Struct, frozen=True, eq=False):
    """Rows that changed (ascending, each once) with the union of the kinds."""

    rows: npt.NDArray[np.intp]
    kinds: int


class ChangeLog:
    """Counts changes: `sequence` is the number of the next one."""

    def __init__(self, capacity: int) -> None:
        self.sequence = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_MAX)
        self._row_end = 0
        """No row from here on ever changed."""
        self._last_at: npt.NDArray[np.int64] = np.full(capacity, -1, np.int64)
        self._last_of_kind = dict.fromkeys(_NUMBER.values(), -1)
        self._is_muted = False

    def grow(self, capacity: int) -> None:
        missing = capacity - self._last_at.size
        self._last_at = np.concatenate([self._last_at, np.full(missing, -1, np.int64)])

    def add(self, row: int, kind: RowChange) -> None:
        if self._is_muted:
            return
        # Plain integers: this is the hot path, and flags are slow.
        number = _NUMBER[kind]
        self._recent.append((row, number))
        self._last_at[row] = self._last_of_kind[number] = self.sequence
        self.sequence += 1
        if row >= self._row_end:
            self._row_end = row + 1

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Changes in here do not count: they will be undone before anybody asks."""
        was_muted, self._is_muted = self._is_muted, True
        try:
            yield
        finally:
            self._is_muted = was_muted

    def since(self, sequence: int) -> Changes:
        """Return what changed from `sequence` on."""
        count = self.sequence - sequence
        if count <= RECENT_MAX:
            rows: set[int] = set()
            kinds = 0
            for row, kind in itertools.islice(reversed(self._recent), count):
                rows.add(row)
                kinds |= kind
            return Changes(np.array(sorted(rows), np.intp), kinds)
        kinds = sum(kind for kind, last in self._last_of_kind.items() if last >= sequence)
        return Changes((self._last_at[: self._row_end] >= sequence).nonzero()[0], kinds)


class NodeAspect(enum.Flag):
    """The facts of a node object that differ from before."""

    NONE = 0
    ADDED = enum.auto()
    ALLOCATABLE = enum.auto()
    LABELS = enum.auto()
    TAINTS = enum.auto()
    CONDITIONS = enum.auto()
    ANNOTATIONS = enum.auto()
    IMAGES = enum.auto()


def aspects_of(old: Node | None, new: Node) -> NodeAspect:
    """Return what differs between two states of a node; all of it for one that was not known."""
    if old is None:
        return ~NodeAspect.NONE
    pairs: tuple[tuple[NodeAspect, Any, Any], ...] = (
        (NodeAspect.ALLOCATABLE, old.status.allocatable, new.status.allocatable),
        (NodeAspect.LABELS, old.metadata.labels, new.metadata.labels),
        (NodeAspect.TAINTS, _taint_facts(old), _taint_facts(new)),
        (NodeAspect.CONDITIONS, _condition_facts(old), _condition_facts(new)),
        (NodeAspect.ANNOTATIONS, old.metadata.annotations, new.metadata.annotations),
        (NodeAspect.IMAGES, old.status.images, new.status.images),
    )
    aspect = NodeAspect.NONE
    for flag, before, after in pairs:
        if before != after:
            aspect |= flag
    return aspect


def _taint_facts(node: Node) -> Hashable:
    return (node.spec.unschedulable, tuple(node.spec.taints))


def _condition_facts(node: Node) -> Hashable:
    return tuple((condition.type, condition.status) for condition in node.status.conditions)
