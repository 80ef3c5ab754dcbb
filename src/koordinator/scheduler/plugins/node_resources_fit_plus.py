"""NodeResourcesFitPlus: pack some resources and spread others. Source: behaviour/scheduler D2."""

from collections.abc import Callable
from typing import Annotated

import msgspec
import numpy as np

from koordinator.api import resource_vector
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX, Handle, PreScorePlugin, ScorePlugin, Scores
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.plugins.node_resources_fit import least_allocated, most_allocated
from koordinator.scheduler.table.changes import RowChange
from koordinator.scheduler.table.columns import Rows, at
from koordinator.scheduler.table.pod_info import REQUESTS, PodInfo

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


class FitPlusRequest(msgspec.Struct, frozen=True):
    """A resource that the pod requests and that has a strategy."""

    column: int
    amount: int
    nonzero_index: int | None
    strategy: ResourceStrategy


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
            index = _NONZERO_INDEX.get(column)
            counted = amount if index is None else pod.nonzero_amounts[index]
            wanted.append(FitPlusRequest(column, counted, index, strategy))
        return tuple(wanted)

    def pre_score(self, state: tuple[FitPlusRequest, ...]) -> Status:
        return SUCCESS

    def foresees(self, state: tuple[FitPlusRequest, ...]) -> bool:
        return True

    def score(self, state: tuple[FitPlusRequest, ...], rows: Rows) -> Scores:
        return self._score(state, rows, 1)

    def score_ahead(self, state: tuple[FitPlusRequest, ...], rows: Rows, ahead: I64) -> Scores:
        return self._score(state, rows, ahead + 1)

    def _score(self, state: tuple[FitPlusRequest, ...], rows: Rows, copies: int | I64) -> Scores:
        table = self.handle.table
        weights = sum(wanted.strategy.weight for wanted in state)
        if not weights:
            return np.full(rows.size, SCORE_MAX, np.int64)
        total = np.zeros(rows.size, np.int64)
        for wanted in state:
            formula = _FORMULAS.get(wanted.strategy.type)
            if formula is None:
                continue
            requested = table.requested[wanted.column]
            if wanted.nonzero_index is not None:
                requested = table.nonzero_requested[wanted.nonzero_index]
            capacity = at(table.allocatable[wanted.column], rows)
            used = np.asarray(at(requested, rows) + wanted.amount * copies, np.int64)
            total += wanted.strategy.weight * formula(used, capacity)
        return total // weights


_NONZERO_INDEX = {resource_vector.CPU_COLUMN: 0, resource_vector.MEMORY_COLUMN: 1}
