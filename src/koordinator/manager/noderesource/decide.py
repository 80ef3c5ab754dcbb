"""Batch and Mid resources of many nodes at once: from facts to the rows of the formulas (behaviour/manager 6, 7)."""

import enum
from collections.abc import Sequence
from itertools import islice

import msgspec
import numpy as np

from koordinator.manager.config.colocation_config import MidPolicy, ReclaimPolicy
from koordinator.manager.noderesource import batch, mid
from koordinator.manager.noderesource.account import (
    NANO_PER_MILLI,
    ZERO,
    AccountedNode,
    Amount,
    HighPriorityDemand,
    Measured,
    MetricFigures,
    ZoneDemand,
    rounded_down,
)
from koordinator.manager.noderesource.batch import I64


class Withdrawal(enum.Enum):
    """The reason why a node must have neither Batch nor Mid resources; the value is an event's reason."""

    NONE = ""
    DISABLED = "ColocationDisabled"
    MISSING = "NodeMetricMissing"
    EXPIRED = "NodeMetricExpired"
    REJECTED = "NodeMetricRejected"
    EMPTY = "NodeMetricEmpty"


class NodeInputs(msgspec.Struct, frozen=True):
    """The known facts of one node."""

    node: AccountedNode
    report: MetricFigures
    demand: HighPriorityDemand


class ZoneInputs(msgspec.Struct, frozen=True):
    """The same of a node's zones; `capacities` and `demands` have one member for each."""

    node: AccountedNode
    report: MetricFigures
    capacities: Sequence[Amount]
    demands: Sequence[ZoneDemand]


def withdrawal(
    *,
    is_enabled: bool,
    degrade_s: float,
    reported_s: float | None,
    now_s: float,
    problem: str = "",
    has_node: bool = True,
) -> Withdrawal:
    """Return whether the last report may be used, and if not, why.

    `problem` is why it was rejected, `has_node` whether it says anything of the node. A report is as old as the
    formula of behaviour/manager 6.1 says: exactly at the limit it still counts.
    """
    if not is_enabled:
        return Withdrawal.DISABLED
    if problem:
        return Withdrawal.REJECTED
    if reported_s is None:
        return Withdrawal.MISSING
    if now_s > reported_s + degrade_s:
        return Withdrawal.EXPIRED
    return Withdrawal.NONE if has_node else Withdrawal.EMPTY


def batch_amounts(nodes: Sequence[NodeInputs], policies: Sequence[ReclaimPolicy]) -> I64:
    """Batch CPU and memory of each node, (nodes, 2) in thousandths; `policies` has one for each, or one for all."""
    rows = [
        (
            *known.node.capacity,
            *known.node.reserved,
            *known.demand.request,
            *_taken(known, known.demand.used),
            *_taken(known, known.demand.maximum),
        )
        for known in nodes
    ]
    return batch.batch_allocatable(_batch_inputs(rows), batch.columns(policies))


def _taken(known: NodeInputs, by_pods: Measured) -> Amount:
    """Return what cannot be lent besides the margin, summed exactly and rounded down once: the rest is rounded up."""
    system_cpu, system_memory = known.report.system_usage
    reserved_cpu, reserved_memory = known.node.reserved
    cpu = max(system_cpu, reserved_cpu * NANO_PER_MILLI) + by_pods[0]
    return rounded_down((cpu, max(system_memory, reserved_memory) + by_pods[1]))


def zone_batch_amounts(nodes: Sequence[ZoneInputs], policies: Sequence[ReclaimPolicy]) -> list[list[Amount]]:
    """Batch CPU and memory of each zone of each node: all zones of all nodes are rows of one table.

    Amounts of the node as a whole (system, reservation, unbound pods) are spread evenly. Source: behaviour/manager
    6.6.
    """
    rows: list[tuple[int, ...]] = []
    row_policies: list[ReclaimPolicy] = []
    for known, policy in zip(nodes, policies, strict=True):
        count = len(known.capacities)
        cpu, memory = (-(-part // count) for part in known.node.reserved)
        system_cpu, system_memory = known.report.system_usage
        taken_cpu = max(cpu, -(-system_cpu // (count * NANO_PER_MILLI)))
        taken_memory = max(memory, -(-system_memory // count))
        for capacity, demand in zip(known.capacities, known.demands, strict=True):
            request, used, most = demand[:2], demand[2:4], demand[4:]
            taken = (taken_cpu + used[0], taken_memory + used[1])
            taken_at_most = (taken_cpu + most[0], taken_memory + most[1])
            rows.append((*capacity, cpu, memory, *request, *taken, *taken_at_most))
            row_policies.append(policy)
    amounts = iter(batch.batch_allocatable(_batch_inputs(rows), batch.columns(row_policies)).tolist())
    return [[(cpu, memory) for cpu, memory in islice(amounts, len(known.capacities))] for known in nodes]


def _batch_inputs(rows: Sequence[tuple[int, ...]]) -> batch.BatchInputs:
    table = np.array(rows, np.int64).reshape(-1, 5, 2).transpose(1, 0, 2)
    return batch.BatchInputs(*table)


def mid_amounts(nodes: Sequence[NodeInputs], policies: Sequence[MidPolicy]) -> I64:
    """Mid CPU and memory of each node, (nodes, 2) in thousandths; `policies` as for Batch."""
    rows = [_mid_row(known) for known in nodes]
    table = np.array(rows, np.int64).reshape(-1, 7, 2).transpose(1, 0, 2)
    capacity, reserved, system, request, usage, reclaimable, flags = table
    has_usage, has_report = flags.astype(np.bool_).T
    inputs = mid.MidInputs(
        capacity, np.maximum(reserved, system), request, usage, reclaimable, has_usage, has_report
    )
    return mid.mid_allocatable(inputs, mid.columns(policies))


def _mid_row(known: NodeInputs) -> tuple[int, ...]:
    report = known.report
    usage = report.node_usage
    return (
        *known.node.capacity,
        *known.node.reserved,
        *report.prod_system_usage,
        *known.demand.service_request,
        *(usage or ZERO),
        *report.reclaimable,
        int(usage is not None),
        int(report.has_node),
    )
