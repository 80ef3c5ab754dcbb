"""Read what nodes offer and what is requested of them, from the node table: the part of Score that knows no NUMA
nodes.
"""

from koordinator.api import resource_vector
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import Scores
from koordinator.scheduler.plugin.percent import ScoredRequest, free_percent
from koordinator.scheduler.plugins.node_numa_resource import bulk
from koordinator.scheduler.plugins.node_numa_resource.bulk import NodeAmounts, NodeCPU, NUMARequest
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import Amounts
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategy
from koordinator.scheduler.plugins.node_resources_fit import is_scalar
from koordinator.scheduler.table.columns import Rows, at
from koordinator.scheduler.table.nodes import NodeTable


class TableAmounts:
    """Amounts of the resources that count for the score."""

    def __init__(self, table: NodeTable, strategy: NUMAScoringStrategy) -> None:
        self._table, self._strategy = table, strategy
        self._scored: tuple[tuple[str, int], ...] = ()

    def _columns(self) -> tuple[tuple[str, int], ...]:
        """Return the columns of the node table, which may not have met all resources yet."""
        if not self._scored:
            column = self._table.registry.column
            self._scored = tuple((each.name, column(each.name)) for each in self._strategy.resources)
            self._table.widen()
        return self._scored

    def at(self, row: int) -> tuple[Amounts, Amounts]:
        """Return what a node offers, and what is requested of it."""
        table, columns = self._table, self._columns()
        return (
            {name: int(table.allocatable[column, row]) for name, column in columns},
            {name: int(table.requested[column, row]) for name, column in columns},
        )

    def over(self, rows: Rows) -> NodeAmounts:
        """Return what the nodes of `rows` (rows,) offer, and what is requested of them."""
        table, columns = self._table, self._columns()
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
                for name, column in self._columns()
                if name in requests or not is_scalar(name)
            ]
        )

    def plain_score(
        self, demand: NUMARequest, scored: ScoredRequest, rows: Rows, copies: int | I64
    ) -> Scores:
        """Return scores (rows,) where only requests count, with that many pods like this one on each row; `scored`
        is what `scored` says of one.
        """
        strategy, requests = self._strategy, demand.plan.requests
        if strategy.type == "LeastAllocated":
            found = free_percent(self._table, scored, rows, copies)
            if found is not None:
                return found
        amounts = self.over(rows)
        requested = {
            name: values + (copies - 1) * requests.get(name, 0) for name, values in amounts.requested.items()
        }
        nodes = NodeAmounts(amounts.allocatable, requested, amounts.is_small)
        return bulk.score_plain(demand, nodes, strategy)
