"""NodeMetric statuses of many nodes at once, of the node agent's own parts (`koordlet.report.node_metric`).

Source: behaviour/koordlet-observe 8 and 11.4.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import duration, quantity, resources
from koordinator.api.node_metric import (
    AggregatedUsage,
    NodeMetricInfo,
    NodeMetricStatus,
    ReclaimableMetric,
    ResourceMap,
)
from koordinator.koordlet.predict.reclaimable import Predictions, ProdPods, ReclaimableAmount
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.report.node_metric import CollectPolicy
from koordinator.koordlet.series import Aggregation
from koordinator.local.nodes import devices, samples
from koordinator.local.nodes.devices import NO_CARD_USE, NodeCardUse
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.lent_gpus import LentGPUs
from koordinator.local.nodes.usage import Index


def statuses(
    fleet: HollowFleet, rows: Index, policy: CollectPolicy, now_s: float, lent: LentGPUs | None = None
) -> list[dict[str, Any]]:
    """Return the `status` of the NodeMetric of each row, (n,), as JSON. All rows follow the same policy; `lent` knows
    what services leave of GPUs, None where nothing of them is lent."""
    now_ms, updated = int(now_s * 1000), clock.rfc3339(now_s)
    seconds = [duration.parse(text) for text in policy.durations]
    asked = dict.fromkeys((policy.aggregate_duration_s, *seconds))
    windows = {each: _Window(fleet, rows, now_ms, each) for each in asked}
    average = windows[policy.aggregate_duration_s].usages[Aggregation.AVG]
    measured, entries = _pods(fleet, rows, policy, now_ms)
    cards = [_cards(fleet, row) for row in rows.tolist()]
    hours = fleet.peaks.hours
    by_hour = hours.peaks(rows).tolist() if hours is not None else []
    knows_hours = hours.knows(rows).tolist() if hours is not None else [False] * rows.size
    known, predictions = fleet.peaks.knows(rows).tolist(), predict(fleet, rows, measured, now_s)
    found = []
    for i in range(rows.size):
        info = NodeMetricInfo(
            node_usage=_with_cards(average[0][i], cards[i]),
            system_usage=average[1][i],
            aggregated_node_usages=[windows[each].aggregated(0, i) for each in seconds],
            aggregated_system_usages=[windows[each].aggregated(1, i) for each in seconds],
        )
        status = NodeMetricStatus(
            update_time=updated, node_metric=info, prod_reclaimable_metric=ReclaimableMetric()
        )
        if known[i]:
            status = node_metric.with_prediction(status, predictions.of(i))
        if knows_hours[i]:
            status = node_metric.with_hours(status, [ReclaimableAmount(*each) for each in by_hour[i]])
        if lent is not None and (free := lent.predictions(int(rows[i]), now_s)):
            status = node_metric.with_gpu_predictions(status, free)
        wire: dict[str, Any] = msgspec.to_builtins(status)
        if cards[i].pods:
            for slot, entry in zip(measured[i], entries[i], strict=True):
                if slot in cards[i].pods:
                    entry["podUsage"]["devices"] = msgspec.to_builtins(cards[i].pods[slot])
        if entries[i]:
            wire["podsMetric"] = entries[i]
        found.append(wire)
    return found


def _cards(fleet: HollowFleet, row: int) -> NodeCardUse:
    """Return what the running pods of a row use of its GPUs."""
    shape = fleet.shapes[row]
    if not shape.gpus:
        return NO_CARD_USE
    return devices.use_of(shape, devices.running_uses(fleet, row))


def _with_cards(usage: ResourceMap, cards: NodeCardUse) -> ResourceMap:
    return msgspec.structs.replace(usage, devices=cards.node) if cards.node else usage


class _Window:
    """The usage of nodes over the last seconds: `usages` has, by aggregation, the maps of each row for the node (0) and
    its system (1); empty maps without any points."""

    def __init__(self, fleet: HollowFleet, rows: Index, now_ms: int, seconds: float) -> None:
        points = fleet.samples.of_nodes(now_ms, seconds)
        self._window_ms, self._span_ms = int(seconds * 1000), samples.span_ms(points)
        self.usages: dict[Aggregation, tuple[list[ResourceMap], list[ResourceMap]]]
        if not points:
            nothing = [ResourceMap()] * rows.size
            self.usages = dict.fromkeys(node_metric.AGGREGATIONS, (nothing, nothing))
            return
        stacked = np.stack([point.usage[:, rows] for point in points])
        system_bytes = np.full(rows.size, points[-1].system_bytes)
        by_how = zip(
            node_metric.AGGREGATIONS,
            samples.aggregations(stacked, node_metric.AGGREGATIONS),
            strict=True,
        )
        self.usages = {
            how: (node_metric.usage_maps(cores, memory), node_metric.usage_maps(system, system_bytes))
            for how, (cores, memory, system) in by_how
        }

    def aggregated(self, whose: int, i: int) -> AggregatedUsage:
        """Return the window of a row in `aggregatedNodeUsages` (0) or `aggregatedSystemUsages` (1)."""
        usages = {how: maps[whose][i] for how, maps in self.usages.items()}
        return node_metric.aggregated_usage(self._window_ms, self._span_ms, usages)


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


def _pods(
    fleet: HollowFleet, rows: Index, policy: CollectPolicy, now_ms: int
) -> tuple[list[list[int]], list[list[dict[str, Any]]]]:
    """Return pods of each row that were measured, by namespace and name: their slots, and their entries.

    Entries are written as JSON at once: they are most of a report, and differ from pod to pod in two texts.
    """
    on_rows = [fleet.sorted_pods(row) for row in rows.tolist()]
    slots = np.array([slot for of_row in on_rows for slot in of_row], np.int64)
    points = fleet.samples.of_pods(now_ms, policy.aggregate_duration_s, slots)
    cores = samples.aggregated(points, Aggregation.AVG)
    milli = iter((np.nan_to_num(cores) * 1000).astype(np.int64).tolist())
    has_any = iter((~np.isnan(cores)).tolist())
    shape_of, cpu_text, cpu_name, memory_name = (
        fleet.shape_of,
        quantity.text_of_milli,
        resources.CPU,
        resources.MEMORY,
    )
    measured, entries = [], []
    for of_row in on_rows:
        known = [each for each in zip(of_row, milli, has_any, strict=False) if each[2]]  # of all rows
        measured.append([slot for slot, *_ in known])
        entries.append(
            [
                {
                    **(shape := shape_of[slot]).entry,
                    "podUsage": {"resources": {cpu_name: cpu_text(cpu), memory_name: shape.memory_text}},
                }
                for slot, cpu, _ in known
            ]
        )
    return measured, entries
