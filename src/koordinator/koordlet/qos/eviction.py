"""Choose who is evicted when the node runs out: candidates, their order, and arbitration between features.

Source: behaviour/koordlet-act 5. Amounts are milli-cores for every kind of CPU and bytes for every kind of memory.

Pods that are leaving are remembered (behaviour/koordlet-act 5.5): what they give back counts once, and nobody is
evicted in their place.
"""

import enum
import functools
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.api import copilot, pod_labels, pod_resources, priority, qos, quantity, resources
from koordinator.api.annotations import koordlet as koordlet_annotations
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import ZERO
from koordinator.cluster.informer import key_of
from koordinator.koordlet.node_pods import PodRecord

Used = Mapping[str, float]
"""Pod UID → latest sample (cores or bytes); pods without sample are missing."""
Amounts = Mapping[str, int]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
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

NEVER = frozenset((QoSClass.LSE, QoSClass.LSR))
"""Services with CPUs of their own; whatever their labels and priority say, they are not there to make room."""


class ReleaseTarget(enum.Enum):
    """The kind of a victim's gift: what it uses, or what it requested."""

    USED = "used"
    REQUEST = "request"


class Request(msgspec.Struct, frozen=True):
    """The request of a pod for cpu or memory, under the name of its priority class."""

    resource: str
    amount: int


class EvictionTask(msgspec.Struct, frozen=True):
    """The task of one feature: candidates (UIDs) in order, and what each known pod gives back."""

    feature: str
    """Its gate, as pods name it in their eviction policy."""
    target: ReleaseTarget
    wanted: dict[str, int]
    candidates: tuple[str, ...]
    gives: dict[str, dict[str, int]]
    reason: str = ""
    """Measured figures, for events and the audit log."""


class EvictionVictim(msgspec.Struct, frozen=True):
    """The pod to evict next, and for which feature."""

    uid: str
    feature: str
    reason: str = ""

    def message(self, pod_name: str) -> str:
        """Words for the event."""
        reason = f" ({self.reason})" if self.reason else ""
        return f"trigger by koordlet feature {self.feature}{reason}, kill pod: {pod_name}"


def eviction_priority(annotations: Mapping[str, str]) -> int:
    """Return the number of the annotation; 0 when absent or malformed. Lower goes first."""
    try:
        return pod_labels.eviction_priority(annotations)
    except ProtocolError:
        return 0


def request(pod: Pod, resource: str) -> Request:
    """Return what the pod requested of `cpu` or `memory`.

    Mid and batch pods: the sum of their class's resource over containers and sidecars; all others: the
    effective request of the whole pod.
    """
    named = _CLASS_RESOURCES.get((priority.default(pod), resource))
    if named is None:
        amount = pod_resources.requests(pod).get(resource, ZERO)
        return Request(resource, amount.milli if resource == resources.CPU else amount.value)
    running = pod_resources.running_together(pod.spec)
    amounts = (quantity.value(container.resources.requests.get(named, 0)) for container in running)
    return Request(named, sum(max(amount, 0) for amount in amounts))


def by_priority(
    feature: str, pods: Iterable[Pod], used: Used, priority_max: int, *, requested: str | None = None
) -> list[Pod]:
    """Candidates of the features that may evict pods of any class, first victim first.

    By eviction priority, priority, sub-priority; then who uses more (who requested more of the resource `requested`);
    then the younger, which loses less work.
    """
    candidates = [
        pod
        for pod in pods
        if not pod_labels.is_inactive(pod.status.phase)
        and qos.raw(pod) not in NEVER
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


def best_effort(feature: str, pods: Iterable[Pod], otherwise: _Order) -> list[Pod]:
    """Candidates of the features that only evict pods labelled BE, first victim first.

    By `spec.priority` where both pods have one; then containers of other runtimes as their agent places them (masters
    last); then by `otherwise`; then the younger.
    """

    def order(one: Pod, other: Pod) -> int:
        first, second = one.spec.priority, other.spec.priority
        if first is not None and second is not None and first != second:
            return -1 if first < second else 1
        first, second = _place(one), _place(other)
        if first is not None and second is not None and first != second:
            return first - second
        return otherwise(one, other)

    candidates = [
        pod
        for pod in pods
        if qos.raw(pod) is QoSClass.BE
        and koordlet_annotations.allows_eviction_by(pod.metadata.annotations, feature)
    ]
    return sorted(younger_first(candidates), key=functools.cmp_to_key(order))


def _place(pod: Pod) -> int | None:
    """Return the place of a container of another runtime among those of its priority, lower goes first; None for
    pods."""
    if copilot.LABEL not in pod.metadata.labels:
        return None
    return priority.sub_priority(pod.metadata.labels, fallback=0)


def largest_first(feature: str, pods: Iterable[Pod], used: Used) -> list[Pod]:
    """Candidates labelled BE: after priority those that use most; without usage last, names descending."""

    def order(one: Pod, other: Pod) -> int:
        first, second = (max(used.get(pod.metadata.uid, 0.0), 0.0) for pod in (one, other))
        if first != second:
            return -1 if first > second else 1
        if first:
            return 0  # who comes first of those that use the same does not matter
        return (one.metadata.name < other.metadata.name) - (one.metadata.name > other.metadata.name)

    return best_effort(feature, pods, order)


def largest_of_nodes(node: Integers, used: Integers, release: Integers) -> Mask:
    """Return which pods go, (pods,), so that each node gets `release` (nodes,) back: of pods of one priority those that
    use most, as `largest_first` has them, until it is enough.

    `node` is a row, `used` what each pod gives back, (pods,).
    """
    goes = np.zeros(node.size, np.bool_)
    candidates = np.flatnonzero((release[node] > 0) & (used > 0))
    order = candidates[np.lexsort((-used[candidates], node[candidates]))]
    rows, amounts = node[order], used[order]
    before = np.cumsum(amounts) - amounts
    first = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]]) if rows.size else rows
    before -= np.repeat(before[first], np.diff(np.r_[first, rows.size]))
    goes[order] = before < release[rows]
    return goes


