"""Filter and Score of one pod over many nodes, from columns. Source: spec 04, sections 5.3, 6.2, 7 and 10.

Says row by row what `admission.place` says, without trying anything out: where all zones can be judged on their own
(every pod without a NUMA policy, and every pod for which a single NUMA node is enough), the sums in the columns
decide. Rows where that is not so are handed back, to be tried one by one.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import resources
from koordinator.api.annotations.placement import NUMANodeExclusive
from koordinator.api.resource_vector import I64
from koordinator.scheduler.columns import Rows, at
from koordinator.scheduler.framework import Mask, ReasonCodes, Scores
from koordinator.scheduler.plugins.node_numa_resource import admission, policy
from koordinator.scheduler.plugins.node_numa_resource import columns as cols
from koordinator.scheduler.plugins.node_numa_resource.accumulator import NOT_ENOUGH
from koordinator.scheduler.plugins.node_numa_resource.columns import Columns
from koordinator.scheduler.plugins.node_numa_resource.one_node import KINDS
from koordinator.scheduler.plugins.node_numa_resource.policy import PodPlan
from koordinator.scheduler.plugins.node_numa_resource.score import SCORE_MAX, ScoringStrategy, Strategies
from koordinator.scheduler.plugins.node_numa_resource.zones import CPU_MILLI
from koordinator.scheduler.plugins.node_resources_fit import is_scalar
from koordinator.scheduler.status import Reason


class NUMAReason(Reason):
    """Why a node is refused; larger codes stand for a text of their own (`FIRST_OWN_CODE`)."""

    OK = 0
    POLICY_MISMATCH = 1, policy.POLICY_MISMATCH
    NOT_INTEGER = 2, policy.NOT_INTEGER
    INVALID_RATIO = 3, admission.INVALID_RATIO
    INVALID_TOPOLOGY = 4, policy.INVALID_TOPOLOGY
    AMPLIFIED_SHORT = 5, policy.AMPLIFIED_SHORT
    POLICY_CONFLICT = 6, policy.POLICY_CONFLICT
    BROKEN_CORES = 7, policy.BROKEN_CORES
    NOT_ENOUGH_CPUS = 8, NOT_ENOUGH
    MISSING_ZONES = 9, admission.MISSING_ZONES
    UNALIGNED = 10, admission.INSUFFICIENT_NUMA
    """No NUMA nodes can be chosen; the exact words come from a trial, when somebody asks for them."""


FIRST_OWN_CODE = 16


class Demand(msgspec.Struct, frozen=True, eq=False):
    """What a pod asks of NUMA nodes, in the terms of the columns."""

    plan: PodPlan
    amounts: tuple[tuple[int, int], ...]
    """(index of the resource, amount) for all requested resources that any zone of any node offers."""
    cpu_index: int
    """Index of cpu, -1 when no zone offers it."""
    cpu_milli: int
    cpu_count: int
    required_kind: int
    own_policy: int
    """The pod's NUMA policy (`NUMA_POLICIES`)."""
    is_exclusive: bool
    """Whether NUMA nodes must not be shared with pods that reach beyond them."""

    @classmethod
    def of(cls, plan: PodPlan, columns: Columns) -> "Demand":
        known = columns.resources
        return cls(
            plan=plan,
            amounts=tuple((known[name], amount) for name, amount in plan.requests.items() if name in known),
            cpu_index=known.get(resources.CPU, -1),
            cpu_milli=plan.cpu_milli,
            cpu_count=plan.cpu_count,
            required_kind=KINDS.get(plan.required_policy, 0),
            own_policy=cols.NUMA_POLICIES[plan.numa_policy],
            is_exclusive=admission.exclusivity_of(plan) == NUMANodeExclusive.REQUIRED,
        )

    @property
    def is_ordinary(self) -> bool:
        """Whether nodes without policies of their own need not be asked."""
        return not self.plan.binds_cpus and not self.own_policy


class Judgement(msgspec.Struct, frozen=True, eq=False):
    """`codes` (rows,) are refusals by columns; `is_open` (rows,) rows where a trial has to tell."""

    codes: ReasonCodes
    is_open: Mask

    def refuse(self, is_refused: Mask, reason: NUMAReason) -> None:
        """Note a reason where there is none yet."""
        self.codes[is_refused & (self.codes == 0)] = reason


