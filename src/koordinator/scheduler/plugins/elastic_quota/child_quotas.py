"""One resource of a level: an entry per child, in order of their names, and the shares that follow from them.

Entries stand in lists, and in arrays beside them where there are many and all fit; both give the same shares.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from koordinator.scheduler.plugins.elastic_quota import runtime
from koordinator.scheduler.plugins.elastic_quota.runtime import ARRAYS_FROM, Column, Flags, Numbers
from koordinator.scheduler.plugins.elastic_quota.water_filling import WaterFilling

CHANGES_MAX = 64
"""Changed requests from which rounds are done anew altogether."""
_UNREPORTED = -1
"""No share that anybody was told."""


class ChildQuota(msgspec.Struct, frozen=True, kw_only=True):
    """A child in one resource, in its units."""

    weight: int
    request: int
    least: int
    """Its minimum before scaling, or what it is guaranteed."""
    lends: bool


class Arrays(msgspec.Struct):
    """The same entries as arrays. Weights are divided by `divisor`, which keeps parts and makes products small."""

    weights: Column
    requests: Column
    least: Column
    lends: Flags
    divisor: int


class ChildQuotas:
    """The entries of all children, which change one at a time, and their shares as of the last `compute`."""

    def __init__(self, per_unit: int, entries: Iterable[ChildQuota]) -> None:
        self.per_unit = per_unit
        self._entries = list(entries)
        self._arrays: Arrays | None = None
        self._filling: WaterFilling | None = None
        self._shortage: tuple[int, int] | None = None
        self._former: dict[int, ChildQuota] = {}
        """Rows whose request or floor changed since the last `compute`, and how they were then."""
        self._negatives = self._weight = self._asked = self._least = 0
        self._enough = 0
        """What it takes until nobody wants more."""
        self._keepers = 0
        """Children that do not lend."""
        self._unserved = 0
        """Children that ask although nothing is ever shared out to them: they have no weight."""
        for entry in self._entries:
            self._count(entry, 1)
        self._shares: WaterFilling | Sequence[int] | None = []
        """As of the last `compute`; None: everybody has enough."""
        self._reported: Numbers = [_UNREPORTED] * len(self._entries)

    # Changes

    def insert(self, row: int, entry: ChildQuota) -> None:
        """A child came."""
        self._filling = None
        self._entries.insert(row, entry)
        self._count(entry, 1)
        self._reported = _inserted(self._reported, row, _UNREPORTED)
        arrays = self._arrays
        if arrays is not None and self._fits(arrays, entry):
            self._arrays = Arrays(
                np.insert(arrays.weights, row, entry.weight // arrays.divisor),
                np.insert(arrays.requests, row, entry.request),
                np.insert(arrays.least, row, entry.least),
                np.insert(arrays.lends, row, entry.lends),
                arrays.divisor,
            )
        else:
            self._arrays = None

    def remove(self, row: int) -> None:
        """A child went."""
        self._filling = None
        self._count(self._entries.pop(row), -1)
        self._reported = _without(self._reported, row)
        arrays = self._arrays
        if arrays is not None:
            self._arrays = Arrays(
                np.delete(arrays.weights, row),
                np.delete(arrays.requests, row),
                np.delete(arrays.least, row),
                np.delete(arrays.lends, row),
                arrays.divisor,
            )

    def replace(self, row: int, entry: ChildQuota) -> None:
        """A child changed."""
        self._filling = None
        self._replace(row, entry)

    def _replace(self, row: int, entry: ChildQuota) -> None:
        self._count(self._entries[row], -1)
        self._entries[row] = entry
        self._count(entry, 1)
        arrays = self._arrays
        if arrays is None:
            return
        if not self._fits(arrays, entry):
            self._arrays = self._filling = None
            return
        arrays.weights[row] = entry.weight // arrays.divisor
        arrays.requests[row] = entry.request
        arrays.least[row] = entry.least
        arrays.lends[row] = entry.lends

    def ask(self, row: int, request: int, *, is_computed: bool) -> bool:
        """A child asks for something else; whether shares may change. `is_computed`: they are those of now.

        A child that gets less than it asks for, before and after, takes the same part in every round.
        """
        entry = self._entries[row]
        if entry.request == request:
            return False
        stays_short = is_computed and self.share(row) < min(request, entry.request)
        self._former.setdefault(row, entry)
        self._replace(
            row, ChildQuota(weight=entry.weight, request=request, least=entry.least, lends=entry.lends)
        )
        return not stays_short

    def keep(self, row: int, least: int) -> bool:
        """Set what a child is sure of; return whether that changed in this resource."""
        entry = self._entries[row]
        if entry.least == least:
            return False
        if self._shortage is not None:
            self._filling = None  # its floors are scaled ones
        self._former.setdefault(row, entry)
        self._replace(
            row, ChildQuota(weight=entry.weight, request=entry.request, least=least, lends=entry.lends)
        )
        return True

    def _count(self, entry: ChildQuota, sign: int) -> None:
        self._negatives += sign * _is_negative(entry)
        self._weight += sign * entry.weight
        self._asked += sign * entry.request
        self._least += sign * entry.least
        self._enough += sign * _enough(entry)
        self._keepers += sign * (not entry.lends)
        self._unserved += sign * (entry.request > 0 >= entry.weight)

    def _fits(self, arrays: Arrays, entry: ChildQuota) -> bool:
        """Return whether the arrays can take the entry in, all sums included, and weights stay as small as can be."""
        if entry.weight % arrays.divisor:
            divisor = math.gcd(arrays.divisor, entry.weight)
            arrays.weights *= arrays.divisor // divisor
            arrays.divisor = divisor
            self._filling = None
        return self._are_exact(arrays.divisor)

    def _are_exact(self, divisor: int) -> bool:
        whole = max(self._weight // divisor, self._asked, self._least)
        return not self._negatives and whole < runtime.EXACT_MAX

    # Shares

    def compute(self, total: int, shortage: tuple[int, int] | None) -> None:
        """The shares of `total`; `shortage`: what there is, and what all minima are, where these do not fit."""
        if self._have_enough(total, shortage):
            self._shares = None
            if self._filling is None or len(self._former) > CHANGES_MAX:
                self._filling, self._former = None, {}
            return
        arrays = self._as_arrays()
        changes, self._former = self._former, {}
        if arrays is not None:
            filling = self._filling
            if filling is None or shortage != self._shortage or len(changes) > CHANGES_MAX:
                floors = arrays.least
                self._filling = filling = WaterFilling(
                    total,
                    floors=floors if shortage is None else runtime.scaled_mins(floors, *shortage),
                    requests=arrays.requests,
                    weights=arrays.weights,
                    lends=arrays.lends,
                )
                self._shortage = shortage
            else:
                filling.follow(
                    total,
                    {
                        row: (entry.request, None if shortage else entry.least)
                        for row, entry in changes.items()
                    },
                )
            self._shares = filling
            return
        self._filling = None
        least = [entry.least for entry in self._entries]
        self._shares = runtime.shares(
            total,
            floors=least if shortage is None else [runtime.scaled_min(each, *shortage) for each in least],
            requests=[entry.request for entry in self._entries],
            weights=[entry.weight for entry in self._entries],
            lends=[entry.lends for entry in self._entries],
        )

    def _have_enough(self, total: int, shortage: tuple[int, int] | None) -> bool:
        """Return whether it is plain that everybody gets what they ask for, and what is theirs alone."""
        return (
            self._enough <= total
            and not (self._unserved or self._negatives)
            and not (shortage is not None and self._keepers)
        )

    def _as_arrays(self) -> Arrays | None:
        if self._arrays is None and len(self._entries) >= ARRAYS_FROM:
            entries = self._entries
            divisor = math.gcd(*(entry.weight for entry in entries)) or 1
            self._filling = None
            if self._are_exact(divisor):
                self._arrays = Arrays(
                    np.array([entry.weight // divisor for entry in entries], np.int64),
                    np.array([entry.request for entry in entries], np.int64),
                    np.array([entry.least for entry in entries], np.int64),
                    np.array([entry.lends for entry in entries], np.bool_),
                    divisor,
                )
        return self._arrays

    def share(self, row: int) -> int:
        """Return what a child gets."""
        shares = self._shares
        if shares is None:
            return _enough(self._entries[row])
        return shares.share(row) if isinstance(shares, WaterFilling) else shares[row]

    def _all_shares(self) -> Numbers:
        shares = self._shares
        if isinstance(shares, WaterFilling):
            return shares.shares
        if shares is not None:
            return shares
        arrays = self._as_arrays()
        if arrays is None:
            return [_enough(entry) for entry in self._entries]
        return np.where(arrays.lends, arrays.requests, np.maximum(arrays.requests, arrays.least))

    def take_changed(self) -> Sequence[int]:
        """Return rows whose shares differ from those at the last call."""
        shares = self._all_shares()
        reported, self._reported = self._reported, shares
        if isinstance(reported, np.ndarray) and isinstance(shares, np.ndarray):
            changed: list[int] = np.flatnonzero(reported != shares).tolist()
            return changed
        return [row for row, (old, new) in enumerate(zip(reported, shares, strict=True)) if old != new]


def _is_negative(entry: ChildQuota) -> bool:
    return entry.weight < 0 or entry.request < 0 or entry.least < 0


def _enough(entry: ChildQuota) -> int:
    return entry.request if entry.lends else max(entry.request, entry.least)


def _inserted(numbers: Numbers, row: int, number: int) -> Numbers:
    if isinstance(numbers, np.ndarray):
        return np.insert(numbers, row, number)
    return [*numbers[:row], number, *numbers[row:]]


def _without(numbers: Numbers, row: int) -> Numbers:
    if isinstance(numbers, np.ndarray):
        return np.delete(numbers, row)
    return [*numbers[:row], *numbers[row + 1 :]]
