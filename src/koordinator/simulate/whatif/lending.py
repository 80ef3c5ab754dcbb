"""The part of the manager: lend of each node, step by step, by what its agent would report."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.core import Node
from koordinator.local.nodes.usage import F64, Index
from koordinator.manager.config.colocation_config import CalculatePolicy
from koordinator.manager.noderesource import batch, columns, decide, ledger
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


TERMS = (*ledger.FORMULA_TERMS, "rounding")
"""The terms of what is lent, as the manager's ledger names them: nothing here scales Batch or takes part of it."""


class LentTerms(msgspec.Struct, frozen=True, eq=False):
    """Amounts that nodes lend, milli-cores and bytes: `amounts` (2, nodes) are the sums of `terms` (nodes, terms, 2),
    in the order of `TERMS`."""

    amounts: Index
    terms: Index


class Lending:
    """The manager's decision for all nodes of a cluster under a strategy."""

    def __init__(self, cluster: WhatIfCluster, strategy: WhatIfStrategy) -> None:
        self._nodes = cluster.nodes
        self._pods = cluster.services.columns()
        self._requested = columns.requested(self._pods, len(cluster.nodes.objects))
        strategies = Strategies(lambda: strategy.colocation)
        found = [strategies.of(node) for node in cluster.nodes.objects]
        policies = [each.reclaim for each in found if each is not None]
        self._policies = batch.columns(policies)
        self._by_request = np.array([each.memory_policy is CalculatePolicy.REQUEST for each in policies])
        self._strategies = {id(each): each for each in found if each is not None and each.enabled}
        self.lends = np.array(
            [
                each is not None and each.enabled and not decide.is_in_batch_phase(node)
                for each, node in zip(found, cluster.nodes.objects, strict=True)
            ]
        )
        """True where a node lends anything, (nodes,)."""

    def decide(self, report: UseReport) -> LentTerms:
        """Return what each node lends, and where it comes from."""
        usage = np.rint(report.pods * np.array([NANO_PER_MILLI, MILLI])).astype(np.int64)
        sums = columns.demand(self._pods, usage, self._requested)
        nodes = self._columns(report.system)
        found = columns.batch_terms(nodes, sums, self._policies)
        amounts: Index = np.stack([found.lent[:, CPU], batch.divide(found.lent[:, MEMORY], MILLI)])
        amounts = np.where(self.lends, amounts, 0)
        system = nodes.system // np.array([NANO_PER_MILLI, 1])
        formula = ledger.formula_terms(
            nodes.capacity, nodes.reserved, system, self._by_request, found, found.yielded
        )
        formula[:, :, MEMORY] //= MILLI
        formula[~self.lends] = 0
        rounding = amounts.T - formula.sum(axis=1)
        return LentTerms(amounts, np.concatenate([formula, rounding[:, np.newaxis]], axis=1))

    def whys(self) -> Mapping[str, str]:
        """Return what each term is, in words; nothing where nodes follow entries that differ."""
        every = [ledger.words(each)[ledger.BATCH] for each in self._strategies.values()]
        return {
            term: every[0][term] if every and all(each[term] == every[0][term] for each in every) else ""
            for term in TERMS
        }

    def _columns(self, system: F64) -> NodeColumns:
        measured = np.rint(system * np.array([NANO_PER_MILLI, MILLI])).astype(np.int64)
        return NodeColumns(self._nodes.capacity, self._nodes.reserved, measured)


def takes_batch(nodes: Sequence[Node]) -> list[bool]:
    """Return whether pods without tolerations may come to each node."""
    return [
        not node.spec.unschedulable and all(taint.effect not in _SHUNNED for taint in node.spec.taints)
        for node in nodes
    ]