def judge(
    columns: Columns, demand: Demand, rows: Rows, allocatable_milli: I64, requested_milli: I64
) -> Judgement:
    """Filter. `allocatable_milli` and `requested_milli` (rows,) are the nodes' CPU."""
    judgement = Judgement(np.zeros(rows.size, np.uint16), np.zeros(rows.size, np.bool_))
    refuse = judgement.refuse
    policies, is_mismatch = _policies(columns, demand, rows)
    refuse(is_mismatch, NUMAReason.POLICY_MISMATCH)
    forced = at(columns.forced_kind, rows)
    binds = _binds(demand, forced)
    if demand.cpu_milli % CPU_MILLI:
        refuse(binds, NUMAReason.NOT_INTEGER)
    if demand.cpu_milli:
        _refuse_amplified(judgement, columns, demand, rows, binds, allocatable_milli, requested_milli)
    kinds = _kinds(demand, forced)
    if binds.any():
        refuse(binds & ~at(columns.is_valid, rows), NUMAReason.INVALID_TOPOLOGY)
        if demand.plan.required_policy:
            refuse((forced > 0) & (forced != demand.required_kind), NUMAReason.POLICY_CONFLICT)
        is_broken = demand.cpu_count % at(columns.cpus_per_core, rows) != 0
        refuse(binds & (kinds == 1) & is_broken, NUMAReason.BROKEN_CORES)
        free = _by_kind(columns.usable_total, kinds, rows)
        refuse(binds & (policies == 0) & (free < demand.cpu_count), NUMAReason.NOT_ENOUGH_CPUS)
    if policies.any():
        _judge_numa(judgement, columns, demand, rows, policies, binds, kinds)
    return judgement


def _judge_numa(
    judgement: Judgement,
    columns: Columns,
    demand: Demand,
    rows: Rows,
    policies: npt.NDArray[np.int8],
    binds: Mask,
    kinds: npt.NDArray[np.int8],
) -> None:
    """Rows where a NUMA policy is in force."""
    has_policy = policies > 0
    judgement.refuse(has_policy & (at(columns.zone_count, rows) == 0), NUMAReason.MISSING_ZONES)
    fits, is_known = _fitting_slots(columns, demand, rows, binds, kinds)
    is_left = has_policy & (judgement.codes == 0) & ~fits.any(axis=0)
    if not is_left.any():
        return
    # More than one NUMA node is needed: impossible under SingleNUMANode, and where all together lack something.
    has_room = np.ones(rows.size, np.bool_)
    for index, amount in demand.amounts:
        total = at(columns.available[:, index], rows).sum(axis=0)
        has_room &= (total >= amount) | ~at(columns.offers[index], rows)
    if binds.any():
        has_room &= ~binds | (_by_kind(columns.usable, kinds, rows).sum(axis=0) >= demand.cpu_count)
    is_single = policies == cols.SINGLE_NUMA_NODE
    judgement.refuse(is_left & is_known & (is_single | ~has_room), NUMAReason.UNALIGNED)
    is_sure = is_known & has_room & ~binds
    if demand.is_exclusive:
        is_sure[:] = False
    judgement.is_open[is_left & (judgement.codes == 0) & ~is_sure] = True


def _policies(columns: Columns, demand: Demand, rows: Rows) -> tuple[npt.NDArray[np.int8], Mask]:
    """The NUMA policy in force on each row, and where the pod's does not fit the node's."""
    of_nodes = at(columns.numa_policy, rows)
    if not demand.own_policy:
        return of_nodes, np.zeros(rows.size, np.bool_)
    is_mismatch = (of_nodes > 0) & (of_nodes != demand.own_policy)
    return np.full(rows.size, demand.own_policy, np.int8), is_mismatch


def _binds(demand: Demand, forced: npt.NDArray[np.int8]) -> Mask:
    if demand.plan.binds_cpus:
        return np.ones(forced.size, np.bool_)
    return (forced > 0) & (demand.cpu_milli > 0)


