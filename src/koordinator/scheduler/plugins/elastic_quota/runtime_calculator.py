"""The children of one quota and how they share what it has: computed when somebody asks, kept until
something changes. Source: behaviour/elastic-quota 6.2, 6.3 and 7.

A change of one child costs its own entries; who asks next pays for the level. Per resource, the requests, weights and
floors of children stand in lists, in order of their names, and in arrays beside them where there are many and all fit:
both give the same shares, and a level of thousands is a few array operations.
"""

import bisect
import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from koordinator.api.resource_vector import add_in_place
from koordinator.scheduler.plugins.elastic_quota import runtime
from koordinator.scheduler.plugins.elastic_quota.quota import Nanos, Quota, nanos_per_unit, to_units
from koordinator.scheduler.plugins.elastic_quota.runtime import (
    ARRAYS_FROM,
    Column,
    Flags,
    Numbers,
    WaterFilling,
    scaled_min,
)

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
        """Total from which on nobody wants more."""
        self._keepers = 0
        """Children that do not lend."""
        self._unserved = 0
        """Children that ask although nothing is ever shared out to them: they have no weight."""
        for entry in self._entries:
            self._count(entry, 1)
        self._shares: WaterFilling | Sequence[int] | None = []
        """Shares of the last `compute`; None: everybody has enough."""
        self._reported: Numbers = [_UNREPORTED] * len(self._entries)

    # Changes

    def insert(self, row: int, entry: ChildQuota) -> None:
        """Note that a child came."""
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
        """Note that a child went."""
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
        """Note that a child changed."""
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
        self._replace(row, msgspec.structs.replace(entry, request=request))
        return not stays_short

    def keep(self, row: int, least: int) -> bool:
        """Set what a child is sure of; return whether that changed in this resource."""
        entry = self._entries[row]
        if entry.least == least:
            return False
        if self._shortage is not None:
            self._filling = None  # its floors are scaled ones
        self._former.setdefault(row, entry)
        self._replace(row, msgspec.structs.replace(entry, least=least))
        return True

    def _count(self, entry: ChildQuota, sign: int) -> None:
        self._negatives += sign * (entry.weight < 0 or entry.request < 0 or entry.least < 0)
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


