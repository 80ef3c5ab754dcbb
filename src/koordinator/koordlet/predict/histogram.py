"""Histograms of usage whose old samples fade: the peak predictor's memory. Source: behaviour/koordlet-observe 11.2.

`HistogramTable` is many of them as one array: a row per model, so that one operation serves all pods of a node. Each
row behaves exactly as a histogram of the reference does.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.koordlet.errors import ModelError

_YEAR_ONE_S = -62_135_596_800  # reference times are multiples of the half-life counted from year 1
DECAY_HALF_LIVES_MAX = 100
"""Newer samples move the reference time, so that weights stay within what a float holds."""
_CHECKPOINT_WEIGHT_MAX = 10_000

CPU_CORES_MAX, CPU_FIRST_CORES = 1024.0, 0.025
MEMORY_BYTES_MAX, MEMORY_FIRST_BYTES = 2.0**41, 5.0 * 2**20
GROWTH_RATIO = 1.05
EPSILON = 1e-4
"""Weights below count as empty."""
_END_OF_BUCKET = 1e-9


def _check(model: str, holds: bool, reason: str) -> None:
    if not holds:
        raise ModelError(model, reason)


class Buckets(msgspec.Struct, frozen=True):
    """The bounds of buckets: `starts` ascending from 0; the last has no end."""

    starts: tuple[float, ...]
    first: float
    ratio: float

    @property
    def count(self) -> int:
        """Number of buckets."""
        return len(self.starts)

    def index_of(self, value: float) -> int:
        """Return the bucket that holds the value; too large ones go to the last."""
        if value < self.first:
            return 0
        index = int(math.log(value * (self.ratio - 1) / self.first + 1) / math.log(self.ratio))
        return min(index, self.count - 1)

    def indices_of(self, values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return `index_of` for each of `values`, (n,).

        NumPy's logarithm may differ from Python's in the last bit, which matters at the ends of buckets only: values
        there are looked at one by one.
        """
        scaled = np.log(np.maximum(values, 0.0) * (self.ratio - 1) / self.first + 1) / math.log(self.ratio)
        indices = np.floor(scaled)
        for at in np.flatnonzero(np.abs(scaled - np.rint(scaled)) < _END_OF_BUCKET).tolist():
            indices[at] = self.index_of(float(values[at]))
        within = np.where(values < self.first, 0.0, np.minimum(indices, self.count - 1))
        return within.astype(np.intp)


def exponential_buckets(maximum: float, first: float, ratio: float) -> Buckets:
    """Buckets each of which is `ratio` times as large as the one before, from size `first`. Raises: ModelError."""
    _check(
        "buckets",
        maximum > 0 and first > 0 and ratio > 1,
        "maximum and first must be above zero, ratio above one",
    )
    count = math.ceil(math.log(maximum * (ratio - 1) / first + 1) / math.log(ratio)) + 1
    starts = (first * (ratio**index - 1) / (ratio - 1) for index in range(count))
    return Buckets(tuple(starts), first, ratio)


CPU_BUCKETS = exponential_buckets(CPU_CORES_MAX, CPU_FIRST_CORES, GROWTH_RATIO)
MEMORY_BUCKETS = exponential_buckets(MEMORY_BYTES_MAX, MEMORY_FIRST_BYTES, GROWTH_RATIO)


class HistogramCheckpoint(msgspec.Struct, frozen=True):
    """The stored form of a histogram: weights relative to the largest one; reference time in unix seconds."""

    total_weight: float
    bucket_weights: dict[int, int]
    reference_s: float | None = None


def checkpoint_of(
    weights: NDArray[np.float64], total: float, reference_s: float | None, epsilon: float = EPSILON
) -> HistogramCheckpoint:
    """Return what is kept of these weights (buckets,): those from the first to the last that is not empty.

    Scaled as the reference does, by one factor: multiplying by a quotient rounds otherwise than dividing a product.
    """
    filled = np.flatnonzero(weights >= epsilon)
    if not filled.size:
        return HistogramCheckpoint(total, {}, reference_s)
    low, high = int(filled[0]), int(filled[-1])
    factor = _CHECKPOINT_WEIGHT_MAX / weights[low : high + 1].max()
    scaled = np.floor(weights[low : high + 1] * factor + 0.5).astype(np.int64)
    kept = {low + int(index): int(scaled[index]) for index in np.flatnonzero(scaled)}
    return HistogramCheckpoint(total, kept, reference_s)


def saved_weights(buckets: Buckets, saved: HistogramCheckpoint) -> tuple[NDArray[np.float64], float]:
    """Weights (buckets,) and their sum as a checkpoint tells them; all zero when no bucket has weight.

    Raises: ModelError when it does not fit these buckets.
    """
    _check("checkpoint", saved.total_weight >= 0, "total weight is negative")
    _check("checkpoint", math.isfinite(saved.total_weight), "total weight is not finite")
    for index, weight in saved.bucket_weights.items():
        _check("checkpoint", 0 <= index < buckets.count, f"bucket {index} does not exist")
        _check("checkpoint", weight >= 0, f"bucket {index} has a negative weight")
    weights = np.zeros(buckets.count)
    total = sum(saved.bucket_weights.values())
    if total == 0:
        return weights, 0.0
    for index, weight in saved.bucket_weights.items():
        weights[index] = weight * (saved.total_weight / total)
    return weights, saved.total_weight


def shift_factor(from_s: float | None, to_s: float, half_life_s: float) -> float:
    """Return the factor for weights when their reference time moves; nothing is left of infinitely old ones."""
    if from_s is None:
        return 0.0
    halvings = math.floor((to_s - from_s) / half_life_s + 0.5)
    return math.ldexp(1.0, -halvings) if halvings < 1074 else 0.0


