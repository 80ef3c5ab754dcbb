"""Explain what a pod meets at its quota, and what would help: each change is computed on a copy of the tree around the
path of the quota, with the rules of the scheduler. Source: behaviour/elastic-quota 6, 7 and 13."""

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_list import mask
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.explain.answer import QuotaAnswer, QuotaExcess, QuotaLevel, QuotaLoan, Remedy
from koordinator.scheduler.explain.quota_forest import is_unreached, text
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.elastic_quota.admission import ROOT_SHOWN, AdmissionReason
from koordinator.scheduler.plugins.elastic_quota.checks import PodQuota
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from koordinator.scheduler.plugins.elastic_quota.quota import (
    OUTSIDE_THE_SHARES,
    ROOT,
    Nanos,
    Quota,
    QuotaPodRequest,
    amounts_of,
    nanos_of,
    nanos_per_unit,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from koordinator.scheduler.table.pod_info import PodInfo

SIBLINGS_MAX = 512
"""Quotas on the path and beside it that a copy may have; around larger ones no changes are tried."""
GIVERS_MAX = 3


def _quota_of(profile: Profile, pod: PodInfo) -> tuple[ElasticQuota, PodQuota] | None:
    """Return the profile's quotas and the one of the pod; None where no quota has a say."""
    plugin = profile.find(ElasticQuota)
    place = plugin.checks.place_of(pod.pod) if plugin is not None else None
    return (plugin, place) if plugin is not None and isinstance(place, PodQuota) else None


def explain_quota(profile: Profile, pod: PodInfo, count: int = 1) -> QuotaAnswer | None:
    """Return how the quota of so many pods like this one stands; None where no quota has a say."""
    found = _quota_of(profile, pod)
    standing = found[0].standing(pod, count) if found is not None else None
    if found is None or standing is None:
        return None
    _, place = found
    decision = standing.decision
    return QuotaAnswer(
        quota=place.ref.name,
        path=standing.path,
        fits=decision.is_allowed,
        sentence=standing.text,
        exceeded=list(decision.exceeded),
        levels=_levels(place, sorted(decision.request)),
        loans=[
            QuotaLoan(lender=loan.lender, amounts={name: each.text for name, each in loan.amounts.items()})
            for loan in standing.loans
        ],
        above=_above(place, decision.request) if decision.is_allowed else [],
    )


def _above(place: PodQuota, names: Iterable[str]) -> list[QuotaExcess]:
    """Quotas beside the path, up to the root, that use more than their runtime."""
    tree, found = place.tree, []
    for name in place.tree.path(place.ref.name)[:-1]:
        for quota in _siblings(tree, name):
            used, runtime = quota.below.used, quota.runtime
            excess = {each: used.get(each, 0) - runtime[each] for each in names if each in runtime}
            excess = {each: more for each, more in excess.items() if more > 0}
            if excess:
                found.append((max(excess.values()), _shown_path(tree, quota.spec.name), excess))
    found.sort(key=lambda each: (-each[0], each[1]))
    return [
        QuotaExcess(quota=name, amounts={each: text(each, more) for each, more in excess.items()})
        for _, name, excess in found[:GIVERS_MAX]
    ]


def _siblings(tree: GroupQuotaTree, name: str) -> list[Quota]:
    """Return the siblings as they stand now; none where there are too many to look at all."""
    names = tree.children(_parent(tree, name))
    beside = (tree.bring_up_to_date(each) for each in names if each != name and len(names) <= SIBLINGS_MAX)
    return [quota for quota in beside if quota is not None]


def _shown_path(tree: GroupQuotaTree, name: str) -> str:
    return "/".join(ROOT_SHOWN if each == ROOT else each for each in reversed(tree.path(name)))


def _levels(place: PodQuota, names: list[str]) -> list[QuotaLevel]:
    levels = []
    for name in reversed(place.tree.path(place.ref.name)):
        quota = place.tree.get(name)
        if quota is None or name == ROOT:
            continue
        levels += [_level(place.tree, quota, resource) for resource in names if resource in quota.max]
    return levels


def _level(tree: GroupQuotaTree, quota: Quota, resource: str) -> QuotaLevel:
    runtime, asked = quota.runtime.get(resource), quota.request.get(resource, 0)
    held_by = ""
    if runtime is not None and runtime < asked:
        held_by = "max" if runtime >= quota.max[resource] else _rivals_of(tree, quota, resource)
    return QuotaLevel(
        quota=quota.spec.name,
        resource=resource,
        used=text(resource, quota.below.used.get(resource, 0)),
        runtime="" if runtime is None else text(resource, runtime),
        request=text(resource, asked),
        min=text(resource, quota.min.get(resource, 0)),
        max=_ceiling(resource, quota.max[resource]),
        held_by=held_by,
    )


def _rivals_of(tree: GroupQuotaTree, quota: Quota, resource: str) -> str:
    """Return who has what the quota lacks."""
    siblings = _siblings(tree, quota.spec.name)
    if not siblings and len(tree.children(quota.spec.parent)) > 1:
        return "siblings"  # too many to look at
    if any(each.runtime.get(resource, 0) for each in siblings):
        return "siblings"
    return "nodes" if quota.spec.parent == ROOT else "parent"


def _ceiling(resource: str, nanos: int) -> str:
    """Empty for none."""
    return "" if is_unreached(nanos) else text(resource, nanos)


# What would help


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    """The difference from the present state. Amounts of one resource in 10^-9 units; `asks` are added to what quotas
    ask for."""

    mins: Mapping[str, int] = {}
    maxes: Mapping[str, int] = {}
    asks: Mapping[str, int] = {}
    used: int = 0
    """Added to what the pod's quota uses."""
    ask: int = 0
    """Added to what the pod asks for."""
    total: int = 0


def room_in_quota(profile: Profile, pod: PodInfo, wanted: int) -> tuple[int, Status]:
    """Return how many pods like this one, `wanted` at most, their quota lets in together, and why not all of them."""
    found = _quota_of(profile, pod)
    if found is None:
        return wanted, SUCCESS
    plugin, place = found
    decision = plugin.checks.decide(pod.pod, place, wanted)
    if decision.is_allowed:
        return wanted, SUCCESS

    def is_too_many(count: int) -> bool:
        return not plugin.checks.decide(pod.pod, place, count).is_allowed

    allowed = bisect.bisect_left(range(1, wanted), True, key=is_too_many)
    return allowed, unschedulable(decision.message).by(plugin.name)


def remedies(profile: Profile, pod: PodInfo, count: int = 1) -> list[Remedy]:
    """Changes after which the quota has room for so many pods like this one, each with the least that does."""
    found = _quota_of(profile, pod)
    if found is None:
        return []
    plugin, place = found
    try:
        decision = plugin.checks.decide(pod.pod, place, count)
        request = mask(plugin.checks.request_of(pod.pod, place.quota), place.quota.max)
        request = {name: count * number for name, number in request.items()}
    except (QuantityError, ProtocolError):
        return []
    if decision.reason is AdmissionReason.NON_PREEMPTIBLE:
        what_ifs = [WhatIf(place, name, request[name], plugin.checks.limit_of) for name in decision.exceeded]
        return _room_for_firm(place, what_ifs)
    if decision.is_allowed or len(decision.exceeded) != 1 or decision.quota != place.ref.name:
        return []
    [name] = decision.exceeded
    what_if = WhatIf(place, name, request[name], plugin.checks.limit_of)
    return what_if.remedies(count) if what_if.is_faithful else []


def _room_for_firm(place: PodQuota, what_ifs: "Sequence[WhatIf]") -> list[Remedy]:
    """For a pod that cannot be preempted, and goes without what is lent."""
    raised = [text for each in what_ifs for text in each.raised_for_firm()]
    made = {"quota-min": f"raise {' and '.join(raised)}"}
    ended = [each.firm_to_end() for each in what_ifs]
    if all(ended):
        those = f"pods of {place.ref.name} that cannot be preempted and use {' and '.join(ended)}"
        made = {"quota-own": f"wait until {those} have ended"} | made
    return [Remedy(kind=kind, change=change) for kind, change in made.items()]


class WhatIf:
    """The quotas on the path of one, and those beside it, in one resource."""

    def __init__(self, place: PodQuota, resource: str, ask: int, limit_of: Callable[[Quota], Nanos]) -> None:
        self._place, self._resource, self._ask = place, resource, ask
        tree = place.tree
        self._path = [name for name in tree.path(place.ref.name) if name != ROOT]
        self._quotas: dict[str, Quota] = {}
        for name in self._path:
            for sibling in tree.children(_parent(tree, name)):
                quota = tree.get(sibling)
                if quota is not None and sibling not in OUTSIDE_THE_SHARES:
                    self._quotas[sibling] = quota
        self._limit = limit_of(place.quota).get(resource)
        is_small = len(self._quotas) <= SIBLINGS_MAX and place.ref.name in self._quotas
        self.is_faithful = (
            is_small and self._limit is not None and self._runtime(QuotaChange()) == self._limit
        )

    # The copy

    def _runtime(self, change: QuotaChange) -> int:
        """Return what the quota may use after a change."""
        copy = self._place.tree.bare()
        resource = self._resource
        pool = dict(nanos_of(self._place.tree.pool))
        pool[resource] = pool.get(resource, 0) + change.total
        copy.total = amounts_of(pool)
        for name in sorted(self._quotas, key=lambda each: each in self._path):
            self._add(copy, name, change)
        copy.bring_up_to_date(self._place.ref.name)
        found = copy.get(self._place.ref.name)
        assert found is not None, self._place.ref.name
        return found.runtime.get(resource, 0)

    def _add(self, copy: GroupQuotaTree, name: str, change: QuotaChange) -> None:
        quota, resource = self._quotas[name], self._resource
        low, high = {resource: quota.min.get(resource, 0)}, {resource: quota.max.get(resource, 0)}
        low[resource] = change.mins.get(name, low[resource])
        high[resource] = change.maxes.get(name, high[resource])
        spec = msgspec.structs.replace(
            quota.spec,
            min=amounts_of(low),
            max=amounts_of(high),
            weight=amounts_of({resource: quota.weight.get(resource, 0)}),
        )
        copy.set_quota(spec)
        is_above = name in self._path and name != self._place.ref.name
        sums = quota.own if is_above else quota.below
        asked = max(sums.request.get(resource, 0) + change.asks.get(name, 0), 0)
        copy.add_pod(name, QuotaPodRequest(key=f"all of {name}", request=amounts_of({resource: asked})))

    def _fits(self, change: QuotaChange) -> bool:
        used = self._place.quota.below.used.get(self._resource, 0) + change.used
        return used + self._ask + change.ask <= self._runtime(change)

    def _least(self, change_of: Callable[[int], QuotaChange], most: int) -> int | None:
        """Return the smallest whole amount, at most `most`, with which the pod fits; None when even that does not
        do."""
        unit = nanos_per_unit(self._resource)
        high = -(-most // unit)
        if high <= 0 or not self._fits(change_of(high * unit)):
            return None
        smaller = range(1, high)
        too_small = bisect.bisect_left(smaller, True, key=lambda units: self._fits(change_of(units * unit)))
        return (too_small + 1) * unit

    # Changes

    def _missing_for_firm(self) -> int:
        quota = self._place.quota
        used = quota.below.non_preemptible_used.get(self._resource, 0)
        return used + self._ask - quota.min.get(self._resource, 0)

    def firm_to_end(self) -> str:
        """`3 of cpu`: by how much the pods that cannot be preempted would be above the minimum; empty when the pod
        alone is."""
        if self._ask > self._place.quota.min.get(self._resource, 0):
            return ""
        return f"{self._amount(self._missing_for_firm())} of {self._resource}"

    def raised_for_firm(self) -> list[str]:
        """Minima of the quota and of those above it that then have too little for their children."""
        mins = self._mins(self._missing_for_firm())
        return [self._raised("min", name, self._quotas[name].min, value) for name, value in mins.items()]

    def remedies(self, count: int = 1) -> list[Remedy]:
        """Return the remedies of the `count` pods that ask together first, then of their quota, then of others."""
        return [
            *self._ask_less(count),
            *self._end_own(),
            *self._raise_max(),
            *self._raise_min(),
            *self._take_back(),
            *self._add_nodes(),
        ]

    def _remedy(self, kind: str, change: str) -> list[Remedy]:
        return [Remedy(kind=kind, change=change)]

    def _amount(self, nanos: int) -> str:
        return text(self._resource, nanos)

    def _ask_less(self, count: int) -> list[Remedy]:
        name = self._place.ref.name
        least = self._least(lambda less: QuotaChange(ask=-less, asks={name: -less}), self._ask)
        if least is None or least >= self._ask:
            return []
        most = (self._ask - least) // count
        if count > 1:
            most -= most % nanos_per_unit(self._resource)
        if not most:
            return []
        asked = self._amount(self._ask // count)
        change = f"lower the {self._resource} request from {asked} to at most {self._amount(most)}"
        return self._remedy("requests", f"{change}, on every member" if count > 1 else change)

    def _end_own(self) -> list[Remedy]:
        name, used = self._place.ref.name, self._place.quota.below.used.get(self._resource, 0)
        least = self._least(lambda gone: QuotaChange(used=-gone, asks={name: -gone}), used)
        if least is None:
            return []
        return self._remedy(
            "quota-own",
            f"wait until pods of {name} that use {self._amount(least)} of {self._resource} have ended",
        )

    def _raise_max(self) -> list[Remedy]:
        """Return the remedies that raise the max of the quota, and of those above it that are as tight."""
        need = self._place.quota.below.used.get(self._resource, 0) + self._ask
        maxes: dict[str, int] = {}
        for name in self._path:
            if self._fits(QuotaChange(maxes=maxes)):
                break
            high = self._quotas[name].max.get(self._resource, 0)
            grown = need - self._place.quota.max.get(self._resource, 0)
            if name == self._place.ref.name and grown <= 0:
                return []
            maxes[name] = high + grown
        if not maxes or not self._fits(QuotaChange(maxes=maxes)):
            return []
        raised = [self._raised("max", name, self._quotas[name].max, high) for name, high in maxes.items()]
        return self._remedy("quota-max", f"raise {' and '.join(raised)}")

    def _raise_min(self) -> list[Remedy]:
        """Return the remedies that raise the min of the quota as far as needed, and of those above it that then have
        too little for their children."""
        name = self._place.ref.name
        low, high = self._quotas[name].min.get(self._resource, 0), self._quotas[name].max[self._resource]
        least = self._least(lambda more: QuotaChange(mins=self._mins(more)), high - low)
        if least is None:
            return []
        mins = self._mins(least)
        if any(value > self._quotas[each].max.get(self._resource, 0) for each, value in mins.items()):
            return []
        raised = [self._raised("min", each, self._quotas[each].min, value) for each, value in mins.items()]
        return self._remedy("quota-min", f"raise {' and '.join(raised)}")

    def _mins(self, more: int) -> dict[str, int]:
        """Minima along the path when that of the quota grows: the children's must not add up to more."""
        resource, found = self._resource, dict[str, int]()
        for name in self._path:
            low = self._quotas[name].min.get(resource, 0)
            if more <= 0:
                break
            found[name] = low + more
            parent = _parent(self._place.tree, name)
            if parent == ROOT:
                break
            siblings = [each for each in self._quotas.values() if each.spec.parent == parent]
            slack = self._quotas[parent].min.get(resource, 0) - sum(s.min.get(resource, 0) for s in siblings)
            more = more - max(slack, 0)
        return found

    def _raised(self, field: str, name: str, before: Nanos, after: int) -> str:
        now = self._amount(before.get(self._resource, 0))
        return f"{self._resource} in {field} of {name} from {now} to {self._amount(after)}"

    def _take_back(self) -> list[Remedy]:
        """Quotas beside the path that use more than their minimum: what the first of them has to ask for less."""
        made: list[Remedy] = []
        over = {
            name: quota.below.used.get(self._resource, 0) - quota.min.get(self._resource, 0)
            for name, quota in self._quotas.items()
            if name not in self._path
        }
        for name in sorted((each for each in over if over[each] > 0), key=lambda each: (-over[each], each)):
            asked = self._quotas[name].below.request.get(self._resource, 0)
            least = self._least(partial(_asks_less, name), asked)
            if least is not None:
                change = (
                    f"have {name} ask for {self._amount(least)} of {self._resource} less: it uses "
                    f"{self._amount(over[name])} more than its min"
                )
                made += self._remedy("quota-lent", change)
            if len(made) == GIVERS_MAX:
                break
        return made

    def _add_nodes(self) -> list[Remedy]:
        if self._place.ref.tree_id:
            return []
        least = self._least(lambda more: QuotaChange(total=more), 64 * max(self._ask, 1))
        if least is None:
            return []
        return self._remedy("node", f"add nodes with {self._amount(least)} of {self._resource}")


def _asks_less(name: str, less: int) -> QuotaChange:
    return QuotaChange(asks={name: -less})


def _parent(tree: GroupQuotaTree, name: str) -> str:
    quota = tree.get(name)
    return quota.spec.parent if quota is not None else ROOT


def refused_by_quota(status: Status) -> bool:
    """Return whether it is its quota that keeps a pod waiting."""
    return status.plugin == ElasticQuota.name and status.is_rejected
