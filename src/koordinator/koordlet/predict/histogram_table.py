"""Many fading histograms as one array: a row per model, so that one operation serves all pods of a node.

Each row behaves exactly as a histogram of the reference does. Source: behaviour/koordlet-observe 11.2.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict import histogram
from koordinator.koordlet.predict.histogram import DECAY_HALF_LIVES_MAX, EPSILON, Buckets, HistogramCheckpoint

Rows = NDArray[np.intp]

_ROWS_FIRST = 16


class HistogramTable:
    """Histograms of one resource by row number; rows are taken and given back by the caller."""

    def __init__(self, buckets: Buckets, half_life_s: float) -> None:
        """No rows yet.

        Raises: ModelError when the half-life is not above zero.
        """
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
        return histogram.checkpoint_of(self._weights[row], float(self._totals[row]), known_s)

    def load(self, row: int, saved: HistogramCheckpoint) -> None:
        """Make a row what a checkpoint says.

        Raises: ModelError when it does not fit these buckets; the row stays as it was.
        """
        weights, total = histogram.saved_weights(self.buckets, saved)
        self._weights[row] = weights
        self._totals[row] = total
        self._references_s[row] = -np.inf if saved.reference_s is None else saved.reference_s
        self._find_ends(row)

    def _weights_of_a_sample(self, rows: Rows, at_s: float) -> NDArray[np.float64]:
        """By row (n,): the factor of Python's own power, as NumPy's may differ in the last bit."""
        references_s, positions = np.unique(self._references_s[rows], return_inverse=True)
        ages = (at_s - references_s) / self._half_life_s
        return np.array([2.0 ** float(age) for age in ages])[positions]

    def _move_references(self, rows: Rows, at_s: float) -> None:
        """Make weights relative to a newer time where `at_s` is far from the old one."""
        is_old = at_s > self._references_s[rows] + DECAY_HALF_LIVES_MAX * self._half_life_s
        if not is_old.any():
            return
        to_s = histogram.rounded_reference_s(at_s, self._half_life_s)
        for row in rows[is_old]:
            from_s = float(self._references_s[row])
            factor = histogram.shift_factor(None if from_s == -np.inf else from_s, to_s, self._half_life_s)
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
