"""Name the terms of a node's Batch and Mid resources, which sum to what is lent and, with what waits to be written, to
what stands on the Node.

The amounts are those of the decision itself (`decide.batch_terms`, `decide.mid_terms`), many nodes at a time; here
they get names and become numbers that can be kept (`ledger_history`). CPU counts milli-cores, memory bytes.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.manager.config.colocation_config import CalculatePolicy, NodeStrategy
from koordinator.manager.noderesource import decide
from koordinator.manager.noderesource.account import NANO_PER_MILLI
from koordinator.manager.noderesource.batch import CPU, I64, MEMORY, MILLI, BatchTerms, TermRows
from koordinator.manager.noderesource.decide import MidTerms, Withdrawal
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget

BATCH, MID = "batch", "mid"
KINDS: Mapping[str, tuple[str, ...]] = {BATCH: resources.BATCH_RESOURCES, MID: resources.MID_RESOURCES}
_BATCH_TERMS = (
    "capacity",
    "margin",
    "reserved",
    "system",
    "services",
    "ahead",
    "cap",
    "nothing left",
    "normalization",
    "third parties",
    "rounding",
)
FORMULA_TERMS = _BATCH_TERMS[: _BATCH_TERMS.index("normalization")]
"""The terms of the Batch formula itself."""
_MID_TERMS = ("predicted", "unallocated", "static", "cap", "nothing left", "rounding")
TERMS: Mapping[str, tuple[str, ...]] = {BATCH: _BATCH_TERMS, MID: _MID_TERMS}
_ALWAYS = ("capacity", "margin", "services", "predicted")
"""Terms that are told also where they are 0."""

TERM_COLUMNS: tuple[tuple[str, str], ...] = tuple((kind, term) for kind in KINDS for term in TERMS[kind])
"""Each has two columns of a table, CPU and memory."""
_FIRST = {BATCH: 0, MID: len(_BATCH_TERMS)}


class LedgerTerm(msgspec.Struct, frozen=True, rename="camel"):
    """A signed amount, and what it is."""

    name: str
    cpu_milli: int
    memory_bytes: int
    why: str


class LentLedger(msgspec.Struct, frozen=True, rename="camel"):
    """The terms of one kind of lent resources (`batch`, `mid`): they sum to `cpu_milli` and `memory_bytes`, the
    decision, and with `unwritten` to `on_node`, where None stands for a resource that the Node does not have."""

    kind: str
    terms: tuple[LedgerTerm, ...]
    cpu_milli: int
    memory_bytes: int
    on_node: tuple[int | None, int | None]
    unwritten: LedgerTerm


class LedgerBasis(msgspec.Struct, frozen=True):
    """The facts that say how a ledger's amounts came about: they choose the words."""

    strategy: NodeStrategy | None
    withdrawal: Withdrawal
    normalization: float
    on_node: tuple[int | None, ...]
    """CPU and memory of each of `KINDS`, in whole units."""


_SERVICES = {
    CalculatePolicy.USAGE: "use",
    CalculatePolicy.REQUEST: "request",
    CalculatePolicy.MAX_USAGE_REQUEST: "use or request, whichever is more",
}


def ledgers(row: NodeRow, target: NodeTarget) -> tuple[LentLedger, ...]:
    """Return what the node lends by kind, as `target` has it; nothing for a node that may lend nothing and has
    nothing."""
    basis = LedgerBasis(row.strategy, row.withdrawal, target.normalization, on_node(row))
    return ledgers_of(terms_table([row], [target])[0], basis)


def on_node(row: NodeRow) -> tuple[int | None, ...]:
    """Return what stands on the Node, as `LedgerBasis` has it."""
    return tuple(row.have.get(name) for names in KINDS.values() for name in names)


