"""Plugin `BatchResource`: batch-cpu and batch-memory of nodes and their NUMA zones (behaviour/manager 6)."""

from collections.abc import Sequence

from koordinator.api import labels, resources
from koordinator.manager.noderesource import account, decide, lending, zones
from koordinator.manager.noderesource.batch import MILLI
from koordinator.manager.noderesource.decide import NodeInputs, Withdrawal, ZoneInputs
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget

_Lenders = list[tuple[NodeRow, NodeTarget]]


class BatchResource:
    """Nodes without a report to go by must not have Batch resources, nor must their zones."""

    name = "BatchResource"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        lenders: _Lenders = []
        for row, target in zip(rows, targets, strict=True):
            if row.withdrawal is Withdrawal.NONE:
                lenders.append((row, target))
            else:
                _withdraw(row, target)
        if lenders:
            _lend(lenders)
        with_zones = [(row, target) for row, target in lenders if row.zone_capacities]
        if with_zones:
            _lend_zones(with_zones)
        return 0


def _lend(lenders: _Lenders) -> None:
    inputs, policies = [], []
    for row, _ in lenders:
        assert row.facts is not None and row.strategy is not None
        inputs.append(NodeInputs(row.facts, row.reading.report, row.demand()))
        policies.append(row.strategy.reclaim)
    found = decide.batch_amounts(inputs, policies).tolist()
    for (row, target), (cpu_milli, memory) in zip(lenders, found, strict=True):
        lent = lending.lend(_calculated(cpu_milli, memory), target.normalization, row.taken)
        target.amounts.update(lent.left)
        target.origin = lent.origin


def _lend_zones(lenders: _Lenders) -> None:
    inputs, policies = [], []
    for row, _ in lenders:
        assert row.facts is not None and row.strategy is not None
        inputs.append(ZoneInputs(row.facts, row.reading.report, row.zone_capacities, row.zone_demands()))
        policies.append(row.strategy.reclaim)
    for (row, target), amounts in zip(lenders, decide.zone_batch_amounts(inputs, policies), strict=True):
        assert row.topology is not None
        ratio = target.normalization
        for zone, (cpu_milli, memory) in zip(row.topology.zones, amounts, strict=True):
            target.zones[zone.name] = {
                resources.BATCH_CPU: lending.whole_amount(resources.BATCH_CPU, cpu_milli * MILLI, ratio),
                resources.BATCH_MEMORY: account.whole(memory),
            }


def _calculated(cpu_milli: int, memory: int) -> dict[str, int]:
    """Thousandths by resource: batch-cpu counts milli-cores."""
    return {resources.BATCH_CPU: cpu_milli * MILLI, resources.BATCH_MEMORY: memory}


def _withdraw(row: NodeRow, target: NodeTarget) -> None:
    assert row.node is not None
    target.amounts.update(lending.NOT_LENT)
    # A node that never had co-location is not told that it lends nothing.
    if row.is_enabled or labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE in row.node.metadata.annotations:
        target.origin = dict.fromkeys(lending.BATCH, 0)
    if row.topology is not None:
        target.zones.update(zones.withdrawn(row.topology.zones))