class RuntimeCalculator:
    """The amount that a parent has, its children, and their shares of it.

    `version` grows with everything that changes shares. All minima are scaled at once when the parent is short.
    """

    def __init__(self, *, scales_min: bool, keeps_guarantee: bool) -> None:
        self.children: dict[str, Quota] = {}
        self.version = 1
        self._scales_min = scales_min
        self._keeps_guarantee = keeps_guarantee
        self._total: Nanos = {}
        self._sum_of_mins: Nanos = {}
        self._short: dict[str, tuple[int, int]] | None = {}
        """Resources whose minima do not fit: what there is and what all minima are, in units."""
        self._shared: tuple[str, ...] = ()
        self._order: list[str] = []
        """Names of children as the rows of columns, sorted."""
        self._columns: dict[str, ChildQuotas] = {}
        self._computed_version = 0

    # What changes

    def attach(self, child: Quota) -> None:
        """Note that a child came."""
        name = child.spec.name
        self.children[name] = child
        child.runtime_version = 0
        self._count_min(child.min, 1)
        row = bisect.bisect_left(self._order, name)
        self._order.insert(row, name)
        for resource, columns in self._columns.items():
            columns.insert(row, self._entry(child, resource, columns.per_unit))
        self.version += 1

    def detach(self, child: Quota) -> None:
        """Note that a child went; it still has the minimum that it came with."""
        name = child.spec.name
        row = self._row(name)
        del self.children[name], self._order[row]
        self._count_min(child.min, -1)
        for columns in self._columns.values():
            columns.remove(row)
        self.version += 1

    def respecified(self, child: Quota, former_min: Nanos) -> None:
        """Note that the spec of a child changed."""
        self._count_min(former_min, -1)
        self._count_min(child.min, 1)
        row = self._row(child.spec.name)
        for resource, columns in self._columns.items():
            columns.replace(row, self._entry(child, resource, columns.per_unit))
        self.version += 1

    def asks(self, child: Quota, names: Nanos) -> None:
        """Note that a child asks for more or less of the named resources."""
        row = self._row(child.spec.name)
        is_computed = self._computed_version == self.version
        for name in names:
            columns = self._columns.get(name)
            if columns is not None:
                number = to_units(child.limited_request.get(name, 0), columns.per_unit)
                if columns.ask(row, number, is_computed=is_computed):
                    self.version += 1
                    is_computed = False

    def keeps(self, child: Quota) -> None:
        """Note that what a child is guaranteed changed, or its scaled minimum."""
        row, guaranteed = self._row(child.spec.name), child.guaranteed
        for name, columns in self._columns.items():
            if columns.keep(row, self._least(child, guaranteed, name, columns.per_unit)):
                self.version += 1

    def set_total(self, total: Nanos) -> None:
        """Set what there is to share; the same object is the same amounts."""
        if total is not self._total:
            if total != self._total:
                self.version += 1
                self._short = None
            self._total = total

    def set_names(self, names: tuple[str, ...]) -> None:
        """The resources that are shared at all, sorted."""
        if names == self._shared:
            return
        self._shared = names
        children = [self.children[name] for name in self._order]
        self._columns = {}
        for name in names:
            unit = nanos_per_unit(name)
            self._columns[name] = ChildQuotas(unit, [self._entry(child, name, unit) for child in children])
        self.version += 1

    def _row(self, name: str) -> int:
        return bisect.bisect_left(self._order, name)

    def _entry(self, child: Quota, name: str, unit: int) -> ChildQuota:
        return ChildQuota(
            weight=to_units(child.weight.get(name, 0), unit),
            request=to_units(child.limited_request.get(name, 0), unit),
            least=self._least(child, child.guaranteed, name, unit),
            lends=child.lends,
        )

    def _least(self, child: Quota, guaranteed: Nanos, name: str, unit: int) -> int:
        """Return what a child is sure of before scaling."""
        return to_units(max(child.min.get(name, 0), guaranteed.get(name, 0)), unit)

    def _count_min(self, amounts: Nanos, sign: int) -> None:
        add_in_place(self._sum_of_mins, amounts, sign)
        self._short = None

    # Shares

    def refresh(self, child: Quota) -> None:
        """Brings the child's scaled minimum and its runtime up to date."""
        if child.runtime_version == self.version:
            return
        self._compute()
        if self._scales_min:
            child.auto_min = self._scaled(child)
        row = self._row(child.spec.name)
        runtime = {name: columns.share(row) * columns.per_unit for name, columns in self._columns.items()}
        if runtime != child.runtime:
            child.runtime = runtime
        child.runtime_version = self.version

    def take_changed(self) -> list[str]:
        """Return names of children whose shares differ from those at the last call; `refresh` tells the new ones."""
        self._compute()
        rows: set[int] = set()
        for columns in self._columns.values():
            rows.update(columns.take_changed())
        return [self._order[row] for row in sorted(rows)]

    def _compute(self) -> None:
        if self._computed_version == self.version:
            return
        short = self._shortages() if self._scales_min else {}
        for name, columns in self._columns.items():
            total = to_units(self._total.get(name, 0), columns.per_unit)
            columns.compute(total, None if self._keeps_guarantee else short.get(name))
        self._computed_version = self.version

    def _scaled(self, child: Quota) -> Nanos:
        short = self._shortages()
        if not short:
            return child.min
        auto_min = dict(child.min)
        for name, (available, wanted) in short.items():
            unit = nanos_per_unit(name)
            auto_min[name] = scaled_min(to_units(child.min.get(name, 0), unit), available, wanted) * unit
        return auto_min

    def _shortages(self) -> dict[str, tuple[int, int]]:
        if self._short is None:
            self._short = {}
            for name, nanos in self._total.items():
                unit = nanos_per_unit(name)
                available, wanted = to_units(nanos, unit), to_units(self._sum_of_mins.get(name, 0), unit)
                if available < wanted:
                    self._short[name] = (available, wanted)
        return self._short
