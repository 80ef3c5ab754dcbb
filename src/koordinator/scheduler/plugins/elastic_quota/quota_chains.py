"""From a quota up to the root of its tree."""

from collections.abc import Mapping

import msgspec

from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos
from koordinator.scheduler.plugins.elastic_quota.quota import OUTSIDE_THE_SHARES, ROOT, Quota


class QuotaChain(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Whatever counts a pod of a quota: the sums share lists with the quotas, which change in place."""

    quotas: tuple[Quota, ...]
    """The quota and those of its ancestors that are known, from the quota up."""
    names: tuple[str, ...]
    """Theirs."""
    used: tuple[Nanos, ...]
    """What its own pods use, then what is used below each of `quotas`."""
    non_preemptible_used: tuple[Nanos, ...]
    is_outside: bool
    """Whether one of them takes what it uses out of the pool."""


class QuotaChains:
    """Paths and ways in a tree of quotas; ways are remembered until `forget`."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._known: dict[str, QuotaChain] = {}

    def forget(self) -> None:
        """A quota came, went or moved."""
        self._known.clear()

    def path(self, name: str) -> list[str]:
        """From the quota up: itself, its parent, and so on; the last one is the root, or a name that is not
        known (or was met before) where the tree is broken."""
        path: list[str] = []
        while name not in path:
            path.append(name)
            if name == ROOT or name not in self._quotas:
                break
            name = self._quotas[name].spec.parent
        return path

    def of(self, quota: Quota) -> QuotaChain:
        """The way of a quota of the tree."""
        name = quota.spec.name
        way = self._known.get(name)
        if way is None:
            way = self._known[name] = self._found(quota)
        return way

    def _found(self, quota: Quota) -> QuotaChain:
        path = (self._quotas.get(name) for name in self.path(quota.spec.name))
        quotas = tuple(each for each in path if each is not None)
        names = tuple(each.spec.name for each in quotas)
        sums = (quota.own, *(each.below for each in quotas))
        return QuotaChain(
            quotas=quotas,
            names=names,
            used=tuple(each.used for each in sums),
            non_preemptible_used=tuple(each.non_preemptible_used for each in sums),
            is_outside=not OUTSIDE_THE_SHARES.isdisjoint(names),
        )
