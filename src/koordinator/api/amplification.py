"""Selling more than a node physically has, by a ratio per resource. Source: behaviour/api 8.2.

The product is computed in 64-bit binary floating point and rounded up, as users' figures are (100 × 1.1 is
111), so that all components write the same amounts.
"""

import math


def amplify(amount: int, ratio: float) -> int:
    """`amount` × `ratio`, rounded up; unchanged for a ratio not above 1."""
    return math.ceil(amount * ratio) if ratio > 1 else amount
