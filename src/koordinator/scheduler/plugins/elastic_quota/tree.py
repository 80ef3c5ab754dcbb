"""A tree of quotas: counts pods and passes demand up, hands runtime down.

Policy is in `runtime`; here is the bookkeeping, driven by events. Nothing here knows the time or an API.
Amounts that a pod added are taken away exactly as they were added. Source: spec 06, sections 5 to 11.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts, add, mask, sub
from koordinator.scheduler.plugins.elastic_quota.amounts import accumulate, names_of
from koordinator.scheduler.plugins.elastic_quota.level import Level
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    OUTSIDE_THE_SHARES,
    ROOT,
    SYSTEM,
    Counted,
    PodAsk,
    Quota,
    QuotaSpec,
    Sums,
)


class QuotaTree:
    """All quotas with one tree id. The root is always there; `reserved` are the maxima of the system and
    the default quota, which only the default tree has."""

    def __init__(
        self,
        *,
        reserved: Mapping[str, Amounts] | None = None,
        scales_min: bool = True,
        keeps_guarantee: bool = False,
    ) -> None:
        self.total: Amounts = {}
        """What there is in all, in use by the reserved quotas or not."""
        self._scales_min = scales_min
        self._keeps_guarantee = keeps_guarantee
        root = QuotaSpec(name=ROOT, parent="", is_parent=True)
        self._quotas: dict[str, Quota] = {ROOT: Quota(spec=root, lends=True, auto_min={})}
        self._children: dict[str, set[str]] = {}
        self._levels: dict[str, Level] = {}
        self._root_names: frozenset[str] | None = None
        for name, ceiling in (reserved or {}).items():
            self.set_quota(QuotaSpec(name=name, max=ceiling))

    # What is known

    def get(self, name: str) -> Quota | None:
        """The quota, to be read only; None when there is none of the name."""
        return self._quotas.get(name)

    def names(self) -> list[str]:
        """Names of all quotas, sorted."""
        return sorted(self._quotas)

    @property
    def pool(self) -> Amounts:
        """What the quotas share: all, less what system and default pods use. Can be negative."""
        pool = self.total
        for name in (SYSTEM, DEFAULT):
            if quota := self._quotas.get(name):
                pool = sub(pool, quota.below.used)
        return pool

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

    def _upwards(self, name: str) -> Iterator[Quota]:
        """The quota and its known ancestors."""
        return (self._quotas[each] for each in self.path(name) if each in self._quotas)

    def _level(self, parent: str) -> Level:
        return self._levels.setdefault(parent, Level())

    def _sharing(self, parent: str) -> list[Quota]:
        """The children that share what the parent has."""
        names = sorted(self._children.get(parent, set()) - OUTSIDE_THE_SHARES)
        return [self._quotas[name] for name in names]

    def _names(self, parent: str) -> frozenset[str]:
        """The resources that the parent's children share."""
        if parent != ROOT:
            return frozenset(self._quotas[parent].spec.max)
        if self._root_names is None:
            counted = self._quotas.keys() - OUTSIDE_THE_SHARES
            self._root_names = names_of(self._quotas[name].spec.max for name in counted)
        return self._root_names

    # Quotas

    def set_quota(self, spec: QuotaSpec) -> None:
        """A quota is new or has changed. Parents may come later than their children."""
        if spec.name == ROOT:
            return
        lends = spec.lends and not self._keeps_guarantee
        quota = self._quotas.get(spec.name)
        if quota is None:
            quota = Quota(
                spec=spec, lends=lends, auto_min=dict(spec.min), below=self._from_children(spec.name)
            )
            self._quotas[spec.name] = quota
            self._attach(quota)
        elif quota.spec.parent != spec.parent:
            self._detach(quota)
            quota.spec, quota.lends, quota.auto_min = spec, lends, dict(spec.min)
            self._attach(quota)
        elif quota.spec != spec:
            before, turned = quota.limited_request, quota.spec.is_parent != spec.is_parent
            quota.spec, quota.lends, quota.auto_min = spec, lends, dict(spec.min)
            self._root_names = None
            self._level(spec.parent).children_changed()
            delta = sub(quota.limited_request, before)
            self._pass_on(spec.parent, Sums(request=delta))
            if turned and self._keeps_guarantee:
                self._allocate(quota)
            self._guarantee(quota)

    def remove_quota(self, name: str) -> None:
        """A quota is gone, with what its pods asked for. The reserved ones stay."""
        quota = self._quotas.get(name)
        if quota is None or name == ROOT or name in OUTSIDE_THE_SHARES:
            return
        self._detach(quota)
        del self._quotas[name]
        self._levels.pop(name, None)

    def _from_children(self, name: str) -> Sums:
        """What children pass on that were there before their parent."""
        sums = Sums()
        for child in self._children.get(name, ()):
            sums = _sum(sums, _passed_on(self._quotas[child]))
        return sums

    def _attach(self, quota: Quota) -> None:
        parent = quota.spec.parent
        self._children.setdefault(parent, set()).add(quota.spec.name)
        self._root_names = None
        self._level(parent).children_changed()
        self._pass_on(parent, _passed_on(quota))
        self._guarantee(quota)

    def _detach(self, quota: Quota) -> None:
        parent = quota.spec.parent
        self._children[parent].discard(quota.spec.name)
        self._root_names = None
        self._level(parent).children_changed()
        self._pass_on(parent, _negative(_passed_on(quota)))
        self._guarantee_from(parent)

    # Demand goes up

    def _pass_on(self, name: str, delta: Sums) -> None:
        """Adds to the sums of a quota and its ancestors; a parent sees requests within max only."""
        request = delta.request
        for quota in self._upwards(name):
            before, sums = quota.limited_request, quota.below
            quota.below = Sums(
                request=accumulate(sums.request, request),
                non_preemptible_request=accumulate(
                    sums.non_preemptible_request, delta.non_preemptible_request
                ),
                used=accumulate(sums.used, delta.used),
                non_preemptible_used=accumulate(sums.non_preemptible_used, delta.non_preemptible_used),
            )
            request = sub(quota.limited_request, before)
            if any(request.values()):
                self._level(quota.spec.parent).changed()

    def _guarantee(self, quota: Quota) -> None:
        """Brings up to date what the quota and its ancestors never give back."""
        if not self._keeps_guarantee:
            return
        name = quota.spec.name
        if quota.spec.is_parent or self._children.get(name):
            self._guarantee_from(name)
        else:
            self._guarantee_from(quota.spec.parent)

    def _guarantee_from(self, name: str) -> None:
        if not self._keeps_guarantee:
            return
        for quota in self._upwards(name):
            children = self._sharing(quota.spec.name)
            quota.allocated = resource_list.sum_of(child.guaranteed for child in children)
            self._level(quota.spec.name).changed()

    # Pods

    def add_pod(self, quota_name: str, pod: PodAsk) -> None:
        """A pod was created, or seen for the first time."""
        quota = self._quotas.get(quota_name)
        if quota is None or pod.key in quota.pods or pod.is_ignored:
            return
        self._count(quota, pod, is_assigned=_takes_up(pod))

    def update_pod(self, quota_name: str, pod: PodAsk, was_in: str | None = None) -> None:
        """A pod changed; `was_in` is its former quota when that is another one."""
        if was_in is not None and was_in != quota_name:
            self.remove_pod(was_in, pod.key)
            self.add_pod(quota_name, pod)
            return
        quota = self._quotas.get(quota_name)
        if quota is None:
            return
        if pod.is_ignored:
            self.remove_pod(quota_name, pod.key)
            return
        known = quota.pods.get(pod.key)
        is_assigned = _takes_up(pod) or (known is not None and known.is_assigned)
        self._count(quota, pod, is_assigned=is_assigned)

    def remove_pod(self, quota_name: str, key: str) -> None:
        """A pod is gone, or no longer counts."""
        quota = self._quotas.get(quota_name)
        if quota is not None and key in quota.pods:
            self._replace(quota, key, None)

    def reserve(self, quota_name: str, key: str) -> None:
        """A node was found for the pod: from now on it uses its quota. Idempotent."""
        self._assign(quota_name, key, is_assigned=True)

    def unreserve(self, quota_name: str, key: str) -> None:
        """The node was given up. Idempotent."""
        self._assign(quota_name, key, is_assigned=False)

    def _assign(self, quota_name: str, key: str, *, is_assigned: bool) -> None:
        quota = self._quotas.get(quota_name)
        known = quota.pods.get(key) if quota is not None else None
        if quota is None or known is None or known.is_assigned == is_assigned:
            return
        counted = Counted(amounts=known.amounts, is_preemptible=known.is_preemptible, is_assigned=is_assigned)
        self._replace(quota, key, counted)

    def _count(self, quota: Quota, pod: PodAsk, *, is_assigned: bool) -> None:
        amounts = mask(pod.request, quota.spec.max)
        counted = Counted(amounts=amounts, is_preemptible=pod.is_preemptible, is_assigned=is_assigned)
        self._replace(quota, pod.key, counted)

    def _replace(self, quota: Quota, key: str, counted: Counted | None) -> None:
        """Counts a pod instead of what was counted for it before."""
        before = quota.pods.pop(key, None)
        if counted is not None:
            quota.pods[key] = counted
        delta = _sum(_sums_of(counted), _negative(_sums_of(before)))
        quota.own = _sum(quota.own, delta)
        self._pass_on(quota.spec.name, delta)
        if self._keeps_guarantee and any(delta.used.values()):
            self._allocate(quota)

    def _allocate(self, quota: Quota) -> None:
        name = quota.spec.name
        if not quota.spec.is_parent and not self._children.get(name):
            quota.allocated = mask(quota.below.used, self._names(ROOT))
        self._level(quota.spec.parent).changed()
        self._guarantee(quota)

    # Runtime goes down

    def refresh(self, name: str) -> Amounts:
        """What the quota may use now, brought up to date from the top; only for the quotas on its path.

        Empty for one that is not known. A quota whose tree is broken keeps what it had.
        """
        quota = self._quotas.get(name)
        if quota is None:
            return {}
        if name == ROOT:
            return self.pool
        if name in OUTSIDE_THE_SHARES:
            return quota.spec.max
        path = self.path(name)
        if path[-1] == ROOT:
            total = self.pool
            for each in reversed(path[:-1]):
                total = self._refresh_one(self._quotas[each], total)
        return mask(quota.runtime, quota.spec.max)

    def _refresh_one(self, quota: Quota, total: Amounts) -> Amounts:
        """The quota's share of what its parent has; kept as its runtime."""
        parent = quota.spec.parent
        level, siblings = self._level(parent), partial(self._sharing, parent)
        level.set_total(total, self._names(parent))
        if self._scales_min:
            auto_min = level.auto_min(quota, siblings)
            if auto_min != quota.auto_min:
                quota.auto_min = auto_min
                level.changed()
        quota.runtime = level.share(quota, siblings, keeps_guarantee=self._keeps_guarantee)
        return quota.runtime


