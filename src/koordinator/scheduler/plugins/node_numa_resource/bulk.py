"""Filter and Score of one pod over many nodes, from columns. Source: behaviour/numa-cpu 5.3, 6.2, 7 and 10.

Says row by row what `admission.place` says, without trying anything out: where all zones can be judged on their own
(every pod without a NUMA policy, and every pod for which a single NUMA node is enough), the sums in the columns
decide. Rows where that is not so are handed back, to be tried one by one.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import resources
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX, Mask, ReasonCodes, Scores
from koordinator.scheduler.plugin.status import Reason
from koordinator.scheduler.plugins.node_numa_resource import admission, policy
from koordinator.scheduler.plugins.node_numa_resource import allocations as cols
from koordinator.scheduler.plugins.node_numa_resource.admission import KINDS
from koordinator.scheduler.plugins.node_numa_resource.allocations import NUMAColumns, NUMAColumnSlice
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPU_MILLI
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NOT_ENOUGH
from koordinator.scheduler.plugins.node_numa_resource.policy import NodeNUMAResourceArgs, PodPlan
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategy
from koordinator.scheduler.plugins.node_resources_fit import is_scalar
from koordinator.scheduler.table.columns import Rows


class NUMAReason(Reason):
    """The reason why a node is refused; larger codes stand for a text of their own (`FIRST_OWN_CODE`)."""

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


class NUMARequest(msgspec.Struct, frozen=True, eq=False):
    """The demand of a pod on NUMA nodes, in the terms of the columns."""

    plan: PodPlan
    amounts: tuple[tuple[int, int], ...]
    """(index of the resource, amount) for all requested resources that any zone of any node offers."""
    cpu_index: int
    """Index of cpu, -1 when no zone offers it."""
    required_kind: int
    own_policy: int
    """The pod's NUMA policy (`NUMA_POLICIES`)."""

    @classmethod
    def of(cls, plan: PodPlan, columns: NUMAColumns) -> "NUMARequest":
        known = columns.resources
        return cls(
            plan=plan,
            amounts=tuple((known[name], amount) for name, amount in plan.requests.items() if name in known),
            cpu_index=known.get(resources.CPU, -1),
            required_kind=KINDS.get(plan.required_policy, 0),
            own_policy=cols.NUMA_POLICIES[plan.numa_policy],
        )

    @property
    def is_ordinary(self) -> bool:
        """Return whether nodes without policies of their own need not be asked."""
        return not self.plan.binds_cpus and not self.own_policy


Kinds = int | I64
"""The required bind policy (`KINDS`) on all rows, or on each (rows,)."""


class NodeCPU(msgspec.Struct, frozen=True, eq=False):
    """(rows,) each: the nodes' CPU, and what is requested of it."""

    allocatable_milli: I64
    requested_milli: I64


class Fitting(msgspec.Struct, frozen=True, eq=False):
    """`fits` (slots, rows): NUMA nodes that can hold the pod alone, `any` (rows,): where there is one.

    `is_known` (rows,) is where the zones have a say in it: where no zone of the node offers anything that the pod
    requests, or CPUs are bound and no zone offers cpu, what is to be done depends on the whole machine.
    """

    fits: Mask
    any: Mask
    is_known: Mask


class NUMAFilterResult(msgspec.Struct, frozen=True, eq=False):
    """`codes` (rows,) are refusals by columns; `is_open` (rows,) rows where a trial has to tell."""

    codes: ReasonCodes
    is_open: Mask

    def refuse(self, is_refused: Mask, reason: NUMAReason) -> None:
        """Note a reason where there is none yet."""
        self.codes[is_refused & (self.codes == 0)] = reason


