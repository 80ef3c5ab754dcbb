"""Batch and Mid resources of many nodes at once: from facts to the rows of the formulas (behaviour/manager 6, 7).

Mid is what prod pods asked for and, as predicted, will not use, lent to longer-lived work. A row is a pair (cpu,
memory) in thousandths.
"""

import enum
from collections.abc import Sequence
from itertools import islice

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.manager.config.colocation_config import MidPolicy, ReclaimPolicy
from koordinator.manager.noderesource import batch
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
from koordinator.manager.noderesource.batch import (
    CPU,
    I64,
    MEMORY,
    MILLI,
    BatchTerms,
    TermRows,
    distinct,
    scale,
    scale_units,
)

Mask = npt.NDArray[np.bool_]

_PER_THOUSANDTH = np.array([NANO_PER_MILLI, 1])
"""Units of `Measured` in a thousandth of CPU and of memory."""
PERCENT_MAX = 10**6  # far beyond the cap, which is 100 at most; keeps absurd settings out of arithmetic


class MidColumns(msgspec.Struct, frozen=True):
    """Policies of rows; every array has shape (rows,), or (1,) when all rows follow one policy."""

    is_static: Mask
    cpu_cap_percent: I64
    memory_cap_percent: I64
    unallocated_percent: I64
    static_cpu_percent: I64
    static_memory_percent: I64


class MidInputs(msgspec.Struct, frozen=True):
    """The known figures of each row; amounts have shape (rows, 2) in thousandths, masks (rows,)."""

    capacity: I64
    reserved: I64  # for kubelet, by annotation, or used by system and prod applications: the largest
    service_request: I64  # of pods that are neither mid, batch nor free
    node_usage: I64
    reclaimable: I64  # predicted by the node agent; may be negative
    has_usage: Mask  # both cpu and memory of `node_usage` were reported
    has_report: Mask  # anything was reported: without, nobody knows what is unallocated


def columns(policies: Sequence[MidPolicy]) -> MidColumns:
    """Return one row per policy."""
    kinds, index = distinct(policies)
    rows = [
        (
            int(policy.is_static),
            policy.cpu_cap_percent,
            policy.memory_cap_percent,
            policy.unallocated_percent,
            min(policy.static_cpu_percent, PERCENT_MAX),
            min(policy.static_memory_percent, PERCENT_MAX),
        )
        for policy in kinds
    ]
    flags, *percents = np.array(rows, np.int64).reshape(-1, 6)[index].T
    return MidColumns(flags.astype(np.bool_), *percents)


class MidTerms(msgspec.Struct, frozen=True):
    """The way to what Mid lends, each (rows, 2) in thousandths: `lent` is all parts together, lowered by `above_cap`
    and raised by `below_zero`."""

    reclaimed: I64
    unallocated: I64
    static: I64
    above_cap: I64
    below_zero: I64
    lent: I64


def mid_row_terms(inputs: MidInputs, policy: MidColumns) -> MidTerms:
    """Return how Mid CPU and memory of each row come about.

    The cap is a share of capacity, as is the static part (the reference calls both "allocatable").
    """
    capacity = inputs.capacity
    is_static = policy.is_static[:, np.newaxis]
    static = _percent_of(capacity, policy.static_cpu_percent, policy.static_memory_percent)
    static = np.where(is_static, static, 0)
    reclaimed = np.where(is_static, 0, _reclaimed(inputs))
    unallocated = np.where(is_static, 0, _lent_unallocated(inputs, policy.unallocated_percent))
    wanted = reclaimed + unallocated + static
    above_cap = np.maximum(
        wanted - _percent_of(capacity, policy.cpu_cap_percent, policy.memory_cap_percent), 0
    )
    below_zero = np.maximum(above_cap - wanted, 0)
    return MidTerms(reclaimed, unallocated, static, above_cap, below_zero, wanted - above_cap + below_zero)


def _reclaimed(inputs: MidInputs) -> I64:
    """Return what is predicted to stay unused, but never more than is unused right now."""
    unused = np.where(inputs.has_usage[:, np.newaxis], inputs.capacity - inputs.node_usage, 0)
    return np.maximum(np.minimum(_whole_bytes(inputs.reclaimable), _whole_bytes(unused)), 0)


