"""Evicting by the thresholds of NodeSLO's `resourceUsedThresholdWithBE`: what CPU and memory have in common.

Source: behaviour/koordlet-act 5 to 7. Amounts are milli-cores for every kind of CPU and bytes for every kind of memory.
"""

import abc
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.api import labels, pod_labels, priority, quantity, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import NodeSwitch, node_switch
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.eviction import LENT, Amounts, EvictionTask, ReleaseTarget, Used
from koordinator.koordlet.qos.eviction_strategy import CarriesOut, EvictionStrategy
from koordinator.koordlet.view import are_same

Integers = NDArray[np.int64]

PRIORITY_MAX = 7_999
"""Pods above the mid class never run on allocatable that shrinks."""
WITHDRAWN_S = 300.0
"""So long must a resource be gone from the node before all who requested it are evicted.

It also goes when the manager lacks reports for a while, or the node registers anew: no reason to stop any pod.
"""
_PLENTY = 2**62
_SWITCHED_BY = "BECPUEvict"
"""All features share the switch of this one."""


class ThresholdProblem(enum.Enum):
    """The reason why a feature does nothing."""

    NOT_CONFIGURED = "not-configured"
    DISABLED = "disabled"
    PERCENT_MISSING = "percent-missing"
    LOWER_OUT_OF_RANGE = "lower-out-of-range"
    UPPER_OUT_OF_RANGE = "upper-out-of-range"
    UPPER_BELOW_LOWER = "upper-below-lower"
    THRESHOLD_MISSING = "threshold-missing"
    THRESHOLD_NEGATIVE = "threshold-negative"
    LOWER_MISSING = "lower-missing"
    LOWER_NOT_BELOW = "lower-not-below-threshold"
    PRIORITY_MISSING = "priority-threshold-missing"
    PRIORITY_TOO_HIGH = "priority-threshold-too-high"


_WHY_NOT = {
    NodeSwitch.ON: None,
    NodeSwitch.OFF: ThresholdProblem.DISABLED,
    NodeSwitch.UNKNOWN: ThresholdProblem.NOT_CONFIGURED,
}


class Marks(msgspec.Struct, frozen=True):
    """Eviction begins at `threshold_percent`, ends below `lower_percent`, spares pods above `priority`.

    `priority` is None for features that only look at pods labelled BE.
    """

    threshold_percent: int
    lower_percent: int
    priority: int | None


class ThresholdEviction(EvictionStrategy):
    """A strategy for one resource; `by_allocatable` is its feature that looks at what the node lends of it."""

    resource: str
    """`cpu` or `memory`."""
    lent: tuple[str, ...]
    """Its names where it is lent."""
    by_allocatable: str

    def __init__(self, shared: Shared, evictor: CarriesOut) -> None:
        super().__init__(shared, evictor)
        self._lent = LentResources(self.lent)

    @abc.abstractmethod
    def _wanted(
        self,
        features: Collection[str],
        strategy: ResourceThresholdStrategy,
        capacity: int,
        lent: Amounts,
        pods: Sequence[Pod],
    ) -> list[EvictionTask]:
        """Return what these features want of the active pods, by what was measured last."""

    def tasks(self, now_s: float) -> list[EvictionTask]:
        view = self._shared.view
        strategy = view.slo.resource_used_threshold_with_be if view.slo is not None else None
        capacity = view.capacity(self.resource)
        if strategy is None or activity(strategy) or view.node is None or capacity <= 0:
            return []
        facts = view.pods, view.foreign, view.node, strategy
        features = self._features
        if self._lent.is_known_to_fit(*facts):
            features -= {self.by_allocatable}
        lent = self._lent.amounts(view.node, now_s, is_shared=bool(view.foreign))
        tasks = self._wanted(features, strategy, capacity, lent, self.active_pods())
        if all(task.feature != self.by_allocatable for task in tasks):
            self._lent.found_to_fit(*facts)
        return tasks


def activity(strategy: ResourceThresholdStrategy | None) -> ThresholdProblem | None:
    """Return why no eviction runs at all; None when it does."""
    return _WHY_NOT[node_switch(_SWITCHED_BY, strategy.enable if strategy is not None else None)]


