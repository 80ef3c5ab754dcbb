"""NodeResourcesBalancedAllocation: prefers nodes whose resources are used to a similar degree.

The formula of Kubernetes 1.35 (the result with the pod placed). Source: behaviour/scheduler B2.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX, Handle, PreScorePlugin, ScorePlugin, Scores
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status
from koordinator.scheduler.plugins.node_resources_fit import CPU_AND_MEMORY, WeightedResource, is_scalar
from koordinator.scheduler.table.changes import RowChange
from koordinator.scheduler.table.columns import Rows, at
from koordinator.scheduler.table.pod_info import REQUESTS, PodInfo

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
    amounts: F64
    """(resources, 1): the amounts in `resources`."""


class NodeResourcesBalancedAllocation(PreScorePlugin[BalancedState], ScorePlugin[BalancedState]):
    name = "NodeResourcesBalancedAllocation"
    keyed_by = (REQUESTS,)
    args = BalancedArgs
    reads = RowChange.NODE | RowChange.PODS

    def __init__(self, args: BalancedArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._names = [resource.name for resource in args.resources]

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
        amounts_of = np.array([[amount] for _, amount in counted], np.float64)
        return BalancedState(tuple(counted), not any(amount for _, amount in counted), amounts_of)

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
        columns = [column for column, _ in state.resources]
        if columns == [0, 1] and table.is_everywhere(0) and table.is_everywhere(1):
            fractions = at(table.used, rows) + state.amounts * copies
            fractions /= at(table.nonzero_divisor, rows)
            return balanced_pair(fractions)
        amounts = [at(table.requested[column], rows) + amount * copies for column, amount in state.resources]
        capacity = [at(table.allocatable[column], rows) for column in columns]
        shape = (len(state.resources), rows.size)
        return balanced_allocation(
            np.array(amounts, np.int64).reshape(shape), np.array(capacity, np.int64).reshape(shape)
        )


def balanced_pair(fractions: F64) -> Scores:
    """Score as `balanced_allocation` does, for two resources that all nodes have.

    Shapes: `fractions` (2, rows), what is used of each, overwritten; returns (rows,).
    """
    np.minimum(fractions, 1.0, out=fractions)
    deviation: F64 = fractions[0] - fractions[1]
    np.abs(deviation, out=deviation)
    deviation *= 0.5
    np.subtract(1.0, deviation, out=deviation)
    deviation *= SCORE_MAX
    return deviation.astype(np.int64)


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
