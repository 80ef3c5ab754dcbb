"""NodeMetric statuses of many nodes at once, of the node agent's own parts (`koordlet.report.node_metric`).

Source: behaviour/koordlet-observe 8 and 11.4.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import duration
from koordinator.api.node_metric import (
    AggregatedUsage,
    NodeMetricInfo,
    NodeMetricStatus,
    PodMetricInfo,
    ReclaimableMetric,
    ResourceMap,
)
from koordinator.koordlet.predict.reclaimable import Predictions, ProdPods
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.report.node_metric import CollectPolicy
from koordinator.koordlet.series import Aggregation
from koordinator.local.nodes import samples
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.samples import NodeSample
from koordinator.local.nodes.usage import Index


def statuses(fleet: HollowFleet, rows: Index, policy: CollectPolicy, now_s: float) -> list[NodeMetricStatus]:
    """Return the `status` of the NodeMetric of each row, (n,). All rows follow the same policy."""
    now_ms, updated = int(now_s * 1000), clock.rfc3339(now_s)
    points = fleet.samples.of_nodes(now_ms, policy.aggregate_duration_s)
    nodes, systems = _usages(points, rows, Aggregation.AVG)
    windows = [_windows(fleet, rows, text, now_ms) for text in policy.durations]
    pods = _pods(fleet, rows, policy, now_ms)
    measured = [[slot for slot, _ in of_row] for of_row in pods]
    known, predictions = fleet.peaks.knows(rows), predict(fleet, rows, measured, now_s)
    found = []
    for i in range(rows.size):
        info = NodeMetricInfo(
            node_usage=nodes[i],
            system_usage=systems[i],
            aggregated_node_usages=[node for node, _ in (window[i] for window in windows)],
            aggregated_system_usages=[system for _, system in (window[i] for window in windows)],
        )
        status = NodeMetricStatus(
            update_time=updated,
            node_metric=info,
            pods_metric=[entry for _, entry in pods[i]],
            prod_reclaimable_metric=ReclaimableMetric(),
        )
        found.append(node_metric.with_prediction(status, predictions.of(i)) if known[i] else status)
    return found


def predict(fleet: HollowFleet, rows: Index, measured: Sequence[Sequence[int]], now_s: float) -> Predictions:
    """Return what prod pods leave on each row, (n, 2), of those pods (slots per row) that were measured."""
    slots = np.array([slot for of_row in measured for slot in of_row], np.int64)
    node = np.repeat(np.arange(rows.size), [len(of_row) for of_row in measured])
    is_prod = fleet.is_prod[slots]
    slots, node = slots[is_prod], node[is_prod]
    pods = ProdPods(
        node=node,
        request=np.stack((fleet.request[slots], fleet.request_bytes[slots]), axis=-1).astype(np.int64),
        peak=np.zeros((slots.size, 2), np.int64),
        has_peak=np.zeros(slots.size, np.bool_),
        age_s=now_s - fleet.created_s[slots],
        is_terminating=fleet.is_terminating[slots],
        is_finished=fleet.is_finished[slots],
    )
    return fleet.peaks.predict(rows, fleet.allocatable[rows], pods, slots)


def _usages(
    points: list[NodeSample], rows: Index, how: Aggregation
) -> tuple[list[ResourceMap], list[ResourceMap]]:
    """Node and system of each row over these points; empty maps without any."""
    if not points:
        return [ResourceMap()] * rows.size, [ResourceMap()] * rows.size
    cores, memory, system = (
        samples.aggregated(np.stack([getattr(point, name)[rows] for point in points]), how)
        for name in ("cores", "memory_bytes", "system_cores")
    )
    system_bytes = np.full(rows.size, points[-1].system_bytes)
    return node_metric.usage_maps(cores, memory), node_metric.usage_maps(system, system_bytes)


def _windows(
    fleet: HollowFleet, rows: Index, text: str, now_ms: int
) -> list[tuple[AggregatedUsage, AggregatedUsage]]:
    """Return one window of `aggregatedNodeUsages` and `aggregatedSystemUsages` per row."""
    seconds = duration.parse(text)
    points = fleet.samples.of_nodes(now_ms, seconds)
    window_ms, span_ms = int(seconds * 1000), samples.span_ms(points)
    by_how = {how: _usages(points, rows, how) for how in node_metric.AGGREGATIONS}
    return [
        (
            node_metric.aggregated_usage(window_ms, span_ms, {how: by_how[how][0][i] for how in by_how}),
            node_metric.aggregated_usage(window_ms, span_ms, {how: by_how[how][1][i] for how in by_how}),
        )
        for i in range(rows.size)
    ]


def _pods(
    fleet: HollowFleet, rows: Index, policy: CollectPolicy, now_ms: int
) -> list[list[tuple[int, PodMetricInfo]]]:
    """Return pods of each row that were measured, as slots and entries, by namespace and name."""
    on_rows = [fleet.sorted_pods(row) for row in rows.tolist()]
    slots = np.array([slot for of_row in on_rows for slot in of_row], np.int64)
    points = fleet.samples.of_pods(now_ms, policy.aggregate_duration_s, slots)
    cores = samples.aggregated(points, Aggregation.AVG)
    maps = iter(node_metric.usage_maps(np.nan_to_num(cores), fleet.memory[slots]))
    has_any = iter((~np.isnan(cores)).tolist())
    found = []
    for of_row in on_rows:
        entries = []
        for slot in of_row:
            usage = next(maps)
            if next(has_any):
                entries.append((slot, msgspec.structs.replace(fleet.shape_of[slot].info, pod_usage=usage)))
        found.append(entries)
    return found
