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
    """Where buckets begin: `starts` ascending from 0; the last has no end."""

    starts: tuple[float, ...]
    first: float
    ratio: float

    @property
    def count(self) -> int:
        """Number of buckets."""
        return len(self.starts)

    def index_of(self, value: float) -> int:
        """The bucket that holds the value; too large ones go to the last."""
        if value < self.first:
            return 0
        if self.ratio == 1.0:
            index = int(value / self.first)
        else:
            index = int(math.log(value * (self.ratio - 1) / self.first + 1) / math.log(self.ratio))
        return min(index, self.count - 1)

    def indices_of(self, values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return `index_of` for each of `values`, (n,).

        NumPy's logarithm may differ from Python's in the last bit, which matters at the ends of buckets only: values
        there are looked at one by one.
        """
        if self.ratio == 1.0:
            indices = np.floor(values / self.first)
        else:
            scaled = np.log(np.maximum(values, 0.0) * (self.ratio - 1) / self.first + 1) / math.log(
                self.ratio
            )
            indices = np.floor(scaled)
            for at in np.flatnonzero(np.abs(scaled - np.rint(scaled)) < _END_OF_BUCKET).tolist():
                indices[at] = self.index_of(float(values[at]))
        within = np.where(values < self.first, 0.0, np.minimum(indices, self.count - 1))
        return within.astype(np.intp)


def linear_buckets(maximum: float, size: float) -> Buckets:
    """Buckets of equal size.

    Raises: ModelError.
    """
    _check("buckets", maximum > 0 and size > 0, "maximum and size must be above zero")
    count = math.ceil(maximum / size) + 1
    return Buckets(tuple(index * size for index in range(count)), size, 1.0)


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
    """What is kept of a histogram: weights relative to the largest one; reference time in unix seconds."""

    total_weight: float
    bucket_weights: dict[int, int]
    reference_s: float | None = None


class Histogram:
    """Weights by bucket; with a half-life a sample's weight doubles for each half-life that it is newer."""

    def __init__(
        self, buckets: Buckets, *, epsilon: float = EPSILON, half_life_s: float | None = None
    ) -> None:
        """An empty histogram.

        Raises: ModelError when epsilon or half-life is not above zero.
        """
        _check("histogram", epsilon > 0, "epsilon must be above zero")
        _check("histogram", half_life_s is None or half_life_s > 0, "half-life must be above zero")
        self.buckets = buckets
        self._epsilon = epsilon
        self._half_life_s = half_life_s
        self._weights = np.zeros(buckets.count)
        self._total = 0.0
        self._reference_s: float | None = None  # infinitely old
        self._low, self._high = buckets.count - 1, 0  # lowest and highest bucket that is not empty

    @property
    def is_empty(self) -> bool:
        """Whether no bucket has weight."""
        return bool(self._weights[self._low] < self._epsilon)

    @property
    def total_weight(self) -> float:
        """Sum of all weights, relative to the reference time."""
        return self._total

    def add(self, value: float, weight: float, at_s: float) -> None:
        """Count a sample that was taken at unix second `at_s`."""
        index, weight = self.buckets.index_of(value), weight * self._decay(at_s)
        self._weights[index] += weight
        self._total += weight
        if self._weights[index] >= self._epsilon:
            self._low, self._high = min(self._low, index), max(self._high, index)

    def subtract(self, value: float, weight: float, at_s: float) -> None:
        """Take a sample back."""
        index, weight = self.buckets.index_of(value), weight * self._decay(at_s)
        self._weights[index] = max(self._weights[index] - weight, 0.0)
        self._total = max(self._total - weight, 0.0)
        self._find_ends()

    def merge(self, other: "Histogram") -> None:
        """Count all samples of another histogram of the same kind; `other` stays as it was."""
        assert self.buckets == other.buckets, (self.buckets.count, other.buckets.count)
        weights, total = other._weights, other._total
        if self._half_life_s is not None:
            known_s = [each._reference_s for each in (self, other) if each._reference_s is not None]
            if known_s:
                newest_s = max(known_s)
                self._shift(newest_s)
                factor = shift_factor(other._reference_s, newest_s, self._half_life_s)
                weights, total = weights * factor, total * factor
        self._weights = self._weights + weights
        self._total += total
        self._find_ends()

    def percentile(self, share: float) -> float:
        """A value that `share` (0 to 1) of the weight lies below: the end of the bucket where that is reached.

        0 when empty; the last bucket has no end and answers its start.
        """
        if self.is_empty:
            return 0.0
        sums = np.cumsum(self._weights[self._low : self._high])
        index = self._low + int(np.searchsorted(sums, share * self._total, side="left"))
        return self.buckets.starts[min(index + 1, self.buckets.count - 1)]

    def checkpoint(self) -> HistogramCheckpoint:
        """What to write to a file."""
        return checkpoint_of(self._weights, self._total, self._reference_s, self._epsilon)

    def load(self, saved: HistogramCheckpoint) -> None:
        """Count all samples of a checkpoint.

        Raises: ModelError when it does not fit these buckets.
        """
        loaded = Histogram(self.buckets, epsilon=self._epsilon, half_life_s=self._half_life_s)
        loaded._reference_s = saved.reference_s
        loaded._weights, loaded._total = saved_weights(self.buckets, saved)
        self.merge(loaded)

    def _decay(self, at_s: float) -> float:
        if self._half_life_s is None:
            return 1.0
        reference_s = self._reference_s
        if reference_s is None or at_s > reference_s + DECAY_HALF_LIVES_MAX * self._half_life_s:
            reference_s = rounded_reference_s(at_s, self._half_life_s)
            self._shift(reference_s)
        return float(2.0 ** ((at_s - reference_s) / self._half_life_s))

    def _shift(self, reference_s: float) -> None:
        """Make all weights relative to another reference time."""
        assert self._half_life_s is not None
        factor = shift_factor(self._reference_s, reference_s, self._half_life_s)
        self._reference_s = reference_s
        if factor != 1.0:
            self._weights = self._weights * factor
            self._total *= factor
            self._find_ends()

    def _find_ends(self) -> None:
        filled = np.flatnonzero(self._weights >= self._epsilon)
        has_any = filled.size > 0
        self._low = int(filled[0]) if has_any else self.buckets.count - 1
        self._high = int(filled[-1]) if has_any else 0


def checkpoint_of(
    weights: NDArray[np.float64], total: float, reference_s: float | None, epsilon: float = EPSILON
) -> HistogramCheckpoint:
    """What is kept of these weights (buckets,): those from the first to the last that is not empty.

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
    """What weights are multiplied with when their reference time moves; nothing is left of infinitely old ones."""
    if from_s is None:
        return 0.0
    halvings = math.floor((to_s - from_s) / half_life_s + 0.5)
    return math.ldexp(1.0, -halvings) if halvings < 1074 else 0.0


def rounded_reference_s(at_s: float, half_life_s: float) -> float:
    """The nearest multiple of the half-life, counted from year 1, the later one of two."""
    multiple, rest = divmod(at_s - _YEAR_ONE_S, half_life_s)
    return (multiple + (2 * rest >= half_life_s)) * half_life_s + _YEAR_ONE_S
