"""Plugin `MidResource`: mid-cpu and mid-memory (behaviour/manager 7)."""

from collections.abc import Sequence

from koordinator.api import resources
from koordinator.manager.noderesource import account, decide
from koordinator.manager.noderesource.decide import NodeInputs, Withdrawal
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget


class MidResource:
    """Nodes without a report to go by must not have Mid resources."""

    name = "MidResource"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        inputs, policies, lenders = [], [], []
        for row, target in zip(rows, targets, strict=True):
            if row.withdrawal is not Withdrawal.NONE:
                target.amounts.update(dict.fromkeys(resources.MID_RESOURCES))
                continue
            assert row.facts is not None and row.strategy is not None
            inputs.append(NodeInputs(row.facts, row.reading.report, row.demand()))
            policies.append(row.strategy.mid)
            lenders.append(target)
        if lenders:
            found = decide.mid_amounts(inputs, policies).tolist()
            for target, (cpu_milli, memory) in zip(lenders, found, strict=True):
                target.amounts[resources.MID_CPU] = cpu_milli
                target.amounts[resources.MID_MEMORY] = account.whole(memory)
        return 0
