"""InterPodAffinity on the node table. Source: behaviour/scheduler B1, B2 and B9."""

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Annotated

import msgspec
import numpy as np

from koordinator.api.core import Namespace, Node
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    SCORE_MAX,
    FilterPlugin,
    Handle,
    Mask,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReasonCodes,
    ScorePlugin,
    Scores,
    Watch,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Reason, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.inter_pod_affinity.terms import (
    NO_AFFINITY,
    REQUIRED_AFFINITY,
    REQUIRED_ANTI,
    Holders,
    PodAffinityTerms,
    PodAffinityTermsCache,
    Term,
    TermIndex,
)
from koordinator.scheduler.table.columns import RowChange, Rows, at, no_points
from koordinator.scheduler.table.domain_counts import DomainCounts, MatchCounts, Topology
from koordinator.scheduler.table.label_columns import ABSENT, LabelColumns
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_counts import NamespaceLabels, PodCount, PodCounts, PodKinds
from koordinator.scheduler.table.pod_info import PodInfo


def namespace_helps(namespace: Namespace, affinity: PodAffinityTerms, pod: PodInfo) -> bool:
    """Other labels of a namespace change whom terms mean: own ones there, those of others in the pod's own."""
    if namespace.metadata.name == pod.pod.metadata.namespace:
        return True
    return any(term.pods.in_namespace is not None for term in (*affinity.together, *affinity.apart))


def pod_helps(
    event: QueueingEvent, affinity: PodAffinityTerms, theirs: PodAffinityTerms, namespaces: NamespaceLabels
) -> bool:
    """Return whether it helps that a pod on a node came, changed or went; `theirs` are its own wishes.

    Company helps by coming, and by going when the refused pod then is the first of its group; who is unwanted
    helps by going; so does one that wants to be alone.

    Pods with the same terms are asked about as one, whatever their labels: where these would matter (terms of other
    pods that mean the refused one), the answer is yes. Source: behaviour/scheduler B5.
    """
    before = _near(event.old, affinity, namespaces)
    after = _near(event.new, affinity, namespaces)
    if event.kind is ClusterEvent.ASSIGNED_POD_DELETED and theirs.apart:
        return True
    if before != after:
        return True
    return any(
        _means(term, event.old, namespaces) and not _means(term, event.new, namespaces)
        for term in affinity.apart
    )


def _near(pod: object, affinity: PodAffinityTerms, namespaces: NamespaceLabels) -> bool:
    """Return whether a pod is company: it matches all required terms at once."""
    return bool(affinity.together) and all(_means(term, pod, namespaces) for term in affinity.together)


def _means(term: Term, pod: object, namespaces: NamespaceLabels) -> bool:
    return isinstance(pod, PodInfo) and term.pods.matches(pod.pod, namespaces)


class PodAffinityReason(Reason):
    OK = 0, SUCCESS
    AFFINITY = 1, unresolvable("node(s) didn't match pod affinity rules")
    ANTI_AFFINITY = 2, unschedulable("node(s) didn't match pod anti-affinity rules")
    EXISTING = 3, unschedulable("node(s) didn't satisfy existing pods anti-affinity rules")


class PodAffinityArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`hard_pod_affinity_weight` is what a required affinity term of a pod on a node counts in the scores of
    pods that it means; 0 switches that off."""

    hard_pod_affinity_weight: Annotated[int, msgspec.Meta(ge=0, le=100)] = 1
    ignore_preferred_terms_of_existing_pods: bool = False


class PodAffinityState(msgspec.Struct, eq=False):
    """A pod's own terms, and the terms of pods on nodes that mean it."""

    affinity: PodAffinityTerms
    is_own_match: bool
    """Whether the pod matches all of its required affinity terms itself."""
    existing_anti: tuple[Holders, ...]
    existing_scored: tuple[tuple[Holders, int], ...]
    """With the weight of each."""


_NOBODY = PodAffinityState(NO_AFFINITY, True, (), ())
"""State of pods that mean nobody, and that nobody means."""


