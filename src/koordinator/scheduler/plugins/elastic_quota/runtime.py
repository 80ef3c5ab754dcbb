"""Work out how much of its parent each quota may use now: fair shares of one resource among siblings.

Pure integer arithmetic: cpu in milli-cores, everything else in whole units. Products reach 128 bits, so nothing
here may become a float, apart from `scaled_min`, whose rounding is upstream's. Many siblings are computed as
arrays of 64 bits where that is exact (numbers that are not negative and add up to less than `EXACT_MAX`), and their
rounds are kept: after a change of a few requests only those rounds are done again that it reaches. Source:
behaviour/elastic-quota 6.1 and 7.
"""

from collections.abc import Mapping, Sequence

import msgspec
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
    total: int, floors: Sequence[int], requests: Sequence[int], weights: Sequence[int], lends: Sequence[bool]
) -> list[int]:
    """Return the runtime of each child, in order of their names: floors first, then what is left by weight, nobody
    beyond its request. One entry of each list per child; for many children there is `WaterFilling`.

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


Rows = npt.NDArray[np.intp]


class WeightedChildren:
    """Children who share by weight, in order of their rows. Remembers who of them went on to the next round: after a
    small change it is the same ones, nearly always."""

    def __init__(self, rows: Rows, weights: Column, whole: int, largest: int) -> None:
        """`whole` is the sum of the weights; none of them is above `largest`."""
        self.rows = rows
        self.weights = weights
        self._whole = whole
        self._largest = largest
        self._positions: Rows | None = None
        self._rest: WeightedChildren | None = None

    @classmethod
    def of(cls, rows: Rows, weights: Column) -> "WeightedChildren":
        """Return the children on `rows` with `weights`, both (children,)."""
        return cls(rows, weights, int(weights.sum()), int(weights.max(initial=0)))

    def parts(self, amount: int) -> Column:
        """Return the parts of `amount` that each gets: (children,)."""
        return split_arrays(amount, self.weights, whole=self._whole, largest=self._largest)

    def going_on(self, short: Column) -> "tuple[WeightedChildren, Column]":
        """Return the children that still lack something, and what they lack (those children,); `short` (children,) has
        an entry per child of the crowd."""
        stays = short > 0
        count = int(np.count_nonzero(stays))
        if count == short.size:
            return self, short
        positions, rest = self._positions, self._rest
        if positions is not None and rest is not None and positions.size == count:
            wanted = short.take(positions)
            if not count or wanted.min() > 0:
                return rest, wanted
        self._positions = positions = stays.nonzero()[0]
        weights = self.weights.take(positions)
        self._rest = rest = WeightedChildren(
            self.rows.take(positions), weights, int(weights.sum()), self._largest
        )
        return rest, short.take(positions)

    def position(self, row: int) -> int:
        """Return where a row is, or would be."""
        return int(self.rows.searchsorted(row))

    def inserted(self, position: int, row: int, weight: int) -> "WeightedChildren":
        """With one child more."""
        rows, weights = _inserted(self.rows, position, row), _inserted(self.weights, position, weight)
        return WeightedChildren(rows, weights, self._whole + weight, max(self._largest, weight))

    def without(self, position: int) -> "WeightedChildren":
        """With one child less."""
        rows, weights = _without(self.rows, position), _without(self.weights, position)
        return WeightedChildren(rows, weights, self._whole - int(self.weights[position]), self._largest)


class UnmetRequest(msgspec.Struct):
    """The unmet demand of a crowd."""

    children: WeightedChildren
    wanted: Column
    """One entry per child of the crowd, above zero."""
    total: int
    """Their sum."""

    def grow(self, row: int, change: int) -> int:
        """Note that a child wants so much more; return its position."""
        position = self.children.position(row)
        self.wanted[position] += change
        self.total += change
        return position


class FillingRound(msgspec.Struct):
    """The amounts given to those who still want something. The parts add up to `amount`."""

    demand: UnmetRequest
    amount: int
    parts: Column


class WaterFilling:
    """The shares of `total`; arrays have one entry per child, in order of their names.

    `requests` and `floors` are the caller's: it changes entries and names them to `follow`.
    """

    def __init__(
        self, total: int, *, floors: Column, requests: Column, weights: Column, lends: Flags
    ) -> None:
        self._floors = floors
        self._requests = requests
        self._weights = weights
        self._lends = lends
        is_hungry = requests > floors
        self._settled = np.where(is_hungry | lends, requests, floors)
        """Shares of children once everybody has enough."""
        # Nothing is ever given to weights of zero, and they are counted nowhere: as if they were not there.
        stays_hungry = is_hungry & (weights == 0)
        self._settled[stays_hungry] = floors[stays_hungry]
        hungry = np.flatnonzero(is_hungry & (weights > 0))
        children, wanted = WeightedChildren.of(hungry, weights[hungry]), (requests - floors)[hungry]
        self._hungry = UnmetRequest(children, wanted, int(wanted.sum()))
        self._given = int(self._settled.sum()) - self._hungry.total
        """Handed out before the first round."""
        self._rounds: list[FillingRound] = []
        self._left = _nobody()
        self._total = total
        self._restart()

    @property
    def shares(self) -> Column:
        """Return what each child gets, as a new array (children,)."""
        shares = self._settled.copy()
        shares[self._left.children.rows] -= self._left.wanted
        return shares

    def share(self, row: int) -> int:
        """Return what one child gets."""
        share, children = int(self._settled[row]), self._left.children
        position = children.position(row)
        if position < children.rows.size and children.rows[position] == row:
            share -= int(self._left.wanted[position])
        return share

    def follow(self, total: int, changes: Mapping[int, tuple[int, int | None]]) -> None:
        """There is another total, or these rows have other requests or floors.

        `changes`: what they asked for before, and their floors before (None: the same).
        """
        first: int | None = None
        restarts = total != self._total
        self._total = total
        for row, (was_asked, was_sure) in changes.items():
            request, floor = int(self._requests[row]), int(self._floors[row])
            was_sure = floor if was_sure is None else was_sure
            stays_hungry = was_asked > was_sure and request > floor and bool(self._weights[row])
            # Only a request changed: rounds hold up to the first that gives the child all it asked or asks for.
            if stays_hungry and was_sure == floor:
                self._settled[row] = request
                reached = self._patch(row, request - was_asked)
                first = reached if first is None else min(first, reached)
                continue
            restarts = True
            if stays_hungry:
                self._settled[row] = request
                self._given += floor - was_sure
                self._hungry.grow(row, request - floor - (was_asked - was_sure))
            else:
                self._leave(row, was_asked, was_sure)
                self._enter(row, request, floor)
        if restarts:
            self._restart()
        elif first is not None:
            self._resume(first)

    def _patch(self, row: int, change: int) -> int:
        """Note that the child, still hungry, wants more or less; return the first round that this changes."""
        self._hungry.grow(row, change)
        for number, each in enumerate(self._rounds):
            position = each.demand.grow(row, change)
            wanted, part = int(each.demand.wanted[position]), int(each.parts[position])
            if part >= min(wanted, wanted - change):
                return number
        if self._rounds:
            self._left.grow(row, change)
        return len(self._rounds)

    def _leave(self, row: int, request: int, floor: int) -> None:
        """Note that the child is not there for a moment; it was with these."""
        self._given -= floor if request > floor or not self._lends[row] else request
        if request > floor and self._weights[row]:
            hungry = self._hungry
            position = hungry.children.position(row)
            wanted = _without(hungry.wanted, position)
            self._hungry = UnmetRequest(
                hungry.children.without(position), wanted, hungry.total - (request - floor)
            )

    def _enter(self, row: int, request: int, floor: int) -> None:
        weight, is_hungry = int(self._weights[row]), request > floor
        given = floor if is_hungry or not self._lends[row] else request
        self._given += given
        self._settled[row] = request if is_hungry and weight else given
        if is_hungry and weight:
            hungry = self._hungry
            position = hungry.children.position(row)
            wanted = _inserted(hungry.wanted, position, request - floor)
            children = hungry.children.inserted(position, row, weight)
            self._hungry = UnmetRequest(children, wanted, hungry.total + (request - floor))

    def _restart(self) -> None:
        self._rounds = []
        left = self._total - self._given
        hungry = self._hungry
        self._left = _nobody()
        if left <= 0:
            self._left = hungry
        elif left < hungry.total:
            demand = UnmetRequest(hungry.children, hungry.wanted.copy(), hungry.total)
            self._end(FillingRound(demand, left, hungry.children.parts(left)))

    def _resume(self, number: int) -> None:
        """Everything before this round was as it is; this one gave the same parts."""
        left = self._total - self._given
        if not self._rounds or left >= self._hungry.total:
            self._restart()
        elif number < len(self._rounds):
            del self._rounds[number + 1 :]
            self._end(self._rounds.pop())

    def _end(self, each: FillingRound) -> None:
        """Rounds from the end of this one on, until nothing is left or nobody wants more."""
        while True:
            self._rounds.append(each)
            demand = each.demand
            children, wanted = demand.children.going_on(demand.wanted - each.parts)
            total = int(wanted.sum())
            left = each.amount - demand.total + total
            if left <= 0 or not wanted.size:
                self._left = UnmetRequest(children, wanted, total)
                return
            each = FillingRound(UnmetRequest(children, wanted, total), left, children.parts(left))


def _nobody() -> UnmetRequest:
    return UnmetRequest(
        WeightedChildren(np.zeros(0, np.intp), np.zeros(0, np.int64), 0, 0), np.zeros(0, np.int64), 0
    )


def _inserted(numbers: npt.NDArray[np.int64], position: int, number: int) -> npt.NDArray[np.int64]:
    """Return a fraction of what `np.insert` takes."""
    longer = np.empty(numbers.size + 1, numbers.dtype)
    longer[:position] = numbers[:position]
    longer[position] = number
    longer[position + 1 :] = numbers[position:]
    return longer


def _without(numbers: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
    return np.concatenate((numbers[:position], numbers[position + 1 :]))
