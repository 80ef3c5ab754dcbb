"""How evenly pods are spread, over arrays of nodes. Pure. Source: spec 03, B2 and B9."""

import math

import numpy as np
import numpy.typing as npt

from koordinator.scheduler.framework import SCORE_MAX, Mask, Scores
from koordinator.scheduler.label_columns import ABSENT

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


class Domains:
    """Matching pods per value of a topology key: `counts` and `exists` (values,), by the value's number."""

    def __init__(self, ids: Ids, counts: Counts, is_counted: Mask) -> None:
        """`ids`, `counts`, `is_counted`: (nodes,). Only nodes that are counted and have the key make domains."""
        is_counted = is_counted & (ids != ABSENT)
        size = int(ids.max(initial=-1)) + 1
        self.exists: Mask = np.bincount(ids[is_counted], minlength=size) > 0
        weights = counts[is_counted]
        self.counts: npt.NDArray[np.int64] = np.bincount(ids[is_counted], weights, size).astype(np.int64)

    def minimum(self, min_domains: int) -> int:
        """Pods in the emptiest domain; 0 while there are fewer domains than wanted."""
        if int(self.exists.sum()) < max(min_domains, 1):
            return 0
        return int(self.counts[self.exists].min())

    def count_at(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Pods in each node's domain; 0 where there is no such domain."""
        return (
            np.where(ids == ABSENT, 0, self.counts[ids]) if self.counts.size else np.zeros(ids.size, np.int64)
        )


def raw_score(parts: list[tuple[Counts, Mask, int, int]], node_count: int) -> Floats:
    """Σ over constraints of count·ln(domains + 2) + maxSkew − 1 on the nodes that have the key.

    A part is (count in the node's domain, has the key, number of domains, maxSkew).
    """
    total = np.zeros(node_count)
    for counts, has_key, domains, max_skew in parts:
        total += np.where(has_key, counts * math.log(domains + 2) + (max_skew - 1), 0.0)
    return total


def normalized(raw: Floats, is_ignored: Mask) -> Scores:
    """100 for the emptiest: ⌊100·(max + min − s)/max⌋ over nodes that are not ignored, which get 0."""
    # Half up, as sums are never negative.
    rounded = np.floor(raw + 0.5).astype(np.int64)
    taking_part = rounded[~is_ignored]
    if taking_part.size == 0:
        return np.zeros(raw.size, np.int64)
    highest, lowest = int(taking_part.max()), int(taking_part.min())
    scores = np.full(raw.size, SCORE_MAX, np.int64)
    if highest > 0:
        scores = SCORE_MAX * (highest + lowest - rounded) // highest
    scores[is_ignored] = 0
    return scores
