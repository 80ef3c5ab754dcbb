"""NodeResourcesBalancedAllocation: prefers nodes whose resources are used to a similar degree.

The formula of Kubernetes 1.35 (the result with the pod placed). Source: spec 03, B2.
"""

from collections.abc import Hashable

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.changes import Change
from koordinator.scheduler.framework import SCORE_MAX, Handle, PreScorePlugin, ScorePlugin, Scores
from koordinator.scheduler.nodes import Rows, at
from koordinator.scheduler.plugins.node_resources_fit import CPU_AND_MEMORY, WeightedResource, is_scalar
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import SKIP, SUCCESS, Status

F64 = npt.NDArray[np.float64]


class BalancedArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Arguments; upstream demands weight 1 for each resource, as weights have no meaning here."""

    resources: list[WeightedResource] = msgspec.field(default_factory=lambda: list(CPU_AND_MEMORY))

    def __post_init__(self) -> None:
        if any(resource.effective_weight != 1 for resource in self.resources):
            raise ValueError("resources: every weight must be 1")


class BalancedState(msgspec.Struct, frozen=True):
    """(column, requested amount) per resource that counts; `is_best_effort`: the pod requests nothing."""

    resources: tuple[tuple[int, int], ...]
    is_best_effort: bool


class NodeResourcesBalancedAllocation(PreScorePlugin[BalancedState], ScorePlugin[BalancedState]):
    name = "NodeResourcesBalancedAllocation"
    args = BalancedArgs
    reads = Change.NODE | Change.PODS

    def __init__(self, args: BalancedArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._names = [resource.name for resource in args.resources]

    def class_key(self, pod: PodInfo) -> Hashable:
        return pod.request_key

    def prepare(self, pod: PodInfo) -> BalancedState:
        table = self.handle.table
        amounts = dict(pod.requests)
        counted = []
        for name in self._names:
            column = table.registry.column(name)
            amount = amounts.get(column, 0)
            if amount or not is_scalar(name):
                counted.append((column, amount))
        table.widen()
        return BalancedState(tuple(counted), not any(amount for _, amount in counted))

    def pre_score(self, state: BalancedState) -> Status:
        return SKIP if state.is_best_effort else SUCCESS

    def foresees(self, state: BalancedState) -> bool:
        return True

    def score(self, state: BalancedState, rows: Rows) -> Scores:
        return self._score(state, rows, 1)

    def score_ahead(self, state: BalancedState, rows: Rows, ahead: I64) -> Scores:
        return self._score(state, rows, ahead + 1)

    def _score(self, state: BalancedState, rows: Rows, copies: int | I64) -> Scores:
        table = self.handle.table
        requested = [
            at(table.requested[column], rows) + amount * copies for column, amount in state.resources
        ]
        if len(state.resources) == 2 and all(table.is_everywhere(column) for column, _ in state.resources):
            divisors = [at(table.divisor[column], rows) for column, _ in state.resources]
            return balanced_pair(requested[0] / divisors[0], requested[1] / divisors[1])
        capacity = [at(table.allocatable[column], rows) for column, _ in state.resources]
        shape = (len(state.resources), rows.size)
        return balanced_allocation(
            np.array(requested, np.int64).reshape(shape), np.array(capacity, np.int64).reshape(shape)
        )


def balanced_pair(first: F64, second: F64) -> Scores:
    """As `balanced_allocation`, for two resources that all nodes have; the fractions used are overwritten."""
    np.minimum(first, 1.0, out=first)
    np.minimum(second, 1.0, out=second)
    first -= second
    np.abs(first, out=first)
    first /= 2
    np.subtract(1.0, first, out=first)
    first *= SCORE_MAX
    return first.astype(np.int64)


def balanced_allocation(requested: I64, capacity: I64) -> Scores:
    """100 when all resources are used to the same degree, 50 when of two one is full and the other empty.

    Shapes: (resources, rows), pod included; returns (rows,). Resources that a node lacks are left out.
    """
    present = capacity > 0
    fractions: F64 = np.minimum(requested / np.maximum(capacity, 1), 1.0)
    count = present.sum(axis=0)
    if len(requested) == 2:
        # |f1 - f2| / 2 is the standard deviation of two, without the rounding of the general formula.
        deviation: F64 = np.where(count == 2, np.abs(fractions[0] - fractions[1]) / 2, 0.0)
    else:
        deviation = _deviation(fractions, present, count)
    return ((1.0 - deviation) * SCORE_MAX).astype(np.int64)


def _deviation(fractions: F64, present: npt.NDArray[np.bool_], count: I64) -> F64:
    """Population standard deviation over the resources that are present; exact for two of them."""
    divisor = np.maximum(count, 1)
    present_fractions = np.where(present, fractions, 0.0)
    mean = present_fractions.sum(axis=0) / divisor
    squares = np.where(present, (fractions - mean) ** 2, 0.0)
    deviation: F64 = np.sqrt(squares.sum(axis=0) / divisor)
    highest = np.where(present, fractions, -np.inf).max(axis=0, initial=-np.inf)
    lowest = np.where(present, fractions, np.inf).min(axis=0, initial=np.inf)
    of_two = np.where(count == 2, highest - lowest, 0.0) / 2
    return np.where(count == 2, of_two, deviation)
