"""Batch resources: how much allocated-but-unused capacity is lent to best-effort pods (spec 02 §6).

Everything here is elementwise over rows, so the same function serves one node, the zones of one node, or a
whole fleet. A row is a pair (cpu, memory) in thousandths: milli-cores and milli-bytes, which holds every
amount that the API can carry to that precision in int64.
"""

import enum
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

CPU, MEMORY = 0, 1
MILLI = 1000  # thousandths per unit


class CalculatePolicy(enum.IntEnum):
    """What stands for the high-priority pods in the formula."""

    USAGE = 0
    REQUEST = 1  # memory only; for CPU it means USAGE, as in the reference
    MAX_USAGE_REQUEST = 2

    @classmethod
    def parse(cls, text: str) -> "CalculatePolicy":
        """Unknown text means usage."""
        return {"request": cls.REQUEST, "maxUsageRequest": cls.MAX_USAGE_REQUEST}.get(text, cls.USAGE)


class ReclaimPolicy(msgspec.Struct, frozen=True):
    """The part of a colocation strategy that the formula needs. Percent values may exceed 100.

    The caps are percent of capacity; None means no cap.
    """

    cpu_percent: int = 60
    memory_percent: int = 65
    cpu_policy: CalculatePolicy = CalculatePolicy.USAGE
    memory_policy: CalculatePolicy = CalculatePolicy.USAGE
    cpu_cap_percent: int | None = None
    memory_cap_percent: int | None = None


class BatchInputs(msgspec.Struct, frozen=True):
    """What is known of each row; every array has shape (rows, 2), thousandths."""

    capacity: I64
    reserved: I64  # for kubelet or by annotation, whichever is larger
    system_usage: I64
    hp_request: I64  # of high-priority pods
    hp_used: I64
    hp_max: I64  # per pod the larger of request and usage


def scale(amount: I64, ratio: F64 | float) -> I64:
    """`amount * ratio` truncated toward zero, in double precision as the reference does."""
    return np.trunc(amount.astype(np.float64) * ratio).astype(np.int64)


def scale_units(amount: I64, ratio: F64 | float) -> I64:
    """Like `scale`, but on whole units: the thousandths are rounded up first (memory)."""
    return scale(-(-amount // MILLI), ratio) * MILLI


def safety_margin(capacity: I64, policy: ReclaimPolicy) -> I64:
    """The part of `capacity` (rows, 2) never lent; negative above 100 percent."""
    return np.stack(
        [
            scale(capacity[:, CPU], (100 - policy.cpu_percent) / 100),
            scale_units(capacity[:, MEMORY], (100 - policy.memory_percent) / 100),
        ],
        axis=1,
    )


def batch_allocatable(inputs: BatchInputs, policy: ReclaimPolicy) -> I64:
    """Batch CPU and memory of each row, shape (rows, 2), thousandths, never negative.

    Source: spec 02 §6.3.
    """
    lendable = inputs.capacity - safety_margin(inputs.capacity, policy)
    overhead = np.maximum(inputs.system_usage, inputs.reserved)
    by_policy = {
        CalculatePolicy.USAGE: lendable - overhead - inputs.hp_used,
        CalculatePolicy.REQUEST: lendable - inputs.reserved - inputs.hp_request,
        CalculatePolicy.MAX_USAGE_REQUEST: lendable - overhead - inputs.hp_max,
    }
    cpu_policy = policy.cpu_policy
    if cpu_policy is CalculatePolicy.REQUEST:
        cpu_policy = CalculatePolicy.USAGE
    cpu = np.maximum(by_policy[cpu_policy][:, CPU], 0)
    memory = np.maximum(by_policy[policy.memory_policy][:, MEMORY], 0)
    if policy.cpu_cap_percent is not None:
        cpu = np.minimum(cpu, scale(inputs.capacity[:, CPU], policy.cpu_cap_percent / 100))
    if policy.memory_cap_percent is not None:
        memory = np.minimum(memory, scale_units(inputs.capacity[:, MEMORY], policy.memory_cap_percent / 100))
    return np.stack([cpu, memory], axis=1)


class PodDemand(msgspec.Struct, frozen=True):
    """One running or pending high-priority pod, (cpu, memory) in thousandths.

    `used` is None when the node agent has not reported the pod yet. `zones` are the NUMA nodes that the
    scheduler gave it (repeats count), empty when it is bound to none.
    """

    request: tuple[int, int]
    used: tuple[int, int] | None
    is_exclusive: bool = False  # LSE: its idle CPU is not lent
    zones: tuple[int, ...] = ()


class ZoneDemand(msgspec.Struct, frozen=True):
    """Sums over high-priority pods per NUMA zone, each (zones, 2), thousandths."""

    request: I64
    used: I64
    maximum: I64


def sum_demand(
    pods: Sequence[PodDemand], dangling: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int], list[int]]:
    """Sums over a node's high-priority pods: requested, used, and the larger of both; thousandths.

    `dangling` are usages reported for pods that are gone or finished. Source: spec 02 §6.2.
    """
    request = [0, 0]
    used = [0, 0]
    maximum = [0, 0]
    for pod in pods:
        want, have = pod.request, pod.used
        for i in (CPU, MEMORY):
            request[i] += want[i]
            if have is None:
                # The reference counts an unreported pod in "request" and "used" but not in "max".
                used[i] += want[i]
                continue
            used[i] += want[i] if (i == CPU and pod.is_exclusive) else have[i]
            maximum[i] += max(want[i], have[i])
    for usage in dangling:
        for i in (CPU, MEMORY):
            used[i] += usage[i]
            maximum[i] += usage[i]
    return request, used, maximum


def divide(amount: I64, parts: int) -> I64:
    """An equal share, rounded up in thousandths; 0 parts leave the amount as it is."""
    return amount if parts == 0 else -(-amount // parts)


def sum_zone_demand(pods: Sequence[PodDemand], dangling: Sequence[tuple[int, int]], zones: int) -> ZoneDemand:
    """Sums per NUMA zone, each (zones, 2): bound pods count where they are, others spread (spec 02 §6.6)."""
    request, used, maximum = (np.zeros((zones, 2), np.int64) for _ in range(3))
    for pod in pods:
        want = np.array(pod.request, np.int64)
        have = want if pod.used is None else np.array(pod.used, np.int64)
        if pod.is_exclusive:
            have = np.array([want[CPU], have[MEMORY]], np.int64)
        valid = [zone for zone in pod.zones if 0 <= zone < zones]
        rows = np.array(valid or range(zones), np.int64)
        zone_request, zone_used = divide(want, len(rows)), divide(have, len(rows))
        np.add.at(request, rows, zone_request)
        np.add.at(used, rows, zone_used)
        np.add.at(maximum, rows, np.maximum(zone_request, zone_used))
    for usage in dangling:
        share = divide(np.array(usage, np.int64), zones)
        used += share
        maximum += share
    return ZoneDemand(request, used, maximum)


def differs(old: int | None, new: int | None, threshold: float) -> bool:
    """Whether a change of an amount is worth a write (spec 02 §5, "diff rule"); thousandths or any unit."""
    if old is None or new is None:
        return old is not new
    return abs(new - old) > old * threshold