def rounded_reference_s(at_s: float, half_life_s: float) -> float:
    """Return the nearest multiple of the half-life, counted from year 1, the later one of two."""
    multiple, rest = divmod(at_s - _YEAR_ONE_S, half_life_s)
    return (multiple + (2 * rest >= half_life_s)) * half_life_s + _YEAR_ONE_S


Rows = NDArray[np.intp]

_ROWS_FIRST = 16


class HistogramTable:
    """Histograms of one resource by row number; rows are taken and given back by the caller."""

    def __init__(self, buckets: Buckets, half_life_s: float) -> None:
        """No rows yet. Raises: ModelError when the half-life is not above zero."""
        if half_life_s <= 0:
            raise ModelError("histogram", "half-life must be above zero")
        self.buckets = buckets
        self._half_life_s = half_life_s
        self._starts = np.array(buckets.starts)
        self._numbers = np.arange(buckets.count)
        self._weights = np.zeros((0, buckets.count))
        self._totals = np.zeros(0)
        self._references_s = np.zeros(0)
        self._lows = np.zeros(0, np.intp)
        self._highs = np.zeros(0, np.intp)

    def grow(self, count: int) -> None:
        """Have at least `count` rows; new ones are empty."""
        old = self._totals.size
        if count <= old:
            return
        size = max(count, 2 * old, _ROWS_FIRST)
        self._weights = np.concatenate((self._weights, np.zeros((size - old, self.buckets.count))))
        self._totals = np.resize(self._totals, size)
        self._references_s = np.resize(self._references_s, size)
        self._lows = np.resize(self._lows, size)
        self._highs = np.resize(self._highs, size)
        self.clear(np.arange(old, size))

    def clear(self, rows: Rows) -> None:
        """Make rows (n,) empty."""
        self._weights[rows] = 0.0
        self._totals[rows] = 0.0
        self._references_s[rows] = -np.inf  # infinitely old
        self._lows[rows] = self.buckets.count - 1
        self._highs[rows] = 0

    def add(self, rows: Rows, values: Sequence[float] | NDArray[np.float64], at_s: float) -> None:
        """Count one sample of weight 1 in each of these rows (n,), taken at unix second `at_s`; no row twice."""
        assert rows.shape == (len(values),), (rows.shape, len(values))
        self._move_references(rows, at_s)
        weights = self._weights_of_a_sample(rows, at_s)
        indices = self.buckets.indices_of(np.asarray(values, np.float64))
        self._weights[rows, indices] += weights
        self._totals[rows] += weights
        counts = self._weights[rows, indices] >= EPSILON
        filled, ends = rows[counts], indices[counts]
        self._lows[filled] = np.minimum(self._lows[filled], ends)
        self._highs[filled] = np.maximum(self._highs[filled], ends)

    def percentile(self, rows: Rows, share: float) -> NDArray[np.float64]:
        """Return for each row (n,) the end of the bucket where `share` (0 to 1) of the weight is reached.

        0 for empty rows; the last bucket has no end and answers its start.
        """
        lows, highs = self._lows[rows, None], self._highs[rows, None]
        is_within = (self._numbers >= lows) & (self._numbers < highs)
        sums = np.cumsum(np.where(is_within, self._weights[rows], 0.0), axis=1)
        is_below = is_within & (sums < share * self._totals[rows, None])
        ends = np.minimum(self._lows[rows] + is_below.sum(axis=1) + 1, self.buckets.count - 1)
        is_empty = self._weights[rows, self._lows[rows]] < EPSILON
        return np.where(is_empty, 0.0, self._starts[ends])

    def checkpoint(self, row: int) -> HistogramCheckpoint:
        """Return what to write to a file."""
        reference_s = float(self._references_s[row])
        known_s = None if reference_s == -np.inf else reference_s
        return checkpoint_of(self._weights[row], float(self._totals[row]), known_s)

    def load(self, row: int, saved: HistogramCheckpoint) -> None:
        """Make a row what a checkpoint says.

        Raises: ModelError when it does not fit these buckets; the row stays as it was.
        """
        weights, total = saved_weights(self.buckets, saved)
        self._weights[row] = weights
        self._totals[row] = total
        self._references_s[row] = -np.inf if saved.reference_s is None else saved.reference_s
        self._find_ends(row)

    def _weights_of_a_sample(self, rows: Rows, at_s: float) -> NDArray[np.float64]:
        """By row (n,): the factor of Python's own power, as NumPy's may differ in the last bit."""
        references_s = self._references_s[rows]
        if references_s.size and (references_s == references_s[0]).all():
            return np.full(rows.size, 2.0 ** (float(at_s - references_s[0]) / self._half_life_s))
        references_s, positions = np.unique(references_s, return_inverse=True)
        ages = (at_s - references_s) / self._half_life_s
        return np.array([2.0 ** float(age) for age in ages])[positions]

    def _move_references(self, rows: Rows, at_s: float) -> None:
        """Make weights relative to a newer time where `at_s` is far from the old one."""
        is_old = at_s > self._references_s[rows] + DECAY_HALF_LIVES_MAX * self._half_life_s
        if not is_old.any():
            return
        to_s = rounded_reference_s(at_s, self._half_life_s)
        for row in rows[is_old]:
            from_s = float(self._references_s[row])
            factor = shift_factor(None if from_s == -np.inf else from_s, to_s, self._half_life_s)
            self._references_s[row] = to_s
            if factor != 1.0:
                self._weights[row] *= factor
                self._totals[row] *= factor
                self._find_ends(int(row))

    def _find_ends(self, row: int) -> None:
        filled = np.flatnonzero(self._weights[row] >= EPSILON)
        has_any = filled.size > 0
        self._lows[row] = filled[0] if has_any else self.buckets.count - 1
        self._highs[row] = filled[-1] if has_any else 0