def _lent_unallocated(inputs: MidInputs, percent: I64) -> I64:
    free = np.maximum(inputs.capacity - inputs.reserved - inputs.service_request, 0)
    return _percent_of(np.where(inputs.has_report[:, np.newaxis], free, 0), percent, percent)


def _percent_of(amount: I64, cpu_percent: I64, memory_percent: I64) -> I64:
    """Return a share of (rows, 2), cut off to milli-cores and bytes."""
    cpu = scale(amount[:, CPU], cpu_percent / 100)
    memory = scale_units(amount[:, MEMORY], memory_percent / 100)
    return np.stack([cpu, memory], axis=1)


def _whole_bytes(amount: I64) -> I64:
    """(rows, 2) with memory rounded up to bytes."""
    return np.stack([amount[:, CPU], -(-amount[:, MEMORY] // MILLI) * MILLI], axis=1)


class Withdrawal(enum.Enum):
    """The reason why a node must have neither Batch nor Mid resources; the value is an event's reason."""

    NONE = ""
    DISABLED = "ColocationDisabled"
    LENT_WHOLE = "NodeLentWhole"
    MISSING = "NodeMetricMissing"
    EXPIRED = "NodeMetricExpired"
    REJECTED = "NodeMetricRejected"
    EMPTY = "NodeMetricEmpty"


BY_DESIGN = (Withdrawal.NONE, Withdrawal.DISABLED, Withdrawal.LENT_WHOLE)
"""Nothing is wrong with the node."""


def is_in_batch_phase(node: Node) -> bool:
    """Return whether a tidal pool lends the node as a whole now."""
    return node.metadata.labels.get(labels.TIDAL_PHASE) == labels.TIDAL_BATCH


class NodeInputs(msgspec.Struct, frozen=True):
    """The known facts of one node."""

    node: AccountedNode
    report: MetricFigures
    demand: HighPriorityDemand
    ahead: Amount = ZERO
    """Amount that batch will have to yield to soon, reservations and the system included."""


class ZoneInputs(msgspec.Struct, frozen=True):
    """The same of a node's zones; `capacities` and `demands` have one member for each."""

    node: AccountedNode
    report: MetricFigures
    capacities: Sequence[Amount]
    demands: Sequence[ZoneDemand]
    ahead: Amount = ZERO
    """The whole node's, see `NodeInputs`."""


def withdrawal(
    *,
    is_enabled: bool,
    degrade_s: float,
    reported_s: float | None,
    now_s: float,
    problem: str = "",
    has_node: bool = True,
    is_lent_whole: bool = False,
) -> Withdrawal:
    """Return whether the last report may be used, and if not, why.

    `problem` is why it was rejected, `has_node` whether it says anything of the node. A report is as old as the
    formula of behaviour/manager 6.1 says: exactly at the limit it still counts. A node that a tidal pool lends as a
    whole (behaviour/tidal 6) would lend its cores twice.
    """
    if not is_enabled:
        return Withdrawal.DISABLED
    if is_lent_whole:
        return Withdrawal.LENT_WHOLE
    if problem:
        return Withdrawal.REJECTED
    if reported_s is None:
        return Withdrawal.MISSING
    if now_s > reported_s + degrade_s:
        return Withdrawal.EXPIRED
    return Withdrawal.NONE if has_node else Withdrawal.EMPTY


def batch_amounts(nodes: Sequence[NodeInputs], policies: Sequence[ReclaimPolicy]) -> I64:
    """Batch CPU and memory of each node, (nodes, 2) in thousandths; `policies` has one for each, or one for all."""
    return batch_terms(nodes, policies).lent


def batch_terms(nodes: Sequence[NodeInputs], policies: Sequence[ReclaimPolicy]) -> BatchTerms:
    """Return how these amounts come about."""
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
    return batch.batch_terms(_batch_inputs(rows), batch.columns(policies))


def by_row(terms: BatchTerms | MidTerms) -> list[TermRows]:
    """Return the terms of each row."""
    found: list[TermRows] = np.stack(msgspec.structs.astuple(terms), axis=1).tolist()
    return found


def _taken(known: NodeInputs, by_pods: Measured) -> Amount:
    """Return what cannot be lent besides the margin, summed exactly and rounded down once: the rest is rounded up."""
    system_cpu, system_memory = known.report.system_usage
    reserved_cpu, reserved_memory = known.node.reserved
    cpu = max(system_cpu, reserved_cpu * NANO_PER_MILLI) + by_pods[0]
    now_cpu, now_memory = rounded_down((cpu, max(system_memory, reserved_memory) + by_pods[1]))
    return max(now_cpu, known.ahead[0]), max(now_memory, known.ahead[1])


def held(known: NodeInputs) -> Amount:
    """Return what cannot be lent now besides the margin, by what is used."""
    return _taken(known, known.demand.used)


def held_at_peak(known: NodeInputs, peak: Amount) -> Amount:
    """Return what cannot be lent besides the margin when all but batch uses `peak`.

    A peak is of what is used: CPUs of LSE pods that idle are not lent either, nor what is reserved beyond the system's
    use.
    """
    system = rounded_down(known.report.system_usage)
    cpu, memory = (max(noted - used, 0) for noted, used in zip(known.node.reserved, system, strict=True))
    return peak[0] + cpu + known.demand.idle_cpu // NANO_PER_MILLI, peak[1] + memory


def at_peak(known: NodeInputs, peak: Amount) -> NodeInputs:
    """Return the node when all but batch uses `peak`: measured use counts no more, requests do."""
    ahead = held_at_peak(known, peak)
    demand = msgspec.structs.replace(known.demand, used=ZERO)
    report = msgspec.structs.replace(known.report, system_usage=ZERO)
    return msgspec.structs.replace(known, report=report, demand=demand, ahead=ahead)


def zone_batch_amounts(nodes: Sequence[ZoneInputs], policies: Sequence[ReclaimPolicy]) -> list[list[Amount]]:
    """Batch CPU and memory of each zone of each node: all zones of all nodes are rows of one table.

    Amounts of the node as a whole (system, reservation, unbound pods) are spread evenly. Source: behaviour/manager
    6.6.
    """
    counts = [len(known.capacities) for known in nodes]
    node_of = np.repeat(np.arange(len(nodes)), counts)
    parts = np.array(counts, np.int64)[node_of, np.newaxis]
    reserved = -(-np.array([known.node.reserved for known in nodes], np.int64)[node_of] // parts)
    system = np.array([known.report.system_usage for known in nodes], np.int64)[node_of]
    taken = np.maximum(reserved, -(-system // (parts * _PER_THOUSANDTH)))
    ahead = -(-np.array([known.ahead for known in nodes], np.int64)[node_of] // parts)
    demands = np.array([demand for known in nodes for demand in known.demands], np.int64).reshape(-1, 3, 2)
    inputs = batch.BatchInputs(
        capacity=np.array([capacity for known in nodes for capacity in known.capacities], np.int64),
        reserved=reserved,
        requested=demands[:, 0],
        taken=np.maximum(taken + demands[:, 1], ahead),
        taken_at_most=np.maximum(taken + demands[:, 2], ahead),
    )
    policy = batch.columns([policies[at] for at in node_of.tolist()])
    amounts = iter(batch.batch_terms(inputs, policy).lent.tolist())
    return [[(cpu, memory) for cpu, memory in islice(amounts, count)] for count in counts]


def _batch_inputs(rows: Sequence[tuple[int, ...]]) -> batch.BatchInputs:
    table = np.array(rows, np.int64).reshape(-1, 5, 2).transpose(1, 0, 2)
    return batch.BatchInputs(*table)


def mid_terms(nodes: Sequence[NodeInputs], policies: Sequence[MidPolicy]) -> MidTerms:
    """Return how Mid CPU and memory of each node come about; `policies` has one for each, or one for all."""
    rows = [_mid_row(known) for known in nodes]
    table = np.array(rows, np.int64).reshape(-1, 7, 2).transpose(1, 0, 2)
    capacity, reserved, system, request, usage, reclaimable, flags = table
    has_usage, has_report = flags.astype(np.bool_).T
    inputs = MidInputs(
        capacity, np.maximum(reserved, system), request, usage, reclaimable, has_usage, has_report
    )
    return mid_row_terms(inputs, columns(policies))


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
