"""Read what the affinity of pods says, and where the pods that say it are."""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

import msgspec

from koordinator.api.affinity import PodAffinity, PodAffinityTerm
from koordinator.api.core import Pod
from koordinator.scheduler.table.columns import Recent, discard, tally
from koordinator.scheduler.table.domain_counts import MatchCounts
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_counts import Anchor, NamespaceLabels, PodTerm, Terms, anchors_of
from koordinator.scheduler.table.pod_info import PodInfo

MATCHES_MAX = 4_096
"""Remembered answers to "which terms mean pods with these labels"."""
EMPTY_MAX = 4_096
"""Terms kept that no pod on a node has: those of waiting pods, and of workloads that come back."""
WISHES_MAX = 16_384
"""Distinct affinities of pods remembered with what they mean."""

REQUIRED_AFFINITY = "affinity"
REQUIRED_ANTI = "anti"
PREFERRED = "preferred"


class Term(msgspec.Struct, frozen=True, eq=False):
    """A term of a pod's affinity. `weight` is that of preferences, negative for anti-affinity."""

    kind: str
    topology_key: str
    weight: int
    pods: PodTerm

    @property
    def key(self) -> Hashable:
        return (self.kind, self.topology_key, self.weight, self.pods.key)


class PodAffinityTerms(msgspec.Struct, frozen=True, eq=False):
    """The affinity terms of a pod, by kind. Pods with equal `key` say the same."""

    together: tuple[Term, ...]
    apart: tuple[Term, ...]
    preferred: tuple[Term, ...]
    key: Hashable

    @property
    def all(self) -> tuple[Term, ...]:
        return (*self.together, *self.apart, *self.preferred)

    @property
    def together_terms(self) -> Terms:
        return tuple(term.pods for term in self.together)

    def is_own_match(self, pod: Pod, namespaces: NamespaceLabels) -> bool:
        """Return whether the pod itself matches all of the terms that it requires to be near."""
        return all(term.pods.matches(pod, namespaces) for term in self.together)


NO_AFFINITY = PodAffinityTerms((), (), (), ())


class PodAffinityTermsCache:
    """The affinity terms of all pods, read once per distinct affinity."""

    def __init__(self) -> None:
        self._known: Recent[PodAffinityTerms] = Recent(WISHES_MAX)

    def of(self, pod: Pod) -> PodAffinityTerms:
        if not has_pod_affinity(pod):
            return NO_AFFINITY
        key = (pod.metadata.namespace, msgspec.json.encode(pod.spec.affinity))
        return self._known.get(key, lambda: affinity_of(pod))


def affinity_of(pod: Pod) -> PodAffinityTerms:
    """Return the terms of a pod, in their order; none without affinity."""
    affinity = pod.spec.affinity
    if affinity is None:
        return NO_AFFINITY
    near, away = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    namespace = pod.metadata.namespace

    def term(kind: str, weight: int, wire: PodAffinityTerm) -> Term:
        return Term(kind, wire.topology_key, weight, PodTerm.of_affinity(wire, namespace))

    wanted = near.required_during_scheduling_ignored_during_execution
    unwanted = away.required_during_scheduling_ignored_during_execution
    liked = near.preferred_during_scheduling_ignored_during_execution
    disliked = away.preferred_during_scheduling_ignored_during_execution
    together = tuple(term(REQUIRED_AFFINITY, 0, each) for each in wanted)
    apart = tuple(term(REQUIRED_ANTI, 0, each) for each in unwanted)
    preferred = (
        *(term(PREFERRED, each.weight, each.pod_affinity_term) for each in liked),
        *(term(PREFERRED, -each.weight, each.pod_affinity_term) for each in disliked),
    )
    key = tuple(term.key for term in (*together, *apart, *preferred))
    return PodAffinityTerms(together, apart, preferred, key)


def has_pod_affinity(pod: Pod) -> bool:
    """Return whether the pod says anything about other pods; cheap."""
    affinity = pod.spec.affinity
    return affinity is not None and (
        affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None
    )