def judge(columns: NUMAColumns, demand: NUMARequest, rows: Rows, cpu: NodeCPU | None) -> NUMAFilterResult:
    """Filter `rows` (rows,). `cpu` is needed where any node has amplified CPU."""
    window, traits = columns.at(rows), columns.traits
    judgement = NUMAFilterResult(np.zeros(rows.size, np.uint16), np.zeros(rows.size, np.bool_))
    refuse = judgement.refuse
    if demand.own_policy and traits.has_policy:
        of_nodes = window.numa_policy
        refuse((of_nodes > 0) & (of_nodes != demand.own_policy), NUMAReason.POLICY_MISMATCH)
    forced = window.forced_kind if traits.has_forced else None
    binds = _binds(demand, forced, rows.size)
    if binds is not None and demand.plan.cpu_milli % CPU_MILLI:
        refuse(binds, NUMAReason.NOT_INTEGER)
    if demand.plan.cpu_milli and traits.has_ratio:
        assert cpu is not None
        _refuse_amplified(judgement, window, demand, binds, cpu)
    policies = _policies(columns, window, demand)
    kinds = _kinds(demand, forced)
    if binds is not None:
        _judge_binding(judgement, window, demand, binds, forced, kinds, policies)
    if policies is not None:
        _judge_numa(judgement, window, demand, policies, binds, kinds)
    return judgement


def _judge_binding(
    judgement: NUMAFilterResult,
    window: NUMAColumnSlice,
    demand: NUMARequest,
    binds: Mask,
    forced: I64 | None,
    kinds: Kinds,
    policies: I64 | None,
) -> None:
    """Rows where the pod binds CPUs."""
    judgement.refuse(binds & (window.cpus_per_core == 0), NUMAReason.INVALID_TOPOLOGY)
    if demand.plan.required_policy and forced is not None:
        judgement.refuse((forced > 0) & (forced != demand.required_kind), NUMAReason.POLICY_CONFLICT)
    if not isinstance(kinds, int) or kinds == 1:
        is_broken = demand.plan.cpu_count % np.maximum(window.cpus_per_core, 1) != 0
        judgement.refuse(binds & (kinds == np.int64(1)) & is_broken, NUMAReason.BROKEN_CORES)
    if demand.own_policy:
        return
    is_short = binds & (_by_kind(window.usable_total, kinds) < demand.plan.cpu_count)
    if policies is not None:
        is_short &= policies == 0
    judgement.refuse(is_short, NUMAReason.NOT_ENOUGH_CPUS)


def _judge_numa(
    judgement: NUMAFilterResult,
    window: NUMAColumnSlice,
    demand: NUMARequest,
    policies: I64,
    binds: Mask | None,
    kinds: Kinds,
) -> None:
    """Rows where a NUMA policy is in force."""
    has_policy = policies > 0
    judgement.refuse(has_policy & (window.zone_count == 0), NUMAReason.MISSING_ZONES)
    fitting = _fitting_slots(window, demand, binds, kinds)
    is_left = has_policy & (judgement.codes == 0) & ~fitting.any
    # Mostly some NUMA node holds the pod alone, and the sums below need not be worked out.
    if not is_left.any():
        return
    # More than one NUMA node is needed: impossible under SingleNUMANode, and where all together lack something.
    counted: Mask = np.arange(window.slot_count)[:, np.newaxis] < window.zone_count
    is_all = np.ones(has_policy.size, np.bool_)
    is_restricted = policies == cols.RESTRICTED
    if is_restricted.any():
        complete = counted & _lacks_nothing(window, demand)
        is_all = ~is_restricted | (complete == counted).all(axis=0)
        counted = np.where(is_restricted, complete, counted)
    has_room = np.ones(has_policy.size, np.bool_)
    for index, amount in demand.amounts:
        total = (window.available[:, index] * counted).sum(axis=0)
        has_room &= (total >= amount) | (window.offers[index] == 0)
    if binds is not None:
        total = (_by_kind(window.usable, kinds) * counted).sum(axis=0)
        has_room &= ~binds | (total >= demand.plan.cpu_count)
    is_single = policies == cols.SINGLE_NUMA_NODE
    judgement.refuse(is_left & fitting.is_known & (is_single | ~has_room), NUMAReason.UNALIGNED)
    # Sums of amounts decide where only they count; bound CPUs lie on cores, exclusive pods see who else is there, and
    # on large machines not every set of NUMA nodes is tried.
    is_sure = fitting.is_known & has_room
    if window.slot_count > admission.ALL_SUBSETS_NODES_MAX:
        is_sure &= is_all
    if binds is not None:
        is_sure &= ~binds
    if demand.plan.is_exclusive:
        is_sure[:] = False
    judgement.is_open[is_left & (judgement.codes == 0) & ~is_sure] = True


