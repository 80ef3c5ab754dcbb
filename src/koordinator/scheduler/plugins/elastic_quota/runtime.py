"""How much of its parent each quota may use now: fair shares of one resource among siblings.

Pure integer arithmetic: cpu in milli-cores, everything else in whole units. Products reach 128 bits, so nothing
here may become a float, apart from `scaled_min`, whose rounding is upstream's. Many siblings are computed as
arrays of 64 bits where that is exact, see `_split_arrays`. Source: spec 06, sections 6.1 and 7.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
Numbers = Sequence[int] | Column
"""One number per child."""

ARRAYS_FROM = 48
"""Siblings from which arrays are faster than lists."""
_EXACT_MAX = 2**62
"""Sums and products below it are exact in 64 bits."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one child asks of its parent, in one resource."""

    name: str
    weight: int
    """Its part of what is left over, relative to its hungry siblings."""
    request: int
    """What its pods ask for, at most its max."""
    min: int = 0
    """Its minimum, scaled down already where the parent is short."""
    guarantee: int = 0
    """What it has been given before and keeps."""
    lends: bool = True
    """Whether siblings may use what it leaves of its minimum."""

    @property
    def floor(self) -> int:
        """What it gets before anything is shared out."""
        return max(self.min, self.guarantee)

    @property
    def is_hungry(self) -> bool:
        """Whether it asks for more than it is sure of."""
        return self.request > self.floor


def fair_shares(total: int, claims: Iterable[Claim]) -> dict[str, int]:
    """The runtime of each child: floors first, then what is left by weight, nobody beyond its request.

    The floors are given out even when they exceed `total`. What nobody wants stays with the parent. The
    result does not depend on the order of `claims`.
    """
    by_name = sorted(claims, key=lambda claim: claim.name)
    parts = shares(
        total,
        floors=[claim.floor for claim in by_name],
        requests=[claim.request for claim in by_name],
        weights=[claim.weight for claim in by_name],
        lends=[claim.lends for claim in by_name],
    )
    return {claim.name: part for claim, part in zip(by_name, parts, strict=True)}


def shares(
    total: int, *, floors: Numbers, requests: Numbers, weights: Numbers, lends: Sequence[bool]
) -> Numbers:
    """`fair_shares` of children that are in order of their names, one entry of each column per child.

    Columns are lists or, all of them, arrays (see `column`).
    """
    if (
        isinstance(floors, np.ndarray)
        and isinstance(requests, np.ndarray)
        and isinstance(weights, np.ndarray)
    ) and all(_is_exact(numbers) for numbers in (floors, requests, weights)):
        return _shares_of_arrays(total, floors, requests, weights, np.asarray(lends, np.bool_))
    return _shares_of_lists(total, _list(floors), _list(requests), _list(weights), lends)


def column(numbers: list[int]) -> Numbers:
    """The numbers as an array where there are many of them and they fit, else as they are."""
    if len(numbers) < ARRAYS_FROM:
        return numbers
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return numbers


def reduced(weights: list[int]) -> list[int]:
    """The weights divided by what divides all of them: parts by weight stay the same, to the last unit."""
    divisor = math.gcd(*weights)
    return [weight // divisor for weight in weights] if divisor > 1 else weights


def _list(numbers: Numbers) -> list[int]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else list(numbers)


def _is_exact(numbers: Column) -> bool:
    """Whether sums of these are exact in 64 bits, and none is negative."""
    return bool(numbers.min() >= 0) and float(numbers.sum(dtype=np.float64)) < _EXACT_MAX


def _shares_of_lists(
    total: int,
    floors: Sequence[int],
    requests: Sequence[int],
    weights: Sequence[int],
    lends: Sequence[bool],
) -> list[int]:
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


def _shares_of_arrays(
    total: int, floor: Column, request: Column, weight: Column, lends: npt.NDArray[np.bool_]
) -> Numbers:
    is_hungry = request > floor
    given = np.where(is_hungry | ~lends, floor, request)
    hungry = np.flatnonzero(is_hungry)
    left = total - int(given.sum())
    while left > 0 and hungry.size:
        parts = _split_arrays(left, weight[hungry])
        if parts is None:
            break
        wanted = request[hungry] - given[hungry]
        if max(left, int(wanted.max())) >= _EXACT_MAX:
            rows: list[Any] = [column.tolist() for column in (floor, request, weight, lends)]
            return _shares_of_lists(total, *rows)
        taken = np.minimum(parts, wanted)
        given[hungry] += taken
        left = int((parts - taken).sum())
        hungry = hungry[parts < wanted]
    return given


def _split_arrays(amount: int, weights: Column) -> Column | None:
    """`split` of weights that are not negative.

    With amount = q·W + r, a part ⌊w·amount/W⌋ is w·q + ⌊w·r/W⌋, and r is below W: no product is larger than
    the largest weight times their sum, which is why weights should be `reduced`.
    """
    whole, largest = int(weights.sum()), int(weights.max())
    if whole <= 0:
        return None
    if largest * whole >= _EXACT_MAX or amount >= _EXACT_MAX:
        parts = split(amount, weights.tolist())
        return None if parts is None else np.array(parts, np.int64)
    quotient, rest = divmod(amount, whole)
    spread = weights * rest
    result = weights * quotient + spread // whole
    residual = amount - int(result.sum())
    if residual > 0:
        # The sort is stable, so of equal remainders the first ones are rounded up; zero weights come last.
        remainder = np.where(weights > 0, spread % whole, -1)
        result[np.argsort(-remainder, kind="stable")[:residual]] += 1
    return result


def scaled_min(minimum: int, available: int, sum_of_mins: int) -> int:
    """A child's part of `available` in proportion to its minimum, for a parent that cannot give all minima.

    In binary floating point, cut off, as upstream computes it: other results would differ by units.
    """
    if available <= 0 or sum_of_mins <= 0:
        return 0
    return int(float(available) * float(minimum) / float(sum_of_mins))
