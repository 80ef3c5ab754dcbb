"""Pods per topology domain (zone, node, any label of nodes), kept in step pod by pod.

`MatchCounts` say on which rows the pods of some sort are. Plugins ask how many are in each domain: `Topology` keeps
that as vectors by the number of the label's value, made when first asked for and from then on changed by one entry
per pod. When nodes come, go or get other labels, vectors are made anew on demand.
"""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from koordinator.scheduler.table.columns import Rows, at, grown
from koordinator.scheduler.table.label_columns import ABSENT, LabelColumns
from koordinator.scheduler.table.nodes import NodeTable

Mask = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]

VECTOR_BYTES_MAX = 64 << 20
"""Memory for vectors; those not asked for longest go first. A hostname vector takes 8 bytes per node."""

LAYOUTS_MAX = 1_024
"""Layouts kept: one per topology key and set of included nodes; 9 bytes per node each."""


class MatchCounts:
    """Pods that match: how many on each row. No two states of one sort have the same `version`."""

    __slots__ = ("_versions", "rows", "vectors", "version")

    def __init__(self, versions: Iterator[int]) -> None:
        self.rows: dict[int, int] = {}
        self.vectors: dict[Hashable, DomainCounts | RowCounts] = {}
        """Vectors that follow these counts."""
        self.version = next(versions)
        self._versions = versions

    def add(self, row: int, change: int) -> None:
        count = self.rows.get(row, 0) + change
        if count:
            self.rows[row] = count
        else:
            self.rows.pop(row, None)
        self.version = next(self._versions)
        for vector in self.vectors.values():
            vector.add(row, change)

    def arrays(self) -> tuple[Rows, Counts]:
        """(rows, pods there)."""
        size = len(self.rows)
        return np.fromiter(self.rows, np.intp, size), np.fromiter(self.rows.values(), np.int64, size)


class Included(Protocol):
    """Nodes that take part: `mask` (rows,) and a `version` that changes with it."""

    @property
    def mask(self) -> Mask: ...

    @property
    def version(self) -> int: ...


class Layout:
    """The nodes that make up the domains of a key, at one time.

    `ids` (rows,): the number of the key's value on each row, `ABSENT` without; `slots` (rows,): the same on
    nodes that take part, else `ABSENT`. `exists` (values,): domains with a node that takes part. `is_shared`
    (values,): domains with more than one node, of whatever sort; `shared` are their numbers. `domain_count`:
    domains that exist. `nobody` (values + 1,): zeros that vectors of pods share as long as there are none.
    """

    __slots__ = (
        "domain_count",
        "exists",
        "ids",
        "is_shared",
        "nobody",
        "shared",
        "size",
        "slots",
        "stamp",
        "version",
    )

    def __init__(self, table: NodeTable, ids: Ids, size: int, mask: Mask | None, version: int) -> None:
        rows = table.rows
        alive_ids = ids[rows]
        self.version = version
        self.stamp: Hashable = None
        self.ids = ids
        self.size = size
        self.nobody: Counts = np.zeros(size + 1, np.int64)
        self.slots: Ids = np.full(ids.size, ABSENT, np.int32)
        counted = rows if mask is None else rows[mask[rows]]
        self.slots[counted] = ids[counted]
        taking_part = self.slots[rows]
        self.exists: Mask = np.bincount(taking_part[taking_part >= 0], minlength=size) > 0
        self.domain_count = int(self.exists.sum())
        self.is_shared: Mask = np.bincount(alive_ids[alive_ids >= 0], minlength=size) > 1
        self.shared = np.flatnonzero(self.is_shared)


class DomainCounts:
    """Pods in each domain: `by_value` (values + 1,), whose last entry is that of `ABSENT` and always 0.

    `flips` changes when a domain of several nodes, or all domains together, become empty or cease to be: what
    only asks whether somebody is there need not look at other rows before. `total` is the sum.
    """

    __slots__ = ("_levels", "_lowest", "_versions", "by_value", "flips", "layout", "total")

    def __init__(self, matches: MatchCounts, layout: Layout, versions: Iterator[int]) -> None:
        self.layout = layout
        self._versions = versions
        self.flips = next(versions)
        self.by_value: Counts = layout.nobody
        if matches.rows:
            self.by_value = layout.nobody.copy()
            rows, counts = matches.arrays()
            is_known = rows < layout.slots.size
            np.add.at(self.by_value, layout.slots[rows[is_known]], counts[is_known])
            self.by_value[ABSENT] = 0
        self.total = int(self.by_value.sum()) if matches.rows else 0
        self._levels: dict[int, int] | None = None
        self._lowest = 0

    @property
    def byte_count(self) -> int:
        return self.by_value.nbytes

    def add(self, row: int, change: int) -> None:
        layout = self.layout
        slot = int(layout.slots[row]) if row < layout.slots.size else ABSENT
        if slot == ABSENT:
            return
        if self.by_value is layout.nobody:
            self.by_value = layout.nobody.copy()
        before = int(self.by_value[slot])
        after = before + change
        self.by_value[slot] = after
        was_empty, self.total = self.total == 0, self.total + change
        is_flip = (before == 0) != (after == 0)
        if is_flip and (was_empty or self.total == 0 or layout.is_shared[slot]):
            self.flips = next(self._versions)
        if self._levels is not None:
            self._move(self._levels, before, after)

    def at(self, rows: Rows) -> Counts:
        """Return pods in the domain of each row; 0 without the key."""
        return self.by_value.take(at(self.layout.ids, rows))

    @property
    def lowest(self) -> int:
        """Pods in the emptiest domain; 0 when there are none."""
        if self._levels is None:
            self._levels = self._count_levels()
        return self._lowest

    def _count_levels(self) -> dict[int, int]:
        """Return how many domains have each number of pods."""
        counts = self.by_value[:-1][self.layout.exists]
        self._lowest = int(counts.min()) if counts.size else 0
        levels, sizes = np.unique(counts, return_counts=True)
        return dict(zip(levels.tolist(), sizes.tolist(), strict=True))

    def _move(self, levels: dict[int, int], before: int, after: int) -> None:
        levels[before] -= 1
        levels[after] = levels.get(after, 0) + 1
        if not levels[before]:
            del levels[before]
            if before == self._lowest:
                self._lowest = min(levels)
        self._lowest = min(self._lowest, after)


