"""NodeMetric statuses of many nodes at once, as the node agent would make them.

Source: behaviour/koordlet-observe 8.3 and 11.4.
"""

from typing import Any

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import duration, node_metric
from koordinator.api.errors import KoordinatorError
from koordinator.api.node_metric import NodeMetric
from koordinator.local.nodes.fleet import Fleet
from koordinator.local.nodes.history import aggregate
from koordinator.local.nodes.usage import F64, Index

AGGREGATE_S_MIN = 60  # floors of the node agent
INTERVAL_S_MIN = 30
SAFETY_MARGIN_PERCENT = 10


class CollectPolicy(msgspec.Struct, frozen=True):
    """`spec.metricCollectPolicy` with the defaults filled in; `windows` as duration text → seconds."""

    aggregate_s: int = node_metric.AGGREGATE_DURATION_S
    interval_s: int = node_metric.REPORT_INTERVAL_S
    windows: tuple[tuple[str, float], ...] = (("5m0s", 300.0), ("10m0s", 600.0), ("30m0s", 1800.0))


def collect_policy(metric: NodeMetric) -> CollectPolicy:
    """What the manager asks for; a window that is no duration is left out."""
    wanted = metric.spec.metric_collect_policy
    if wanted is None:
        return CollectPolicy()
    default = CollectPolicy()
    windows = default.windows
    if wanted.node_aggregate_policy is not None:
        windows = tuple(
            w for text in wanted.node_aggregate_policy.durations if (w := _window(text)) is not None
        )
    return CollectPolicy(
        aggregate_s=max(wanted.aggregate_duration_seconds or default.aggregate_s, AGGREGATE_S_MIN),
        interval_s=max(wanted.report_interval_seconds or default.interval_s, INTERVAL_S_MIN),
        windows=windows,
    )


def _window(text: str) -> tuple[str, float] | None:
    try:
        seconds = duration.parse(text)
    except (KoordinatorError, ValueError):
        return None
    return duration.text_of(seconds), seconds


def statuses(fleet: Fleet, rows: Index, policy: CollectPolicy, now_s: float) -> list[dict[str, Any]]:
    """The `status` of the NodeMetric of each row. All rows follow the same policy."""
    sample_s = fleet.policy.sample_s
    samples = max(int(policy.aggregate_s / sample_s), 1)
    used = fleet.used_ring.last(samples, rows).mean(axis=0)
    used_bytes = fleet.used_bytes_ring.last(samples, rows).mean(axis=0)
    system = fleet.system_ring.last(samples, rows).mean(axis=0)
    system_bytes = np.full(rows.size, fleet.policy.system_memory_bytes)
    node_windows = [_aggregated(fleet, rows, window, is_system=False) for window in policy.windows]
    system_windows = [_aggregated(fleet, rows, window, is_system=True) for window in policy.windows]
    reclaimable, peak = prod_prediction(fleet, rows)
    node_usage, system_usage = resource_maps(used, used_bytes), resource_maps(system, system_bytes)
    updated = clock.rfc3339(now_s)
    return [
        {
            "updateTime": updated,
            "nodeMetric": {
                "nodeUsage": node_usage[i],
                "systemUsage": system_usage[i],
                "aggregatedNodeUsages": [window[i] for window in node_windows],
                "aggregatedSystemUsages": [window[i] for window in system_windows],
            },
            "podsMetric": _pods(fleet, row),
            "prodReclaimableMetric": {"resource": reclaimable[i]},
            "prodPeakMetric": {"resource": peak[i]},
        }
        for i, row in enumerate(rows.tolist())
    ]


def resource_maps(cpu_milli: F64, memory_bytes: F64) -> list[dict[str, Any]]:
    """`{"resources": {...}}` of each row, cut to whole milli-cores and bytes."""
    cpus, memories = cpu_milli.astype(np.int64).tolist(), memory_bytes.astype(np.int64).tolist()
    return [
        {"resources": {"cpu": f"{c}m" if c else "0", "memory": str(m)}}
        for c, m in zip(cpus, memories, strict=True)
    ]


def _aggregated(
    fleet: Fleet, rows: Index, window: tuple[str, float], *, is_system: bool
) -> list[dict[str, Any]]:
    """One window of `aggregated…Usages` per row; its maps are empty until half of it has been seen."""
    text, seconds = window
    sample_s = fleet.policy.sample_s
    samples = max(int(seconds / sample_s), 1)
    cpu = (fleet.system_ring if is_system else fleet.used_ring).last(samples, rows)
    if (cpu.shape[0] - 1) * sample_s < seconds / 2:
        empty: dict[str, Any] = {name: {} for name in node_metric.AGGREGATIONS}
        return [{"duration": text, "usage": empty} for _ in range(rows.size)]
    if is_system:
        memory = np.full_like(cpu, fleet.policy.system_memory_bytes)
    else:
        memory = fleet.used_bytes_ring.last(samples, rows)
    by_name = _aggregate_maps(cpu, memory)
    return [
        {"duration": text, "usage": {name: maps[i] for name, maps in by_name.items()}}
        for i in range(rows.size)
    ]


def _aggregate_maps(cpu: F64, memory: F64) -> dict[str, list[dict[str, Any]]]:
    cpu_by_name, memory_by_name = aggregate(cpu), aggregate(memory)
    return {name: resource_maps(cpu_by_name[name], memory_by_name[name]) for name in node_metric.AGGREGATIONS}


def _pods(fleet: Fleet, row: int) -> list[dict[str, Any]]:
    """`podsMetric` of a node: its running pods by namespace and name."""
    slots = [slot for slot in fleet.pods_on[row] if fleet.ran_s[slot] > 0]
    slots.sort(key=lambda slot: (fleet.shape_of[slot].namespace, fleet.shape_of[slot].name))
    pods = np.array(slots, dtype=np.int64)
    maps = resource_maps(fleet.pod_mean_milli(pods), fleet.memory[pods] * fleet.running[pods])
    shapes = [fleet.shape_of[slot] for slot in slots]
    return [
        {"namespace": s.namespace, "name": s.name, "priority": s.priority, "qos": s.qos, "podUsage": usage}
        for s, usage in zip(shapes, maps, strict=True)
    ]


def prod_prediction(fleet: Fleet, rows: Index) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Reclaimable and peak of prod pods per row, from the class-wide histograms with a safety margin.

    Reclaimable = min(allocatable − peak, requests − peak), never below 0 (behaviour/koordlet-observe 11.4, by class).
    """
    margin = 1 + SAFETY_MARGIN_PERCENT / 100
    peak = fleet.prod_peak.percentile(0.95, rows) * margin
    peak_bytes = fleet.prod_peak_bytes.percentile(0.98, rows) * margin
    requested, requested_bytes = fleet.prod_requests()
    allocatable = fleet.capacity - fleet.reserved
    allocatable_bytes = fleet.capacity_bytes - fleet.reserved_bytes
    lendable = np.maximum(np.minimum(allocatable, requested)[rows] - peak, 0)
    lendable_bytes = np.maximum(np.minimum(allocatable_bytes, requested_bytes)[rows] - peak_bytes, 0)
    return resource_maps(lendable, lendable_bytes), resource_maps(peak, peak_bytes)
