"""The part of the manager: lend of each node, step by step, by what its agent would report."""

from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator.api.core import Node
from koordinator.local.nodes.usage import F64, Index
from koordinator.manager.noderesource import batch, columns, decide
from koordinator.manager.noderesource.account import NANO_PER_MILLI
from koordinator.manager.noderesource.batch import CPU, MEMORY, MILLI
from koordinator.manager.noderesource.columns import NodeColumns
from koordinator.manager.noderesource.controller import Strategies
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.strategy import WhatIfStrategy

_SHUNNED = ("NoSchedule", "NoExecute")


class UseReport(msgspec.Struct, frozen=True, eq=False):
    """The last reports of the node agents: means over a step, milli-cores and bytes. `pods` (services, 2); `used` and
    `system` (nodes, 2)."""

    pods: F64
    used: F64
    system: F64


class Lending:
    """The manager's decision for all nodes of a cluster under a strategy."""

    def __init__(self, cluster: WhatIfCluster, strategy: WhatIfStrategy) -> None:
        self._nodes = cluster.nodes
        self._pods = cluster.services.columns()
        self._requested = columns.requested(self._pods, len(cluster.nodes.objects))
        strategies = Strategies(lambda: strategy.colocation)
        found = [strategies.of(node) for node in cluster.nodes.objects]
        self._policies = batch.columns([each.reclaim for each in found if each is not None])
        self.lends = np.array(
            [
                each is not None and each.enabled and not decide.is_in_batch_phase(node)
                for each, node in zip(found, cluster.nodes.objects, strict=True)
            ]
        )
        """Whether a node lends anything, (nodes,)."""

    def amounts(self, report: UseReport) -> Index:
        """Return batch-cpu (milli-cores) and batch-memory (bytes) of each node, (2, nodes)."""
        usage = np.rint(report.pods * np.array([NANO_PER_MILLI, MILLI])).astype(np.int64)
        sums = columns.demand(self._pods, usage, self._requested)
        lent = columns.batch_terms(self._columns(report.system), sums, self._policies).lent
        amounts: Index = np.stack([lent[:, CPU], batch.divide(lent[:, MEMORY], MILLI)])
        found: Index = np.where(self.lends, amounts, 0)
        return found

    def _columns(self, system: F64) -> NodeColumns:
        measured = np.rint(system * np.array([NANO_PER_MILLI, MILLI])).astype(np.int64)
        return NodeColumns(self._nodes.capacity, self._nodes.reserved, measured)


def takes_batch(nodes: Sequence[Node]) -> list[bool]:
    """Return whether pods without tolerations may come to each node."""
    return [
        not node.spec.unschedulable and all(taint.effect not in _SHUNNED for taint in node.spec.taints)
        for node in nodes
    ]
