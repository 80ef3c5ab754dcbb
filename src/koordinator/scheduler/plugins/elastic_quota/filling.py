"""Water-filling among many children, whose rounds are kept: after a change of a few requests only those rounds are
done again that it reaches. Exactly the rounds of spec 06, section 6.1, see `runtime`.

All numbers are whole units that are not negative and add up to less than `runtime.EXACT_MAX`.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.scheduler.plugins.elastic_quota.runtime import Column, Flags, split_arrays

Rows = npt.NDArray[np.intp]


class Round(msgspec.Struct):
    """What is given to those who still want something, in order of their rows."""

    rows: Rows
    weights: Column
    wanted: Column
    parts: Column


class Filling:
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
        """What children have once everybody has enough."""
        # Nothing is ever given to weights of zero, and they are counted nowhere: as if they were not there.
        stays_hungry = is_hungry & (weights == 0)
        self._settled[stays_hungry] = floors[stays_hungry]
        hungry = np.flatnonzero(is_hungry & (weights > 0))
        self._hungry = Round(hungry, weights[hungry], (requests - floors)[hungry], _NOTHING)
        self._given = int(self._settled.sum()) - int(self._hungry.wanted.sum())
        """Handed out before the first round."""
        self._rounds: list[Round] = []
        self._left = Round(_NO_ROWS, _NOTHING, _NOTHING, _NOTHING)
        self._total = total
        self._restart()

    @property
    def shares(self) -> Column:
        """What each child gets, as a new array."""
        shares = self._settled.copy()
        shares[self._left.rows] -= self._left.wanted
        return shares

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
            if was_sure == floor < min(was_asked, request) and self._weights[row]:
                self._settled[row] = request
                reached = self._patch(row, request - was_asked)
                first = reached if first is None else min(first, reached)
            else:
                self._leave(row, was_asked, was_sure)
                self._enter(row, request, floor)
                restarts = True
        if restarts:
            self._restart()
        elif first is not None:
            self._resume(first)

    def _patch(self, row: int, change: int) -> int:
        """The child stays hungry and wants more or less; the first round that this changes."""
        self._want(self._hungry, row, change)
        for number, each in enumerate(self._rounds):
            position = self._want(each, row, change)
            wanted, part = int(each.wanted[position]), int(each.parts[position])
            if part >= min(wanted, wanted - change):
                return number
        if self._rounds:
            self._want(self._left, row, change)
        return len(self._rounds)

    @staticmethod
    def _want(among: Round, row: int, change: int) -> int:
        position = int(np.searchsorted(among.rows, row))
        among.wanted[position] += change
        return position

    def _leave(self, row: int, request: int, floor: int) -> None:
        """The child is not there for a moment; it was with these."""
        self._given -= floor if request > floor or not self._lends[row] else request
        if request > floor and self._weights[row]:
            hungry = self._hungry
            position = int(np.searchsorted(hungry.rows, row))
            rows, weights, wanted = (
                np.delete(each, position) for each in (hungry.rows, hungry.weights, hungry.wanted)
            )
            self._hungry = Round(rows, weights, wanted, _NOTHING)

    def _enter(self, row: int, request: int, floor: int) -> None:
        weight, is_hungry = int(self._weights[row]), request > floor
        given = floor if is_hungry or not self._lends[row] else request
        self._given += given
        self._settled[row] = request if is_hungry and weight else given
        if is_hungry and weight:
            hungry = self._hungry
            position = int(np.searchsorted(hungry.rows, row))
            self._hungry = Round(
                np.insert(hungry.rows, position, row),
                np.insert(hungry.weights, position, weight),
                np.insert(hungry.wanted, position, request - floor),
                _NOTHING,
            )

    def _restart(self) -> None:
        self._rounds = []
        left = self._total - self._given
        hungry = self._hungry
        self._left = Round(_NO_ROWS, _NOTHING, _NOTHING, _NOTHING)
        if left <= 0:
            self._left = hungry
        elif left < int(hungry.wanted.sum()):
            parts = split_arrays(left, hungry.weights)
            self._end(Round(hungry.rows, hungry.weights, hungry.wanted.copy(), parts))

    def _resume(self, number: int) -> None:
        """Everything before this round was as it is; this one gave the same parts."""
        left = self._total - self._given
        if not self._rounds or left >= int(self._hungry.wanted.sum()):
            self._restart()
        elif number < len(self._rounds):
            del self._rounds[number + 1 :]
            self._end(self._rounds.pop())

    def _end(self, each: Round) -> None:
        """Rounds from the end of this one on, until nothing is left or nobody wants more."""
        while True:
            self._rounds.append(each)
            excess = each.parts - each.wanted
            keep = np.flatnonzero(excess < 0)
            wanted = -excess[keep]
            if keep.size == excess.size:
                self._left = Round(each.rows, each.weights, wanted, _NOTHING)
                return
            left = int(np.maximum(excess, 0).sum())
            rows, weights = each.rows[keep], each.weights[keep]
            if left <= 0 or not rows.size:
                self._left = Round(rows, weights, wanted, _NOTHING)
                return
            each = Round(rows, weights, wanted, split_arrays(left, weights))


_NOTHING: Column = np.zeros(0, np.int64)
_NO_ROWS: Rows = np.zeros(0, np.intp)