class Holders(MatchCounts):
    """The pods on nodes that have a term. `number` is never given twice."""

    __slots__ = ("anchors", "number", "term")

    def __init__(self, term: Term, number: int, anchors: tuple[Anchor, ...], versions: Iterator[int]) -> None:
        super().__init__(versions)
        self.term = term
        self.number = number
        self.anchors = anchors


class TermIndex(RowKeeper):
    """The terms of all pods that count on rows, and which of them mean a given pod."""

    def __init__(self, namespaces: NamespaceLabels, affinities: PodAffinityTermsCache) -> None:
        self._namespaces = namespaces
        self._affinities = affinities
        self._holders: dict[Hashable, Holders] = {}
        self._empty: OrderedDict[Holders, None] = OrderedDict()
        self._anchored: dict[Anchor, dict[int, Holders]] = {}
        self._terms: dict[str, tuple[Term, ...]] = {}
        self._numbers = itertools.count(1)
        self._versions = itertools.count(1)
        self._matches: Recent[tuple[Holders, ...]] = Recent(MATCHES_MAX)
        self._anti_keys: dict[str, int] = {}
        self._seen_namespaces = namespaces.version

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def anti_keys(self) -> frozenset[str]:
        """Topology keys of all required anti-affinity."""
        return frozenset(self._anti_keys)

    def meaning(self, pod: PodInfo) -> tuple[Holders, ...]:
        """Terms of pods on nodes (or expected there) that match `pod`, in order of their numbers."""
        if not self._holders:
            return ()
        if self._seen_namespaces != self._namespaces.version:
            self._seen_namespaces = self._namespaces.version
            self._matches.clear()
        return self._matches.get(pod.labelled, lambda: self._find(pod.pod))

    def _find(self, pod: Pod) -> tuple[Holders, ...]:
        found = {
            number: holders
            for anchor in anchors_of(pod.metadata.namespace, pod.metadata.labels)
            for number, holders in self._anchored.get(anchor, {}).items()
            if holders.term.pods.matches(pod, self._namespaces)
        }
        return tuple(found[number] for number in sorted(found))

    def expect(self, terms: Iterable[Term]) -> None:
        """Make room for terms of a pod that is to be placed: which terms mean whom then does not change when
        the first pod that has them gets a node."""
        for term in terms:
            holders = self._holders_of(term)
            if holders in self._empty:
                self._empty.move_to_end(holders)

    # Who has what

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if has_pod_affinity(pod.pod):
            terms = self._terms[pod.uid] = self._affinities.of(pod.pod).all
            for term in terms:
                holders = self._holders_of(term)
                self._empty.pop(holders, None)
                holders.add(row, 1)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        for term in self._terms.pop(pod.uid, ()):
            holders = self._holders[term.key]
            holders.add(row, -1)
            if not holders.rows:
                self._empty[holders] = None
                self._drop_longest_empty()

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        """The affinity of an assigned pod does not change."""

    def _holders_of(self, term: Term) -> Holders:
        key = term.key
        found = self._holders.get(key)
        if found is None:
            anchors = min(term.pods.anchor_choices, key=self._width)
            found = self._holders[key] = Holders(term, next(self._numbers), anchors, self._versions)
            for anchor in anchors:
                self._anchored.setdefault(anchor, {})[found.number] = found
            self._matches.clear()
            self._count_key(term, 1)
            self._empty[found] = None
            self._drop_longest_empty()
        return found

    def _count_key(self, term: Term, change: int) -> None:
        if term.kind == REQUIRED_ANTI:
            tally(self._anti_keys, term.topology_key, change)

    def _width(self, anchors: tuple[Anchor, ...]) -> int:
        return sum(len(self._anchored.get(anchor, ())) for anchor in anchors)

    def _drop_longest_empty(self) -> None:
        if len(self._empty) <= EMPTY_MAX:
            return
        holders, _ = self._empty.popitem(last=False)
        del self._holders[holders.term.key]
        self._count_key(holders.term, -1)
        for anchor in holders.anchors:
            discard(self._anchored, anchor, holders.number)
        self._matches.clear()
