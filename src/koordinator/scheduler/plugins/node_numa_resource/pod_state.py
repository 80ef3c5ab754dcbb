"""Remember of a class of pods what they ask for, and what trials said about it so far; read what nodes offer and what
is requested of them from the node table: the part of Score that knows no NUMA nodes."""

from collections.abc import Hashable
from typing import Any

from koordinator.api import resource_vector
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import Scores
from koordinator.scheduler.plugin.percent import ScoredRequest, free_percent
from koordinator.scheduler.plugin.status import RefusalCodes, Status
from koordinator.scheduler.plugins.node_numa_resource import bulk
from koordinator.scheduler.plugins.node_numa_resource.admission import NUMAPlacement, NUMAPodTerms
from koordinator.scheduler.plugins.node_numa_resource.bulk import (
    FIRST_OWN_CODE,
    NodeAmounts,
    NodeCPU,
    NUMAReason,
    NUMARequest,
)
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import Amounts
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHintProvider
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import PodHolding
from koordinator.scheduler.plugins.node_numa_resource.policy import PodPlan
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategy
from koordinator.scheduler.plugins.node_resources_fit import is_scalar
from koordinator.scheduler.table.columns import Recent, Rows, at
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo


class TableAmounts:
    """Amounts of the resources that count for the score."""

    def __init__(self, table: NodeTable, strategy: NUMAScoringStrategy) -> None:
        self._table, self._strategy = table, strategy
        column = table.registry.column
        self._columns = [(each.name, column(each.name)) for each in strategy.resources]
        table.widen()

    def at(self, row: int) -> tuple[Amounts, Amounts]:
        """Return what a node offers, and what is requested of it."""
        table, columns = self._table, self._columns
        return (
            {name: int(table.allocatable[column, row]) for name, column in columns},
            {name: int(table.requested[column, row]) for name, column in columns},
        )

    def over(self, rows: Rows) -> NodeAmounts:
        """Return what the nodes of `rows` (rows,) offer, and what is requested of them."""
        table, columns = self._table, self._columns
        return NodeAmounts(
            {name: at(table.allocatable[column], rows) for name, column in columns},
            {name: at(table.requested[column], rows) for name, column in columns},
            table.has_small_amounts,
        )

    def cpu(self, rows: Rows) -> NodeCPU:
        """Return the CPU of the nodes of `rows` (rows,)."""
        table, cpu = self._table, resource_vector.CPU_COLUMN
        return NodeCPU(at(table.allocatable[cpu], rows), at(table.requested[cpu], rows))

    def scored(self, requests: Amounts) -> ScoredRequest:
        """Return what counts for a pod with these requests."""
        weights = {each.name: each.weight for each in self._strategy.resources}
        return ScoredRequest.of(
            [
                (column, requests.get(name, 0), weights[name])
                for name, column in self._columns
                if name in requests or not is_scalar(name)
            ]
        )

    def plain_score(
        self, demand: NUMARequest, scored: ScoredRequest, rows: Rows, copies: int | I64
    ) -> Scores:
        """Return scores (rows,) where only requests count, with that many pods like this one on each row; `scored` is
        what `scored` says of one."""
        strategy, requests = self._strategy, demand.plan.requests
        if strategy.type == "LeastAllocated":
            found = free_percent(self._table, scored, rows, copies)
            if found is not None:
                return found
        nodes = self.over(rows)
        requested = {
            name: values + (copies - 1) * requests.get(name, 0) for name, values in nodes.requested.items()
        }
        return bulk.points(
            strategy, requested, nodes.allocatable, requests, rows.shape, is_small=nodes.is_small
        )


TRIALS_MAX = 16_384
"""Verdicts of trials that a class of pods remembers: some for each node of a large cluster."""

Provider = tuple[NUMATopologyHintProvider[Any], Any]
"""A plugin that takes part in the choice of NUMA nodes, with its state for a pod."""


class NUMAState(RefusalCodes):
    """The requests of a class of pods, and what trials said about it so far."""

    first_code = FIRST_OWN_CODE
    other_code = NUMAReason.UNALIGNED

    def __init__(
        self, pod: PodInfo, plan: PodPlan, chosen: PodHolding | None, providers: tuple[Provider, ...]
    ) -> None:
        super().__init__()
        self.pod = pod
        self.chosen = chosen
        """Choice made for the pod before it came here (`designated`)."""
        self.providers = providers
        self.plan = plan
        self.demand: NUMARequest | None = None
        self.demand_width = -1
        self.scored: ScoredRequest | None = None
        """(column, amount, weight) of what counts where only requests do."""
        self.terms: dict[Hashable, NUMAPodTerms] = {}
        self.trials: Recent[NUMAPlacement] = Recent(TRIALS_MAX)
        self.verdicts: Recent[Status] = Recent(TRIALS_MAX)

    @property
    def needs_trial(self) -> bool:
        """Return whether only a trial on each node tells, wherever the plugin has a say at all."""
        return self.chosen is not None or bool(self.providers)
