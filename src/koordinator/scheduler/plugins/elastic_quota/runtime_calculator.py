"""The children of one quota and how they share what it has: computed when somebody asks, kept until
something changes. Source: behaviour/elastic-quota 6.2, 6.3 and 7.

A change of one child costs its own entries; who asks next pays for the level. The requests, weights and floors of
children stand in columns (`child_quotas`), so that a level of thousands is a few array operations.
"""

import bisect

from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos, nanos_per_unit, to_units
from koordinator.scheduler.plugins.elastic_quota.child_quotas import ChildQuota, ChildQuotas
from koordinator.scheduler.plugins.elastic_quota.quota import Quota
from koordinator.scheduler.plugins.elastic_quota.runtime import scaled_min


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
        """A child came."""
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
        """A child went; it still has the minimum that it came with."""
        name = child.spec.name
        row = self._row(name)
        del self.children[name], self._order[row]
        self._count_min(child.min, -1)
        for columns in self._columns.values():
            columns.remove(row)
        self.version += 1

    def respecified(self, child: Quota, former_min: Nanos) -> None:
        """The spec of a child changed."""
        self._count_min(former_min, -1)
        self._count_min(child.min, 1)
        row = self._row(child.spec.name)
        for resource, columns in self._columns.items():
            columns.replace(row, self._entry(child, resource, columns.per_unit))
        self.version += 1

    def asks(self, child: Quota, names: Nanos) -> None:
        """A child asks for more or less of the named resources."""
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
        row, guaranteed = self._row(child.spec.name), self._guaranteed(child)
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
            least=self._least(child, self._guaranteed(child), name, unit),
            lends=child.lends,
        )

    def _guaranteed(self, child: Quota) -> Nanos:
        return child.guaranteed if self._keeps_guarantee else {}

    def _least(self, child: Quota, guaranteed: Nanos, name: str, unit: int) -> int:
        """Return what a child is sure of before scaling."""
        return to_units(max(child.min.get(name, 0), guaranteed.get(name, 0)), unit)

    def _count_min(self, amounts: Nanos, sign: int) -> None:
        sums = self._sum_of_mins
        for name, number in amounts.items():
            sums[name] = sums.get(name, 0) + sign * number
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
            minimum = to_units(child.min.get(name, 0), unit)
            auto_min[name] = scaled_min(minimum, available, wanted) * unit
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
