"""Work out how much of its parent each quota may use now: fair shares of one resource among siblings.

Pure integer arithmetic: cpu in milli-cores, everything else in whole units. Products reach 128 bits, so nothing
here may become a float, apart from `scaled_min`, whose rounding is upstream's. Many siblings are computed as
arrays of 64 bits where that is exact, see `water_filling`. Source: behaviour/elastic-quota 6.1 and 7.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Numbers = Sequence[int] | Column
"""One number per child."""

ARRAYS_FROM = 48
"""Siblings from which arrays are faster than lists."""
EXACT_MAX = 2**62
"""Sums and products below it are exact in 64 bits."""
_HAS_64_BIT_FLOATS = np.finfo(np.longdouble).nmant >= 63


def shares(
    total: int,
    floors: Sequence[int],
    requests: Sequence[int],
    weights: Sequence[int],
    lends: Sequence[bool],
) -> list[int]:
    """Return the runtime of each child, in order of their names: floors first, then what is left by weight, nobody
    beyond its request. One entry of each list per child; for many children there is `water_filling`.

    Floors are given out even when they exceed `total`. What nobody wants stays with the parent.
    """
    given = [
        request if lend and request <= floor else floor
        for floor, request, lend in zip(floors, requests, lends, strict=True)
    ]
    hungry = [index for index, floor in enumerate(floors) if requests[index] > floor]
    left = total - sum(given)
    while left > 0 and hungry:
        parts = split(left, [weights[index] for index in hungry])
        if parts is None:
            break
        left = 0
        still_hungry = []
        for index, part in zip(hungry, parts, strict=True):
            share, request = given[index] + part, requests[index]
            if share < request:
                still_hungry.append(index)
            else:
                left += share - request
                share = request
            given[index] = share
        hungry = still_hungry
    return given


def split(amount: int, weights: list[int]) -> list[int] | None:
    """`amount` in whole parts by weight, the largest remainders rounded up, the first of equal ones.

    The parts add up to `amount`; weights of zero or less get nothing. None when the weights add up to zero
    or less: there is nobody to give it to.
    """
    whole = sum(weights)
    if whole <= 0:
        return None
    parts = [0] * len(weights)
    remainders: list[tuple[int, int]] = []
    for index, weight in enumerate(weights):
        if weight > 0:
            parts[index], remainder = divmod(weight * amount, whole)
            remainders.append((-remainder, index))
    residual = amount - sum(parts)
    for _, index in sorted(remainders)[: max(residual, 0)]:
        parts[index] += 1
    return parts


def split_arrays(amount: int, weights: Column, *, whole: int, largest: int) -> Column:
    """Split as `split` does among `weights` (children,) above zero; `whole` is their sum, and none is above
    `largest`.

    With amount = q·W + r, a part ⌊w·amount/W⌋ is w·q + ⌊w·r/W⌋, and r is below W: no product need be larger than
    the largest weight times their sum, which is why weights should have no common divisor.
    """
    quotient, rest = divmod(amount, whole) if largest * amount >= EXACT_MAX else (0, amount)
    if largest * rest < EXACT_MAX:
        spread = weights * rest
        parts = spread // whole
        remainder = np.subtract(spread, parts * whole, out=spread)
    elif _HAS_64_BIT_FLOATS:
        parts, remainder = _divided(weights, rest, whole)
    else:
        return np.array(split(amount, weights.tolist()), np.int64)
    if quotient:
        parts += weights * quotient
    residual = amount - int(parts.sum())
    if residual > 0:
        _round_up(parts, remainder, residual, whole)
    return parts


def _divided(weights: Column, rest: int, whole: int) -> tuple[Column, Column]:
    """⌊w·rest/whole⌋ and what remains, for products of up to 124 bits.

    A quotient in floating point of 64 bits is off by one at most; the remainder tells which way, and that fits 64
    bits, so that it may be computed modulo 2^64.
    """
    extra = (weights.astype(np.longdouble) * rest / whole).astype(np.int64)
    remainder = weights * rest - extra * whole
    step = (remainder >= whole).astype(np.int64) - (remainder < 0)
    return extra + step, remainder - step * whole


def _round_up(parts: Column, remainder: Column, count: int, whole: int) -> None:
    """One more for the `count` largest remainders (below `whole`), the first of equal ones.

    Selection in 32 bits takes a tenth of the time: by the upper bits first, and by all where these are equal.
    """
    if count >= parts.size:
        parts += 1
        return
    excess_bits = whole.bit_length() - 31
    upper = (remainder >> excess_bits if excess_bits > 0 else remainder).astype(np.int32)
    ordered = upper.copy()
    ordered.partition(parts.size - count)
    bar = ordered[parts.size - count]
    chosen = upper >= bar
    excess = int(np.count_nonzero(chosen)) - count
    if excess:
        equal = np.flatnonzero(upper == bar)
        by_size = np.argsort(-remainder[equal], kind="stable")
        chosen[equal[by_size[-excess:]]] = False
    parts += chosen


def scaled_mins(minima: Column, available: int, sum_of_mins: int) -> Column:
    """Scale as `scaled_min` does for many children: both (children,)."""
    if available <= 0 or sum_of_mins <= 0:
        return np.zeros(minima.shape, np.int64)
    return (float(available) * minima.astype(np.float64) / float(sum_of_mins)).astype(np.int64)


def scaled_min(minimum: int, available: int, sum_of_mins: int) -> int:
    """Return a child's part of `available` in proportion to its minimum, for a parent that cannot give all minima.

    In binary floating point, cut off, as upstream computes it: other results would differ by units.
    """
    if available <= 0 or sum_of_mins <= 0:
        return 0
    return int(float(available) * float(minimum) / float(sum_of_mins))