class InterPodAffinity(
    PreFilterPlugin[PodAffinityState],
    FilterPlugin[PodAffinityState],
    PreScorePlugin[PodAffinityState],
    ScorePlugin[PodAffinityState],
):
    """Pods that want to be near others, or away from them.

    Where one node is a domain of its own (hostname), a pod that comes changes the answer for its node only:
    that is what `reads` says. `epoch` covers domains of several nodes.
    """

    name = "InterPodAffinity"
    args = PodAffinityArgs
    reasons = PodAffinityReason
    normalizes = True
    reads = RowChange.NODE | RowChange.PODS
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_ADDED,
        ClusterEvent.ASSIGNED_POD_UPDATED,
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_DELETED,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.NAMESPACE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: PodAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._hard_weight = args.hard_pod_affinity_weight
        self._ignores_preferred = args.ignore_preferred_terms_of_existing_pods
        table = self._table = handle.table
        self.namespaces = NamespaceLabels()
        self._affinities = PodAffinityTermsCache()
        self._topology = Topology(table, table.shared(LabelColumns))
        self._counts = PodCounts(table.shared(PodKinds), self.namespaces, self._topology, counts_leaving=True)
        self._index = TermIndex(self.namespaces, self._affinities)
        table.add_keeper(self._index)
        handle.watch(Watch.newest(Namespace, self.set_namespace, self.namespaces.remove))

    def set_namespace(self, namespace: Namespace) -> None:
        version = self.namespaces.version
        self.namespaces.set(namespace)
        if version != self.namespaces.version:
            self.handle.happened(QueueingEvent(ClusterEvent.NAMESPACE, None, None, namespace))

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        affinity = self._affinities.of(pod.pod)
        if affinity is NO_AFFINITY:
            return ()
        return (affinity.key, affinity.is_own_match(pod.pod, self.namespaces))

    def live_key(self, pod: PodInfo) -> Hashable:
        """Terms of others that mean the pod. The labels of its namespace may decide whether it matches its own."""
        affinity = self._affinities.of(pod.pod)
        if affinity is NO_AFFINITY and not len(self._index):
            return ()
        self._index.expect(affinity.all)
        meaning = tuple([holders.number for holders in self._index.meaning(pod)])
        return (meaning, affinity.is_own_match(pod.pod, self.namespaces)) if affinity.together else meaning

    def prepare(self, pod: PodInfo) -> PodAffinityState:
        affinity = self._affinities.of(pod.pod)
        meaning = self._index.meaning(pod) if len(self._index) else ()
        if affinity is NO_AFFINITY and not meaning:
            return _NOBODY
        # As upstream: the argument spares pods without preferences the whole score.
        is_scored = bool(affinity.preferred) or not self._ignores_preferred
        weighed = (
            (holders, self._hard_weight if holders.term.kind == REQUIRED_AFFINITY else holders.term.weight)
            for holders in meaning
            if is_scored
        )
        return PodAffinityState(
            affinity=affinity,
            is_own_match=affinity.is_own_match(pod.pod, self.namespaces),
            existing_anti=tuple(holders for holders in meaning if holders.term.kind == REQUIRED_ANTI),
            existing_scored=tuple((holders, weight) for holders, weight in weighed if weight),
        )

    def epoch(self, state: PodAffinityState) -> Hashable:
        """Return whether filter and score take part at all depends on what is booked, too."""
        if not (state.affinity.key or state.existing_anti or state.existing_scored):
            return None
        flips = [domains.flips for domains in self._wanted(state)]
        flips += [domains.flips for domains in self._unwanted(state)]
        flips += [domains.flips for domains in self._holders(state)]
        return (*flips, self._takes_part_in_score(state))

    def normal_epoch(self, state: PodAffinityState) -> Hashable:
        return tuple(
            [(matches.version, self._topology.layout(key).version) for matches, key, _ in self._scored(state)]
        )

    # What is where

    def _wanted(self, state: PodAffinityState) -> list[DomainCounts]:
        """Return pods that match all required terms at once, by the domains of each of the terms."""
        if not state.affinity.together:
            return []
        count = self._counts.count(state.affinity.together_terms)
        return [self._topology.domains(count, term.topology_key) for term in state.affinity.together]

    def _unwanted(self, state: PodAffinityState) -> list[DomainCounts]:
        return [
            self._topology.domains(self._counts.count((term.pods,)), term.topology_key)
            for term in state.affinity.apart
        ]

    def _holders(self, state: PodAffinityState) -> list[DomainCounts]:
        """Return pods that want to be away from this one."""
        return [self._topology.domains(holders, holders.term.topology_key) for holders in state.existing_anti]

    def _scored(self, state: PodAffinityState) -> Iterator[tuple[MatchCounts, str, int]]:
        """(pods, topology key, what each of them counts)."""
        for term in state.affinity.preferred:
            yield self._counts.count((term.pods,)), term.topology_key, term.weight
        for holders, weight in state.existing_scored:
            yield holders, holders.term.topology_key, weight

    # Filter

    def pre_filter(self, state: PodAffinityState) -> PreFilterResult:
        if state is _NOBODY:
            return PreFilterResult(SKIP)
        has_own = state.affinity.together or state.affinity.apart
        takes_part = has_own or any(each.total for each in self._holders(state))
        return PreFilterResult() if takes_part else PreFilterResult(SKIP)

    def filter(self, state: PodAffinityState, rows: Rows) -> ReasonCodes:
        codes = np.zeros(rows.size, np.uint16)
        for domains in self._holders(state):
            if domains.total:
                codes[domains.at(rows) > 0] = PodAffinityReason.EXISTING
        for domains in self._unwanted(state):
            if domains.total:
                codes[domains.at(rows) > 0] = PodAffinityReason.ANTI_AFFINITY
        if state.affinity.together:
            codes[~self._is_near_wanted(state, rows)] = PodAffinityReason.AFFINITY
        return codes

    def pods_matter(self, state: PodAffinityState, rows: Rows) -> Mask:
        """Return where pods are that the pod wants near or away, or that want it away."""
        affinity = state.affinity
        asked: list[MatchCounts] = [self._counts.count((term.pods,)) for term in affinity.apart]
        if affinity.together:
            asked.append(self._counts.count(affinity.together_terms))
        return np.isin(rows, [row for matches in (*asked, *state.existing_anti) for row in matches.rows])

    def facts(self, state: PodAffinityState, row: int) -> tuple[str, ...]:
        found = Neighbours(self._table, self.namespaces, self._affinities)
        affinity = state.affinity
        objecting = zip(self._holders(state), state.existing_anti, strict=True)
        lines = [found.wanting_away(domains, each, row) for domains, each in objecting]
        lines += [
            found.unwanted(domains, self._counts.count((term.pods,)), term, row)
            for domains, term in zip(self._unwanted(state), affinity.apart, strict=True)
        ]
        wanted = self._wanted(state)
        is_first = state.is_own_match and not any(domains.total for domains in wanted)
        lines += [
            found.wanted(domains, self._counts.count(affinity.together_terms), term, row, is_first=is_first)
            for domains, term in zip(wanted, affinity.together, strict=True)
        ]
        return tuple(filter(None, lines))

    def _is_near_wanted(self, state: PodAffinityState, rows: Rows) -> Mask:
        wanted = self._wanted(state)
        # The first of a group of pods that want to be together goes anywhere.
        is_first = state.is_own_match and not any(domains.total for domains in wanted)
        is_near = np.ones(rows.size, np.bool_)
        for domains in wanted:
            if is_first:
                is_near &= at(domains.layout.ids, rows) != ABSENT
            else:
                is_near &= domains.at(rows) > 0
        return is_near

    # Score

    def pre_score(self, state: PodAffinityState) -> Status:
        return SUCCESS if state is not _NOBODY and self._takes_part_in_score(state) else SKIP

    def _takes_part_in_score(self, state: PodAffinityState) -> bool:
        """Return whether anything is booked."""
        return any(self._topology.domains(matches, key).total for matches, key, _ in self._scored(state))

    def score(self, state: PodAffinityState, rows: Rows) -> Scores:
        """Sums change for whole domains at once: see `normalize_at`."""
        return no_points(rows)

    def normalize_at(self, state: PodAffinityState, scores: Scores, rows: Rows) -> Scores:
        by_key: dict[str, tuple[DomainCounts, Scores]] = {}
        for matches, key, weight in self._scored(state):
            domains = self._topology.domains(matches, key)
            if domains.total:
                weights = weight * domains.by_value
                so_far = by_key.get(key)
                by_key[key] = domains, weights if so_far is None else so_far[1] + weights
        sums = np.zeros(rows.size, np.int64)
        for domains, weights in by_key.values():
            sums += weights.take(at(domains.layout.ids, rows))
        return normalized(sums)

    # Events

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        affinity, kind = self._affinities.of(pod.pod), event.kind
        old, new = event.old, event.new
        if kind is ClusterEvent.NAMESPACE and isinstance(new, Namespace):
            return namespace_helps(new, affinity, pod)
        if kind is ClusterEvent.NODE_ADDED:
            return self._helps_as_new_node(event, affinity, pod)
        if kind is ClusterEvent.NODE_LABELS and isinstance(old, Node) and isinstance(new, Node):
            before, after = old.metadata.labels, new.metadata.labels
            return any(before.get(key) != after.get(key) for key in self._keys(affinity))
        if kind is ClusterEvent.NODE_DELETED and isinstance(old, Node):
            # Its pods keep nobody away any more, and are no company.
            return not self._keys(affinity).isdisjoint(old.metadata.labels)
        subject = old if isinstance(old, PodInfo) else new
        if kind is ClusterEvent.POD_UPDATED or not isinstance(subject, PodInfo):
            return True
        return pod_helps(event, affinity, self._affinities.of(subject.pod), self.namespaces)

    def _helps_as_new_node(self, event: QueueingEvent, affinity: PodAffinityTerms, pod: PodInfo) -> bool:
        """It takes the pod, or it brings pods along that were known before it."""
        row = event.row
        if row is None or (affinity.together and self._table.pods_at(row)):
            return True
        return super().wakes(event, pod)

    def _keys(self, affinity: PodAffinityTerms) -> frozenset[str]:
        """Topology keys that decide about pods with such terms, whatever their labels."""
        own = {term.topology_key for term in (*affinity.together, *affinity.apart)}
        return frozenset(own | self._index.anti_keys)