def _kinds(demand: Demand, forced: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """The required bind policy (`KINDS`): the node's own, else the pod's."""
    return np.where(forced > 0, forced, np.int8(demand.required_kind)).astype(np.int8)


def _by_kind(usable: I64, kinds: npt.NDArray[np.int8], rows: Rows) -> I64:
    """`usable` (kinds, ..., rows) with each row's kind taken."""
    first = int(kinds[0]) if kinds.size else 0
    if (kinds == first).all():
        return at(usable[first], rows)
    chosen = at(usable, rows)
    by_kind: I64 = np.where(kinds == 0, chosen[0], np.where(kinds == 1, chosen[1], chosen[2]))
    return by_kind


def _refuse_amplified(
    judgement: Judgement,
    columns: Columns,
    demand: Demand,
    rows: Rows,
    binds: Mask,
    allocatable_milli: I64,
    requested_milli: I64,
) -> None:
    """`policy.check_amplified`, elementwise."""
    judgement.refuse(at(columns.is_ratio_bad, rows), NUMAReason.INVALID_RATIO)
    ratio = at(columns.ratio, rows)
    is_amplified = ratio > 1
    if not is_amplified.any():
        return
    judgement.refuse(is_amplified & at(columns.is_misreported, rows), NUMAReason.INVALID_TOPOLOGY)
    need = np.where(binds, _amplified(demand.cpu_milli, ratio), demand.cpu_milli)
    pinned_milli = CPU_MILLI * at(columns.pinned_count, rows)
    more = np.where(requested_milli >= pinned_milli, at(columns.pinned_milli, rows) - pinned_milli, 0)
    is_short = need > allocatable_milli - requested_milli - more
    judgement.refuse(is_amplified & is_short, NUMAReason.AMPLIFIED_SHORT)


def _amplified(milli: int, ratio: npt.NDArray[np.float64]) -> I64:
    return np.ceil(milli * ratio).astype(np.int64)


def _fitting_slots(
    columns: Columns, demand: Demand, rows: Rows, binds: Mask, kinds: npt.NDArray[np.int8]
) -> tuple[Mask, Mask]:
    """(slots, rows): NUMA nodes that can hold the pod alone; (rows,): where the zones have a say in it.

    Where no zone of the node offers anything that the pod requests, or CPUs are bound and no zone offers cpu, they
    have none: what is to be done there depends on the whole machine.
    """
    slots = np.arange(columns.slot_count)[:, np.newaxis]
    fits: Mask = slots < at(columns.zone_count, rows)
    is_known = np.zeros(rows.size, np.bool_)
    for index, amount in demand.amounts:
        offers = at(columns.offers[index], rows)
        is_known |= offers
        fits &= (at(columns.available[:, index], rows) >= amount) | ~offers
    if binds.any():
        is_known &= ~binds | (at(columns.offers[demand.cpu_index], rows) if demand.cpu_index >= 0 else False)
        fits &= ~binds | (_by_kind(columns.usable, kinds, rows) >= demand.cpu_count)
    if demand.is_exclusive:
        fits &= at(columns.status, rows) != cols.SHARED
    fits &= is_known
    return fits, is_known


class NodeAmounts(msgspec.Struct, frozen=True, eq=False):
    """(rows,) each: what the nodes offer and what is requested of them, by resource."""

    allocatable: dict[str, I64]
    requested: dict[str, I64]


def score(
    columns: Columns, demand: Demand, rows: Rows, nodes: NodeAmounts, strategies: Strategies
) -> tuple[Scores, Mask]:
    """Score, and which rows need a trial instead. Rows are such that passed Filter."""
    policies, _ = _policies(columns, demand, rows)
    binds = _binds(demand, at(columns.forced_kind, rows))
    amounts = _amounts(demand, binds, at(columns.ratio, rows))
    used, capacity = dict(nodes.requested), dict(nodes.allocatable)
    has_policy = policies > 0
    if demand.cpu_milli and resources.CPU in used:
        more = at(columns.pinned_milli, rows) - CPU_MILLI * at(columns.pinned_count, rows)
        used[resources.CPU] = used[resources.CPU] + np.where(has_policy, 0, more)
    is_open = np.zeros(rows.size, np.bool_)
    if has_policy.any():
        kinds = _kinds(demand, at(columns.forced_kind, rows))
        fits, _ = _fitting_slots(columns, demand, rows, binds, kinds)
        is_open = has_policy & ~fits.any(axis=0)
        best = _best_slots(columns, demand, rows, fits, binds, kinds, amounts, strategies.numa)
        collapses = (at(columns.zone_count, rows) == 1) & (policies == cols.SINGLE_NUMA_NODE)
        _count_zones(columns, rows, best, has_policy & ~collapses, used, capacity)
        if resources.CPU in used:
            is_bound = has_policy & binds
            used[resources.CPU] = np.where(is_bound, at(columns.pinned_milli, rows), used[resources.CPU])
    return _points(strategies.node, used, capacity, amounts, rows.shape), is_open


def score_plain(demand: Demand, nodes: NodeAmounts, strategy: ScoringStrategy) -> Scores:
    """Score where no node has a policy, and the pod asks for nothing special."""
    amounts: dict[str, int | I64] = dict(demand.plan.requests)
    shape = next(iter(nodes.requested.values())).shape
    return _points(strategy, nodes.requested, nodes.allocatable, amounts, shape)


def _count_zones(
    columns: Columns,
    rows: Rows,
    slots: npt.NDArray[np.intp],
    is_in_zone: Mask,
    used: dict[str, I64],
    capacity: dict[str, I64],
) -> None:
    """Put a NUMA node's amounts in place of the node's where `is_in_zone`. A zone has nothing of what it does not
    offer."""
    for name in used:
        index = columns.resources.get(name)
        zone_used = zone_capacity = np.zeros(rows.size, np.int64)
        if index is not None:
            zone_used, zone_capacity = columns.used[slots, index, rows], columns.capacity[slots, index, rows]
        used[name] = np.where(is_in_zone, zone_used, used[name])
        capacity[name] = np.where(is_in_zone, zone_capacity, capacity[name])


def _amounts(demand: Demand, binds: Mask, ratio: npt.NDArray[np.float64]) -> dict[str, int | I64]:
    """What the pod takes of amplified capacity: bound CPUs count more."""
    amounts: dict[str, int | I64] = dict(demand.plan.requests)
    if demand.cpu_milli and binds.any() and (ratio > 1).any():
        more = np.where(binds & (ratio > 1), _amplified(demand.cpu_milli, ratio), demand.cpu_milli)
        amounts[resources.CPU] = more
    return amounts


def _best_slots(
    columns: Columns,
    demand: Demand,
    rows: Rows,
    fits: Mask,
    binds: Mask,
    kinds: npt.NDArray[np.int8],
    amounts: dict[str, int | I64],
    strategy: ScoringStrategy,
) -> npt.NDArray[np.intp]:
    """(rows,): of the fitting NUMA nodes the one with the most points, the first among equals."""
    used: dict[str, I64] = {}
    capacity: dict[str, I64] = {}
    for resource in strategy.resources:
        index = columns.resources.get(resource.name)
        if index is None:
            continue
        offered = at(columns.capacity[:, index], rows)
        left = at(columns.available[:, index], rows)
        if resource.name == resources.CPU and binds.any():
            usable_milli = CPU_MILLI * _by_kind(columns.usable, kinds, rows)
            left = np.where(binds & (kinds > 0), np.minimum(left, usable_milli), left)
        capacity[resource.name] = offered
        used[resource.name] = np.maximum(0, offered - left)
    points = _points(strategy, used, capacity, amounts, fits.shape)
    best: npt.NDArray[np.intp] = np.where(fits, points, -1).argmax(axis=0)
    return best


def _points(
    strategy: ScoringStrategy,
    used: dict[str, I64],
    capacity: dict[str, I64],
    amounts: dict[str, int | I64],
    shape: tuple[int, ...],
) -> Scores:
    """`score.score`, elementwise over arrays of `shape`; amounts may be of the last axis only."""
    total: I64 = np.zeros(shape, np.int64)
    weights: I64 = np.zeros(shape, np.int64)
    for resource in strategy.resources:
        name = resource.name
        if name not in capacity or (is_scalar(name) and name not in amounts):
            continue
        size_of = capacity[name]
        counts = size_of > 0
        divisor = np.maximum(size_of, 1)
        sum_of = used[name] + amounts.get(name, 0)
        if strategy.type == "MostAllocated":
            own = np.minimum(sum_of, size_of) * SCORE_MAX // divisor
        else:
            own = np.maximum(0, size_of - sum_of) * SCORE_MAX // divisor
        total += np.where(counts, resource.weight * own, 0)
        weights += np.where(counts, resource.weight, 0)
    return total // np.maximum(weights, 1)
