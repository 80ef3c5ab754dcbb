"""The children of one quota and how they share what it has: computed when somebody asks, kept until
something changes. Source: spec 06, sections 6.2, 6.3 and 7.

A change of one child costs its own entries; who asks next pays for the level. What children ask for, their
weights and floors stand in columns, so that a level of thousands is a few array operations.
"""

from typing import Any

import msgspec

from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos, nanos_per_unit, to_units
from koordinator.scheduler.plugins.elastic_quota.quota import Quota
from koordinator.scheduler.plugins.elastic_quota.runtime import Numbers, column, reduced, scaled_min, shares


class Columns(msgspec.Struct):
    """One entry per child, in order of their names, in the units of one resource."""

    per_unit: int
    weights: Numbers
    requests: Any
    floors: Any
    """`Numbers` that can be assigned to."""


class Level:
    """What a parent has, its children, and their shares of it.

    `version` grows with everything that changes shares.
    """

    def __init__(self, *, scales_min: bool, keeps_guarantee: bool) -> None:
        self.children: dict[str, Quota] = {}
        self.version = 1
        self._scales_min = scales_min
        self._keeps_guarantee = keeps_guarantee
        self._total: Nanos = {}
        self._names: tuple[str, ...] = ()
        self._sum_of_mins: Nanos = {}
        self._short: dict[str, tuple[int, int]] | None = {}
        self._columns: dict[str, Columns] = {}
        self._rows: dict[str, int] | None = None
        self._lends: list[bool] = []
        self._shares: dict[str, Numbers] = {}
        self._shares_version = 0

    # What changes

    def attach(self, child: Quota) -> None:
        """A child came."""
        self.children[child.spec.name] = child
        self._count_min(child.min, 1)
        self._rebuild()

    def detach(self, child: Quota) -> None:
        """A child went; it still has the minimum that it came with."""
        del self.children[child.spec.name]
        self._count_min(child.min, -1)
        self._rebuild()

    def respecified(self, child: Quota, former_min: Nanos) -> None:
        """The spec of a child changed."""
        self._count_min(former_min, -1)
        self._count_min(child.min, 1)
        self._rebuild()

    def asks(self, child: Quota, names: Nanos) -> None:
        """A child asks for more or less of the named resources."""
        columns, rows = self._columns, self._rows
        if rows is None:
            self.version += 1
            return
        row = rows[child.spec.name]
        for name in names:
            known = columns.get(name)
            if known is not None:
                number = to_units(child.limited_request.get(name, 0), known.per_unit)
                if number != known.requests[row]:
                    self._put(known.requests, row, number)
                    self.version += 1

    def keeps(self, child: Quota) -> None:
        """What a child is guaranteed changed, or its scaled minimum."""
        if self._rows is not None:
            row = self._rows[child.spec.name]
            for name, numbers in self._columns.items():
                self._put(numbers.floors, row, self._floor(child, name, numbers.per_unit))
        self.version += 1

    def set_total(self, total: Nanos) -> None:
        """What there is to share; the same object is the same amounts."""
        if total is not self._total:
            if total != self._total:
                self.version += 1
                self._short = None
            self._total = total

    def set_names(self, names: tuple[str, ...]) -> None:
        """The resources that are shared at all, sorted."""
        if names != self._names:
            self._names = names
            self._rebuild()

    def _put(self, numbers: Any, row: int, number: int) -> None:
        try:
            numbers[row] = number
        except OverflowError:
            self._rows = None  # the column becomes a list when it is filled again

    def _rebuild(self) -> None:
        self._rows = self._short = None
        self.version += 1

    def _count_min(self, amounts: Nanos, sign: int) -> None:
        sums = self._sum_of_mins
        for name, number in amounts.items():
            sums[name] = sums.get(name, 0) + sign * number

    # Shares

    def refresh(self, child: Quota) -> None:
        """Brings the child's scaled minimum and its runtime up to date."""
        if self._scales_min:
            self._scale(child)
        if child.runtime_version == self.version:
            return
        if self._shares_version != self.version:
            self._compute()
        assert self._rows is not None
        row = self._rows[child.spec.name]
        runtime = {
            name: int(self._shares[name][row]) * numbers.per_unit for name, numbers in self._columns.items()
        }
        if runtime != child.runtime:
            child.runtime = runtime
        child.runtime_version = self.version

    def _scale(self, child: Quota) -> None:
        if self._short is None:
            self._short = dict(self._shortages())
        if not self._short:
            auto_min = child.min
        else:
            auto_min = dict(child.min)
            for name, (available, wanted) in self._short.items():
                unit = nanos_per_unit(name)
                minimum = to_units(child.min.get(name, 0), unit)
                auto_min[name] = scaled_min(minimum, available, wanted) * unit
        if auto_min != child.auto_min:
            child.auto_min = auto_min
            self.keeps(child)

    def _shortages(self) -> "list[tuple[str, tuple[int, int]]]":
        """Resources whose minima do not fit: what there is and what all minima are, in units."""
        short = []
        for name, nanos in self._total.items():
            unit = nanos_per_unit(name)
            available, wanted = to_units(nanos, unit), to_units(self._sum_of_mins.get(name, 0), unit)
            if available < wanted:
                short.append((name, (available, wanted)))
        return short

    def _compute(self) -> None:
        if self._rows is None:
            self._fill()
        self._shares = {
            name: shares(
                to_units(self._total.get(name, 0), numbers.per_unit),
                floors=numbers.floors,
                requests=numbers.requests,
                weights=numbers.weights,
                lends=self._lends,
            )
            for name, numbers in self._columns.items()
        }
        self._shares_version = self.version

    def _fill(self) -> None:
        children = [self.children[name] for name in sorted(self.children)]
        self._rows = {child.spec.name: row for row, child in enumerate(children)}
        self._lends = [child.lends for child in children]
        self._columns = {}
        for name in self._names:
            unit = nanos_per_unit(name)
            self._columns[name] = Columns(
                per_unit=unit,
                weights=column(reduced([to_units(child.weight.get(name, 0), unit) for child in children])),
                requests=column([to_units(child.limited_request.get(name, 0), unit) for child in children]),
                floors=column([self._floor(child, name, unit) for child in children]),
            )

    def _floor(self, child: Quota, name: str, unit: int) -> int:
        minimum = to_units(child.auto_min.get(name, 0), unit)
        if not self._keeps_guarantee:
            return minimum
        return max(minimum, to_units(child.guaranteed.get(name, 0), unit))
