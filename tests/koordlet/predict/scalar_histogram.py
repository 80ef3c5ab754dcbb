"""One histogram at a time, step by step as the reference does it: what rows of `HistogramTable` are held to.

It can do more than the predictor needs: buckets of equal size, no fading, subtracting, merging.
"""

import math

import numpy as np

from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict.histogram import (
    DECAY_HALF_LIVES_MAX,
    EPSILON,
    Buckets,
    HistogramCheckpoint,
    checkpoint_of,
    rounded_reference_s,
    saved_weights,
    shift_factor,
)


def _check(holds: bool, reason: str) -> None:
    if not holds:
        raise ModelError("histogram", reason)


class _LinearBuckets(Buckets, frozen=True):
    """Buckets of equal size."""

    def index_of(self, value: float) -> int:
        """The bucket that holds the value; too large ones go to the last."""
        return 0 if value < self.first else min(int(value / self.first), self.count - 1)


def linear_buckets(maximum: float, size: float) -> Buckets:
    """Buckets of equal size.

    Raises: ModelError.
    """
    _check(maximum > 0 and size > 0, "maximum and size must be above zero")
    count = math.ceil(maximum / size) + 1
    return _LinearBuckets(tuple(index * size for index in range(count)), size, 1.0)


class Histogram:
    """Weights by bucket; with a half-life a sample's weight doubles for each half-life that it is newer."""

    def __init__(
        self, buckets: Buckets, *, epsilon: float = EPSILON, half_life_s: float | None = None
    ) -> None:
        """An empty histogram.

        Raises: ModelError when epsilon or half-life is not above zero.
        """
        _check(epsilon > 0, "epsilon must be above zero")
        _check(half_life_s is None or half_life_s > 0, "half-life must be above zero")
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
        """Count all samples of a checkpoint, whose reference time is taken over as it is.

        Raises: ModelError when it does not fit these buckets.
        """
        weights, total = saved_weights(self.buckets, saved)
        self._weights = self._weights + weights
        self._total += total
        self._reference_s = saved.reference_s
        self._find_ends()

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