def normalized(sums: Scores) -> Scores:
    """Return ⌊100·((s − min)/(max − min))⌋ of `sums` (rows,); all equal gives 0. In floating point, as kube-scheduler:
    57 of 100 are 56."""
    if not sums.size:
        return sums
    lowest, highest = int(sums.min()), int(sums.max())
    if lowest == highest:
        return np.zeros(sums.size, np.int64)
    return (SCORE_MAX * ((sums - lowest) / (highest - lowest))).astype(np.int64)


NAMED_MAX = 3

IsMeant = Callable[[PodInfo], bool]


class Neighbours:
    """Finds the pods behind the counts, a few of them."""

    def __init__(
        self, table: NodeTable, namespaces: NamespaceLabels, affinity: PodAffinityTermsCache
    ) -> None:
        self._table = table
        self._namespaces = namespaces
        self._affinities = affinity

    def wanting_away(self, domains: DomainCounts, holders: Holders, row: int) -> str:
        """Return pods near the row that do not want this one there; empty without any."""
        key = holders.term.key

        def is_meant(pod: PodInfo) -> bool:
            return any(term.key == key for term in self._affinities.of(pod.pod).all)

        found, where = self._pods_text(domains, holders, row, is_meant), holders.term.topology_key
        return f"{found} in the same {where} does not want this pod there" if found else ""

    def unwanted(self, domains: DomainCounts, count: PodCount, term: Term, row: int) -> str:
        """Return pods near the row that this one wants to be away from; empty without any."""
        found, where = self._pods_text(domains, count, row, self._matching(count)), term.topology_key
        return f"{found} is in the same {where}, which this pod wants to be away from" if found else ""

    def wanted(self, domains: DomainCounts, count: PodCount, term: Term, row: int, *, is_first: bool) -> str:
        """Return pods that this one must be near: those near the row, or how many there are elsewhere."""
        key = term.topology_key
        if int(domains.layout.ids[row]) == ABSENT:
            return f"has no label {key}"
        if is_first:
            return "the first of its group may go anywhere"
        found = self._pods_text(domains, count, row, self._matching(count))
        if found:
            return f"{found} is in the same {key}, as this pod wants"
        return f"no pod that it must be near is in the same {key}; elsewhere: {domains.total}"

    def _matching(self, count: PodCount) -> IsMeant:
        def is_meant(pod: PodInfo) -> bool:
            if pod.pod.metadata.deletion_timestamp is not None and not count.counts_leaving:
                return False
            return all(term.matches(pod.pod, self._namespaces) for term in count.terms)

        return is_meant

    def _pods_text(self, domains: DomainCounts, matches: MatchCounts, row: int, is_meant: IsMeant) -> str:
        slot = int(domains.layout.ids[row])
        total = int(domains.by_value[slot]) if slot != ABSENT else 0
        if not total:
            return ""
        pods = self._pods(domains, matches, row, slot, is_meant)
        names = [pod.key for pod in itertools.islice(pods, NAMED_MAX)]
        more = f" and {total - len(names)} more" if total > len(names) else ""
        return f"{'pod' if total == 1 else 'each of'} {', '.join(names)}{more}"

    def _pods(
        self, domains: DomainCounts, matches: MatchCounts, row: int, slot: int, is_meant: IsMeant
    ) -> Iterator[PodInfo]:
        """Yield the pods on the row itself first; others only where the domain has more nodes."""
        ids = domains.layout.ids
        others = iter(matches.rows) if domains.layout.is_shared[slot] else iter(())
        for each in itertools.chain((row,), (other for other in others if other != row)):
            if each in matches.rows and each < ids.size and ids[each] == slot:
                yield from filter(is_meant, self._table.pods_at(each).values())
