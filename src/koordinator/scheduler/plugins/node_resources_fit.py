"""NodeResourcesFit: a pod fits where what it requests is left, and scores by how full nodes get.
Source: behaviour/scheduler B2 and B9."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from koordinator.api import resource_vector, resources
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    SCORE_MAX,
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ReasonCodes,
    ScorePlugin,
    Scores,
    passes,
)
from koordinator.scheduler.plugin.percent import PERCENT, are_left, mean_percent
from koordinator.scheduler.plugin.status import Status, error, unresolvable, unschedulable
from koordinator.scheduler.plugins.fit_index import FitIndex, Requests
from koordinator.scheduler.table.columns import RowChange, Rows, at
from koordinator.scheduler.table.nodes import F64, NodeTable
from koordinator.scheduler.table.pod_info import REQUESTS, PodInfo

Copies = int | I64
"""Number of pods of a class that are meant: the one that is looked at, and those assumed on the row before it."""

Weight = Annotated[int, msgspec.Meta(ge=0, le=100)]
SHAPE_SCORE_MAX = 10


class WeightedResource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource that counts in a score; weight 0 or absent means 1."""

    name: str
    weight: Weight = 1

    @property
    def effective_weight(self) -> int:
        return self.weight or 1


CPU_AND_MEMORY = (WeightedResource(resources.CPU), WeightedResource(resources.MEMORY))


class ShapePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Score (0 to 10) at a utilisation in percent."""

    utilization: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    score: Annotated[int, msgspec.Meta(ge=0, le=SHAPE_SCORE_MAX)] = 0


def check_shape(field: str, shape: Sequence[ShapePoint]) -> None:
    """Raises: ValueError."""
    utilizations = [point.utilization for point in shape]
    if utilizations != sorted(set(utilizations)):
        raise ValueError(f"{field}: utilization must rise from point to point")


def scaled_shape(shape: Sequence[ShapePoint]) -> list[tuple[int, int]]:
    """(utilization in percent, score on our scale) points."""
    return [(point.utilization, point.score * SCORE_MAX // SHAPE_SCORE_MAX) for point in shape]


class RatioParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function of RequestedToCapacityRatio."""

    shape: list[ShapePoint] = []


class FitScoringStrategy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The function from a node's fullness to a score. No resources mean cpu and memory."""

    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    resources: list[WeightedResource] = msgspec.field(default_factory=lambda: list(CPU_AND_MEMORY))
    requested_to_capacity_ratio: RatioParam | None = None

    def __post_init__(self) -> None:
        if self.type != "RequestedToCapacityRatio":
            return
        shape = self.requested_to_capacity_ratio.shape if self.requested_to_capacity_ratio else []
        if not shape:
            raise ValueError("requestedToCapacityRatio.shape needs at least one point")
        check_shape("requestedToCapacityRatio.shape", shape)


class FitArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Arguments. Ignored names and groups (the text before `/`) concern extended resources only."""

    ignored_resources: list[str] = []
    ignored_resource_groups: list[str] = []
    scoring_strategy: FitScoringStrategy = FitScoringStrategy()

    def __post_init__(self) -> None:
        for group in self.ignored_resource_groups:
            if "/" in group:
                raise ValueError(f"ignoredResourceGroups: {group!r} must not contain a slash")


class FitState(msgspec.Struct, frozen=True):
    """The requests of a pod: `checked` lists (column, amount) in the order of the reasons; `requested` has the amounts
    of the scored resources, `scored` their columns and weights."""

    checked: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    scored: tuple["ScoredFitResource", ...]
    combinations: list[int]
    """Sets of reasons met so far, where they do not fit a code themselves."""
    checked_amounts: I64
    """(resources, 1): the amounts in `checked`."""
    checked_columns: I64
    """(resources, 1): the columns in `checked`."""
    scored_hundredths: F64
    """(resources, 1): 100 times the amounts in `scored`."""
    is_cpu_and_memory: bool
    """Whether `scored` are just these two."""
    checks_cpu_and_memory: bool
    """Whether `checked` are just these two."""


class ScoredFitResource(msgspec.Struct, frozen=True):
    """A resource in a score: what the pod adds, and where the nodes' figures are."""

    column: int
    weight: int
    amount: int
    nonzero_index: int | None
    """Row of `nonzero_requested` for cpu and memory, which count with defaults."""

    def used(self, table: NodeTable, rows: Rows, copies: Copies) -> I64:
        """Return how much is used on `rows` with so many pods more: (rows,)."""
        if self.nonzero_index is not None:
            present = at(table.nonzero_requested[self.nonzero_index], rows)
        else:
            present = at(table.requested[self.column], rows)
        return np.asarray(present + self.amount * copies, np.int64)


