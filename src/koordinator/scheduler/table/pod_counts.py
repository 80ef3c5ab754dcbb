"""Count how many pods that selectors mean are on each row: match counts per question, kept current as pods come and go.

A term decides which pods a selector means: namespaces, labels, or several of both at once. Source:
behaviour/scheduler B9.
"""

import itertools
import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector, PodAffinityTerm
from koordinator.api.core import Namespace, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import Labels, Predicate
from koordinator.scheduler.table.columns import RowChange, discard
from koordinator.scheduler.table.domain_counts import MatchCounts, Topology
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

Anchor = tuple[str, str, str]
"""(namespace, label key, label value) that a pod must have to match; "" stands for any."""
ANYWHERE: Anchor = ("", "", "")


class NamespaceLabels:
    """Labels of all namespaces. `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._labels: dict[str, Labels] = {}

    def of(self, namespace: str) -> Labels:
        return self._labels.get(namespace, {})

    def set(self, namespace: Namespace) -> None:
        name = namespace.metadata.name
        if self._labels.get(name) != namespace.metadata.labels:
            self._labels[name] = namespace.metadata.labels
            self.version += 1

    def remove(self, namespace: Namespace) -> None:
        if self._labels.pop(namespace.metadata.name, None):
            self.version += 1


ANCHOR_VALUES_MAX = 16
"""Values of an `In` that are worth an anchor each."""


class PodTerm(msgspec.Struct, frozen=True, eq=False):
    """Pods of some namespaces with some labels. Terms with equal `key` mean the same pods.

    `anchor_choices`: under each of them, all pods that match can be found.
    """

    key: tuple[Any, ...]
    namespaces: frozenset[str]
    in_namespace: Predicate | None
    """Further namespaces by their labels."""
    has_labels: Predicate
    anchor_choices: tuple[tuple[Anchor, ...], ...]

    @classmethod
    def of(
        cls,
        selectors: Iterable[LabelSelector | None],
        namespaces: Iterable[str],
        namespace_selector: LabelSelector | None = None,
    ) -> "PodTerm":
        """Return pods that all of the selectors match; an absent one matches nothing."""
        selectors, names = tuple(selectors), frozenset(namespaces)
        within = sorted(names) if namespace_selector is None else [""]
        return cls(
            key=(
                tuple(sorted(names)),
                msgspec.json.encode(namespace_selector),
                msgspec.json.encode(selectors, order="sorted"),
            ),
            namespaces=names,
            in_namespace=None if namespace_selector is None else _compiled(namespace_selector),
            has_labels=_all_of(selectors),
            anchor_choices=tuple(
                tuple((namespace, *label) for namespace in within for label in labels)
                for labels in _label_choices(selectors)
            ),
        )

    @classmethod
    def of_affinity(cls, term: PodAffinityTerm, owner_namespace: str) -> "PodTerm":
        """Return a term of a pod in `owner_namespace`, which it means unless it names others."""
        names: Iterable[str] = term.namespaces
        if not term.namespaces and term.namespace_selector is None:
            names = (owner_namespace,)
        return cls.of((term.label_selector,), names, term.namespace_selector)

    def matches(self, pod: Pod, namespaces: NamespaceLabels) -> bool:
        return self.means(pod.metadata.namespace, pod.metadata.labels, namespaces)

    def means(self, namespace: str, labels: Labels, namespaces: NamespaceLabels) -> bool:
        """Return whether pods of the namespace with such labels match."""
        return self.has_labels(labels) and (
            namespace in self.namespaces
            or (self.in_namespace is not None and self.in_namespace(namespaces.of(namespace)))
        )


def anchors_of(namespace: str, labels: Labels) -> list[Anchor]:
    """Return all anchors under which terms can be found that match pods of the namespace with such labels."""
    found = [ANYWHERE, (namespace, "", "")]
    for key, value in labels.items():
        found.append(("", key, value))
        found.append((namespace, key, value))
    return found


def _label_choices(selectors: Iterable[LabelSelector | None]) -> list[list[tuple[str, str]]]:
    """Sets of labels of which each matching pod has one; an empty pair stands for any label.

    An empty key would stand for any label, too: such a selector is simply asked about every pod.
    """
    present = [selector for selector in selectors if selector is not None]
    found = [[pair] for selector in present for pair in sorted(selector.match_labels.items()) if pair[0]]
    for selector in present:
        for wanted in selector.match_expressions:
            if wanted.operator == "In" and wanted.key and 0 < len(wanted.values) <= ANCHOR_VALUES_MAX:
                found.append([(wanted.key, value) for value in sorted(set(wanted.values))])
    return found or [[("", "")]]


def _all_of(selectors: tuple[LabelSelector | None, ...]) -> Predicate:
    predicates = [_nothing if selector is None else _compiled(selector) for selector in selectors]
    if len(predicates) == 1:
        return predicates[0]
    return lambda labels: all(matches(labels) for matches in predicates)


def _compiled(selector: LabelSelector) -> Predicate:
    """Return the selector as a function. API servers refuse malformed ones; if one gets here, it matches nothing."""
    try:
        return label_selector.compile_selector(selector)
    except ProtocolError as error:
        log.warning("selector matches nothing: %s", error)
        return _nothing


def _nothing(labels: Mapping[str, str]) -> bool:
    return False


UNIQUE_LABELS = frozenset(
    (
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
    )
)
"""Labels that differ for each pod of a controller: not worth an index. Selectors by them look at a namespace."""


class PodKind:
    """Pods that no selector can tell apart: how many on each row, and the match counts that have them."""

    __slots__ = ("is_leaving", "key", "labels", "match_counts", "namespace", "rows")

    def __init__(self, key: Hashable, pod: Pod) -> None:
        meta = pod.metadata
        self.key = key
        self.namespace = meta.namespace
        self.labels: Mapping[str, str] = meta.labels
        self.is_leaving = meta.deletion_timestamp is not None
        self.rows: dict[int, int] = {}
        self.match_counts: dict[MatchCounts, None] = {}


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
        self._readers: list[PodCounts] = []

    def __len__(self) -> int:
        return len(self._kinds)

    def add_reader(self, reader: "PodCounts") -> None:
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
        for matches in kind.match_counts:
            matches.add(row, 1)

    def _take(self, kind: PodKind, row: int) -> None:
        left = kind.rows[row] - 1
        for matches in kind.match_counts:
            matches.add(row, -1)
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
                kind.match_counts.update(dict.fromkeys(reader.match_counts_of(kind)))
        return kind

    def _drop(self, kind: PodKind) -> None:
        del self._kinds[kind.key]
        discard(self._by_namespace, kind.namespace, kind.key)
        for anchor in _label_anchors(kind):
            discard(self._by_label, anchor, kind.key)
        for reader in self._readers:
            reader.kind_gone(kind)


def _key(pod: PodInfo) -> Hashable:
    return pod.labelled, pod.pod.metadata.deletion_timestamp is not None


def _label_anchors(kind: PodKind) -> list[Anchor]:
    return [(kind.namespace, key, value) for key, value in kind.labels.items() if key not in UNIQUE_LABELS]


COUNTS_MAX = 16_384
"""Questions kept; the one not asked for longest goes first. Users choose them, hence the bound. One takes
about 1 kB and 100 bytes per node where such pods are."""

Terms = tuple[PodTerm, ...]


class PodCount(MatchCounts):
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
        """Return match counts of pods that are there, found through the label that the fewest kinds of pods have."""
        choices = (choice for term in terms for choice in term.anchor_choices)
        anchors = min(choices, key=lambda choice: sum(map(self._kinds.width, choice)))
        made = PodCount(terms, self._counts_leaving, anchors, self._versions)
        for anchor in anchors:
            self._anchored.setdefault(anchor, {})[made] = None
            for kind in self._kinds.under(anchor):
                if made not in kind.match_counts and made.counts(kind, self._namespaces):
                    kind.match_counts[made] = None
                    made.kinds[kind] = None
                    for row, count in kind.rows.items():
                        made.rows[row] = made.rows.get(row, 0) + count
        return made

    def match_counts_of(self, kind: PodKind) -> Iterable[MatchCounts]:
        """Return where pods of a new kind count."""
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
        """Note that no pod of the kind is left."""
        for matches in kind.match_counts:
            if isinstance(matches, PodCount):
                matches.kinds.pop(kind, None)
                if not matches.kinds and self._counts.get(name := _name(matches.terms)) is matches:
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
            del kind.match_counts[count]
        for anchor in count.anchors:
            discard(self._anchored, anchor, count)


def _name(terms: Terms) -> Hashable:
    return terms[0].key if len(terms) == 1 else tuple(term.key for term in terms)
