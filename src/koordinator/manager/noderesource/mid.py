"""Mid resources: what prod pods asked for and, as predicted, will not use, lent to longer-lived work.

Elementwise over rows, as `batch`: a row is a pair (cpu, memory) in thousandths. Source: behaviour/manager 7.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.manager.config.colocation_config import MidPolicy
from koordinator.manager.noderesource.batch import CPU, I64, MEMORY, MILLI, distinct, scale, scale_units

Mask = npt.NDArray[np.bool_]

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


def mid_allocatable(inputs: MidInputs, policy: MidColumns | MidPolicy) -> I64:
    """Mid CPU and memory of each row, shape (rows, 2), thousandths, memory in whole bytes; at least 0.

    The cap is a share of capacity, as is the static part (the reference calls both "allocatable").
    """
    if isinstance(policy, MidPolicy):
        policy = columns([policy])
    capacity = inputs.capacity
    static = _percent_of(capacity, policy.static_cpu_percent, policy.static_memory_percent)
    dynamic = _reclaimed(inputs) + _lent_unallocated(inputs, policy.unallocated_percent)
    wanted = np.where(policy.is_static[:, np.newaxis], static, dynamic)
    cap = _percent_of(capacity, policy.cpu_cap_percent, policy.memory_cap_percent)
    return np.maximum(np.minimum(wanted, cap), 0)


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
