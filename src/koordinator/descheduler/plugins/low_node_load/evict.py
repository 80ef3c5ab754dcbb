"""Choose the pods that leave hot nodes, as long as cold ones have room, and say why. Pure. Source:
behaviour/descheduler 6.8 to 6.10.

A phase works on simulated usage: what leaves a source is subtracted there and from the budget, what could land on a
target is added to it, also when it is not evicted later. Scores say how hot a node is, and how well a pod's removal
cures it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.core import Pod
from koordinator.api.interference import workload_of
from koordinator.api.quantity import NANO
from koordinator.descheduler import facts, node_fit
from koordinator.descheduler.config.low_node_load import Thresholds
from koordinator.descheduler.measurements import Nanos
from koordinator.descheduler.node_fit import NodeFree
from koordinator.descheduler.plugin import EvictAction, Evictions
from koordinator.descheduler.plugins.low_node_load import usage
from koordinator.descheduler.plugins.low_node_load.usage import (
    PODS,
    Classified,
    Columns,
    NodeClass,
    NodeUtilization,
    unit,
)

Floats = npt.NDArray[np.float64]

_BLOCK = 64
"""Targets that are looked at together."""
_ROUNDING = 1 + 1e-9
"""Above what the conversion of an exact amount to a float can lose."""


class EvictOptions(msgspec.Struct, frozen=True):
    """The options for choosing pods. `may_evict`: namespaces, filters, selectors; `needs_fit`: onto some target."""

    may_evict: Callable[[Pod], bool]
    weights: Mapping[str, int]
    needs_fit: bool
    is_dry_run: bool


class EvictPhase(msgspec.Struct, frozen=True):
    """One of the two phases, over rows of the classified nodes; `limit` is the high limit in nanos by row."""

    prod: bool
    sources: list[int]
    targets: list[int]
    limit: list[Nanos]
    high: Thresholds


class Balance:
    """One pass over the abnormal nodes of a pool; `recovered(node, prod)` is called for each that is fine."""

    def __init__(
        self, found: Classified, options: EvictOptions, recovered: Callable[[str, bool], None]
    ) -> None:
        self._found = found
        self._options = options
        self._recovered = recovered
        self._names = found.filled.names
        self._margins = np.zeros((0, len(self._names)), np.float64)  # (targets, resources) of the phase
        self._rooms: dict[int, NodeFree] = {}  # by row, made when a target is first tried
        self._usage: list[Nanos] = [dict(load.usage) for load in found.loads]
        self._prod_usage: list[Nanos] = [dict(load.prod_usage) for load in found.loads]

    def run(self, high: list[int], prod_high: list[int]) -> Evictions[list[EvictAction]]:
        """Both phases for the abnormal rows; gives what was evicted (in a dry run: would have been)."""
        found = self._found
        low, both_low = found.rows(NodeClass.LOW), found.rows(NodeClass.BOTH_LOW)
        node_limit = _nanos(found.limits.high, self._names)
        prod_limit = _nanos(found.limits.prod_high, self._names)
        both = self._room(both_low, node_limit, self._usage)
        both_prod = self._room(both_low, prod_limit, self._prod_usage)
        prod_part = self._room(found.rows(NodeClass.PROD_LOW), prod_limit, self._prod_usage)
        budget = self._room(low + both_low, node_limit, self._usage)

        sources = self._hottest_first(high, found.usage, self._usage)
        phase = EvictPhase(False, sources, low + both_low, node_limit, found.filled.high)
        evicted = yield from self._run(phase, budget)

        sources = self._hottest_first(prod_high, found.prod_usage, self._prod_usage)
        targets = found.rows(NodeClass.PROD_LOW) + both_low
        phase = EvictPhase(True, sources, targets, prod_limit, found.filled.prod_high)
        prod_budget = {
            name: prod_part[name] + min(both_prod[name], both[name], budget[name]) for name in self._names
        }
        evicted += yield from self._run(phase, prod_budget)
        return evicted

    def _run(self, phase: EvictPhase, budget: Nanos) -> Evictions[list[EvictAction]]:
        evicted: list[EvictAction] = []
        if not phase.targets:
            return evicted
        self._margins = np.array([self._margin(row, phase) for row in phase.targets], np.float64)
        for row in phase.sources:
            removable = self._removable(row, phase)
            if removable:
                evicted += yield from self._relieve(row, self._rank(row, removable, phase), phase, budget)
        return evicted

    def _relieve(
        self, row: int, ranked: list[Pod], phase: EvictPhase, budget: Nanos
    ) -> Evictions[list[EvictAction]]:
        """Evict from one node until it is fine or the targets are full."""
        evicted: list[EvictAction] = []
        load = self._found.loads[row]
        used = self._used(phase)[row]
        for pod in ranked:
            over = self._over(row, phase)
            if not over:
                self._recovered(load.name, phase.prod)
                break
            if any(budget[name] <= 0 for name in self._names):
                break
            if not self._options.may_evict(pod):
                continue
            wanted = EvictAction(pod, reason_text(used, load.capacity, phase.high, over, phase.prod))
            if not self._options.is_dry_run and not (yield wanted):
                continue
            evicted.append(wanted)
            self._remove(row, load.pod_usage.get(pod.key), phase, budget)
        return evicted

    def _remove(self, row: int, pod_usage: Nanos | None, phase: EvictPhase, budget: Nanos) -> None:
        """Take a pod's usage off; nothing for a pod whose usage is unknown."""
        if pod_usage is None:
            return
        ledgers = [budget, self._usage[row]]
        if phase.prod:
            ledgers.append(self._prod_usage[row])
        for name in self._names:
            amount = NANO if name == PODS else pod_usage.get(name, 0)
            for ledger in ledgers:
                ledger[name] -= amount

    # Choosing

    def _removable(self, row: int, phase: EvictPhase) -> list[Pod]:
        load = self._found.loads[row]
        candidates = load.prod_pods if phase.prod else load.pods
        allowed = [pod for pod in candidates if self._options.may_evict(pod)]
        if not self._options.needs_fit:
            return allowed
        return [pod for pod in allowed if self._place(pod, load, phase)]

    def _place(self, pod: Pod, load: NodeUtilization, phase: EvictPhase) -> bool:
        """Charge the first target that can take the pod; False without one or without known usage."""
        pod_usage = load.pod_usage.get(pod.key)
        if pod_usage is None:
            return False
        used = self._used(phase)
        need = np.array([pod_usage.get(name, 0) for name in self._names], np.float64)
        # Floats only skip targets that are full for certain; amounts decide exactly.
        for index in self._with_margin(need):
            target = phase.targets[index]
            limit, own = phase.limit[target], used[target]
            has_margin = all(own[name] + pod_usage.get(name, 0) <= limit[name] for name in self._names)
            if has_margin and node_fit.fits(pod, self._room_of(target)):
                for name, amount in pod_usage.items():
                    if name in own:
                        own[name] += amount
                self._margins[index] = self._margin(target, phase)
                return True
        return False

    def _with_margin(self, need: Floats) -> Iterator[int]:
        """Yield targets, in order, that may have room for `need` (resources,); most pods take one of the first."""
        for start in range(0, len(self._margins), _BLOCK):
            block = self._margins[start : start + _BLOCK]
            for index in np.flatnonzero((block * _ROUNDING >= need).all(axis=1)).tolist():
                yield start + index

    def _margin(self, row: int, phase: EvictPhase) -> list[int]:
        """Return what a target can take until it is at its limits."""
        used, limit = self._used(phase)[row], phase.limit[row]
        return [limit[name] - used[name] for name in self._names]

    def _room_of(self, row: int) -> NodeFree:
        room = self._rooms.get(row)
        if room is None:
            load = self._found.loads[row]
            room = self._rooms[row] = node_fit.room_of(load.node, load.pods)
        return room

    def _rank(self, row: int, pods: list[Pod], phase: EvictPhase) -> list[Pod]:
        load = self._found.loads[row]
        used, limit = self._used(phase)[row], phase.limit[row]
        excess = {name: (used[name] - limit[name]) for name in self._over(row, phase)}
        whole_excess = {name: usage.rounded_up(name, nanos) for name, nanos in excess.items()}

        def score(pod: Pod) -> float | None:
            own = load.pod_usage.get(pod.key)
            if own is None:
                return None
            whole = {name: usage.rounded_up(name, nanos) for name, nanos in own.items()}
            return pod_score(whole, whole_excess, self._options.weights)

        ranked = sorted(pods, key=lambda pod: facts.usage_key(pod, score(pod)))
        if load.culprits:  # who degrades services leaves first
            ranked.sort(key=lambda pod: workload_of(pod) not in load.culprits)
        return ranked

    def _hottest_first(self, rows: list[int], counted: Columns, exact: Sequence[Nanos]) -> list[int]:
        """By score over all resources of the node's usage, ties by name."""
        loads = [self._found.loads[row] for row in rows]
        names = [*self._names, *([] if PODS in self._names else [PODS])]
        used = usage.columns((exact[row] for row in rows), names)
        scores = node_scores(used, usage.capacity_columns(loads, names), names, self._options.weights)
        ranked = sorted(range(len(rows)), key=lambda i: (-int(scores[i]), loads[i].name))
        return [rows[i] for i in ranked]

    # Amounts

    def _used(self, phase: EvictPhase) -> list[Nanos]:
        return self._prod_usage if phase.prod else self._usage

    def _over(self, row: int, phase: EvictPhase) -> list[str]:
        used, limit = self._used(phase)[row], phase.limit[row]
        return [name for name in self._names if used[name] > limit[name]]

    def _room(self, rows: list[int], limit: list[Nanos], used: Sequence[Nanos]) -> Nanos:
        """Return what the rows can take in all before they reach their limits."""
        return {name: sum(limit[row][name] - used[row][name] for row in rows) for name in self._names}


