"""Who is evicted when the node runs out: candidates, their order, and arbitration between features.

Source: behaviour/koordlet-act 5. Amounts are milli-cores for every kind of CPU and bytes for every kind of memory.
"""

import enum
import functools
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.api import pod_labels, pod_resize, pod_resources, priority, qos, quantity, resources
from koordinator.api.annotations import koordlet as koordlet_annotations
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import ZERO
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.qos import eviction_settings
from koordinator.koordlet.qos.eviction_settings import Feature, Marks

Integers = NDArray[np.int64]
Used = Mapping[str, float]
"""Pod UID → latest sample (cores or bytes); pods without sample are missing."""
Amounts = Mapping[str, int]
_Order = Callable[[Pod, Pod], int]

EVENT_SUCCESS, EVENT_FAIL = "evictPodSuccess", "evictPodFail"
"""Reasons of the events that tell of an eviction."""

_CLASS_RESOURCES = {
    (PriorityClass.MID, resources.CPU): resources.MID_CPU,
    (PriorityClass.MID, resources.MEMORY): resources.MID_MEMORY,
    (PriorityClass.BATCH, resources.CPU): resources.BATCH_CPU,
    (PriorityClass.BATCH, resources.MEMORY): resources.BATCH_MEMORY,
}
LENT = frozenset(_CLASS_RESOURCES.values())
"""Resources that the manager may take back from running pods."""

_COUNTS_REQUESTS = {
    Feature.CPU_ALLOCATABLE: resources.CPU,
    Feature.MEMORY_ALLOCATABLE: resources.MEMORY,
}
"""Features that look at what pods requested, not at what they use, and of what."""

_NEVER = frozenset((QoSClass.LSE, QoSClass.LSR))
"""Services with CPUs of their own; whatever their labels and priority say, they are not there to make room."""


class Target(enum.Enum):
    """What a victim gives back: what it uses, or what it requested."""

    USED = "used"
    REQUEST = "request"


class Request(msgspec.Struct, frozen=True):
    """What a pod requested of cpu or memory, under the name of its priority class."""

    resource: str
    amount: int


class EvictionTask(msgspec.Struct, frozen=True):
    """What one feature wants: candidates (UIDs) in order, and what each known pod gives back."""

    feature: Feature
    target: Target
    wanted: dict[str, int]
    candidates: tuple[str, ...]
    gives: dict[str, dict[str, int]]


class Victim(msgspec.Struct, frozen=True):
    """The pod to evict next, and for which feature."""

    uid: str
    feature: Feature

    def message(self, pod_name: str) -> str:
        """Words for the event."""
        return f"trigger by koordlet feature {self.feature}, kill pod: {pod_name}"


def eviction_priority(annotations: Mapping[str, str]) -> int:
    """The number of the annotation; 0 when absent or malformed. Lower goes first."""
    try:
        return pod_labels.eviction_priority(annotations)
    except ProtocolError:
        return 0


def request(pod: Pod, resource: str) -> Request:
    """What the pod requested of `cpu` or `memory`.

    Mid and batch pods: the sum of their class's resource over containers and sidecars; all others: the
    effective request of the whole pod.
    """
    named = _CLASS_RESOURCES.get((priority.default(pod), resource))
    if named is None:
        amount = pod_resources.requests(pod).get(resource, ZERO)
        return Request(resource, amount.milli if resource == resources.CPU else amount.value)
    sidecars = filter(pod_resize.is_sidecar, pod.spec.init_containers)
    running = (*pod.spec.containers, *sidecars)
    amounts = (quantity.value(container.resources.requests.get(named, 0)) for container in running)
    return Request(named, sum(max(amount, 0) for amount in amounts))


