"""InterPodAffinity on the node table. Source: spec 03, B1, B2 and B9."""

from collections.abc import Hashable, Iterable
from typing import Annotated

import msgspec
import numpy as np

from koordinator.api.core import Namespace
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.framework import (
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
from koordinator.scheduler.label_columns import ABSENT, LabelColumns
from koordinator.scheduler.nodes import Rows
from koordinator.scheduler.plugins.inter_pod_affinity.terms import (
    PREFERRED,
    REQUIRED_AFFINITY,
    REQUIRED_ANTI,
    Booking,
    Holders,
    Term,
    TermIndex,
    has_pod_affinity,
    terms_of,
)
from koordinator.scheduler.pod_counts import PodCounts, Terms
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.pod_terms import NamespaceLabels
from koordinator.scheduler.status import SKIP, SUCCESS, Reason, Status, unresolvable, unschedulable


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
    """A pod's own terms by kind, and the terms of pods on nodes that mean it."""

    together: tuple[Term, ...]
    apart: tuple[Term, ...]
    preferred: tuple[Term, ...]
    is_own_match: bool
    """Whether the pod matches all of its required affinity terms itself."""
    existing_anti: tuple[Holders, ...]
    existing_scored: tuple[tuple[Holders, int], ...]
    """With the weight of each."""

    @property
    def together_terms(self) -> Terms:
        return tuple(term.pods for term in self.together)


class InterPodAffinity(
    PreFilterPlugin[PodAffinityState],
    FilterPlugin[PodAffinityState],
    PreScorePlugin[PodAffinityState],
    ScorePlugin[PodAffinityState],
):
    name = "InterPodAffinity"
    args = PodAffinityArgs
    reasons = PodAffinityReason
    normalizes = True
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_ADDED,
        ClusterEvent.ASSIGNED_POD_UPDATED,
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.NAMESPACE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: PodAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._hard_weight = args.hard_pod_affinity_weight
        self._ignores_preferred = args.ignore_preferred_terms_of_existing_pods
        self._table = handle.table
        self.namespaces = NamespaceLabels()
        self._labels = LabelColumns(handle.table)
        self._counts = PodCounts(handle.table, self.namespaces, counts_leaving=True)
        self._index = TermIndex(handle.table, self.namespaces)
        for keeper in (self._labels, self._counts, self._index):
            handle.table.add_keeper(keeper)
        handle.watch(
            Watch(
                Namespace,
                on_add=self.set_namespace,
                on_update=lambda _, new: self.set_namespace(new),
                on_delete=self.namespaces.remove,
            )
        )

    def set_namespace(self, namespace: Namespace) -> None:
        version = self.namespaces.version
        self.namespaces.set(namespace)
        if version != self.namespaces.version:
            self.handle.happened(Happening(ClusterEvent.NAMESPACE, None, None, namespace))

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        if not has_pod_affinity(pod.pod):
            return ()
        terms = terms_of(pod.pod)
        return (tuple(term.key for term in terms), self._is_own_match(pod, terms))

    def live_key(self, pod: PodInfo) -> Hashable:
        """Terms of others that mean the pod. Whether it matches its own may follow from its namespace's labels."""
        if not len(self._index) and not has_pod_affinity(pod.pod):
            return ()
        meaning = tuple(holders.number for holders in self._index.meaning(pod.pod))
        if not has_pod_affinity(pod.pod):
            return meaning
        return meaning, self._is_own_match(pod, terms_of(pod.pod))

    def _is_own_match(self, pod: PodInfo, terms: Iterable[Term]) -> bool:
        together = [term for term in terms if term.kind == REQUIRED_AFFINITY]
        return all(term.pods.matches(pod.pod, self.namespaces) for term in together)

    def prepare(self, pod: PodInfo) -> PodAffinityState:
        terms = terms_of(pod.pod) if has_pod_affinity(pod.pod) else ()
        meaning = self._index.meaning(pod.pod)
        preferred = tuple(term for term in terms if term.kind == PREFERRED)
        # As upstream: the argument spares pods without preferences the whole score.
        is_scored = bool(preferred) or not self._ignores_preferred
        weighed = ((holders, self._existing_weight(holders.term)) for holders in meaning if is_scored)
        return PodAffinityState(
            together=tuple(term for term in terms if term.kind == REQUIRED_AFFINITY),
            apart=tuple(term for term in terms if term.kind == REQUIRED_ANTI),
            preferred=preferred,
            is_own_match=self._is_own_match(pod, terms),
            existing_anti=tuple(holders for holders in meaning if holders.term.kind == REQUIRED_ANTI),
            existing_scored=tuple((holders, weight) for holders, weight in weighed if weight),
        )

    def _existing_weight(self, term: Term) -> int:
        if term.kind == REQUIRED_AFFINITY:
            return self._hard_weight
        return term.weight

    def epoch(self, state: PodAffinityState) -> Hashable:
        """Whether pre-score takes part depends on what is booked, so scores count, too."""
        counts = []
        if state.together:
            counts.append(self._counts.count(state.together_terms).version)
        counts += [self._counts.count((term.pods,)).version for term in state.apart]
        holders = tuple(holders.version for holders in state.existing_anti)
        if not counts and not holders:
            return self._takes_part_in_score(state)
        return (self._labels.version, tuple(counts), holders, self._takes_part_in_score(state))

    def normal_epoch(self, state: PodAffinityState) -> Hashable:
        return (
            self._labels.version,
            tuple(self._counts.count((term.pods,)).version for term in state.preferred),
            tuple(holders.version for holders, _ in state.existing_scored),
        )

    # Filter

    def pre_filter(self, state: PodAffinityState) -> PreFilterResult:
        if state.together or state.apart or any(self._is_somewhere(each) for each in state.existing_anti):
            return PreFilterResult()
        return PreFilterResult(SKIP)

    def _is_somewhere(self, holders: Holders) -> bool:
        """Whether pods with the term are on nodes that have its key."""
        rows, _ = self._alive(holders)
        return bool((self._labels.ids(holders.term.topology_key, rows) != ABSENT).any())

    def filter(self, state: PodAffinityState, rows: Rows) -> ReasonCodes:
        codes = np.zeros(rows.size, np.uint16)
        codes[self._near_holders(state, rows)] = PodAffinityReason.EXISTING
        codes[self._near_unwanted(state, rows)] = PodAffinityReason.ANTI_AFFINITY
        if state.together:
            codes[~self._near_wanted(state, rows)] = PodAffinityReason.AFFINITY
        return codes

    def _near_wanted(self, state: PodAffinityState, rows: Rows) -> Mask:
        everywhere = self._table.rows
        counts = self._counts.count(state.together_terms).at(everywhere).astype(np.int64)
        has_keys = np.ones(rows.size, np.bool_)
        is_near = np.ones(rows.size, np.bool_)
        is_anywhere = False
        for term in state.together:
            booking = Booking()
            booking.add(self._labels.ids(term.topology_key, everywhere), counts)
            ids = self._labels.ids(term.topology_key, rows)
            has_keys &= ids != ABSENT
            is_near &= booking.at(ids) > 0
            is_anywhere = is_anywhere or booking.is_booked
        if not is_anywhere and state.is_own_match:
            return has_keys  # the first of a group of pods that want to be together
        return has_keys & is_near

    def _near_unwanted(self, state: PodAffinityState, rows: Rows) -> Mask:
        everywhere = self._table.rows
        is_near = np.zeros(rows.size, np.bool_)
        for term in state.apart:
            booking = Booking()
            counts = self._counts.count((term.pods,)).at(everywhere).astype(np.int64)
            booking.add(self._labels.ids(term.topology_key, everywhere), counts)
            is_near |= booking.at(self._labels.ids(term.topology_key, rows)) > 0
        return is_near

    def _near_holders(self, state: PodAffinityState, rows: Rows) -> Mask:
        is_near = np.zeros(rows.size, np.bool_)
        for holders in state.existing_anti:
            key = holders.term.topology_key
            booking = Booking()
            where, counts = self._alive(holders)
            booking.add(self._labels.ids(key, where), counts)
            is_near |= booking.at(self._labels.ids(key, rows)) > 0
        return is_near

    def _alive(self, holders: Holders) -> tuple[Rows, Scores]:
        """Rows of existing nodes with pods that have the term, and how many."""
        rows, counts = holders.arrays()
        is_alive = np.isin(rows, self._table.rows, assume_unique=True)
        return rows[is_alive], counts[is_alive]

    # Score

    def pre_score(self, state: PodAffinityState) -> Status:
        return SUCCESS if self._takes_part_in_score(state) else SKIP

    def _takes_part_in_score(self, state: PodAffinityState) -> bool:
        """Whether anything is booked."""
        if not state.preferred and not state.existing_scored:
            return False
        return any(booking.is_booked for booking in self._bookings(state).values())

    def _bookings(self, state: PodAffinityState) -> dict[str, Booking]:
        """Weights by topology key."""
        everywhere = self._table.rows
        bookings: dict[str, Booking] = {}
        for term in state.preferred:
            counts = self._counts.count((term.pods,)).at(everywhere).astype(np.int64)
            booking = bookings.setdefault(term.topology_key, Booking())
            booking.add(self._labels.ids(term.topology_key, everywhere), term.weight * counts)
        for holders, weight in state.existing_scored:
            key = holders.term.topology_key
            where, counts = self._alive(holders)
            bookings.setdefault(key, Booking()).add(self._labels.ids(key, where), weight * counts)
        return bookings

    def score(self, state: PodAffinityState, rows: Rows) -> Scores:
        """Sums change for whole domains at once: see `normalize_at`."""
        return np.zeros(rows.size, np.int64)

    def normalize_at(self, state: PodAffinityState, scores: Scores, rows: Rows) -> Scores:
        sums = np.zeros(rows.size, np.int64)
        for key, booking in self._bookings(state).items():
            sums += booking.at(self._labels.ids(key, rows))
        return normalized(sums)

    # Events

    def wakes(self, happening: Happening, pod: PodInfo) -> bool:
        """A pod helps by coming when the waiting pod wants its company, by going when one of them would
        rather be apart; the answer is the same for all pods of a class."""
        subjects = [each for each in (happening.old, happening.new) if isinstance(each, PodInfo)]
        if happening.event is ClusterEvent.POD_UPDATED or not subjects:
            return True
        if happening.event is not ClusterEvent.ASSIGNED_POD_ADDED and any(
            has_pod_affinity(each.pod) for each in subjects
        ):
            return True
        terms = terms_of(pod.pod)
        wanted = [term for term in terms if term.kind in (REQUIRED_AFFINITY, REQUIRED_ANTI)]
        return any(term.pods.matches(each.pod, self.namespaces) for term in wanted for each in subjects)


def normalized(sums: Scores) -> Scores:
    """⌊100·(s − min)/(max − min)⌋; all equal gives 0."""
    if not sums.size:
        return sums
    lowest, highest = int(sums.min()), int(sums.max())
    if lowest == highest:
        return np.zeros(sums.size, np.int64)
    return SCORE_MAX * (sums - lowest) // (highest - lowest)