def _nanos(limits: Columns, names: Sequence[str]) -> list[Nanos]:
    units = [usage.unit(name) for name in names]
    return [
        {name: amount * per for name, amount, per in zip(names, row, units, strict=True)}
        for row in np.asarray(limits).tolist()
    ]


def reason_text(
    used: Nanos, capacity: Mapping[str, int], high: Thresholds, over: Iterable[str], prod: bool
) -> str:
    """`capacity`: milli-cores of cpu, whole units of all else; `high`: percent as configured."""
    who = "prod" if prod else "node"
    parts = [
        f"{who} {name} usage({_percent(name, used.get(name, 0), capacity.get(name, 0))}%)"
        f">threshold({high[name]:.2f}%)"
        for name in sorted(over)
        if name in high
    ]
    return f"node is overutilized, {', '.join(parts)}"


def _percent(name: str, nanos: int, capacity: int) -> str:
    if capacity <= 0:  # no part of nothing can be told
        return "0.00"
    milli = -(-nanos // 10**6)
    return f"{100 * milli / (capacity * (unit(name) // 10**6)):.2f}"


Weights = Mapping[str, int]

FULL = 1000


def node_scores(usage: Columns, capacity: Columns, names: Sequence[str], weights: Weights) -> Columns:
    """0 to 1000 per node: weighted mean of used parts.

    `usage`, `capacity`: (nodes, resources), milli-cores of cpu and whole units of all else; a capacity of
    0 counts as unused. Integer division throughout; no weights give 0.
    """
    weight = np.array([weights.get(name, 0) for name in names], np.int64)
    total = int(weight.sum())
    if total == 0:
        return np.zeros(usage.shape[0], np.int64)
    safe = np.maximum(capacity, 1)
    capped = np.minimum(usage, capacity)
    # Two divisions: capacity × 1000 need not fit 64 bits for byte counts of whole clusters.
    whole, rest = np.divmod(capped, safe)
    used = np.where(capacity > 0, whole * FULL + rest * FULL // safe, 0)
    return np.asarray((used * weight).sum(axis=1) // total, np.int64)


def pod_score(usage: Mapping[str, int], excess: Mapping[str, int], weights: Weights) -> float:
    """0 to 2: highest for the pod that alone cures the node with the smallest overshoot.

    `excess`: how far the node is above its limit, per resource that is; the others have no weight.
    """
    total, weight_sum = 0.0, 0
    for name, used in usage.items():
        over = excess.get(name, 0)
        weight = weights.get(name, 0) if over > 0 else 0
        if not weight:
            continue
        part = used / over
        total += weight * (part if part < 1 else 1 / part + 1)
        weight_sum += weight
    return total / weight_sum if weight_sum else 0.0