# Bits of a reason code: the resource at position i of `checked` has bit 2 + i.
_UNRESOLVABLE_BIT = 1
_PODS_BIT = 2
_FIRST_RESOURCE_BIT = 2
_CODE_BITS = 16
_MASK_BITS = 62


class NodeResourcesFit(
    PreFilterPlugin[FitState], FilterPlugin[FitState], PreScorePlugin[FitState], ScorePlugin[FitState]
):
    name = "NodeResourcesFit"
    keyed_by = (REQUESTS,)
    args = FitArgs
    reads = RowChange.NODE | RowChange.PODS
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.ASSIGNED_POD_UPDATED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: FitArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        strategy = args.scoring_strategy
        weights = {each.name: each.effective_weight for each in strategy.resources or CPU_AND_MEMORY}
        self._scorable = [
            (column := handle.table.registry.column(name), weight, NONZERO_INDEX.get(column), is_scalar(name))
            for name, weight in weights.items()
            if name in NATIVE_ORDER or is_scalar(name)  # not the number of pods, say, which nobody requests
        ]
        """Column, weight, row of `nonzero_requested`, and whether only pods that request the resource are scored by
        it."""
        self._is_by_ratio = strategy.type == "RequestedToCapacityRatio"
        self._resource_score: Callable[[I64, I64], I64] = least_allocated
        if strategy.type == "MostAllocated":
            self._resource_score = most_allocated
        elif self._is_by_ratio and strategy.requested_to_capacity_ratio is not None:
            shape = scaled_shape(strategy.requested_to_capacity_ratio.shape)
            self._resource_score = lambda used, capacity: requested_to_capacity_ratio(used, capacity, shape)

    def prepare(self, pod: PodInfo) -> FitState:
        amounts = dict(pod.requests)
        wanted = list(amounts)
        asks_for_cpu_and_memory = wanted == _CPU_AND_MEMORY_COLUMNS
        if asks_for_cpu_and_memory:
            names, checked, checked_columns = _CPU_AND_MEMORY, pod.requests, _LEADING
        else:
            wanted = self._in_order(wanted)
            known = self.handle.table.registry.names
            names = tuple([known[column] for column in wanted])
            checked = tuple([(column, amounts[column]) for column in wanted])
            checked_columns = np.array([[column] for column in wanted], np.int64)
        scored = self._scored(pod, amounts)
        return FitState(
            checked=checked,
            names=names,
            scored=tuple(scored),
            combinations=[],
            checked_amounts=np.array([[amount] for _, amount in checked], np.int64),
            checked_columns=checked_columns,
            scored_hundredths=np.array([[PERCENT * resource.amount] for resource in scored], np.float64),
            is_cpu_and_memory=[resource.nonzero_index for resource in scored] == [0, 1],
            checks_cpu_and_memory=asks_for_cpu_and_memory,
        )

    def _in_order(self, columns: list[int]) -> list[int]:
        """Return what is checked, in the order of the reasons."""
        names = self.handle.table.registry.names
        wanted = [column for column in columns if not self._is_ignored(names[column])]
        return sorted(wanted, key=lambda column: (NATIVE_ORDER.get(names[column], 3), names[column]))

    def _scored(self, pod: PodInfo, amounts: dict[int, int]) -> list[ScoredFitResource]:
        """Return the configured resources that count for this pod: a scalar one only if the pod requests it."""
        self.handle.table.widen()
        scored = []
        for column, weight, index, is_optional in self._scorable:
            amount = amounts.get(column, 0)
            if amount or not is_optional:
                if index is not None:
                    amount = pod.nonzero_amounts[index]
                scored.append(ScoredFitResource(column, weight, amount, index))
        return scored

    def _is_ignored(self, name: str) -> bool:
        if not is_extended(name):
            return False
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups

    def pre_filter(self, state: FitState) -> PreFilterResult:
        if len(state.checked) > _MASK_BITS - _FIRST_RESOURCE_BIT:
            return PreFilterResult(error(f"pod requests {len(state.checked)} different resources"))
        return PreFilterResult()

    def foresees(self, state: FitState) -> bool:
        return True

    def filter(self, state: FitState, rows: Rows) -> ReasonCodes:
        return self.filter_ahead(state, rows, 0)

    def filter_ahead(self, state: FitState, rows: Rows, ahead: int | I64) -> ReasonCodes:
        copies = ahead + 1
        if state.checks_cpu_and_memory and self._fits_everywhere(state, rows, copies):
            return passes(rows)
        masks = short_of(self.handle.table, state, rows, copies)
        return passes(rows) if masks is None else self._codes(state, masks)

    def filter_without(self, state: FitState, rows: Rows, held: I64, held_pods: I64) -> ReasonCodes:
        """Filter as `filter` does, if pods that hold these amounts (resources in `checked`, nodes) were gone;
        `held_pods` (nodes,) tells how many that are."""
        table = self.handle.table
        pods = at(table.pod_count, rows) - at(held_pods, rows) + 1
        masks = (pods > at(table.pods_max, rows)).astype(np.int64) * _PODS_BIT
        for position, (column, amount) in enumerate(state.checked):
            capacity = at(table.allocatable[column], rows)
            short = amount > capacity - at(table.requested[column], rows) + at(held[position], rows)
            masks |= short.astype(np.int64) << (_FIRST_RESOURCE_BIT + position)
            masks |= short & (amount > capacity)
        return self._codes(state, masks)

    def _codes(self, state: FitState, masks: I64) -> ReasonCodes:
        if len(state.checked) <= _CODE_BITS - _FIRST_RESOURCE_BIT:
            return masks.astype(np.uint16)
        return _combination_codes(masks, state.combinations)

    def _fits_everywhere(self, state: FitState, rows: Rows, copies: Copies) -> bool:
        """Most often yes: worth a glance at what is left at least, and at both resources together, before looking what
        is short."""
        table = self.handle.table
        least, amounts = table.least_free, [amount for _, amount in state.checked]
        if are_left([least.pods, *least.amounts], [1, *amounts], copies):
            return True
        if np.count_nonzero(at(table.free_pods, rows) < copies):
            return False
        if np.count_nonzero(at(table.free[:2], rows) < state.checked_amounts * copies):
            return False
        if rows.size == table.node_count:
            table.look_at_least()
        return True

    def refusal(self, state: FitState, code: int) -> Status:
        mask = code
        if len(state.checked) > _CODE_BITS - _FIRST_RESOURCE_BIT:
            mask = state.combinations[code - 1]
        reasons = ["Too many pods"] if mask & _PODS_BIT else []
        for position, name in enumerate(state.names):
            if mask >> (_FIRST_RESOURCE_BIT + position) & 1:
                reasons.append(f"Insufficient {name}")
        return unresolvable(*reasons) if mask & _UNRESOLVABLE_BIT else unschedulable(*reasons)

    def facts(self, state: FitState, row: int) -> tuple[str, ...]:
        table = self.handle.table
        lines = []
        for (column, wanted), name in zip(state.checked, state.names, strict=True):
            amounts = wanted, int(table.free[column, row]), int(table.allocatable[column, row])
            own, free, whole = (resource_vector.readable_cell(name, amount) for amount in amounts)
            lines.append(f"{name}: {own} requested, {free} of {whole} free")
            if wanted > amounts[1]:
                lines[-1] += f", short by {resource_vector.readable_cell(name, wanted - amounts[1])}"
        if table.free_pods[row] < 1:
            lines.append(f"pods: {table.pod_count[row]} of at most {table.pods_max[row]}")
        return tuple(lines)

    def score(self, state: FitState, rows: Rows) -> Scores:
        return self.score_ahead(state, rows, 0)

    def score_ahead(self, state: FitState, rows: Rows, ahead: int | I64) -> Scores:
        table, copies = self.handle.table, ahead + 1
        is_plain = self._resource_score is least_allocated and table.has_small_amounts
        if is_plain and state.scored and all(table.is_everywhere(each.column) for each in state.scored):
            return self._least_allocated(state, rows, copies)
        weighted = np.zeros(rows.size, np.int64)
        weights = np.zeros(rows.size, np.int64)
        for resource in state.scored:
            capacity = at(table.allocatable[resource.column], rows)
            score = self._resource_score(resource.used(table, rows, copies), capacity)
            counts = capacity > 0
            if self._is_by_ratio:
                counts &= score > 0  # those that score 0 do not pull the mean down
            weight = np.where(counts, resource.weight, 0)
            weighted += score * weight
            weights += weight
        divisor = np.maximum(weights, 1)
        if self._is_by_ratio:  # rounded half up
            return np.asarray((2 * weighted + divisor) // (2 * divisor))
        return np.asarray(weighted // divisor)

    def _least_allocated(self, state: FitState, rows: Rows, copies: Copies) -> Scores:
        """Return the same for LeastAllocated and resources that all nodes have: in floating point, but exact."""
        table, weights = self.handle.table, [resource.weight for resource in state.scored]
        if state.is_cpu_and_memory:
            left = at(table.nonzero_free_hundredths, rows) - state.scored_hundredths * copies
            amounts = [resource.amount for resource in state.scored]
            is_positive = are_left(table.least_free.nonzero, amounts, copies)
            return mean_percent(left, at(table.nonzero_divisor, rows), weights, is_positive=is_positive)
        left = np.empty((len(state.scored), rows.size))
        for index, resource in enumerate(state.scored):
            if resource.nonzero_index is not None:
                free = at(table.nonzero_free_hundredths[resource.nonzero_index], rows)
            else:
                free = at(table.free[resource.column], rows) * PERCENT
            np.subtract(free, resource.amount * PERCENT * copies, out=left[index])
        columns = [resource.column for resource in state.scored]
        return mean_percent(left, at(table.divisor, rows)[columns], weights)

    # Events

    wakes_for_row = True

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Return whether the pod fits onto the node of the event now; of the pod itself, whether it asks for less."""
        if event.kind is ClusterEvent.POD_UPDATED:
            return asks_for_less(event.old, event.new)
        return super().wakes(event, pod)

    def wake_index(self) -> FitIndex:
        return FitIndex(self.handle.table, self.checked)

    def checked(self, pod: PodInfo) -> Requests:
        """Return what of a pod's requests has to fit."""
        return self.prepare(pod).checked


def asks_for_less(old: PodInfo, new: PodInfo) -> bool:
    """Return whether a pod wants less of some resource than before."""
    wants = dict(new.requests)
    return any(wants.get(column, 0) < amount for column, amount in old.requests)


def short_of(table: NodeTable, state: FitState, rows: Rows, copies: Copies = 1) -> I64 | None:
    """Per row the set of what is short of all that is checked, as bits, 0 where `copies` pods fit; None when they fit
    everywhere. Shapes: `copies` one number or (rows,); returns (rows,)."""
    masks: I64 | None = None
    free_pods = at(table.free_pods, rows)
    is_full = free_pods < copies
    if np.count_nonzero(is_full):
        masks = is_full * np.int64(_PODS_BIT)
    if rows.size <= FEW_ROWS:
        return _short_of_few(table, state, rows, copies, masks)
    free, allocatable = table.free, table.allocatable
    for position, (column, amount) in enumerate(state.checked):
        short = at(free[column], rows) < amount * copies
        if not np.count_nonzero(short):
            continue
        bits = short * np.int64(1 << (_FIRST_RESOURCE_BIT + position))
        masks = bits if masks is None else masks | bits
        masks |= short & (amount > at(allocatable[column], rows))
    return masks


FEW_ROWS = 64
"""Rows of which it costs less to gather all resources at once than to look at one after the other."""
_RESOURCE_BITS = 1 << np.arange(_FIRST_RESOURCE_BIT, _MASK_BITS, dtype=np.int64)


def _short_of_few(
    table: NodeTable, state: FitState, rows: Rows, copies: Copies, masks: I64 | None
) -> I64 | None:
    """Add the resources to `masks` (rows,), all of `rows` (rows,) at once; None stands for nothing in both."""
    amounts = state.checked_amounts
    if not amounts.size:
        return masks
    places = state.checked_columns * table.capacity + rows
    short = table.free.take(places) < amounts * copies
    if not np.count_nonzero(short):
        return masks
    found: I64 = _RESOURCE_BITS[: len(amounts)] @ short
    found |= (short & (amounts > table.allocatable.take(places))).any(axis=0)
    return found if masks is None else masks | found


_CPU_AND_MEMORY_COLUMNS = [resource_vector.CPU_COLUMN, resource_vector.MEMORY_COLUMN]
_CPU_AND_MEMORY: tuple[str, ...] = (resources.CPU, resources.MEMORY)
_LEADING: I64 = np.array([[column] for column in _CPU_AND_MEMORY_COLUMNS], np.int64)
_LEADING.setflags(write=False)
NONZERO_INDEX = {resource_vector.CPU_COLUMN: 0, resource_vector.MEMORY_COLUMN: 1}


def least_allocated(used: I64, capacity: I64) -> I64:
    """100 when empty, 0 when full, over-full or without the resource. Shapes: (rows,)."""
    divisor = np.maximum(capacity, 1)
    return np.asarray(np.maximum(capacity - used, 0) * SCORE_MAX // divisor)


def most_allocated(used: I64, capacity: I64) -> I64:
    """100 when full or over-full, 0 when empty or without the resource. Shapes: (rows,)."""
    divisor = np.maximum(capacity, 1)
    return np.asarray(np.minimum(used, capacity) * SCORE_MAX // divisor)


def requested_to_capacity_ratio(used: I64, capacity: I64, shape: list[tuple[int, int]]) -> I64:
    """Return the shape's value at the utilisation in percent, rounded down; over-full counts as 100."""
    divisor = np.maximum(capacity, 1)
    utilization = np.where(used > capacity, 100, np.minimum(used, capacity) * 100 // divisor)
    return piecewise_linear(utilization, shape)


def piecewise_linear(utilization: I64, shape: list[tuple[int, int]]) -> I64:
    """Return the piecewise linear function through (utilization, score) points, rising in utilization; flat outside.

    Integer division truncates toward zero. Source: behaviour/scheduler B2.
    """
    points = np.array(shape, np.int64)
    xs, ys = points[:, 0], points[:, 1]
    right = np.clip(np.searchsorted(xs, utilization, side="left"), 1, max(len(shape) - 1, 1))
    if len(shape) == 1:
        return np.full(np.shape(utilization), ys[0], np.int64)
    left = right - 1
    rise = (ys[right] - ys[left]) * (utilization - xs[left])
    run = xs[right] - xs[left]
    between = ys[left] + np.sign(rise) * (np.abs(rise) // run)
    between = np.where(utilization >= xs[-1], ys[-1], between)
    return np.asarray(np.where(utilization <= xs[0], ys[0], between))


def is_extended(name: str) -> bool:
    """Return whether a resource is neither native (no domain, or a `kubernetes.io` one) nor a huge page size.
    Source: behaviour/scheduler B9: `kubernetes.io/batch-cpu` is native, `koordinator.sh/gpu` extended."""
    domain, slash, _ = name.partition("/")
    if not slash:
        return False
    return not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def is_scalar(name: str) -> bool:
    """Neither cpu, memory nor storage: extended resources, batch-cpu and the like, huge pages."""
    return "/" in name or name.startswith((resources.HUGEPAGES_PREFIX, "attachable-volumes-"))


NATIVE_ORDER = {resources.CPU: 0, resources.MEMORY: 1, resources.EPHEMERAL_STORAGE: 2}


def _combination_codes(masks: I64, combinations: list[int]) -> ReasonCodes:
    """Codes for masks that are wider than a code: the position (from 1) in `combinations`, which grows."""
    codes = np.zeros(masks.shape, np.uint16)
    for mask in np.unique(masks[masks != 0]).tolist():
        if mask not in combinations:
            combinations.append(mask)
        codes[masks == mask] = combinations.index(mask) + 1
    return codes