def by_priority(feature: Feature, pods: Iterable[Pod], used: Used, priority_max: int) -> list[Pod]:
    """Candidates of the features that may evict pods of any class, first victim first.

    By eviction priority, priority, sub-priority; then who uses more (who requested more, where the feature counts
    requests); then the younger, which loses less work.
    """
    requested = _COUNTS_REQUESTS.get(feature)
    candidates = [
        pod
        for pod in pods
        if not pod_labels.is_inactive(pod.status.phase)
        and qos.raw(pod) not in _NEVER
        and pod.metadata.uid in used
        and priority.default_number(pod) <= priority_max
        and pod_labels.is_eviction_enabled(pod.metadata.labels)
        and koordlet_annotations.allows_eviction_by(pod.metadata.annotations, feature)
    ]

    def rank(pod: Pod) -> tuple[int, int, int, float]:
        number = priority.default_number(pod)
        sub_priority = priority.sub_priority(pod.metadata.labels, number)
        amount = used[pod.metadata.uid] if requested is None else request(pod, requested).amount
        return eviction_priority(pod.metadata.annotations), number, sub_priority, -amount

    return sorted(younger_first(candidates), key=rank)


def best_effort(feature: Feature, pods: Iterable[Pod], otherwise: _Order) -> list[Pod]:
    """Candidates of the features that only evict pods labelled BE, first victim first.

    By `spec.priority` where both pods have one, else by `otherwise`; then the younger.
    """

    def order(one: Pod, other: Pod) -> int:
        first, second = one.spec.priority, other.spec.priority
        if first is not None and second is not None and first != second:
            return -1 if first < second else 1
        return otherwise(one, other)

    candidates = [
        pod
        for pod in pods
        if qos.raw(pod) is QoSClass.BE
        and koordlet_annotations.allows_eviction_by(pod.metadata.annotations, feature)
    ]
    return sorted(younger_first(candidates), key=functools.cmp_to_key(order))


def younger_first(pods: Iterable[Pod]) -> list[Pod]:
    """Pods by age, then namespace and name: what decides when nothing else does."""
    by_name = sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))
    return sorted(by_name, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)


def uids(pods: Iterable[Pod]) -> tuple[str, ...]:
    """Of these pods, in their order."""
    return tuple(pod.metadata.uid for pod in pods)


