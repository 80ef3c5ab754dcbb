"""The children of one quota and how they share what it has: computed when somebody asks, kept until
something changes. Source: spec 06, sections 6.2, 6.3 and 7.
"""

from collections.abc import Callable

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.plugins.elastic_quota.amounts import of_units, units
from koordinator.scheduler.plugins.elastic_quota.quota import Quota
from koordinator.scheduler.plugins.elastic_quota.runtime import Claim, fair_shares, scaled_min

Children = Callable[[], list[Quota]]
"""Asked only when something has changed, since there may be thousands."""


class Level:
    """What a parent has, and its children's shares of it."""

    def __init__(self) -> None:
        self._total: Amounts = {}
        self._names: frozenset[str] = frozenset()
        self._shares: dict[str, Amounts] | None = None
        self._sum_of_mins: Amounts | None = None

    def changed(self) -> None:
        """A child's numbers changed: the shares are computed anew on the next question."""
        self._shares = None

    def children_changed(self) -> None:
        """A child came, went, or got another minimum."""
        self._shares = self._sum_of_mins = None

    def set_total(self, total: Amounts, names: frozenset[str]) -> None:
        """What there is to share, and the resources that are shared at all."""
        if total != self._total or names != self._names:
            self._total, self._names, self._shares = total, names, None

    def auto_min(self, child: Quota, children: Children) -> Amounts:
        """The child's minimum, scaled down in the resources that do not suffice for all minima."""
        if self._sum_of_mins is None:
            self._sum_of_mins = resource_list.sum_of(each.spec.min for each in children())
        scaled = dict(child.spec.min)
        for name in self._total:
            available = units(name, self._total)
            wanted = units(name, self._sum_of_mins)
            if available < wanted:
                scaled[name] = of_units(name, scaled_min(units(name, child.spec.min), available, wanted))
        return scaled

    def share(self, child: Quota, children: Children, *, keeps_guarantee: bool) -> Amounts:
        """What the child may use now, in the resources that are shared."""
        if self._shares is None:
            self._shares = self._computed(children(), keeps_guarantee)
        return self._shares[child.spec.name]

    def _computed(self, children: list[Quota], keeps_guarantee: bool) -> dict[str, Amounts]:
        shares: dict[str, Amounts] = {child.spec.name: {} for child in children}
        asked = {child.spec.name: child.limited_request for child in children}
        kept = {child.spec.name: child.guaranteed if keeps_guarantee else {} for child in children}
        for resource in sorted(self._names):
            claims = [
                Claim(
                    name=child.spec.name,
                    weight=units(resource, child.spec.weight),
                    request=units(resource, asked[child.spec.name]),
                    min=units(resource, child.auto_min),
                    guarantee=units(resource, kept[child.spec.name]),
                    lends=child.lends,
                )
                for child in children
            ]
            for name, number in fair_shares(units(resource, self._total), claims).items():
                shares[name][resource] = of_units(resource, number)
        return shares
