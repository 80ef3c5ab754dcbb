"""Batch resources of many nodes at once: the pure core of the controller (spec 02 §6)."""

from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.manager.colocation_config import NodeStrategy
from koordinator.manager.noderesource import account, batch
from koordinator.manager.noderesource.account import Amount, MetricFacts, NodeFacts, PodFacts

AMOUNT_MAX = 2**59  # thousandths; the sum of all terms of the formula still fits

DISABLED = "colocation is disabled"
DEGRADED = "degrade node resource because of abnormal nodeMetric, reason: degradedByBatchResource"


class NodeInputs(msgspec.Struct, frozen=True):
    """What is known of one node."""

    node: NodeFacts
    metrics: MetricFacts
    pods: Sequence[PodFacts]


class NodeBatch(msgspec.Struct, frozen=True):
    """Batch resources of one node in thousandths, and the demand that they were calculated from."""

    amounts: dict[str, int]
    pods: list[batch.PodDemand]
    dangling: list[Amount]


def withdrawal(strategy: NodeStrategy, reported_s: float | None, now_s: float) -> str:
    """Why a node must have no Batch resources; empty when it may have some."""
    if not strategy.enabled:
        return DISABLED
    if reported_s is None or now_s > reported_s + strategy.degrade_s:
        return DEGRADED
    return ""


def calculate(nodes: Sequence[NodeInputs], policy: batch.ReclaimPolicy) -> list[NodeBatch]:
    """Batch resources of nodes that share a policy, in the order given."""
    if not nodes:
        return []
    demands = []
    rows = []
    for known in nodes:
        pods, dangling = account.demands(known.pods, known.metrics)
        demand = batch.sum_demand(pods, dangling)
        demands.append((pods, dangling))
        facts = known.node
        amounts = (facts.capacity, facts.reserved, known.metrics.system_usage, *demand)
        rows.append([(_bounded(cpu), _bounded(memory)) for cpu, memory in amounts])
    columns = np.array(rows, np.int64).transpose(1, 0, 2)
    result = batch.batch_allocatable(batch.BatchInputs(*columns), policy)
    return [
        NodeBatch(
            {
                resources.BATCH_CPU: row[batch.CPU] * batch.MILLI,
                resources.BATCH_MEMORY: row[batch.MEMORY],
            },
            pods,
            dangling,
        )
        for (pods, dangling), row in zip(demands, result.tolist(), strict=True)
    ]


def _bounded(amount: int) -> int:
    """No node's report, however absurd, may spoil the calculation of the others (int64)."""
    return max(-AMOUNT_MAX, min(amount, AMOUNT_MAX))