def above_lower(capacity: int | Integers, used: int | Integers, marks: Marks) -> Integers:
    """What to give back, in the unit of both, so that use falls to the lower mark; 0 below the upper one.

    Elementwise: `capacity` (above 0) and `used` are of one node, or (nodes,).
    """
    percent = used * 100 // capacity
    excess = np.maximum(capacity * (percent - marks.lower_percent) // 100, 0)
    return np.where(percent < marks.threshold_percent, 0, excess)


def allocatable_task(
    feature: Feature,
    strategy: ResourceThresholdStrategy,
    pods: Sequence[Pod],
    used: Used,
    release: Callable[[Marks], dict[str, int]],
) -> EvictionTask | None:
    """What a feature that counts requests wants; `release` says how much of which resource, by the feature's marks."""
    marks = eviction_settings.marks_of(feature, strategy)
    if not isinstance(marks, Marks) or marks.priority is None:
        return None
    wanted = release(marks)
    if not wanted:
        return None
    candidates = by_priority(feature, pods, used, marks.priority)
    gives = gives_request(pods, _COUNTS_REQUESTS[feature], wanted)
    return EvictionTask(feature, Target.REQUEST, wanted, uids(candidates), gives)


def above_allocatable(
    requested: Mapping[str, int],
    allocatable: Amounts,
    threshold_percent: int,
    excess: Callable[[int, int], int],
) -> dict[str, int]:
    """What must be given back of resources whose requests exceed a share of what is allocatable.

    All of a resource that the node has no more; else `excess(requested, allocatable)`.
    """
    wanted = {}
    for name, amount in requested.items():
        available = allocatable.get(name, 0)
        if available <= 0:
            wanted[name] = amount
        elif amount / available > threshold_percent / 100:
            wanted[name] = excess(amount, available)
    return {name: amount for name, amount in wanted.items() if amount > 0}


def lent_requests(pods: Iterable[Pod], resource: str, priority_max: int) -> dict[str, int]:
    """Batch and mid requests of active pods up to a priority, by resource.

    Only these can be given back, so native requests do not count (the reference counts them, and then evicts
    every candidate in vain).
    """
    sums: dict[str, int] = {}
    for pod in pods:
        is_inactive = pod_labels.is_inactive(pod.status.phase)
        if not is_inactive and priority.default_number(pod) <= priority_max:
            asked = request(pod, resource)
            if asked.resource in LENT:
                sums[asked.resource] = sums.get(asked.resource, 0) + asked.amount
    return sums


def gives_request(pods: Iterable[Pod], resource: str, wanted: Amounts) -> dict[str, dict[str, int]]:
    """What each pod gives back of the wanted resources when it is evicted."""
    gives = {}
    for pod in pods:
        asked = request(pod, resource)
        if asked.resource in wanted:
            gives[pod.metadata.uid] = {asked.resource: asked.amount}
    return gives


def narrowed(
    tasks: Iterable[EvictionTask], leaving: Collection[str] = (), spared: Container[str] = ()
) -> list[EvictionTask]:
    """A task per wanted resource, with pods only that give some of it back.

    Those `leaving` stand first, so that what they give back counts before anybody else goes; `spared` ones are left
    out. Evicting pods that give nothing back would be in vain: a target out of reach would evict everybody.
    """
    first = sorted(leaving)
    return [
        msgspec.structs.replace(
            task,
            wanted={name: amount},
            candidates=tuple(
                uid
                for uid in (*first, *(uid for uid in task.candidates if uid not in leaving))
                if uid not in spared and task.gives.get(uid, {}).get(name, 0) > 0
            ),
        )
        for task in tasks
        for name, amount in task.wanted.items()
        if amount > 0
    ]


class Arbitration:
    """One round over all tasks: hands out victims one at a time and counts what each gives back.

    A victim counts for all tasks; per target and resource once, with the largest number that any task says.
    """

    def __init__(self, tasks: Sequence[EvictionTask], already_evicted: Iterable[str] = ()) -> None:
        """A round; `already_evicted` are pods whose earlier eviction still goes on."""
        self._tasks = tuple(tasks)
        self._already = frozenset(already_evicted)
        self._handled: set[str] = set()
        self._task = 0
        self._candidate = 0
        self._evicted: list[str] = []
        self._released: dict[Target, dict[str, int]] = {}

    @property
    def evicted(self) -> tuple[str, ...]:
        """Pods newly evicted in this round, in order."""
        return tuple(self._evicted)

    @property
    def released(self) -> dict[Target, dict[str, int]]:
        """What was given back so far, also by pods evicted earlier."""
        return self._released

    def next_victim(self) -> Victim | None:
        """The pod to evict next; None when all tasks are satisfied or have no candidates left."""
        while self._task < len(self._tasks):
            task = self._tasks[self._task]
            if self._candidate >= len(task.candidates) or not self.left(task):
                self._task, self._candidate = self._task + 1, 0
                continue
            uid = task.candidates[self._candidate]
            self._candidate += 1
            if uid in self._handled:
                continue
            if uid in self._already:
                self._count(uid)
                continue
            return Victim(uid, task.feature)
        return None

    def settle(self, victim: Victim, succeeded: bool) -> None:
        """Tell what became of a victim; after a failure a later task may choose it again."""
        if succeeded:
            self._evicted.append(victim.uid)
            self._count(victim.uid)

    def left(self, task: EvictionTask) -> dict[str, int]:
        """What a task still misses, by resource."""
        released = self._released.get(task.target, {})
        missing = {name: amount - released.get(name, 0) for name, amount in task.wanted.items()}
        return {name: amount for name, amount in missing.items() if amount > 0}

    def _count(self, uid: str) -> None:
        self._handled.add(uid)
        gives: dict[Target, dict[str, int]] = {}
        wanting = {task.target for task in self._tasks if any(want > 0 for want in task.wanted.values())}
        for task in self._tasks:
            if task.target not in wanting:
                continue
            of_target = gives.setdefault(task.target, {})
            for name, amount in task.gives.get(uid, {}).items():
                of_target[name] = max(of_target.get(name, 0), amount)
        for target, amounts in gives.items():
            released = self._released.setdefault(target, {})
            for name, amount in amounts.items():
                released[name] = released.get(name, 0) + amount
