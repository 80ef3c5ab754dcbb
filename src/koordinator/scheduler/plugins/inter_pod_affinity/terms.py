"""What the affinity of pods says, and where the pods that say it are."""

import itertools
from collections.abc import Hashable

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.affinity import PodAffinity, PodAffinityTerm
from koordinator.api.core import Pod
from koordinator.scheduler.label_columns import ABSENT
from koordinator.scheduler.nodes import NodeTable, RowKeeper
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.pod_terms import Anchor, NamespaceLabels, PodTerm, anchors_of

MATCHES_MAX = 4_096
"""Remembered answers to "which terms mean pods with these labels"."""

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


def terms_of(pod: Pod) -> tuple[Term, ...]:
    """All terms of a pod, required ones first, in their order."""
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    together, apart = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    namespace = pod.metadata.namespace

    def term(kind: str, weight: int, wire: PodAffinityTerm) -> Term:
        return Term(kind, wire.topology_key, weight, PodTerm.of_affinity(wire, namespace))

    return (
        *(
            term(REQUIRED_AFFINITY, 0, t)
            for t in together.required_during_scheduling_ignored_during_execution
        ),
        *(term(REQUIRED_ANTI, 0, t) for t in apart.required_during_scheduling_ignored_during_execution),
        *(
            term(PREFERRED, t.weight, t.pod_affinity_term)
            for t in together.preferred_during_scheduling_ignored_during_execution
        ),
        *(
            term(PREFERRED, -t.weight, t.pod_affinity_term)
            for t in apart.preferred_during_scheduling_ignored_during_execution
        ),
    )


def has_pod_affinity(pod: Pod) -> bool:
    """Whether the pod says anything about other pods; cheap."""
    affinity = pod.spec.affinity
    return affinity is not None and (
        affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None
    )


class Holders:
    """The pods that have a term: how many on each row. `number` is never given twice."""

    __slots__ = ("_arrays", "number", "rows", "term", "version")

    def __init__(self, term: Term, number: int) -> None:
        self.term = term
        self.number = number
        self.rows: dict[int, int] = {}
        self.version = 0
        self._arrays: tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]] | None = None

    def add(self, row: int, change: int) -> None:
        count = self.rows.get(row, 0) + change
        if count:
            self.rows[row] = count
        else:
            del self.rows[row]
        self.version += 1
        self._arrays = None

    def arrays(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """(rows, pods there), rows ascending."""
        if self._arrays is None:
            rows = np.array(sorted(self.rows), np.intp)
            self._arrays = rows, np.array([self.rows[row] for row in rows.tolist()], np.int64)
        return self._arrays


class TermIndex(RowKeeper):
    """The terms of all pods that count on rows, and which of them mean a given pod."""

    def __init__(self, table: NodeTable, namespaces: NamespaceLabels) -> None:
        self._namespaces = namespaces
        self._holders: dict[Hashable, Holders] = {}
        self._anchored: dict[Anchor, dict[int, Holders]] = {}
        self._terms: dict[str, tuple[Term, ...]] = {}
        self._numbers = itertools.count(1)
        self._matches: dict[Hashable, tuple[Holders, ...]] = {}
        self._seen_namespaces = namespaces.version

    def __len__(self) -> int:
        return len(self._holders)

    def meaning(self, pod: Pod) -> tuple[Holders, ...]:
        """Terms of pods on nodes that match `pod`, in order of their numbers."""
        if not self._holders:
            return ()
        if self._seen_namespaces != self._namespaces.version:
            self._seen_namespaces = self._namespaces.version
            self._matches.clear()
        key = (pod.metadata.namespace, frozenset(pod.metadata.labels.items()))
        found = self._matches.get(key)
        if found is None:
            if len(self._matches) >= MATCHES_MAX:
                self._matches.clear()
            found = self._matches[key] = self._find(pod)
        return found

    def _find(self, pod: Pod) -> tuple[Holders, ...]:
        found = {
            number: holders
            for anchor in anchors_of(pod)
            for number, holders in self._anchored.get(anchor, {}).items()
            if holders.term.pods.matches(pod, self._namespaces)
        }
        return tuple(found[number] for number in sorted(found))

    # Who has what

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if has_pod_affinity(pod.pod):
            terms = self._terms[pod.uid] = terms_of(pod.pod)
            for term in terms:
                self._holders_of(term).add(row, 1)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        for term in self._terms.pop(pod.uid, ()):
            holders = self._holders[term.key]
            holders.add(row, -1)
            if not holders.rows:
                self._drop(holders)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        """The affinity of an assigned pod does not change."""

    def _holders_of(self, term: Term) -> Holders:
        key = term.key
        found = self._holders.get(key)
        if found is None:
            found = self._holders[key] = Holders(term, next(self._numbers))
            for anchor in term.pods.anchors:
                self._anchored.setdefault(anchor, {})[found.number] = found
            self._matches.clear()
        return found

    def _drop(self, holders: Holders) -> None:
        del self._holders[holders.term.key]
        for anchor in holders.term.pods.anchors:
            anchored = self._anchored[anchor]
            del anchored[holders.number]
            if not anchored:
                del self._anchored[anchor]
        self._matches.clear()


class Booking:
    """Numbers booked on the values of a topology key."""

    def __init__(self) -> None:
        self.by_value: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.is_booked = False

    def add(self, ids: npt.NDArray[np.int32], amounts: npt.NDArray[np.int64]) -> None:
        """`ids`: the value's number on each node, `ABSENT` where there is none; `amounts` for each of them."""
        has_key = ids != ABSENT
        if not (has_key & (amounts != 0)).any():
            return
        self.is_booked = True
        size = max(self.by_value.size, int(ids.max()) + 1)
        grown = np.zeros(size, np.int64)
        grown[: self.by_value.size] = self.by_value
        np.add.at(grown, ids[has_key], amounts[has_key])
        self.by_value = grown

    def at(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """What is booked on each node's value; 0 without the key or for values that nothing was booked on."""
        if not self.by_value.size:
            return np.zeros(ids.size, np.int64)
        is_known = (ids != ABSENT) & (ids < self.by_value.size)
        return np.where(is_known, self.by_value[np.where(is_known, ids, 0)], 0)