def _lacks_nothing(window: NUMAColumnSlice, demand: NUMARequest) -> Mask:
    """(slots, rows): NUMA nodes with some of every requested resource left.

    A set that contains any other gives no hint for what is missing there, and Restricted needs hints for all.
    Source: behaviour/numa-cpu 7.2.
    """
    lacks_nothing: Mask = np.ones((window.slot_count, window.row_count), np.bool_)
    for index, _ in demand.amounts:
        lacks_nothing &= (window.available[:, index] > 0) | (window.offers[index] == 0)
    return lacks_nothing


def _policies(columns: NUMAColumns, window: NUMAColumnSlice, demand: NUMARequest) -> I64 | None:
    """Return the NUMA policy in force on each row; None where there is none anywhere."""
    if demand.own_policy:
        return np.full(window.row_count, demand.own_policy, np.int64)
    return window.numa_policy if columns.traits.has_policy else None


def _binds(demand: NUMARequest, forced: I64 | None, count: int) -> Mask | None:
    """Return where the pod binds CPUs; None where it does nowhere."""
    if demand.plan.binds_cpus:
        return np.ones(count, np.bool_)
    if forced is None or not demand.plan.cpu_milli:
        return None
    return forced > 0


def _kinds(demand: NUMARequest, forced: I64 | None) -> Kinds:
    """Return the required bind policy (`KINDS`): the node's own, else the pod's."""
    return demand.required_kind if forced is None else np.where(forced > 0, forced, demand.required_kind)


def _by_kind(usable: I64, kinds: Kinds) -> I64:
    """`usable` (kinds, ..., rows) with each row's kind taken."""
    if isinstance(kinds, int):
        return np.asarray(usable[kinds])
    return np.asarray(np.where(kinds == 0, usable[0], np.where(kinds == 1, usable[1], usable[2])))


def _refuse_amplified(
    judgement: NUMAFilterResult,
    window: NUMAColumnSlice,
    demand: NUMARequest,
    binds: Mask | None,
    cpu: NodeCPU,
) -> None:
    """`policy.check_amplified`, elementwise."""
    judgement.refuse(window.is_ratio_bad > 0, NUMAReason.INVALID_RATIO)
    ratio = window.ratio
    is_amplified = ratio > 1
    if not is_amplified.any():
        return
    judgement.refuse(is_amplified & (window.is_misreported > 0), NUMAReason.INVALID_TOPOLOGY)
    need: int | I64 = demand.plan.cpu_milli
    if binds is not None:
        need = np.where(binds, _amplified(demand.plan.cpu_milli, ratio), demand.plan.cpu_milli)
    pinned_milli = CPU_MILLI * window.pinned_count
    more = np.where(cpu.requested_milli >= pinned_milli, window.pinned_milli - pinned_milli, 0)
    is_short = need > cpu.allocatable_milli - cpu.requested_milli - more
    judgement.refuse(is_amplified & is_short, NUMAReason.AMPLIFIED_SHORT)


def _amplified(milli: int, ratio: npt.NDArray[np.float64]) -> I64:
    return np.ceil(milli * ratio).astype(np.int64)


