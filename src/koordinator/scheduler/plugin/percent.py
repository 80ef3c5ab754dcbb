"""Percentages of amounts, rounded down: one by one in integers, over rows in floating point."""

import operator
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX, Scores
from koordinator.scheduler.table.columns import Rows, at
from koordinator.scheduler.table.nodes import F64, NodeTable


class ScoredResource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource that counts in a score."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class ScoringStrategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choice whether what is full (MostAllocated) or empty scores high."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"

    def score(self, used: int, capacity: int) -> int:
        """Return the score of one resource."""
        part = min(used, capacity) if self.type == "MostAllocated" else max(0, capacity - used)
        return part * SCORE_MAX // capacity


PERCENT = 100.0
_LEADING = [0, 1]
"""The first two columns, which stand side by side."""


def floor_percent(parts: F64, wholes: F64) -> F64:
    """Return ⌊100·part/whole⌋ of whole numbers, elementwise, a negative part counting as 0; `parts` is overwritten.

    Exact for wholes from 1 to `nodes.SMALL_AMOUNT_MAX` and parts up to the whole: 100·part is a whole number
    below 2^53, and a quotient that is no whole number is further from the next one than rounding moves it.
    """
    parts *= PERCENT
    return np.floor(_quotients(parts, wholes), out=parts)


def mean_percent(
    hundredths: F64, wholes: F64, weights: Sequence[int], *, is_positive: bool = False
) -> Scores:
    """Return the weighted mean over resources of what `floor_percent` says, rounded down. Shapes: `hundredths` (100
    times the parts, overwritten) and `wholes` (resources, rows); returns (rows,). `is_positive`: no part is negative,
    as is known."""
    quotients = _quotients(hundredths, wholes, is_positive=is_positive)
    if len(weights) == 2 and weights[0] == weights[1] > 0:
        # Most often: narrow whole numbers, which percentages are, cost a third as much to add up and halve.
        shares = quotients.astype(np.int32)
        total = shares[0]
        total += shares[1]
        total >>= 1
        mean: Scores = total.astype(np.int64)
        return mean
    return weighted_mean(np.floor(quotients, out=quotients), weights)


def _quotients(hundredths: F64, wholes: F64, *, is_positive: bool = False) -> F64:
    """Divide in place; negative numbers count as 0."""
    if not is_positive and hundredths.size and np.minimum.reduce(hundredths, axis=None) < 0:
        np.maximum(hundredths, 0.0, out=hundredths)
    hundredths /= wholes
    return hundredths


def weighted_mean(shares: Sequence[F64] | F64, weights: Sequence[int]) -> Scores:
    """Return the mean over resources, rounded down: shares (resources, rows), whole numbers; returns (rows,)."""
    total: F64 = shares[0] if weights[0] == 1 else shares[0] * weights[0]
    for share, weight in zip(shares[1:], weights[1:], strict=True):
        total = total + (share if weight == 1 else share * weight)
    return rounded_down_mean(total, sum(weights))


def rounded_down_mean(total: F64, count: int) -> Scores:
    """Return a sum of `count` whole numbers from 0 on, divided by that and rounded down; shapes (rows,)."""
    return (total / count).astype(np.int64)


def are_left(least: Sequence[float], amounts: Sequence[int], copies: int | I64) -> bool:
    """Return whether `copies` pods, (rows,) or one number, that ask for these amounts surely fit where `least` is left
    of each."""
    return isinstance(copies, int) and all(map(operator.ge, least, [copies * each for each in amounts]))


class ScoredRequest(msgspec.Struct, frozen=True):
    """The requests of one pod for the resources that count in a score: `amounts` and 100 times these,
    `hundredths`, are (resources, 1)."""

    columns: list[int]
    amounts: I64
    weights: list[int]
    hundredths: F64

    @property
    def leading(self) -> list[int]:
        """Return the amounts of CPU and memory, where these are the resources."""
        return [self.amounts.item(0), self.amounts.item(1)]

    @classmethod
    def of(cls, scored: Sequence[tuple[int, int, int]]) -> "ScoredRequest":
        """From (column, amount, weight) of each resource."""
        amounts = np.array([[amount] for _, amount, _ in scored], np.int64)
        weights = [weight for _, _, weight in scored]
        hundredths = amounts.astype(np.float64) * PERCENT
        return cls([column for column, _, _ in scored], amounts, weights, hundredths)


def free_percent(table: NodeTable, wanted: ScoredRequest, rows: Rows, copies: int | I64 = 1) -> Scores | None:
    """Return how much of each node is left with `copies` pods more, the mean over resources, rounded down.

    Shapes: `copies` one number or (rows,); returns (rows,). None where floating point would not be exact, or nodes lack
    one of the resources: who asks has to work it out otherwise.
    """
    if not any(wanted.weights) or not table.has_small_amounts:
        return None
    if not all(table.is_everywhere(column) for column in wanted.columns):
        return None
    if wanted.columns == _LEADING:  # CPU and memory, most often: both at once
        both: F64 = at(table.free_hundredths, rows) - wanted.hundredths * copies
        is_positive = are_left(table.least_free.amounts, wanted.leading, copies)
        return mean_percent(both, at(table.nonzero_divisor, rows), wanted.weights, is_positive=is_positive)
    shares = []
    for column, [amount] in zip(wanted.columns, wanted.amounts, strict=True):
        # Subtracting into floating point at once goes through buffers, at four times the cost.
        left: F64 = (at(table.free[column], rows) - amount * copies).astype(np.float64)
        shares.append(floor_percent(left, at(table.divisor[column], rows)))
    return weighted_mean(shares, wanted.weights)
