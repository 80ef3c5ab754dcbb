"""The plugins that only score: by images, scarce resources, a strategy per resource, and balance.
Source: behaviour/scheduler B2, D2 and D3."""

import logging
from collections.abc import Callable, Hashable
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import resources
from koordinator.api.annotations.node import NODE_IMAGES, NodeImages
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX, Handle, PreScorePlugin, ScorePlugin, Scores
from koordinator.scheduler.plugin.percent import are_left
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status
from koordinator.scheduler.plugins.node_resources_fit import (
    CPU_AND_MEMORY,
    NATIVE_ORDER,
    NONZERO_INDEX,
    ScoredFitResource,
    WeightedResource,
    is_scalar,
    least_allocated,
    most_allocated,
)
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.columns import RowChange, Rows, at, discard
from koordinator.scheduler.table.nodes import F64, RowKeeper
from koordinator.scheduler.table.pod_info import REQUESTS, PodInfo

log = logging.getLogger(__name__)

MIB = 1 << 20
THRESHOLD_MIN_BYTES = 23 * MIB
CONTAINER_THRESHOLD_MAX_BYTES = 1000 * MIB


class ImageLocality(PreScorePlugin[tuple[str, ...]], ScorePlugin[tuple[str, ...]], RowKeeper):
    """The state is the images of all containers (an image used twice stands twice)."""

    name = "ImageLocality"
    keyed_by = (pod_info.images,)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._sizes: dict[str, dict[int, int]] = {}
        self._sizes_at: dict[int, dict[str, int]] = {}
        self._versions: dict[str, int] = {}
        self._beyond: dict[int, tuple[str, dict[str, int]]] = {}
        """By row: text of the annotation with images that the kubelet does not name, and their sizes."""

    # Which images are where

    def node_changed(self, row: int, node: Node) -> None:
        sizes = {name: image.size_bytes for image in node.status.images for name in image.names}
        sizes = {**self._unnamed(row, node), **sizes}
        if sizes == self._sizes_at.get(row, {}):
            return
        self._drop_sizes(row)
        self._sizes_at[row] = sizes
        for name, size_bytes in sizes.items():
            self._sizes.setdefault(name, {})[row] = size_bytes
            self._versions[name] = self._versions.get(name, 0) + 1

    def _unnamed(self, row: int, node: Node) -> dict[str, int]:
        """Return sizes of images that only the node's agent tells of; none where its annotation is malformed."""
        text = node.metadata.annotations.get(NODE_IMAGES.key)
        if text is None:
            self._beyond.pop(row, None)
            return {}
        known = self._beyond.get(row)
        if known is None or known[0] != text:
            known = self._beyond[row] = text, _sizes(node)
        return known[1]

    def row_freed(self, row: int) -> None:
        self._beyond.pop(row, None)
        self._drop_sizes(row)

    def _drop_sizes(self, row: int) -> None:
        for name in self._sizes_at.pop(row, {}):
            discard(self._sizes, name, row)
            self._versions[name] = self._versions.get(name, 0) + 1

    # A pod

    def prepare(self, pod: PodInfo) -> tuple[str, ...]:
        containers = [*pod.pod.spec.init_containers, *pod.pod.spec.containers]
        return tuple(normalized_name(container.image) for container in containers)

    def epoch(self, state: tuple[str, ...]) -> Hashable:
        """Return what a score depends on: how many nodes have an image, and how many nodes there are."""
        if self._sizes.keys().isdisjoint(state):
            return ()
        return tuple(self._versions.get(image, 0) for image in state)

    def pre_score(self, state: tuple[str, ...]) -> Status:
        return SUCCESS if any(image in self._sizes for image in state) else SKIP

    def score(self, state: tuple[str, ...], rows: Rows) -> Scores:
        total = self.handle.table.node_count
        sums = np.zeros(self.handle.table.capacity, np.int64)
        for image in state:
            by_row = self._sizes.get(image, {})
            alive = {row: size for row, size in by_row.items() if self.handle.table.node_at(row) is not None}
            for row, size_bytes in alive.items():
                sums[row] += scaled_size(size_bytes, len(alive), total)
        return image_locality(sums[rows], len(state))


def _sizes(node: Node) -> dict[str, int]:
    obj = f"Node {node.metadata.name}"
    try:
        found = NODE_IMAGES.read(node.metadata.annotations, obj) or NodeImages()
    except ProtocolError as error:
        log.warning("images not counted", extra={"problem": str(error)})
        return {}
    return {name: image.size_bytes for image in found.images for name in image.names}


def scaled_size(size_bytes: int, nodes_with_image: int, node_count: int) -> int:
    """Bytes that count for an image: fewer when few nodes have it, so that pods do not crowd there."""
    return int(size_bytes * (nodes_with_image / node_count))


