"""Columns of the node table: numbers of all rows, and fast ways to read and write some of them; the log of which rows
changed since when, and in what respect; a bounded memory of values computed from them; groups."""

import contextlib
import enum
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.core import Node

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Rows = npt.NDArray[np.intp]
"""Indices of rows, ascending."""

A = TypeVar("A", bound=np.generic)


def at(values: npt.NDArray[A], rows: Rows) -> npt.NDArray[A]:
    """Return the entries of `rows` along the last axis, to be read only. Rows ascend, each once, or they descend.

    Neighbouring rows (all nodes of a table without gaps, or one) come as a view: gathering is what a full
    scan would spend most of its time on.
    """
    if rows.size:
        first, last = rows.item(0), rows.item(-1)
        if last - first + 1 == rows.size:
            return values[..., first : last + 1]
    return values.take(rows, axis=-1)


def put(values: npt.NDArray[Any], rows: Rows, entries: npt.NDArray[Any] | int) -> None:
    """Write the entries (rows,), or one number, to `rows` (rows,) of `values` (capacity,), fast where they are
    neighbours."""
    if rows.size:
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == rows.size:
            values[first : last + 1] = entries
            return
    values[rows] = entries


def grown(values: npt.NDArray[A], size: int, fill: Any = 0, axis: int = -1) -> npt.NDArray[A]:
    """Return `values` of any shape with room for `size` entries along an axis, `fill` behind those that it has; itself
    where there is room."""
    missing = size - values.shape[axis]
    if missing <= 0:
        return values
    shape = list(values.shape)
    shape[axis] = missing
    return np.concatenate([values, np.full(shape, fill, values.dtype)], axis=axis)


_NO_POINTS: npt.NDArray[np.int64] = np.zeros(1 << 15, np.int64)
_NO_POINTS.setflags(write=False)


def no_points(rows: Rows) -> npt.NDArray[np.int64]:
    """Return scores of 0 (rows,), made without effort; to be read only."""
    return _NO_POINTS[: rows.size] if rows.size <= _NO_POINTS.size else np.zeros(rows.size, np.int64)


def are_no_points(scores: npt.NDArray[np.int64]) -> bool:
    """Return whether `scores` (rows,) are what `no_points` answers."""
    return scores.base is _NO_POINTS


class LeastFree:
    """Knows what is left at least on each node: a pod that asks for no more fits everywhere, and nobody needs to look.

    Lower bounds: they follow what pods take, and not what they give back, until somebody looks (`look`).
    """

    __slots__ = ("amounts", "nonzero", "pods")

    def __init__(self) -> None:
        self.amounts: list[float] = [math.inf, math.inf]
        """Milli-cores and bytes."""
        self.nonzero: list[float] = [math.inf, math.inf]
        """The same with the defaults for containers that do not say what they request."""
        self.pods: float = math.inf

    def note(self, column: int, free: int, nonzero_free: int) -> None:
        """Note what a node has left of CPU or memory."""
        self.amounts[column] = min(self.amounts[column], free)
        self.nonzero[column] = min(self.nonzero[column], nonzero_free)

    def look(self, pods: npt.NDArray[Any], free: npt.NDArray[Any], nonzero_free: npt.NDArray[Any]) -> None:
        """Work out all of it anew, from what is left on all nodes: (rows,), (2, rows) and (2, rows)."""
        highest = np.iinfo(np.int64).max
        self.pods = int(pods.min(initial=highest))
        self.amounts = free.min(axis=1, initial=highest).tolist()
        self.nonzero = nonzero_free.min(axis=1, initial=highest).tolist()


class ColumnSpec(msgspec.Struct, frozen=True):
    """A column that a plugin keeps: `width` numbers per row (0: one, as a plain vector)."""

    name: str
    dtype: npt.DTypeLike
    width: int = 0
    fill: Any = 0


class TableColumn:
    """Numbers of all rows: `values` is (rows,) or (width, rows), and is replaced when the table grows."""

    __slots__ = ("spec", "values")

    def __init__(self, spec: ColumnSpec, capacity: int) -> None:
        self.spec = spec
        shape = (spec.width, capacity) if spec.width else (capacity,)
        self.values: npt.NDArray[Any] = np.full(shape, spec.fill, spec.dtype)

    def grow(self, capacity: int) -> None:
        self.values = grown(self.values, capacity, self.spec.fill)

    def widen(self, width: int) -> None:
        """Add leading entries to each row (a new resource was met)."""
        self.values = grown(self.values, width, self.spec.fill, axis=0)

    def clear(self, row: int) -> None:
        self.values[..., row] = self.spec.fill


NO_NODE = 255
"""`refused_by` of rows that stand for no node."""
LEFT_OUT = 254
"""`refused_by` of nodes that a PreFilter plugin left out."""
NOT_FEASIBLE = int(np.iinfo(np.int32).min)
"""Total of a row that is out of the question."""

RefusedBy = npt.NDArray[np.uint8]
"""(capacity,): 0 for rows that pass, else the position (from 1) of the first Filter plugin that refused."""


class AnswerPatterns(msgspec.Struct, frozen=True):
    """Arrays of (capacity,), to be read only. `membership` says for which nodes they hold."""

    membership: int
    nobody_refused: RefusedBy
    nobody_asked: RefusedBy
    no_codes: npt.NDArray[np.uint16]
    everywhere: npt.NDArray[np.bool_]
    nowhere: npt.NDArray[np.bool_]
    never: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: npt.NDArray[np.intp], capacity: int, membership: int) -> "AnswerPatterns":
        """`rows` stand for nodes."""
        nobody_refused = np.full(capacity, NO_NODE, np.uint8)
        nobody_refused[rows] = 0
        found = cls(
            membership,
            nobody_refused=nobody_refused,
            nobody_asked=np.full(capacity, NO_NODE, np.uint8),
            no_codes=np.zeros(capacity, np.uint16),
            everywhere=nobody_refused == 0,
            nowhere=np.zeros(capacity, np.bool_),
            never=np.full(capacity, NOT_FEASIBLE, np.int32),
        )
        for name in cls.__struct_fields__[1:]:
            getattr(found, name).setflags(write=False)
        return found


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


BY_PLACEMENT = int(RowChange.PODS | RowChange.USAGE)
"""Kinds of changes that placing a pod on a row is."""
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
        self._last_at = grown(self._last_at, capacity, -1)

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


class Recent(Generic[V]):
    """At most `size_max` values by key."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the remembered value, made when there is none."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
            return found
        found = self._values[key] = make()
        if len(self._values) > self._size_max:
            self._values.popitem(last=False)
        return found

    def clear(self) -> None:
        self._values.clear()


def tally(counts: MutableMapping[K, int], key: K, change: int) -> None:
    """Add to a count; those that are 0 are not kept."""
    left = counts.get(key, 0) + change
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)


def tally_in(groups: MutableMapping[K, dict[V, int]], name: K, member: V, change: int) -> None:
    """Add to a count in the group of a name; a group without any is not kept."""
    group = groups.setdefault(name, {})
    tally(group, member, change)
    if not group:
        del groups[name]


def discard(groups: MutableMapping[K, set[V]] | MutableMapping[K, dict[V, Any]], name: K, member: V) -> None:
    """Take a member out of the group of a name, if it is there, and the group with it when nobody is left."""
    group = groups.get(name)
    if group is None:
        return
    if isinstance(group, set):
        group.discard(member)
    else:
        group.pop(member, None)
    if not group:
        del groups[name]