def younger_first(pods: Iterable[Pod]) -> list[Pod]:
    """Return pods by age, then namespace and name: what decides when nothing else does.

    Containers of other runtimes go by name backwards: ids of YARN count up.
    """
    by_name = sorted(pods, key=key_of)
    foreign = [pod for pod in reversed(by_name) if copilot.LABEL in pod.metadata.labels]
    if foreign:
        by_name = [*foreign, *(pod for pod in by_name if copilot.LABEL not in pod.metadata.labels)]
    return sorted(by_name, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)


def uids(pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return the UIDs of these pods, in their order."""
    return tuple(pod.metadata.uid for pod in pods)


def narrowed(
    tasks: Iterable[EvictionTask], leaving: Collection[str] = (), spared: Container[str] = ()
) -> list[EvictionTask]:
    """Return a task per wanted resource, with pods only that give some of it back.

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
        """Run a round; `already_evicted` are pods whose earlier eviction still goes on."""
        self._tasks = tuple(tasks)
        self._already = frozenset(already_evicted)
        self._handled: set[str] = set()
        self._task = 0
        self._candidate = 0
        self._evicted: list[str] = []
        self._released: dict[ReleaseTarget, dict[str, int]] = {}

    @property
    def evicted(self) -> tuple[str, ...]:
        """Pods newly evicted in this round, in order."""
        return tuple(self._evicted)

    @property
    def released(self) -> dict[ReleaseTarget, dict[str, int]]:
        """Return what was given back so far, also by pods evicted earlier."""
        return self._released

    def next_victim(self) -> EvictionVictim | None:
        """Return the pod to evict next; None when all tasks are satisfied or have no candidates left."""
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
            return EvictionVictim(uid, task.feature, task.reason)
        return None

    def settle(self, victim: EvictionVictim, succeeded: bool) -> None:
        """Tell what became of a victim; after a failure a later task may choose it again."""
        if succeeded:
            self._evicted.append(victim.uid)
            self._count(victim.uid)

    def left(self, task: EvictionTask) -> dict[str, int]:
        """Return what a task still misses, by resource."""
        released = self._released.get(task.target, {})
        missing = {name: amount - released.get(name, 0) for name, amount in task.wanted.items()}
        return {name: amount for name, amount in missing.items() if amount > 0}

    def _count(self, uid: str) -> None:
        self._handled.add(uid)
        gives: dict[ReleaseTarget, dict[str, int]] = {}
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


LEAVING_S_MAX = 120.0
"""A pod that is still there after so long does not leave: it gives nothing back, and evicting it again is no use."""
SETTLE_S = 4.0
"""Usage samples of a killed pod are old for a moment."""
REFUSED_S = 30.0
"""Time for which a pod is left alone after its eviction was refused: a disruption budget does not change
within a second."""


class LeavingPods(msgspec.Struct, frozen=True):
    """UIDs of pods that leave, and of those that cannot be made to (now)."""

    leaving: frozenset[str]
    spared: frozenset[str]


class _Leaving(msgspec.Struct):
    """A pod that was seen to leave, or killed: then it is gone once none of the killed containers runs."""

    since_s: float
    killed: frozenset[str] = frozenset()
    ended_s: float | None = None


class Victims:
    """The memory of an evictor. Times are those of a clock that never goes back."""

    def __init__(self, leaving_s_max: float = LEAVING_S_MAX) -> None:
        """`leaving_s_max`: who is still there after so long does not leave."""
        self._leaving_s_max = leaving_s_max
        self._leaving: dict[str, _Leaving] = {}
        self._refused_s: dict[str, float] = {}

    def evicted(self, uid: str, now_s: float) -> None:
        """Note that the API took an eviction."""
        self._leaving[uid] = _Leaving(now_s)

    def killed(self, uid: str, containers: Iterable[str], now_s: float) -> None:
        """Containers of a pod were stopped; the kubelet may start others in their place, which are not these."""
        self._leaving[uid] = _Leaving(now_s, frozenset(containers))

    def refused(self, uid: str, now_s: float) -> None:
        """Note that a pod could not be evicted."""
        self._refused_s[uid] = now_s

    def look(self, pods: Mapping[str, PodRecord], now_s: float) -> LeavingPods:
        """Return who leaves now. Pods that somebody else deletes leave, too, also after a restart of this agent."""
        for uid, record in pods.items():
            if record.pod.metadata.deletion_timestamp is not None and uid not in self._leaving:
                self._leaving[uid] = _Leaving(now_s)
        self._leaving = {
            uid: entry
            for uid, entry in self._leaving.items()
            if uid in pods and not _has_ended(entry, pods[uid], now_s)
        }
        self._refused_s = {
            uid: at_s for uid, at_s in self._refused_s.items() if uid in pods and now_s - at_s < REFUSED_S
        }
        leaving = frozenset(
            uid for uid, entry in self._leaving.items() if now_s - entry.since_s < self._leaving_s_max
        )
        return LeavingPods(leaving, frozenset(self._leaving.keys() - leaving) | self._refused_s.keys())


def _has_ended(entry: _Leaving, record: PodRecord, now_s: float) -> bool:
    if not record.is_active:
        return True
    if not entry.killed:
        return False
    if any(container.is_running and container.id in entry.killed for container in record.containers):
        entry.ended_s = None
        return False
    if entry.ended_s is None:
        entry.ended_s = now_s
    return now_s - entry.ended_s >= SETTLE_S
