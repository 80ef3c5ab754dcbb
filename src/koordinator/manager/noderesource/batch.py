"""Batch resources: how much allocated-but-unused capacity is lent to best-effort pods (behaviour/manager 6).

Everything here is elementwise over rows, so the same function serves one node, the zones of one node, or a
whole fleet whose nodes follow different policies. A row is a pair (cpu, memory) in thousandths: milli-cores
and milli-bytes, which holds every amount that the API can carry to that precision in int64.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.manager.config.colocation_config import CalculatePolicy, ReclaimPolicy

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
P = TypeVar("P")
TermRows = list[list[int]]
"""Terms of one node: (cpu, memory) in thousandths for each field of a struct of terms."""

CPU, MEMORY = 0, 1
MILLI = 1000  # thousandths per unit

AMOUNT_MAX = 2**59
"""Thousandths that a row holds at most (half a pebibyte): sums of all terms of a formula stay within int64."""
_SCALED_MAX = float(2**61)
_PERCENT_MAX = 10**6
_NO_CAP = -1


class ReclaimColumns(msgspec.Struct, frozen=True):
    """Policies of rows; every array has shape (rows,), or (1,) when all rows follow one policy."""

    cpu_percent: I64
    memory_percent: I64
    cpu_policy: I64
    memory_policy: I64
    cpu_cap_percent: I64  # negative: no cap
    memory_cap_percent: I64


class BatchInputs(msgspec.Struct, frozen=True):
    """The known figures of each row; every array has shape (rows, 2), thousandths."""

    capacity: I64
    reserved: I64  # for kubelet or by annotation, whichever is larger
    requested: I64  # by high-priority pods
    taken: I64  # what is reserved or the system uses, whichever is larger, and what high-priority pods use
    taken_at_most: I64  # the same with the larger of request and usage per pod


def columns(policies: Sequence[ReclaimPolicy]) -> ReclaimColumns:
    """Return one row per policy. CPU by request means by usage; percents are bounded, so that nothing overflows."""
    kinds, index = distinct(policies)
    rows = [
        (
            _percent(policy.cpu_percent),
            _percent(policy.memory_percent),
            CalculatePolicy.USAGE if policy.cpu_policy is CalculatePolicy.REQUEST else policy.cpu_policy,
            policy.memory_policy,
            _NO_CAP if policy.cpu_cap_percent is None else _percent(policy.cpu_cap_percent),
            _NO_CAP if policy.memory_cap_percent is None else _percent(policy.memory_cap_percent),
        )
        for policy in kinds
    ]
    return ReclaimColumns(*np.array(rows, np.int64).reshape(-1, 6)[index].T)


def distinct(policies: Sequence[P]) -> tuple[list[P], I64]:
    """Return the policies that differ as objects, and which of them each row follows (rows,): nodes of a pool share
    theirs."""
    kinds: dict[int, int] = {}
    found: list[P] = []
    index = []
    for policy in policies:
        at = kinds.setdefault(id(policy), len(found))
        if at == len(found):
            found.append(policy)
        index.append(at)
    return found, np.array(index, np.int64)


def _percent(number: int) -> int:
    return max(-_PERCENT_MAX, min(number, _PERCENT_MAX))


def scale(amount: I64, ratio: F64 | float) -> I64:
    """Return `amount * ratio` truncated toward zero, in double precision as the reference does; elementwise."""
    return _truncated(amount, ratio, _SCALED_MAX)


def scale_units(amount: I64, ratio: F64 | float) -> I64:
    """Scale as `scale` does, elementwise, but on whole units: the thousandths are rounded up first (memory)."""
    return _truncated(-(-amount // MILLI), ratio, _SCALED_MAX / MILLI) * MILLI


def _truncated(amount: I64, ratio: F64 | float, limit: float) -> I64:
    scaled: F64 = np.trunc(amount.astype(np.float64) * ratio)
    return np.clip(scaled, -limit, limit).astype(np.int64)


def safety_margin(capacity: I64, policy: ReclaimColumns) -> I64:
    """Return the part of `capacity` (rows, 2) never lent; negative above 100 percent."""
    return np.stack(
        [
            scale(capacity[:, CPU], (100 - policy.cpu_percent) / 100),
            scale_units(capacity[:, MEMORY], (100 - policy.memory_percent) / 100),
        ],
        axis=1,
    )


class BatchTerms(msgspec.Struct, frozen=True):
    """The way from capacity to what is lent, each (rows, 2) in thousandths: `lent` is capacity − margin − yielded, then
    lowered by `above_cap` and raised by `below_zero`."""

    margin: I64
    yielded: I64
    """Amount that the system, reservations and high-priority pods hold, by the policy of each resource."""
    above_cap: I64
    below_zero: I64
    lent: I64


def batch_terms(inputs: BatchInputs, policy: ReclaimColumns) -> BatchTerms:
    """Return how Batch CPU and memory of each row come about. Source: behaviour/manager 6.3."""
    margin = safety_margin(inputs.capacity, policy)
    by_request = inputs.reserved + inputs.requested
    cpu, memory = (
        np.choose(chosen, [inputs.taken[:, at], by_request[:, at], inputs.taken_at_most[:, at]])
        for at, chosen in ((CPU, policy.cpu_policy), (MEMORY, policy.memory_policy))
    )
    yielded: I64 = np.stack([cpu, memory], axis=1)
    rest = inputs.capacity - margin - yielded
    cpu_cap = scale(inputs.capacity[:, CPU], policy.cpu_cap_percent / 100)
    memory_cap = scale_units(inputs.capacity[:, MEMORY], policy.memory_cap_percent / 100)
    above_cpu = np.where(policy.cpu_cap_percent >= 0, np.maximum(rest[:, CPU] - cpu_cap, 0), 0)
    above_memory = np.where(policy.memory_cap_percent >= 0, np.maximum(rest[:, MEMORY] - memory_cap, 0), 0)
    above_cap: I64 = np.stack([above_cpu, above_memory], axis=1)
    capped = rest - above_cap
    below_zero = np.maximum(-capped, 0)
    return BatchTerms(margin, yielded, above_cap, below_zero, capped + below_zero)


def divide(amount: I64, parts: int) -> I64:
    """Return an equal share, elementwise, rounded up in thousandths; 0 parts leave the amount as it is."""
    return amount if parts == 0 else -(-amount // parts)


def differs(old: int | None, new: int | None, threshold: float) -> bool:
    """Return whether a change of an amount is worth a write (behaviour/manager 5, "diff rule"); thousandths or any
    unit."""
    if old is None or new is None:
        return old is not new
    return abs(new - old) > old * threshold