def used_marks(threshold: int | None, lower: int | None, gap: int) -> Marks | ThresholdProblem:
    """Return the marks of a feature that looks at use; without a lower one it is `gap` below the threshold."""
    if threshold is None:
        return ThresholdProblem.THRESHOLD_MISSING
    if threshold < 0:
        return ThresholdProblem.THRESHOLD_NEGATIVE
    lower = threshold - gap if lower is None else lower
    return ThresholdProblem.LOWER_NOT_BELOW if lower >= threshold else Marks(threshold, lower, None)


def up_to_priority(
    found: Marks | ThresholdProblem, strategy: ResourceThresholdStrategy
) -> Marks | ThresholdProblem:
    """Return the marks of a feature that may evict pods of any class up to a priority."""
    if isinstance(found, ThresholdProblem):
        return found
    if strategy.evict_enabled_priority_threshold is None:
        return ThresholdProblem.PRIORITY_MISSING
    return msgspec.structs.replace(found, priority=strategy.evict_enabled_priority_threshold)


def allocatable_marks(
    strategy: ResourceThresholdStrategy, threshold: int | None, lower: int | None
) -> Marks | ThresholdProblem:
    """Return the marks of a feature that looks at requests."""
    if threshold is None:
        return ThresholdProblem.THRESHOLD_MISSING
    if threshold < 0:
        return ThresholdProblem.THRESHOLD_NEGATIVE
    if lower is None:
        return ThresholdProblem.LOWER_MISSING
    if lower >= threshold:
        return ThresholdProblem.LOWER_NOT_BELOW
    limit = strategy.allocatable_evict_priority_threshold
    if limit is None:
        return ThresholdProblem.PRIORITY_MISSING
    return ThresholdProblem.PRIORITY_TOO_HIGH if limit > PRIORITY_MAX else Marks(threshold, lower, limit)