def _takes_up(pod: PodAsk) -> bool:
    return pod.is_on_node and not pod.is_over


def _sums_of(counted: Counted | None) -> Sums:
    if counted is None:
        return Sums()
    amounts, fixed = counted.amounts, {} if counted.is_preemptible else counted.amounts
    if not counted.is_assigned:
        return Sums(request=amounts, non_preemptible_request=fixed)
    return Sums(request=amounts, non_preemptible_request=fixed, used=amounts, non_preemptible_used=fixed)


def _passed_on(quota: Quota) -> Sums:
    """What the parent of a quota sees of it."""
    below = quota.below
    return Sums(
        request=quota.limited_request,
        non_preemptible_request=below.non_preemptible_request,
        used=below.used,
        non_preemptible_used=below.non_preemptible_used,
    )


def _sum(a: Sums, b: Sums) -> Sums:
    return Sums(
        request=add(a.request, b.request),
        non_preemptible_request=add(a.non_preemptible_request, b.non_preemptible_request),
        used=add(a.used, b.used),
        non_preemptible_used=add(a.non_preemptible_used, b.non_preemptible_used),
    )


def _negative(sums: Sums) -> Sums:
    nothing = Sums()
    return Sums(
        request=sub(nothing.request, sums.request),
        non_preemptible_request=sub(nothing.request, sums.non_preemptible_request),
        used=sub(nothing.request, sums.used),
        non_preemptible_used=sub(nothing.request, sums.non_preemptible_used),
    )
