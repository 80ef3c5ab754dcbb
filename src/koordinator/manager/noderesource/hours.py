"""Look ahead when lending: Batch yields to services before they need the node, and nodes say how long it lasts.

Node agents report what batch will have to yield to at the peak of each hour of the day (`yieldedByHour`).
`lendAheadMinutes` of the colocation strategy says how far ahead that counts. Not in the reference.
"""

from collections.abc import Sequence

import numpy as np

from koordinator.api.annotations.node import BATCH_DURATIONS, BatchDurations
from koordinator.manager.config.colocation_config import ReclaimPolicy
from koordinator.manager.noderesource import decide
from koordinator.manager.noderesource.account import ZERO, Amount
from koordinator.manager.noderesource.batch import I64, MILLI
from koordinator.manager.noderesource.decide import NodeInputs

HOURS = 24
HOUR_S = 3_600
HORIZONS_H = (1, 2, 4, 8, 16, 24)
"""The durations for which nodes say what they lend."""
STEP_RATIO = 20
"""Amounts are rounded down to whole twentieths of the node, so that the annotation seldom changes."""


def rise(by_hour: Sequence[Amount], now_s: float, ahead_s: float) -> Amount:
    """Return by how much the peaks of the hours within `ahead_s` exceed that of the hour of `now_s`, never below zero.

    The difference, so that what is wrong with both cancels out: a node without a rhythm, or on its first day, lends
    what it lends without looking ahead.
    """
    now, later = yielded(by_hour, now_s, 0.0), yielded(by_hour, now_s, ahead_s)
    return later[0] - now[0], later[1] - now[1]


def yielded(by_hour: Sequence[Amount], now_s: float, ahead_s: float) -> Amount:
    """Return what batch yields to at the peak of the hours that lie within `ahead_s` of `now_s`; zero if not known."""
    if len(by_hour) != HOURS:  # a report that says something else says nothing
        return ZERO
    first, last = int(now_s // HOUR_S), int((now_s + ahead_s) // HOUR_S)
    peaks = [by_hour[hour % HOURS] for hour in range(first, min(last, first + HOURS - 1) + 1)]
    return max(cpu for cpu, _ in peaks), max(memory for _, memory in peaks)


def lasting(nodes: Sequence[NodeInputs], policies: Sequence[ReclaimPolicy], now_s: Sequence[float]) -> I64:
    """Return Batch CPU and memory that each node lends for at least each of `HORIZONS_H`, (nodes, horizons, 2)
    thousandths, by the formula of what is lent now with predicted instead of measured use."""
    found = []
    for hours in HORIZONS_H:
        later = [
            decide.at_peak(known, yielded(known.report.yielded_by_hour, now, hours * HOUR_S))
            for known, now in zip(nodes, now_s, strict=True)
        ]
        found.append(decide.batch_amounts(later, policies))
    return np.minimum.accumulate(np.stack(found, axis=1), axis=1)


def annotation_text(capacity: Amount, lent: Sequence[Amount]) -> str:
    """Return the Node's annotation: `lent` has milli-cores and bytes for each of `HORIZONS_H`."""
    cpu_step, memory_step = max(capacity[0] // STEP_RATIO, 1), max(capacity[1] // MILLI // STEP_RATIO, 1)
    return BATCH_DURATIONS.encode(
        BatchDurations(
            hours=list(HORIZONS_H),
            cpu_milli=[cpu // cpu_step * cpu_step for cpu, _ in lent],
            memory_bytes=[memory // memory_step * memory_step for _, memory in lent],
        )
    )
