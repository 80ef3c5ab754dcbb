"""Percentages of amounts over rows, rounded down as in integers but worked out in floating point."""

import numpy as np

from koordinator.scheduler.nodes import F64

PERCENT = 100.0


def floor_percent(parts: F64, wholes: F64) -> F64:
    """⌊100·part/whole⌋ of whole numbers, a negative part counting as 0; `parts` is overwritten.

    Exact for wholes from 1 to `nodes.SMALL_AMOUNT_MAX` and parts up to the whole: 100·part is a whole number
    below 2^53, and a quotient that is no whole number is further from the next one than rounding moves it.
    """
    if parts.size and np.minimum.reduce(parts, axis=None) < 0:
        np.maximum(parts, 0.0, out=parts)
    parts *= PERCENT
    parts /= wholes
    return np.floor(parts, out=parts)