class RowCounts:
    """Pods on each row: `values` (rows,)."""

    __slots__ = ("values",)

    def __init__(self, matches: MatchCounts, capacity: int) -> None:
        rows, counts = matches.arrays()
        size = max(capacity, int(rows.max(initial=-1)) + 1)
        self.values: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self.values[rows] = counts

    @property
    def byte_count(self) -> int:
        return self.values.nbytes

    def add(self, row: int, change: int) -> None:
        if row >= self.values.size:
            self.grow(row + 1)
        self.values[row] += change

    def grow(self, capacity: int) -> None:
        self.values = grown(self.values, max(capacity, 2 * self.values.size))


_ROWS = "rows"
"""Key of the vector per row among those of match counts."""


class Topology:
    """The vectors of match counts. `labels` are the label columns of the table."""

    def __init__(self, table: NodeTable, labels: LabelColumns, *, bytes_max: int = VECTOR_BYTES_MAX) -> None:
        self._table = table
        self._labels = labels
        self._bytes_max = bytes_max
        self._byte_count = 0
        self._versions = itertools.count(1)
        self._layouts: dict[Hashable, Layout] = {}
        self._kept: OrderedDict[tuple[MatchCounts, Hashable], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def layout(self, key: str, included: Included | None = None) -> Layout:
        """Return the domains of a key as nodes are now; all nodes take part unless `included` says which."""
        column = self._labels.column(key)
        stamp = (column.version, self._table.membership, included.version if included is not None else 0)
        name = (key, included)
        found = self._layouts.get(name)
        if found is None or found.stamp != stamp:
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            column.reserve(self._table.capacity)
            mask = included.mask if included is not None else None
            found = Layout(self._table, column.ids, len(column.values), mask, next(self._versions))
            found.stamp = stamp
            self._layouts[name] = found
        return found

    def domains(self, matches: MatchCounts, key: str, included: Included | None = None) -> DomainCounts:
        """Return matching pods on existing nodes that take part, by domain. To be read at once: not to be kept."""
        layout = self.layout(key, included)
        name = (key, included)
        found = matches.vectors.get(name)
        if isinstance(found, DomainCounts) and found.layout is layout:
            self._kept.move_to_end((matches, name))
            return found
        made = DomainCounts(matches, layout, self._versions)
        self._keep(matches, name, made)
        return made

    def per_row(self, matches: MatchCounts) -> npt.NDArray[np.int32]:
        """(rows,): matching pods on each row."""
        found = matches.vectors.get(_ROWS)
        if not isinstance(found, RowCounts):
            found = RowCounts(matches, self._table.capacity)
            self._keep(matches, _ROWS, found)
        else:
            self._kept.move_to_end((matches, _ROWS))
        if found.values.size < self._table.capacity:
            found.grow(self._table.capacity)
        return found.values

    def forget(self, matches: MatchCounts) -> None:
        """Let go of the vectors of match counts that nobody asks for any more."""
        for name in matches.vectors:
            self._byte_count -= self._kept.pop((matches, name), 0)
        matches.vectors.clear()

    def _keep(self, matches: MatchCounts, name: Hashable, vector: DomainCounts | RowCounts) -> None:
        self._byte_count -= self._kept.pop((matches, name), 0)
        matches.vectors[name] = vector
        self._kept[(matches, name)] = vector.byte_count
        self._byte_count += vector.byte_count
        while self._byte_count > self._bytes_max and len(self._kept) > 1:
            (oldest, its_name), byte_count = self._kept.popitem(last=False)
            del oldest.vectors[its_name]
            self._byte_count -= byte_count