def _fitting_slots(window: NUMAColumnSlice, demand: NUMARequest, binds: Mask | None, kinds: Kinds) -> Fitting:
    """NUMA nodes that can hold the pod alone. Score asks what Filter asked just before."""
    if window.fitting is not None and window.fitting[0] is demand:
        known: Fitting = window.fitting[1]
        return known
    fits: Mask = np.arange(window.slot_count)[:, np.newaxis] < window.zone_count
    is_known = np.zeros(window.row_count, np.bool_)
    for index, amount in demand.amounts:
        offers = window.offers[index] > 0
        is_known |= offers
        enough = window.available[:, index] >= amount
        fits &= enough if offers.all() else enough | ~offers
    if binds is not None:
        is_known &= ~binds | (window.offers[demand.cpu_index] > 0 if demand.cpu_index >= 0 else False)
        fits &= ~binds | (_by_kind(window.usable, kinds) >= demand.plan.cpu_count)
    if demand.plan.is_exclusive:
        fits &= window.status != cols.SHARED
    fits &= is_known
    found = Fitting(fits, np.logical_or.reduce(fits, axis=0), is_known)
    window.fitting = demand, found
    return found


def pods_matter(columns: NUMAColumns, demand: NUMARequest, rows: Rows) -> Mask:
    """(rows,): where Filter may answer otherwise without some of the pods there.

    A pod without wishes is held up only by what nodes ask for themselves.
    """
    if not demand.is_ordinary:
        return np.ones(rows.size, np.bool_)
    window = columns.at(rows)
    matters: Mask = (window.numa_policy > 0) | (window.forced_kind > 0) | (window.ratio > 1)
    return matters


class NodeAmounts(msgspec.Struct, frozen=True, eq=False):
    """(rows,) each: what the nodes offer and what is requested of them, by resource."""

    allocatable: dict[str, I64]
    requested: dict[str, I64]
    is_small: bool = False
    """Whether percentages are exact in floating point (`percent`)."""


def score(
    columns: NUMAColumns,
    demand: NUMARequest,
    rows: Rows,
    nodes: NodeAmounts,
    args: NodeNUMAResourceArgs,
) -> tuple[Scores, Mask | None]:
    """Return scores (rows,), and which rows need a trial instead (rows,) (None: no row). Rows are such that passed
    Filter."""
    window, traits = columns.at(rows), columns.traits
    policies = _policies(columns, window, demand)
    forced = window.forced_kind if traits.has_forced else None
    binds = _binds(demand, forced, rows.size)
    amounts = _amounts(demand, binds, window.ratio if traits.has_ratio else None)
    used, capacity = dict(nodes.requested), dict(nodes.allocatable)
    is_small = nodes.is_small and traits.is_small
    has_policy = policies > 0 if policies is not None else None
    if demand.plan.cpu_milli and resources.CPU in used and traits.has_ratio:
        more = window.pinned_milli - CPU_MILLI * window.pinned_count
        if has_policy is not None:
            more = np.where(has_policy, 0, more)
        used[resources.CPU] = used[resources.CPU] + more
    is_open = None
    if policies is not None and has_policy is not None:
        kinds = _kinds(demand, forced)
        fitting = _fitting_slots(window, demand, binds, kinds)
        is_open = has_policy & ~fitting.any
        best = _best_slots(
            columns, window, demand, fitting.fits, binds, kinds, amounts, args.numa_scoring_strategy
        )
        collapses = (window.zone_count == 1) & (policies == cols.SINGLE_NUMA_NODE)
        _count_zones(columns, window, best, has_policy & ~collapses, used, capacity)
        if resources.CPU in used and binds is not None:
            is_bound = has_policy & binds
            used[resources.CPU] = np.where(is_bound, window.pinned_milli, used[resources.CPU])
    return points(args.scoring_strategy, used, capacity, amounts, rows.shape, is_small=is_small), is_open


