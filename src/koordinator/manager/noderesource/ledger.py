"""Name the terms of a node's Batch and Mid resources, which sum to what is lent.

The amounts are those of the decision itself (`decide.batch_terms`, `decide.mid_terms`); here they get names. CPU counts
milli-cores, memory bytes.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.manager.config.colocation_config import CalculatePolicy, MidPolicy, ReclaimPolicy
from koordinator.manager.noderesource import decide
from koordinator.manager.noderesource.account import NANO_PER_MILLI
from koordinator.manager.noderesource.batch import I64, MILLI
from koordinator.manager.noderesource.decide import NodeInputs, Withdrawal
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget


class LedgerTerm(msgspec.Struct, frozen=True, rename="camel"):
    """A signed amount, and what it is."""

    name: str
    cpu_milli: int
    memory_bytes: int
    why: str


class LentLedger(msgspec.Struct, frozen=True, rename="camel"):
    """The terms of one kind of lent resources (`batch`, `mid`); they sum to `cpu_milli` and `memory_bytes`."""

    kind: str
    terms: tuple[LedgerTerm, ...]
    cpu_milli: int
    memory_bytes: int


_SERVICES = {
    CalculatePolicy.USAGE: "use",
    CalculatePolicy.REQUEST: "request",
    CalculatePolicy.MAX_USAGE_REQUEST: "use or request, whichever is more",
}


def ledgers(row: NodeRow, target: NodeTarget) -> tuple[LentLedger, ...]:
    """Return what the node lends by kind, as `target` has it; nothing for a node that may lend nothing."""
    if row.withdrawal is not Withdrawal.NONE:
        return ()
    assert row.facts is not None and row.strategy is not None
    known = NodeInputs(row.facts, row.reading.report, row.demand())
    return (
        _of_kind("batch", _batch_terms(known, row.strategy.reclaim), target, resources.BATCH_RESOURCES, row),
        _of_kind("mid", _mid_terms(known, row.strategy.mid), target, resources.MID_RESOURCES, row),
    )


def _of_kind(
    kind: str, terms: Sequence[LedgerTerm], target: NodeTarget, names: Sequence[str], row: NodeRow
) -> LentLedger:
    """Add what happens to the calculated amounts until they stand on the node: so the sum is exact by construction of
    the last terms, whose amounts the node's own figures tell."""
    cpu, memory = (target.amounts.get(name) or 0 for name in names)
    every = list(terms)
    if kind == "batch" and target.origin is not None:
        origin = [target.origin[name] for name in names]
        if target.normalization > 1:
            calculated = sum(term.cpu_milli for term in every)
            why = f"batch-cpu × {target.normalization:g}, the node's CPU normalization"
            every.append(LedgerTerm("normalization", origin[0] - calculated, 0, why))
        if row.taken:
            why = "what YARN holds of it"
            every.append(LedgerTerm("third parties", cpu - origin[0], memory - origin[1], why))
    rounding = memory - sum(term.memory_bytes for term in every)
    if rounding:
        every.append(LedgerTerm("rounding", 0, rounding, "to whole bytes"))
    return LentLedger(kind, tuple(every), cpu, memory)


def _batch_terms(known: NodeInputs, policy: ReclaimPolicy) -> list[LedgerTerm]:
    found = decide.batch_terms([known], [policy])
    capacity, reserved = _pair(known.node.capacity), _pair(known.node.reserved)
    system_nanos, system_memory = known.report.system_usage
    system = _pair((system_nanos // NANO_PER_MILLI, system_memory))
    by_request = np.array([[False, policy.memory_policy is CalculatePolicy.REQUEST]])
    beyond = np.where(by_request, 0, np.maximum(system - reserved, 0))
    services = found.yielded - reserved - beyond
    percents = f"{100 - policy.cpu_percent} % of the CPU and {100 - policy.memory_percent} % of the memory"
    cpu_policy = CalculatePolicy.USAGE if policy.cpu_policy is CalculatePolicy.REQUEST else policy.cpu_policy
    words = f"CPU: {_SERVICES[cpu_policy]}; memory: {_SERVICES[policy.memory_policy]}"
    terms = [
        _term("capacity", capacity, "what the node has"),
        _term("margin", -found.margin, f"never lent: {percents}"),
        _term("reserved", -reserved, "for kubelet and system, or by annotation"),
        _term("system", -beyond, "what the system and host applications use beyond that"),
        _term("services", -services, f"pods of priority mid and above ({words})"),
        _term("cap", -found.above_cap, "batchCPUThresholdPercent, batchMemoryThresholdPercent"),
        _term("nothing left", found.below_zero, "no less than nothing is lent"),
    ]
    return [term for term in terms if term.name in _ALWAYS or term.cpu_milli or term.memory_bytes]


_ALWAYS = ("capacity", "margin", "services", "predicted")


def _mid_terms(known: NodeInputs, policy: MidPolicy) -> list[LedgerTerm]:
    found = decide.mid_terms([known], [policy])
    terms = [
        _term("predicted", found.reclaimed, "of prod pods' requests will stay unused, and is unused now"),
        _term(
            "unallocated", found.unallocated, f"{policy.unallocated_percent} % of what no service requests"
        ),
        _term("static", found.static, "midReclaimMode static: a share of capacity"),
        _term("cap", -found.above_cap, "midCPUThresholdPercent, midMemoryThresholdPercent"),
        _term("nothing left", found.below_zero, "no less than nothing is lent"),
    ]
    return [term for term in terms if term.name in _ALWAYS or term.cpu_milli or term.memory_bytes]


def _pair(amount: tuple[int, int]) -> I64:
    return np.array([amount], np.int64)


def _term(name: str, amount: I64, why: str) -> LedgerTerm:
    """`amount` has shape (1, 2), thousandths; memory rounds toward minus infinity, which a last term makes good."""
    cpu, memory = amount[0].tolist()
    return LedgerTerm(name, cpu, memory // MILLI, why)