def above_lower(capacity: int | Integers, used: int | Integers, marks: Marks) -> Integers:
    """Return what to give back, in the unit of both, so that use falls to the lower mark; 0 below the upper one.

    Elementwise: `capacity` (above 0) and `used` are of one node, or (nodes,).
    """
    percent = used * 100 // capacity
    excess = np.maximum(capacity * (percent - marks.lower_percent) // 100, 0)
    return np.where(percent < marks.threshold_percent, 0, excess)


def tasks_of(
    resource: str,
    by_allocatable: str,
    marks: Mapping[str, Marks | ThresholdProblem],
    capacity: int,
    used: float | None,
    pods_used: Used,
    allocatable: Amounts,
    pods: Sequence[Pod],
    unit: int = 1,
) -> list[EvictionTask]:
    """Return what features want by their marks: `by_allocatable` looks at requests, the others at use."""
    found = (
        allocatable_task(feature, resource, each, allocatable, pods, pods_used)
        if feature == by_allocatable
        else used_task(feature, resource, each, capacity, used, pods, pods_used, unit)
        for feature, each in marks.items()
    )
    return [task for task in found if task is not None]


def used_task(
    feature: str,
    resource: str,
    marks: Marks | ThresholdProblem,
    capacity: int,
    used: float | None,
    pods: Sequence[Pod],
    pods_used: Used,
    unit: int = 1,
) -> EvictionTask | None:
    """Return what a feature wants that looks at use; `capacity` is in `1 / unit` of what `used` is measured in."""
    if not isinstance(marks, Marks) or used is None:
        return None
    release = int(above_lower(capacity, int(used * unit), marks))
    if release <= 0:
        return None
    if marks.priority is None:
        candidates = eviction.largest_first(feature, pods, pods_used)
    else:
        candidates = eviction.by_priority(feature, pods, pods_used, marks.priority)
    gives = {uid: {resource: int(amount * unit)} for uid, amount in pods_used.items()}
    return EvictionTask(feature, ReleaseTarget.USED, {resource: release}, eviction.uids(candidates), gives)


def allocatable_task(
    feature: str,
    resource: str,
    marks: Marks | ThresholdProblem,
    allocatable: Amounts,
    pods: Sequence[Pod],
    pods_used: Used,
) -> EvictionTask | None:
    """Return what a feature wants that looks at requests for `cpu` or `memory`."""
    if not isinstance(marks, Marks) or marks.priority is None:
        return None
    wanted = allocatable_release(resource, pods, allocatable, marks)
    if not wanted:
        return None
    candidates = eviction.by_priority(feature, pods, pods_used, marks.priority, requested=resource)
    gives = _gives_request(pods, resource, wanted)
    return EvictionTask(feature, ReleaseTarget.REQUEST, wanted, eviction.uids(candidates), gives)


def allocatable_release(
    resource: str, pods: Iterable[Pod], allocatable: Amounts, marks: Marks
) -> dict[str, int]:
    """Return what to give back of batch and mid resources whose requests exceed what is allocatable.

    All of a resource that the node has no more; else down to the lower mark.
    """
    wanted = {}
    for name, amount in _lent_requests(pods, resource, marks.priority or 0).items():
        available = allocatable.get(name, 0)
        if available <= 0:
            wanted[name] = amount
        elif amount / available > marks.threshold_percent / 100:
            wanted[name] = _excess(resource, amount, available, marks.lower_percent / 100)
    return {name: amount for name, amount in wanted.items() if amount > 0}


def _excess(resource: str, amount: int, available: int, lower: float) -> int:
    """Return the amount above the lower mark, with the rounding that the reference has for each of the two."""
    if resource == resources.MEMORY:
        return int((amount / available - lower) * available)
    return int(amount - lower * available)


def _lent_requests(pods: Iterable[Pod], resource: str, priority_max: int) -> dict[str, int]:
    """Return batch and mid requests of active pods up to a priority, by resource.

    Only these can be given back, so native requests do not count (the reference counts them, and then evicts
    every candidate in vain).
    """
    sums: dict[str, int] = {}
    for pod in pods:
        is_inactive = pod_labels.is_inactive(pod.status.phase)
        if not is_inactive and priority.default_number(pod) <= priority_max:
            asked = eviction.request(pod, resource)
            if asked.resource in LENT:
                sums[asked.resource] = sums.get(asked.resource, 0) + asked.amount
    return sums


def _gives_request(pods: Iterable[Pod], resource: str, wanted: Amounts) -> dict[str, dict[str, int]]:
    """Return what each pod gives back of the wanted resources when it is evicted."""
    gives = {}
    for pod in pods:
        asked = eviction.request(pod, resource)
        if asked.resource in wanted:
            gives[pod.metadata.uid] = {asked.resource: asked.amount}
    return gives


class LentResources:
    """Follows what a node lends of some resources. Times are those of a clock that never goes back."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._gone_since_s: dict[str, float] = {}
        self._is_waiting = False
        self._fitting: tuple[object, ...] = ()

    def is_known_to_fit(self, *facts: object) -> bool:
        """Return whether requests were found to fit these very objects, so that nobody needs to add them up again."""
        return are_same(facts, self._fitting)

    def found_to_fit(self, *facts: object) -> None:
        """Remember that requests fit what is lent; not while something is gone and only counts as plenty."""
        self._fitting = () if self._is_waiting else facts

    def amounts(self, node: Node, now_s: float, *, is_shared: bool) -> Amounts:
        """Return allocatable by resource (milli-cores, bytes); what has just gone still counts as plenty.

        `is_shared`: containers of other runtimes are among those who request. Then it is what the node lends in all:
        allocatable is without what the other runtime has given out. Source: behaviour/yarn 8.3.
        """
        found = {}
        self._is_waiting = False
        origin = _origin(node) if is_shared else {}
        for name in self._names:
            amount = _amount(origin if name in origin else node.status.allocatable, name)
            if amount > 0:
                self._gone_since_s.pop(name, None)
            elif now_s - self._gone_since_s.setdefault(name, now_s) < WITHDRAWN_S:
                amount, self._is_waiting = _PLENTY, True
            found[name] = amount
        return found


def _origin(node: Node) -> ResourceList:
    """Return what the manager lends of the node before others took from it; empty where it does not say."""
    text = node.metadata.annotations.get(labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE)
    try:
        return node_annotations.ORIGIN_EXTENDED_ALLOCATABLE.decode(text).resources if text else {}
    except ProtocolError:
        return {}


def _amount(listed: ResourceList, name: str) -> int:
    try:
        return quantity.value(listed.get(name, 0))
    except QuantityError:
        return 0