def _count_zones(
    columns: NUMAColumns,
    window: NUMAColumnSlice,
    slots: npt.NDArray[np.intp],
    is_in_zone: Mask,
    used: dict[str, I64],
    capacity: dict[str, I64],
) -> None:
    """Put a NUMA node's amounts in place of the node's where `is_in_zone`. A zone has nothing of what it does not
    offer."""
    is_everywhere, rows = bool(is_in_zone.all()), np.arange(slots.size)
    for name in used:
        index = columns.resources.get(name)
        zone_used = zone_capacity = np.zeros(slots.size, np.int64)
        if index is not None:
            zone_used, zone_capacity = window.used[slots, index, rows], window.capacity[slots, index, rows]
        used[name] = zone_used if is_everywhere else np.where(is_in_zone, zone_used, used[name])
        capacity[name] = (
            zone_capacity if is_everywhere else np.where(is_in_zone, zone_capacity, capacity[name])
        )


def _amounts(
    demand: NUMARequest, binds: Mask | None, ratio: npt.NDArray[np.float64] | None
) -> dict[str, int | I64]:
    """Return what the pod takes of amplified capacity: bound CPUs count more."""
    amounts: dict[str, int | I64] = dict(demand.plan.requests)
    if demand.plan.cpu_milli and binds is not None and ratio is not None:
        more = np.where(binds & (ratio > 1), _amplified(demand.plan.cpu_milli, ratio), demand.plan.cpu_milli)
        amounts[resources.CPU] = more
    return amounts


def _best_slots(
    columns: NUMAColumns,
    window: NUMAColumnSlice,
    demand: NUMARequest,
    fits: Mask,
    binds: Mask | None,
    kinds: Kinds,
    amounts: dict[str, int | I64],
    strategy: NUMAScoringStrategy,
) -> npt.NDArray[np.intp]:
    """(rows,): of the fitting NUMA nodes the one with the most points, the first among equals."""
    used: dict[str, I64] = {}
    capacity: dict[str, I64] = {}
    for resource in strategy.resources:
        index = columns.resources.get(resource.name)
        if index is None:
            continue
        offered = capacity[resource.name] = window.capacity[:, index]
        left = window.available[:, index]
        is_free = isinstance(kinds, int) and kinds == 0  # no policy is required anywhere
        if resource.name == resources.CPU and binds is not None and not is_free:
            usable_milli = CPU_MILLI * _by_kind(window.usable, kinds)
            left = np.where(binds & (kinds > np.int64(0)), np.minimum(left, usable_milli), left)
        used[resource.name] = np.maximum(0, offered - left)
    found = points(strategy, used, capacity, amounts, fits.shape, is_small=columns.traits.is_small)
    found[~fits] = -1
    best: npt.NDArray[np.intp] = found.argmax(axis=0)
    return best


def points(
    strategy: NUMAScoringStrategy,
    used: Mapping[str, I64],
    capacity: Mapping[str, I64],
    amounts: Mapping[str, int | I64],
    shape: tuple[int, ...],
    *,
    is_small: bool = False,
) -> Scores:
    """`score.score`, elementwise over arrays of `shape`; amounts may be of the last axis only. `is_small` says that
    floating point is exact."""
    total: I64 = np.zeros(shape, np.int64)
    weights: I64 = np.zeros(shape, np.int64)
    for resource in strategy.resources:
        name = resource.name
        if name not in capacity or (is_scalar(name) and name not in amounts):
            continue
        size_of = capacity[name]
        sum_of = used[name] + amounts.get(name, 0)
        if strategy.type == "MostAllocated":
            part = np.minimum(sum_of, size_of)
        else:
            part = np.maximum(0, size_of - sum_of)
        counts = size_of > 0
        own = _percent(part, np.maximum(size_of, 1), is_small=is_small)
        if resource.weight != 1:
            own *= resource.weight
        total += own
        weights += resource.weight * counts
    np.maximum(weights, 1, out=weights)
    return (total / weights).astype(np.int64)  # exact: both are small


def _percent(parts: I64, wholes: I64, *, is_small: bool) -> I64:
    """⌊100·part/whole⌋; `parts` from 0 to the whole may be overwritten."""
    parts *= SCORE_MAX
    return (parts / wholes).astype(np.int64) if is_small else parts // wholes
