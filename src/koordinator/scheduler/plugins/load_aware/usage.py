"""Filter and score by usage, over rows. Pure. Source: behaviour/scheduler I5."""

import bisect
import math
from collections.abc import Sequence

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import Scores
from koordinator.scheduler.plugin.percent import floor_percent, rounded_down_mean, weighted_mean
from koordinator.scheduler.table.nodes import F64

Limits = tuple[int | None, ...]
"""The highest usage within a threshold, per resource; None where no threshold applies."""


def limits(capacity: Sequence[int], thresholds: Sequence[int]) -> Limits:
    """The highest usages within thresholds (percent, 0 is off): judging a row is one comparison with them."""
    return tuple(
        _limit(amount, percent) if percent > 0 and amount > 0 else None
        for amount, percent in zip(capacity, thresholds, strict=True)
    )


def _limit(capacity: int, threshold: int) -> int:
    """The last amount whose percentage, rounded half up, is not above the threshold.

    Percentages do not fall as amounts grow, rounding errors included: the boundary is found by bisection.
    """
    above = capacity * (threshold + 1) // 100 + 1
    amounts = range(above + 1)
    return bisect.bisect_right(amounts, threshold, key=lambda used: percent_of(used, capacity)) - 1


def percent_of(used: int, capacity: int) -> int:
    """Usage in percent of a capacity above 0, rounded half up."""
    return math.floor(used / capacity * 100 + 0.5)


def usage_score(free: F64, capacity: F64, weights: I64, dominant_weight: int) -> Scores:
    """100 when idle, 0 when used up: the mean over resources, the worst of them weighted extra.

    Shapes: `free` (overwritten) and `capacity` (at least 1) are (resources, rows), `weights` (resources,);
    returns (rows,). What is free may be negative, which counts as nothing.
    """
    each_weight = weights.tolist()  # a few numbers: adding them up as an array takes longer
    weight_sum = sum(each_weight) + dominant_weight
    if weight_sum == 0:
        return np.zeros(capacity.shape[1], np.int64)
    shares = floor_percent(free, capacity)
    if not dominant_weight:
        return weighted_mean(shares, each_weight)
    total = dominant_weight * shares.min(axis=0)
    for weight, share in zip(each_weight, shares, strict=True):
        total += share if weight == 1 else weight * share
    return rounded_down_mean(total, weight_sum)