def terms_table(rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> I64:
    """Return the signed terms of nodes as decided, shape (rows, `TERM_COLUMNS`, 2): milli-cores and bytes.

    All are 0 for nodes that lend nothing, and for a kind that no plugin decides about. The last terms are what is
    left to the amounts of `targets`, so every sum is exact.
    """
    table = np.zeros((len(rows), len(TERM_COLUMNS), 2), np.int64)
    if lenders := [at for at, target in enumerate(targets) if target.batch_terms is not None]:
        table[lenders, : _FIRST[MID]] = _batch_table(
            [rows[at] for at in lenders], [targets[at] for at in lenders]
        )
    if lenders := [at for at, target in enumerate(targets) if target.mid_terms is not None]:
        table[lenders, _FIRST[MID] :] = _mid_table([targets[at] for at in lenders])
    return table


def _batch_table(rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> I64:
    """Return the terms of `_BATCH_TERMS`, memory in bytes; those of the formula rounded toward minus infinity."""
    found = BatchTerms(*_stacked([target.batch_terms for target in targets]))
    facts = [row.facts for row in rows if row.facts is not None]
    policies = [row.strategy.reclaim for row in rows if row.strategy is not None]
    usages = [row.reading.report.system_usage for row in rows]
    by_now = found.yielded
    if any(row.looks_ahead for row in rows):
        by_now = decide.batch_terms([row.inputs() for row in rows], policies).yielded
    formula = formula_terms(
        np.array([known.capacity for known in facts], np.int64),
        np.array([known.reserved for known in facts], np.int64),
        np.array([(nanos // NANO_PER_MILLI, memory) for nanos, memory in usages], np.int64),
        np.array([policy.memory_policy is CalculatePolicy.REQUEST for policy in policies]),
        found,
        by_now,
    )
    table = np.zeros((len(rows), len(_BATCH_TERMS), 2), np.int64)
    table[:, : len(FORMULA_TERMS)] = _whole(formula)
    decided = _amounts(targets, BATCH)
    origins = [target.origin for target in targets if target.origin is not None]
    origin = np.array([[each[name] for name in KINDS[BATCH]] for each in origins], np.int64)
    normalization = len(FORMULA_TERMS)
    table[:, normalization, CPU] = origin[:, CPU] - table[:, :, CPU].sum(axis=1)
    table[:, normalization + 1] = decided - origin
    return _rounded(table, decided)


def _mid_table(targets: Sequence[NodeTarget]) -> I64:
    found = MidTerms(*_stacked([target.mid_terms for target in targets]))
    terms = [found.reclaimed, found.unallocated, found.static, -found.above_cap, found.below_zero]
    table = _whole(np.stack([*terms, np.zeros_like(found.lent)], axis=1))
    return _rounded(table, _amounts(targets, MID))


def _stacked(terms: Sequence[TermRows | None]) -> I64:
    """Return the terms of nodes field by field: shape (fields, rows, 2)."""
    return np.array(terms, np.int64).transpose(1, 0, 2)


def _amounts(targets: Sequence[NodeTarget], kind: str) -> I64:
    """Return what is decided, (rows, 2)."""
    return np.array([[target.amounts[name] or 0 for name in KINDS[kind]] for target in targets], np.int64)


def _rounded(table: I64, decided: I64) -> I64:
    """Return the table with a last term that makes its memory sum to what is decided."""
    table[:, -1, MEMORY] = decided[:, MEMORY] - table[:, :, MEMORY].sum(axis=1)
    return table


def formula_terms(
    capacity: I64,
    reserved: I64,
    system: I64,
    memory_by_request: np.ndarray[tuple[int], np.dtype[np.bool_]],
    found: BatchTerms,
    yielded_now: I64,
) -> I64:
    """Return the signed terms of the Batch formula, shape (rows, `FORMULA_TERMS`, 2), in thousandths; they sum to
    `found.lent`.

    The amounts are (rows, 2) in thousandths: `system` as measured, `yielded_now` what is yielded without a look ahead.
    Where memory goes by request (rows,) the system's use of it does not count.
    """
    beyond = np.maximum(system - reserved, 0)
    beyond[memory_by_request, MEMORY] = 0
    services = yielded_now - reserved - beyond
    terms = [
        capacity,
        -found.margin,
        -reserved,
        -beyond,
        -services,
        yielded_now - found.yielded,
        -found.above_cap,
        found.below_zero,
    ]
    return np.stack(terms, axis=1)


def _whole(table: I64) -> I64:
    """Return the table with memory in bytes."""
    table[:, :, MEMORY] //= MILLI
    return table


def ledgers_of(table: I64, basis: LedgerBasis) -> tuple[LentLedger, ...]:
    """Return the ledgers of one node from its terms, shape (`TERM_COLUMNS`, 2)."""
    found = []
    for number, kind in enumerate(KINDS):
        have = basis.on_node[2 * number], basis.on_node[2 * number + 1]
        if basis.withdrawal is not Withdrawal.NONE and have == (None, None):
            continue
        found.append(_ledger(kind, table, basis, have))
    return tuple(found)


def _ledger(kind: str, table: I64, basis: LedgerBasis, have: tuple[int | None, int | None]) -> LentLedger:
    terms = tuple(_named(kind, table, basis)) if basis.withdrawal is Withdrawal.NONE else ()
    cpu, memory = sum(term.cpu_milli for term in terms), sum(term.memory_bytes for term in terms)
    why = "not written yet: the difference must be worth a write (resourceDiffThreshold), or waits its turn"
    unwritten = LedgerTerm("unwritten", (have[0] or 0) - cpu, (have[1] or 0) - memory, why)
    return LentLedger(kind, terms, cpu, memory, have, unwritten)


def _named(kind: str, table: I64, basis: LedgerBasis) -> Iterator[LedgerTerm]:
    assert basis.strategy is not None
    whys = words(basis.strategy, basis.normalization)[kind]
    for at, name in enumerate(TERMS[kind], start=_FIRST[kind]):
        cpu, memory = table[at].tolist()
        if name in _ALWAYS or cpu or memory:
            yield LedgerTerm(name, cpu, memory, whys[name])


def words(strategy: NodeStrategy, normalization: float = 1.0) -> Mapping[str, Mapping[str, str]]:
    """Return what each term is, in words, by kind and name."""
    policy, mid = strategy.reclaim, strategy.mid
    percents = f"{100 - policy.cpu_percent} % of the CPU and {100 - policy.memory_percent} % of the memory"
    cpu_policy = CalculatePolicy.USAGE if policy.cpu_policy is CalculatePolicy.REQUEST else policy.cpu_policy
    counted = f"CPU: {_SERVICES[cpu_policy]}; memory: {_SERVICES[policy.memory_policy]}"
    batch = {
        "capacity": "what the node has",
        "margin": f"never lent: {percents}",
        "reserved": "for kubelet and system, or by annotation",
        "system": "what the system and host applications use beyond that",
        "services": f"pods of priority mid and above ({counted})",
        "ahead": "what services are predicted to use soon (lendAheadMinutes)",
        "cap": "batchCPUThresholdPercent, batchMemoryThresholdPercent",
        "nothing left": "no less than nothing is lent",
        "normalization": f"batch-cpu × {normalization:g}, the node's CPU normalization",
        "third parties": "what YARN holds of it",
        "rounding": "to whole bytes",
    }
    return {
        BATCH: batch,
        MID: {
            "predicted": "of prod pods' requests will stay unused, and is unused now",
            "unallocated": f"{mid.unallocated_percent} % of what no service requests",
            "static": "midReclaimMode static: a share of capacity",
            "cap": "midCPUThresholdPercent, midMemoryThresholdPercent",
            "nothing left": batch["nothing left"],
            "rounding": batch["rounding"],
        },
    }
