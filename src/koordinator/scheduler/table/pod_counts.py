"""Count how many pods that selectors mean are on each row: a tally per question, kept current as pods come and go."""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from koordinator.api.core import Pod
from koordinator.scheduler.table.columns import RowChange
from koordinator.scheduler.table.domain_counts import Tally, Topology
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.pod_terms import ANYWHERE, Anchor, NamespaceLabels, PodTerm, anchors_of

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
    """Counts pods."""

    def tallies_of(self, kind: PodKind) -> Iterable[Tally]:
        """Return where pods of a new kind count."""
        ...

    def kind_gone(self, kind: PodKind) -> None:
        """No pod of the kind is left."""
        ...


class PodKinds(RowKeeper):
    """The kinds of all pods that count on rows.

    A selector is matched once per kind, and a controller makes thousands of pods of one kind; the kinds that a new
    selector can mean are found through their labels.
    """

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
        """Return how many kinds `under` gives."""
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
        self._table.changes.add(row, RowChange.PODS)

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


COUNTS_MAX = 16_384
"""Questions kept; the one not asked for longest goes first. Users choose them, hence the bound. One takes
about 1 kB and 100 bytes per node where such pods are."""

Terms = tuple[PodTerm, ...]


class PodCount(Tally):
    """Pods that match all of `terms`."""

    __slots__ = ("anchors", "counts_leaving", "kinds", "terms")

    def __init__(
        self, terms: Terms, counts_leaving: bool, anchors: tuple[Anchor, ...], versions: Iterator[int]
    ) -> None:
        super().__init__(versions)
        self.terms = terms
        self.counts_leaving = counts_leaving
        self.anchors = anchors
        self.kinds: dict[PodKind, None] = {}

    def counts(self, kind: PodKind, namespaces: NamespaceLabels) -> bool:
        if kind.is_leaving and not self.counts_leaving:
            return False
        return all(term.means(kind.namespace, kind.labels, namespaces) for term in self.terms)


class PodCounts:
    """All questions of a plugin, whose vectors are in `topology`. `counts_leaving`: whether pods that are being deleted
    count.

    A question is forgotten with the last pod that it meant: deployments that come and go would leave theirs behind.
    """

    def __init__(
        self, kinds: PodKinds, namespaces: NamespaceLabels, topology: Topology, *, counts_leaving: bool
    ) -> None:
        self._kinds = kinds
        self._namespaces = namespaces
        self._topology = topology
        self._counts_leaving = counts_leaving
        self._counts: OrderedDict[Hashable, PodCount] = OrderedDict()
        self._anchored: dict[Anchor, dict[PodCount, None]] = {}
        self._versions = itertools.count(1)
        self._seen_namespaces = namespaces.version
        kinds.add_reader(self)

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, terms: Terms) -> PodCount:
        """Return pods per row that match all terms; made on the first question, and kept."""
        if self._seen_namespaces != self._namespaces.version:
            self._forget_those_of_namespaces()
        key = _name(terms)
        found = self._counts.get(key)
        if found is not None:
            self._counts.move_to_end(key)
            return found
        found = self._counts[key] = self._made(terms)
        if len(self._counts) > COUNTS_MAX:
            self._drop(next(iter(self._counts)))
        return found

    def _made(self, terms: Terms) -> PodCount:
        """Return a tally of the pods that are there, found through the label that the fewest kinds of pods have."""
        choices = (choice for term in terms for choice in term.anchor_choices)
        anchors = min(choices, key=lambda choice: sum(map(self._kinds.width, choice)))
        made = PodCount(terms, self._counts_leaving, anchors, self._versions)
        for anchor in anchors:
            self._anchored.setdefault(anchor, {})[made] = None
            for kind in self._kinds.under(anchor):
                if made not in kind.tallies and made.counts(kind, self._namespaces):
                    kind.tallies[made] = None
                    made.kinds[kind] = None
                    for row, count in kind.rows.items():
                        made.rows[row] = made.rows.get(row, 0) + count
        return made

    def tallies_of(self, kind: PodKind) -> Iterable[Tally]:
        if self._seen_namespaces != self._namespaces.version:
            self._forget_those_of_namespaces()
        found = []
        for anchor in anchors_of(kind.namespace, kind.labels) if self._anchored else ():
            for count in self._anchored.get(anchor, ()):
                if kind not in count.kinds and count.counts(kind, self._namespaces):
                    count.kinds[kind] = None
                    found.append(count)
        return found

    def kind_gone(self, kind: PodKind) -> None:
        for tally in kind.tallies:
            if isinstance(tally, PodCount):
                tally.kinds.pop(kind, None)
                if not tally.kinds and self._counts.get(name := _name(tally.terms)) is tally:
                    self._drop(name)

    def _forget_those_of_namespaces(self) -> None:
        """Counts that depend on labels of namespaces are counted anew when next asked for."""
        self._seen_namespaces = self._namespaces.version
        for key, count in list(self._counts.items()):
            if any(term.in_namespace is not None for term in count.terms):
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        count = self._counts.pop(key)
        self._topology.forget(count)
        for kind in count.kinds:
            del kind.tallies[count]
        for anchor in count.anchors:
            anchored = self._anchored.get(anchor)
            if anchored is not None:
                anchored.pop(count, None)
                if not anchored:
                    del self._anchored[anchor]


def _name(terms: Terms) -> Hashable:
    return terms[0].key if len(terms) == 1 else tuple(term.key for term in terms)
