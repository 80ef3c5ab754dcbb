"""Pods on nodes by kind: those of one namespace with equal labels, of which a controller makes thousands.

Whether a selector means a pod is worked out once per kind instead of once per pod; the kinds that a new
selector can mean are found through their labels.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from koordinator.api.core import Pod
from koordinator.scheduler.table.changes import Change
from koordinator.scheduler.table.domain_counts import Tally
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.pod_terms import ANYWHERE, Anchor

N = TypeVar("N", bound=Hashable)

UNIQUE_LABELS = frozenset(
    (
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
    )
)
"""Labels that differ for each pod of a controller: not worth an index. Selectors by them look at a namespace."""


class PodKind:
    """Pods that no selector can tell apart: how many on each row, and the tallies in which they count."""

    __slots__ = ("is_leaving", "key", "labels", "namespace", "rows", "tallies")

    def __init__(self, key: Hashable, pod: Pod) -> None:
        meta = pod.metadata
        self.key = key
        self.namespace = meta.namespace
        self.labels: Mapping[str, str] = meta.labels
        self.is_leaving = meta.deletion_timestamp is not None
        self.rows: dict[int, int] = {}
        self.tallies: dict[Tally, None] = {}


class Reader(Protocol):
    """Who counts pods."""

    def tallies_of(self, kind: PodKind) -> Iterable[Tally]:
        """Where pods of a new kind count."""
        ...

    def kind_gone(self, kind: PodKind) -> None:
        """No pod of the kind is left."""
        ...


class PodKinds(RowKeeper):
    """The kinds of all pods that count on rows."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._kinds: dict[Hashable, PodKind] = {}
        self._by_namespace: dict[str, dict[Hashable, PodKind]] = {}
        self._by_label: dict[Anchor, dict[Hashable, PodKind]] = {}
        self._readers: list[Reader] = []

    def __len__(self) -> int:
        return len(self._kinds)

    def add_reader(self, reader: Reader) -> None:
        self._readers.append(reader)

    # Finding

    def under(self, anchor: Anchor) -> Iterator[PodKind]:
        """Kinds that have the anchor's namespace and label, or more of them."""
        for group in self._groups(anchor):
            yield from group.values()

    def width(self, anchor: Anchor) -> int:
        """How many kinds `under` gives."""
        return sum(len(group) for group in self._groups(anchor))

    def _groups(self, anchor: Anchor) -> Iterator[dict[Hashable, PodKind]]:
        namespace, key, value = anchor
        if anchor == ANYWHERE:
            yield self._kinds
        elif not key or key in UNIQUE_LABELS:
            yield from (self._by_namespace.get(name, {}) for name in self._names(namespace))
        else:
            yield from (self._by_label.get((name, key, value), {}) for name in self._names(namespace))

    def _names(self, namespace: str) -> Iterable[str]:
        return (namespace,) if namespace else tuple(self._by_namespace)

    # Pods come and go

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._add(self._kind_of(pod), row)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._take(self._kinds[_key(pod)], row)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if old.pod is new.pod or (before := _key(old)) == _key(new):
            return
        self._take(self._kinds[before], row)
        self._add(self._kind_of(new), row)
        # Labels are nothing that the table looks at, but answers for the row may differ now.
        self._table.changes.add(row, Change.PODS)

    def _add(self, kind: PodKind, row: int) -> None:
        kind.rows[row] = kind.rows.get(row, 0) + 1
        for tally in kind.tallies:
            tally.add(row, 1)

    def _take(self, kind: PodKind, row: int) -> None:
        left = kind.rows[row] - 1
        for tally in kind.tallies:
            tally.add(row, -1)
        if left:
            kind.rows[row] = left
            return
        del kind.rows[row]
        if not kind.rows:
            self._drop(kind)

    def _kind_of(self, pod: PodInfo) -> PodKind:
        key = _key(pod)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = PodKind(key, pod.pod)
            self._by_namespace.setdefault(kind.namespace, {})[key] = kind
            for anchor in _label_anchors(kind):
                self._by_label.setdefault(anchor, {})[key] = kind
            for reader in self._readers:
                kind.tallies.update(dict.fromkeys(reader.tallies_of(kind)))
        return kind

    def _drop(self, kind: PodKind) -> None:
        del self._kinds[kind.key]
        _discard(self._by_namespace, kind.namespace, kind.key)
        for anchor in _label_anchors(kind):
            _discard(self._by_label, anchor, kind.key)
        for reader in self._readers:
            reader.kind_gone(kind)


def _key(pod: PodInfo) -> Hashable:
    return pod.labelled, pod.pod.metadata.deletion_timestamp is not None


def _label_anchors(kind: PodKind) -> list[Anchor]:
    return [(kind.namespace, key, value) for key, value in kind.labels.items() if key not in UNIQUE_LABELS]


def _discard(groups: dict[N, dict[Hashable, PodKind]], name: N, key: Hashable) -> None:
    group = groups[name]
    del group[key]
    if not group:
        del groups[name]
