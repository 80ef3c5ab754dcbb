"""Recent use of every node: rings of samples, their means and percentiles, and peaks in fading histograms.

The formulas are those of the node agent (behaviour/koordlet-observe 6.2, 8.3 and 11.2), over all nodes at once.
"""

import math

import numpy as np

from koordinator.local.nodes.usage import F64, Index

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Ring:
    """The last samples of some series, newest last when read; values are (series,) per sample."""

    def __init__(self, series: int, samples: int) -> None:
        self.count = 0
        self._values = np.zeros((samples, series))
        self._next = 0

    def append(self, values: F64) -> None:
        self._values[self._next] = values
        self._next = (self._next + 1) % len(self._values)
        self.count = min(self.count + 1, len(self._values))

    def last(self, samples: int, series: Index) -> F64:
        """Up to `samples` newest values of the chosen series, (samples, series), oldest first."""
        samples = min(samples, self.count)
        rows = np.arange(self._next - samples, self._next) % len(self._values)
        return self._values[rows[:, None], series]


def aggregate(samples: F64) -> dict[str, F64]:
    """`avg`, `p50`, `p90`, `p95`, `p99` of (samples, series).

    A percentile is the element int(n·p) − 1 of the sorted samples, without interpolation.
    """
    count = samples.shape[0]
    ordered = np.sort(samples, axis=0)
    result = {"avg": samples.mean(axis=0)}
    for name, share in PERCENTILES.items():
        result[name] = ordered[max(int(count * share) - 1, 0)]
    return result


class PeakHistogram:
    """One histogram per node whose old samples fade; its percentiles are predicted peaks.

    Bucket b starts at first · (ratio^b − 1) / (ratio − 1). Source: behaviour/koordlet-observe 11.2.
    """

    RATIO = 1.05

    def __init__(self, nodes: int, first: float, largest: float, half_life_s: float) -> None:
        self._first = first
        self._half_life_s = half_life_s
        buckets = math.ceil(math.log(largest * (self.RATIO - 1) / first + 1, self.RATIO)) + 1
        self._starts = first * (self.RATIO ** np.arange(buckets) - 1) / (self.RATIO - 1)
        self._weights = np.zeros((nodes, buckets))

    def add(self, values: F64, elapsed_s: float) -> None:
        """One sample per node, (nodes,), `elapsed_s` after the one before."""
        self._weights *= 0.5 ** (elapsed_s / self._half_life_s)
        scaled = np.log1p(np.maximum(values, 0) * (self.RATIO - 1) / self._first) / math.log(self.RATIO)
        bucket = np.minimum(scaled.astype(np.int64), self._starts.size - 1)
        bucket[values < self._first] = 0
        self._weights[np.arange(values.size), bucket] += 1

    def percentile(self, share: float, nodes: Index) -> F64:
        """Start of the bucket after the one that holds the percentile, 0 for an empty histogram; (nodes,)."""
        sums = np.cumsum(self._weights[nodes], axis=1)
        total = sums[:, -1]
        bucket = (sums < share * total[:, None]).sum(axis=1)
        answer: F64 = self._starts[np.minimum(bucket + 1, self._starts.size - 1)]
        answer[total == 0] = 0
        return answer