def image_locality(sums_bytes: I64, container_count: int) -> Scores:
    """Return scores (rows,): 0 below 23 MiB of images present, 100 from 1000 MiB per container on, linear in
    between."""
    highest = max(CONTAINER_THRESHOLD_MAX_BYTES * container_count, THRESHOLD_MIN_BYTES + 1)
    clamped = np.clip(sums_bytes, THRESHOLD_MIN_BYTES, highest)
    return SCORE_MAX * (clamped - THRESHOLD_MIN_BYTES) // (highest - THRESHOLD_MIN_BYTES)


def normalized_name(image: str) -> str:
    """Return the image with `:latest` where it has no tag (a colon before the last slash is a port)."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


class ScarceArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the scarce resources."""

    resources: list[str] = []


class ScarceResourceAvoidance(PreScorePlugin[frozenset[int]], ScorePlugin[frozenset[int]]):
    """The state is the columns of what a pod requests."""

    name = "ScarceResourceAvoidance"
    keyed_by = (REQUESTS,)
    args = ScarceArgs

    def __init__(self, args: ScarceArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._scarce = tuple(args.resources)

    def prepare(self, pod: PodInfo) -> frozenset[int]:
        return frozenset(column for column, _ in pod.requests)

    def score(self, state: frozenset[int], rows: Rows) -> Scores:
        table = self.handle.table
        registry = table.registry
        is_spare = at(table.allocatable, rows) > 0
        # Names that no node has yet have no column in the table.
        known = range(is_spare.shape[0])
        used = {*state, registry.find(resources.PODS)}
        is_spare[[column for column in known if column in used]] = False
        scarce = {registry.find(name) for name in self._scarce}
        spare = is_spare.sum(axis=0)
        wasted = is_spare[[column for column in known if column in scarce]].sum(axis=0)
        scores = (spare - wasted) * SCORE_MAX // np.maximum(spare, 1)
        return np.where((spare == 0) | (wasted == 0), SCORE_MAX, scores).astype(np.int64)


_FORMULAS: dict[str, Callable[[I64, I64], I64]] = {
    "LeastAllocated": least_allocated,
    "MostAllocated": most_allocated,
}


class ResourceStrategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another `type` than LeastAllocated and MostAllocated scores 0, with its weight."""

    type: str = ""
    weight: Annotated[int, msgspec.Meta(ge=0)] = 0


class FitPlusArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A strategy per resource name."""

    resources: dict[str, ResourceStrategy] = {}


class FitPlusRequest(ScoredFitResource, frozen=True):
    """A resource that the pod requests and that has a strategy."""

    type: str


class NodeResourcesFitPlus(
    PreScorePlugin[tuple[FitPlusRequest, ...]], ScorePlugin[tuple[FitPlusRequest, ...]]
):
    """Init containers count as in the standard sum of requests, with defaults for cpu and memory."""

    name = "NodeResourcesFitPlus"
    keyed_by = (REQUESTS,)
    args = FitPlusArgs
    reads = RowChange.NODE | RowChange.PODS

    def __init__(self, args: FitPlusArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._strategies = args.resources

    def prepare(self, pod: PodInfo) -> tuple[FitPlusRequest, ...]:
        names = self.handle.table.registry.names
        wanted = []
        for column, amount in pod.requests:
            strategy = self._strategies.get(names[column])
            if strategy is None:
                continue
            index = NONZERO_INDEX.get(column)
            counted = amount if index is None else pod.nonzero_amounts[index]
            wanted.append(FitPlusRequest(column, strategy.weight, counted, index, strategy.type))
        return tuple(wanted)

    def foresees(self, state: tuple[FitPlusRequest, ...]) -> bool:
        return True

    def score(self, state: tuple[FitPlusRequest, ...], rows: Rows) -> Scores:
        return self.score_ahead(state, rows, 0)

    def score_ahead(self, state: tuple[FitPlusRequest, ...], rows: Rows, ahead: int | I64) -> Scores:
        table, copies = self.handle.table, ahead + 1
        weights = sum(wanted.weight for wanted in state)
        if not weights:
            return np.full(rows.size, SCORE_MAX, np.int64)
        total = np.zeros(rows.size, np.int64)
        for wanted in state:
            formula = _FORMULAS.get(wanted.type)
            if formula is not None:
                capacity = at(table.allocatable[wanted.column], rows)
                total += wanted.weight * formula(wanted.used(table, rows, copies), capacity)
        return total // weights


class BalancedArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Arguments; upstream demands weight 1 for each resource, as weights have no meaning here. No resources mean cpu
    and memory."""

    resources: list[WeightedResource] = msgspec.field(default_factory=lambda: list(CPU_AND_MEMORY))

    def __post_init__(self) -> None:
        names = [resource.name for resource in self.resources]
        if len(set(names)) != len(names):
            raise ValueError("resources: each must be named once")
        if any(resource.effective_weight != 1 for resource in self.resources):
            raise ValueError("resources: every weight must be 1")


class BalancedState(msgspec.Struct, frozen=True):
    """(column, requested amount) per resource that counts; `is_best_effort`: the pod requests nothing."""

    resources: tuple[tuple[int, int], ...]
    is_best_effort: bool
    amounts: F64
    """(resources, 1): the amounts in `resources`."""


class NodeResourcesBalancedAllocation(PreScorePlugin[BalancedState], ScorePlugin[BalancedState]):
    name = "NodeResourcesBalancedAllocation"
    keyed_by = (REQUESTS,)
    args = BalancedArgs
    reads = RowChange.NODE | RowChange.PODS

    def __init__(self, args: BalancedArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        names = [resource.name for resource in args.resources or CPU_AND_MEMORY]
        self._scorable = [
            (handle.table.registry.column(name), is_scalar(name))
            for name in names
            if name in NATIVE_ORDER or is_scalar(name)
        ]
        """Column, and whether only pods that request the resource are scored by it."""

    def prepare(self, pod: PodInfo) -> BalancedState:
        amounts, counted = dict(pod.requests), []
        for column, is_optional in self._scorable:
            amount = amounts.get(column, 0)
            if amount or not is_optional:
                counted.append((column, amount))
        self.handle.table.widen()
        amounts_of = np.array([[amount] for _, amount in counted], np.float64)
        return BalancedState(tuple(counted), not any(amount for _, amount in counted), amounts_of)

    def pre_score(self, state: BalancedState) -> Status:
        return SKIP if state.is_best_effort else SUCCESS

    def foresees(self, state: BalancedState) -> bool:
        return True

    def score(self, state: BalancedState, rows: Rows) -> Scores:
        return self.score_ahead(state, rows, 0)

    def score_ahead(self, state: BalancedState, rows: Rows, ahead: int | I64) -> Scores:
        table, copies = self.handle.table, ahead + 1
        columns = [column for column, _ in state.resources]
        if columns == [0, 1] and table.is_everywhere(0) and table.is_everywhere(1):
            fractions = at(table.used, rows) + state.amounts * copies
            fractions /= at(table.nonzero_divisor, rows)
            amounts = [amount for _, amount in state.resources]
            return balanced_pair(fractions, is_below=are_left(table.least_free.amounts, amounts, copies))
        requested = [
            at(table.requested[column], rows) + amount * copies for column, amount in state.resources
        ]
        capacity = [at(table.allocatable[column], rows) for column in columns]
        shape = (len(state.resources), rows.size)
        return balanced_allocation(
            np.array(requested, np.int64).reshape(shape), np.array(capacity, np.int64).reshape(shape)
        )


def balanced_pair(fractions: F64, *, is_below: bool = False) -> Scores:
    """Score as `balanced_allocation` does, for two resources that all nodes have. Shapes: `fractions` (2, rows), what
    is used of each, overwritten; returns (rows,). `is_below`: nowhere more than all of it, as is known."""
    if not is_below and fractions.size and np.maximum.reduce(fractions, axis=None) > 1.0:
        np.minimum(fractions, 1.0, out=fractions)
    twice: F64 = np.subtract(fractions[0], fractions[1], out=fractions[0])
    np.abs(twice, out=twice)
    np.subtract(2.0, twice, out=twice)  # halved with the next step: dividing by 2 rounds nothing
    twice *= SCORE_MAX / 2
    return twice.astype(np.int64)


def balanced_allocation(requested: I64, capacity: I64) -> Scores:
    """100 when all resources are used to the same degree, 50 when of two one is full and the other empty.
    Shapes: (resources, rows), pod included; returns (rows,). Resources that a node lacks are left out."""
    present = capacity > 0
    fractions: F64 = np.minimum(requested / np.maximum(capacity, 1), 1.0)
    return ((1.0 - _deviation(fractions, present)) * SCORE_MAX).astype(np.int64)


def _deviation(fractions: F64, present: npt.NDArray[np.bool_]) -> F64:
    """Population standard deviation over the resources that are present; of two it is half of their difference, without
    the rounding of the general formula."""
    count = present.sum(axis=0)
    divisor = np.maximum(count, 1)
    present_fractions = np.where(present, fractions, 0.0)
    mean = present_fractions.sum(axis=0) / divisor
    squares = np.where(present, (fractions - mean) ** 2, 0.0)
    deviation: F64 = np.sqrt(squares.sum(axis=0) / divisor)
    highest = np.where(present, fractions, -np.inf).max(axis=0, initial=-np.inf)
    lowest = np.where(present, fractions, np.inf).min(axis=0, initial=np.inf)
    of_two = np.where(count == 2, highest - lowest, 0.0) / 2
    return np.where(count == 2, of_two, deviation)
