"""Decide which pods have to go, and from which node, and which budgets cover them. Pure, apart from the questions it is
given.

`Residents` has all pods on nodes as columns: who is less important than a preemptor, and what would be free without
them. Source: behaviour/scheduler B7.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import label_selector, pod_labels, priority, quota_labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.label_selector import Predicate
from koordinator.api.resource_vector import I64
from koordinator.clock import parse_rfc3339_or
from koordinator.scheduler.table.columns import Rows, grown
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

PRIORITY_OFFSET = 1 << 31
"""Makes every priority positive, so that fewer victims have a smaller sum."""


NEVER = 1 << 62
"""The priority that counts for pods that are never preempted: those whose label says so, and those that stand for
Reservations."""


def is_preemptible(victim: PodInfo, preemptor: PodInfo) -> bool:
    """Return whether a pod is less important than another, and may have to go for it."""
    return victim.priority < preemptor.priority and may_ever_go(victim)


def may_ever_go(pod: PodInfo) -> bool:
    """Return whether a pod may have to go for any other."""
    meta = pod.pod.metadata
    return priority.is_preemptible(meta.labels) and not pod_labels.is_reserve_pod(meta.annotations)


def may_evict(preemptor: PodInfo, victim: PodInfo) -> bool:
    """Return whether a pod is less important than another and may have to go for it, where quotas protect pods, too."""
    marks = victim.pod.metadata.labels
    return is_preemptible(victim, preemptor) and not quota_labels.is_pod_non_preemptible(marks)


class Victim(msgspec.Struct, frozen=True):
    """A pod that may have to go; `start_s` is when it started, now for one that has not."""

    pod: PodInfo
    priority: int
    start_s: float

    @classmethod
    def of(cls, pod: PodInfo, now_s: float) -> "Victim":
        started_s = start_of(pod)
        return cls(pod, pod.priority, now_s if started_s is None else started_s)


def start_of(pod: PodInfo) -> float | None:
    """Return when a pod was started; None when it was not, or when nobody can tell."""
    return parse_rfc3339_or(pod.pod.status.start_time, None)


class DisruptionBudget(msgspec.Struct, frozen=True):
    """The disruptions that a PodDisruptionBudget still allows."""

    namespace: str
    selector: LabelSelector
    selects: Predicate
    allowed: int
    disrupted: frozenset[str]
    """Pods whose eviction was granted already: they count neither way."""

    @classmethod
    def of(cls, budget: PodDisruptionBudget) -> "DisruptionBudget | None":
        """None for one that protects nothing: without a selector, or with an empty or a malformed one."""
        selector = budget.spec.selector
        if selector is None or not (selector.match_labels or selector.match_expressions):
            return None
        try:
            selects = label_selector.compile_selector(selector)
        except ProtocolError:
            return None
        status = budget.status
        disrupted = frozenset(status.disrupted_pods)
        return cls(budget.metadata.namespace, selector, selects, status.disruptions_allowed, disrupted)


class Candidate(msgspec.Struct, frozen=True):
    """A node with the pods that have to leave it. `violations` counts those that a budget protects."""

    node_name: str
    victims: tuple[Victim, ...]
    violations: int


def by_importance(pods: Iterable[Victim]) -> list[Victim]:
    """Higher priority first, among equals the one that runs longest."""
    return sorted(pods, key=lambda victim: (-victim.priority, victim.start_s))


def select(
    removed: Sequence[Victim],
    budgets: "Budgets",
    *,
    put_back: Callable[[Victim], None],
    take: Callable[[Victim], None],
    fits: Callable[[], bool],
    may_stay: Callable[[], bool] = lambda: True,
) -> tuple[tuple[Victim, ...], int]:
    """Return victims among `removed` (all less important pods of a node, taken away already) and how many budgets they
    violate: pods are put back as long as the preemptor fits, protected ones first. `may_stay`: whether there is room
    also where not the node has the say (a quota); who goes for the sake of that violates no budget, as upstream counts.
    """
    violating, harmless = budgets.split(by_importance(removed))
    victims: list[Victim] = []
    violations = 0
    for is_violating, group in ((True, violating), (False, harmless)):
        for victim in group:
            put_back(victim)
            has_room = fits()
            if has_room and may_stay():
                continue
            take(victim)
            victims.append(victim)
            violations += is_violating and not has_room
    return tuple(by_importance(victims)), violations


def rank(candidate: Candidate) -> tuple[float, ...]:
    """Smaller is better: fewest violations, least important top victim, smallest sum of priorities, fewest
    victims, shortest run lost among the most important ones."""
    top = max(victim.priority for victim in candidate.victims)
    earliest_s = min(victim.start_s for victim in candidate.victims if victim.priority == top)
    priorities = sum(victim.priority + PRIORITY_OFFSET for victim in candidate.victims)
    return (candidate.violations, top, priorities, len(candidate.victims), -earliest_s)


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate that hurts least; the first of equal ones."""
    return min(candidates, key=rank, default=None)


NOWHERE = -1
_SLOTS_INITIAL = 1_024


