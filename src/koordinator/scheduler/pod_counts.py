"""How many pods of a kind are on each row: a column per question, kept current as pods come and go."""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator

import numpy as np
import numpy.typing as npt

from koordinator.api.core import Pod
from koordinator.scheduler.nodes import NodeTable, RowKeeper, Rows
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.pod_terms import NamespaceLabels, PodTerm, anchors_of

COUNTS_MAX = 2_048
"""Questions kept; the one not asked for longest goes first. Users choose them, hence the bound."""

Terms = tuple[PodTerm, ...]


class PodCount:
    """Pods that match all of `terms`: `values` (rows,). `version` changes with every change; no two states
    of the counts of one question have the same."""

    __slots__ = ("_versions", "counts_leaving", "terms", "values", "version")

    def __init__(self, terms: Terms, counts_leaving: bool, capacity: int, versions: Iterator[int]) -> None:
        self.terms = terms
        self.counts_leaving = counts_leaving
        self.values: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.version = next(versions)
        self._versions = versions

    def at(self, rows: Rows) -> npt.NDArray[np.int32]:
        if rows.size and int(rows[-1]) >= self.values.size:
            self._grow(int(rows[-1]))
        return self.values[rows]

    def add(self, row: int, change: int) -> None:
        if row >= self.values.size:
            self._grow(row)
        self.values[row] += change
        self.version = next(self._versions)

    def counts(self, pod: Pod, namespaces: NamespaceLabels) -> bool:
        if not self.counts_leaving and pod.metadata.deletion_timestamp is not None:
            return False
        return all(term.matches(pod, namespaces) for term in self.terms)

    def _grow(self, row: int) -> None:
        missing = max(row + 1, 2 * self.values.size) - self.values.size
        self.values = np.concatenate([self.values, np.zeros(missing, np.int32)])


class PodCounts(RowKeeper):
    """All questions of a plugin. `counts_leaving`: whether pods that are being deleted count."""

    def __init__(self, table: NodeTable, namespaces: NamespaceLabels, *, counts_leaving: bool) -> None:
        self._table = table
        self._namespaces = namespaces
        self._counts_leaving = counts_leaving
        self._counts: OrderedDict[Hashable, PodCount] = OrderedDict()
        self._anchored: dict[Hashable, dict[Hashable, PodCount]] = {}
        self._versions = itertools.count(1)
        self._seen_namespaces = namespaces.version

    def count(self, terms: Terms) -> PodCount:
        """Pods per row that match all terms; made on the first question, and kept."""
        self._forget_if_namespaces_changed()
        key = tuple(term.key for term in terms)
        found = self._counts.get(key)
        if found is not None:
            self._counts.move_to_end(key)
            return found
        found = PodCount(terms, self._counts_leaving, self._table.capacity, self._versions)
        for place in self._table.places():
            if found.counts(place.pod.pod, self._namespaces):
                found.add(place.row, 1)
        self._counts[key] = found
        for anchor in terms[0].anchors:
            self._anchored.setdefault(anchor, {})[key] = found
        if len(self._counts) > COUNTS_MAX:
            self._drop(next(iter(self._counts)))
        return found

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if self._counts:
            self._count(row, pod.pod, 1)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if self._counts:
            self._count(row, pod.pod, -1)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if not self._counts:
            return
        before, after = old.pod.metadata, new.pod.metadata
        was_leaving, is_leaving = before.deletion_timestamp is not None, after.deletion_timestamp is not None
        if before.labels != after.labels or was_leaving != is_leaving:
            self._count(row, old.pod, -1)
            self._count(row, new.pod, 1)

    def _count(self, row: int, pod: Pod, change: int) -> None:
        self._forget_if_namespaces_changed()
        for anchor in anchors_of(pod):
            for count in self._anchored.get(anchor, {}).values():
                if count.counts(pod, self._namespaces):
                    count.add(row, change)

    def _forget_if_namespaces_changed(self) -> None:
        """Counts that depend on labels of namespaces are counted anew when next asked for."""
        if self._seen_namespaces == self._namespaces.version:
            return
        self._seen_namespaces = self._namespaces.version
        for key, count in list(self._counts.items()):
            if any(term.in_namespace is not None for term in count.terms):
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        count = self._counts.pop(key)
        for anchor in count.terms[0].anchors:
            anchored = self._anchored[anchor]
            del anchored[key]
            if not anchored:
                del self._anchored[anchor]
