"""Filter and score by usage, over rows. Pure. Source: spec 03, I5."""

import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.framework import SCORE_MAX, Scores

NOTHING_OVER = -1


def first_over_threshold(used: I64, capacity: I64, thresholds: I64) -> npt.NDArray[np.intp]:
    """Index of the first resource used above its threshold on each row, `NOTHING_OVER` when none is.

    Shapes: all (resources, rows); thresholds in percent, 0 is off; resources without capacity are skipped.
    Usage in percent is rounded half up before it is compared.
    """
    percent = np.floor(used / np.maximum(capacity, 1) * 100 + 0.5)
    over = (percent > thresholds) & (thresholds > 0) & (capacity > 0)
    return np.where(over.any(axis=0), over.argmax(axis=0), NOTHING_OVER)


def usage_score(used: I64, capacity: I64, weights: I64, dominant_weight: int) -> Scores:
    """100 when idle, 0 when used up: the mean over resources, the worst of them weighted extra.

    Shapes: `used`, `capacity` (resources, rows), `weights` (resources,); returns (rows,).
    """
    free = np.where(used > capacity, 0, capacity - used)
    scores = free * SCORE_MAX // np.maximum(capacity, 1)
    weight_sum = int(weights.sum()) + dominant_weight
    if weight_sum == 0:
        return np.zeros(used.shape[1], np.int64)
    worst = scores.min(axis=0, initial=SCORE_MAX)
    total = (weights[:, np.newaxis] * scores).sum(axis=0) + dominant_weight * worst
    return np.asarray(total // weight_sum)