class Residents(RowKeeper):
    """A slot per pod. `rows`, `priorities` and `starts_s` are (slots,), `amounts` is (resources, slots).

    A row of `NOWHERE` marks a free slot; a start of NaN a pod that has not started.
    """

    in_trials = False  # trials ask what would be if pods were gone: the answer is worked out from here

    def __init__(self, table: NodeTable) -> None:
        self.rows: npt.NDArray[np.int64] = np.full(_SLOTS_INITIAL, NOWHERE, np.int64)
        self.priorities: I64 = np.zeros(_SLOTS_INITIAL, np.int64)
        self.starts_s: npt.NDArray[np.float64] = np.full(_SLOTS_INITIAL, np.nan)
        self.amounts: I64 = np.zeros((len(table.registry), _SLOTS_INITIAL), np.int64)
        self._table = table
        self._slot_of: dict[str, int] = {}
        self._free: list[int] = []

    def slot_of(self, uid: str) -> int:
        return self._slot_of[uid]

    def amounts_of(self, columns: list[int], slots: Rows) -> I64:
        """(columns, slots): what pods request of some resources."""
        found = np.zeros((len(columns), slots.size), np.int64)
        for index, column in enumerate(columns):
            if column < self.amounts.shape[0]:  # else nobody on a node asks for it
                found[index] = self.amounts[column, slots]
        return found

    def below(self, priority: int) -> I64:
        """Slots of pods that may have to go for one of this priority."""
        found: I64 = np.flatnonzero((self.rows != NOWHERE) & (self.priorities < priority))
        return found

    def freed(self, priority: int, columns: list[int]) -> tuple[I64, I64]:
        """Return what pods below a priority hold: (columns, table rows) of resources, and (table rows,) pods."""
        slots = self.below(priority)
        rows = self.rows[slots]
        counts = np.bincount(rows, minlength=self._table.capacity)
        held = np.zeros((len(columns), self._table.capacity), np.int64)
        for each, amounts in zip(held, self.amounts_of(columns, slots), strict=True):
            np.add.at(each, rows, amounts)
        return held, counts

    # Who is where

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        slot = self._free.pop() if self._free else len(self._slot_of)
        if slot == self.rows.size:
            self._grow()
        self._slot_of[pod.uid] = slot
        self.rows[slot] = row
        self._describe(slot, pod)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        slot = self._slot_of.pop(pod.uid)
        self.rows[slot] = NOWHERE
        self.amounts[:, slot] = 0
        self._free.append(slot)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        slot = self._slot_of[new.uid]
        self.amounts[:, slot] = 0
        self._describe(slot, new)

    def _describe(self, slot: int, pod: PodInfo) -> None:
        width = len(self._table.registry)
        if width > self.amounts.shape[0]:
            self.amounts = grown(self.amounts, width, axis=0)
        self.priorities[slot] = pod.priority if may_ever_go(pod) else NEVER
        for column, amount in pod.requests:
            self.amounts[column, slot] = amount
        started_s = start_of(pod)
        self.starts_s[slot] = np.nan if started_s is None else started_s

    def _grow(self) -> None:
        size = 2 * self.rows.size
        self.rows, self.priorities = grown(self.rows, size, NOWHERE), grown(self.priorities, size)
        self.starts_s, self.amounts = grown(self.starts_s, size, np.nan), grown(self.amounts, size)


ANSWERS_MAX = 65_536
"""Answers kept: one per set of labels, of which a cluster has about one per workload."""


class Budgets:
    """All budgets by key. The labels that one selects are remembered until a selector changes: budgets are updated
    whenever a pod of theirs comes or goes, selectors hardly ever."""

    def __init__(self) -> None:
        self._budgets: dict[str, DisruptionBudget] = {}
        self._of_namespace: dict[str, list[str]] = {}
        self._selecting: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, ...]] = {}

    def set(self, budget: PodDisruptionBudget) -> None:
        found = DisruptionBudget.of(budget)
        if found is None:
            self.remove(budget)
            return
        if budget.key not in self._budgets:
            self._of_namespace.setdefault(found.namespace, []).append(budget.key)
        old = self._budgets.get(budget.key)
        self._budgets[budget.key] = found
        if old is None or old.selector != found.selector:
            self._selecting.clear()

    def remove(self, budget: PodDisruptionBudget) -> None:
        found = self._budgets.pop(budget.key, None)
        if found is not None:
            self._of_namespace[found.namespace].remove(budget.key)
            self._selecting.clear()

    def covering(self, pod: PodInfo) -> tuple[str, ...]:
        """Keys of the budgets that cover a pod."""
        meta = pod.pod.metadata
        if meta.namespace not in self._of_namespace or not meta.labels:
            return ()
        question = (meta.namespace, tuple(sorted(meta.labels.items())))
        found = self._selecting.get(question)
        if found is None:
            if len(self._selecting) >= ANSWERS_MAX:
                self._selecting.clear()
            keys = self._of_namespace[meta.namespace]
            found = tuple(key for key in keys if self._budgets[key].selects(meta.labels))
            self._selecting[question] = found
        return tuple(key for key in found if meta.name not in self._budgets[key].disrupted)

    def violating(self, pods: Iterable[tuple[str, ...]]) -> list[bool]:
        """Return whether each pod's going would violate a budget; given the keys of the budgets that cover each of the
        pods of one node, which use the budgets up in this order."""
        left: dict[str, int] = {}
        verdicts = []
        for keys in pods:
            is_violating = False
            for key in keys:
                left[key] = left.get(key, self._budgets[key].allowed) - 1
                is_violating = is_violating or left[key] < 0
            verdicts.append(is_violating)
        return verdicts

    def split(self, pods: Sequence[Victim]) -> tuple[list[Victim], list[Victim]]:
        """Return pods whose going would violate a budget, and the others; `pods` use up the budgets in their order."""
        verdicts = self.violating(self.covering(victim.pod) for victim in pods)
        found = list(zip(pods, verdicts, strict=True))
        return [each for each, violates in found if violates], [
            each for each, violates in found if not violates
        ]
