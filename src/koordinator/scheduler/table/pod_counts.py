"""How many pods that selectors mean are on each row: a tally per question, kept current as pods come and go."""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

from koordinator.scheduler.table.domain_counts import Tally
from koordinator.scheduler.table.pod_kinds import PodKind, PodKinds
from koordinator.scheduler.table.pod_terms import Anchor, NamespaceLabels, PodTerm, anchors_of

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
    """All questions of a plugin. `counts_leaving`: whether pods that are being deleted count."""

    def __init__(self, kinds: PodKinds, namespaces: NamespaceLabels, *, counts_leaving: bool) -> None:
        self._kinds = kinds
        self._namespaces = namespaces
        self._counts_leaving = counts_leaving
        self._counts: OrderedDict[Hashable, PodCount] = OrderedDict()
        self._anchored: dict[Anchor, dict[PodCount, None]] = {}
        self._versions = itertools.count(1)
        self._seen_namespaces = namespaces.version
        kinds.add_reader(self)

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, terms: Terms) -> PodCount:
        """Pods per row that match all terms; made on the first question, and kept."""
        if self._seen_namespaces != self._namespaces.version:
            self._forget_those_of_namespaces()
        key = terms[0].key if len(terms) == 1 else tuple(term.key for term in terms)
        found = self._counts.get(key)
        if found is not None:
            self._counts.move_to_end(key)
            return found
        found = self._counts[key] = self._made(terms)
        if len(self._counts) > COUNTS_MAX:
            self._drop(next(iter(self._counts)))
        return found

    def _made(self, terms: Terms) -> PodCount:
        """A tally of the pods that are there, found through the label that the fewest kinds of pods have."""
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

    def _forget_those_of_namespaces(self) -> None:
        """Counts that depend on labels of namespaces are counted anew when next asked for."""
        self._seen_namespaces = self._namespaces.version
        for key, count in list(self._counts.items()):
            if any(term.in_namespace is not None for term in count.terms):
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        count = self._counts.pop(key)
        for kind in count.kinds:
            del kind.tallies[count]
        for anchor in count.anchors:
            anchored = self._anchored.get(anchor)
            if anchored is not None:
                anchored.pop(count, None)
                if not anchored:
                    del self._anchored[anchor]
