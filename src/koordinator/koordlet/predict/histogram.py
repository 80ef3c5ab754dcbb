"""Histograms of usage whose old samples fade: the peak predictor's memory. Source: behaviour/koordlet-observe 11.2."""

import math

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
    """Buckets each of which is `ratio` times as large as the one before, from size `first`.

    Raises: ModelError.
    """
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
