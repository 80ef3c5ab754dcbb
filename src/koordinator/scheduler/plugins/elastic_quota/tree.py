"""A tree of quotas: counts pods and passes demand up, hands runtime down.

Policy is in `runtime`. Amounts that a pod added are taken away exactly as they were added. A change costs its path to
the root; siblings on its levels are looked at when a runtime is asked for. Source: behaviour/elastic-quota 5 to 11.
"""

import heapq
from collections.abc import Mapping

from koordinator.api.resource_list import Amounts, mask
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    OUTSIDE_THE_SHARES,
    ROOT,
    SYSTEM,
    CountedRequest,
    Nanos,
    Quota,
    QuotaChains,
    QuotaPodRequest,
    QuotaSpec,
    SharedNames,
    Sums,
    accumulate_in_each,
    accumulate_in_place,
    amounts_of,
    change_of,
    count_pod,
    grown,
    nanos_of,
    negated,
    passed_on,
)
from koordinator.scheduler.plugins.elastic_quota.runtime_calculator import RuntimeCalculator


class GroupQuotaTree:
    """All quotas with one tree id. The root is always there; `reserved` are the maxima of the system and the default
    quota, which only the default tree has."""

    def __init__(
        self,
        *,
        reserved: Mapping[str, Amounts] | None = None,
        scales_min: bool = True,
        keeps_guarantee: bool = False,
    ) -> None:
        self._total: Amounts = {}
        self._pool: Nanos | None = None
        self._scales_min = scales_min
        self._keeps_guarantee = keeps_guarantee
        root = Quota(spec=QuotaSpec(name=ROOT, parent="", is_parent=True), lends=True)
        self._quotas: dict[str, Quota] = {ROOT: root}
        self._chains = QuotaChains(self._quotas)
        self.path = self._chains.path
        self._levels: dict[str, RuntimeCalculator] = {}
        self._shared_names = SharedNames()
        self._touched: set[str] = set()
        self.version = 1
        """Grows with everything that may change a runtime."""
        self._unsettled: set[str] = set()
        """Parents whose children's shares may have changed since `settle`."""
        for name, ceiling in (reserved or {}).items():
            self.set_quota(QuotaSpec(name=name, max=ceiling))

    # What is known

    def get(self, name: str) -> Quota | None:
        """Return the quota, to be read only; None when there is none of the name."""
        return self._quotas.get(name)

    def names(self) -> list[str]:
        """Return names of all quotas, sorted."""
        return sorted(self._quotas)

    def quotas(self) -> list[Quota]:
        """Return all quotas, by name, to be read only."""
        return [self._quotas[name] for name in self.names()]

    def bare(self) -> "GroupQuotaTree":
        """Return a tree without quotas that shares by the same rules."""
        return GroupQuotaTree(scales_min=self._scales_min, keeps_guarantee=self._keeps_guarantee)

    def take_touched(self) -> set[str]:
        """Quotas whose sums or specs changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def children(self, name: str) -> list[str]:
        """Return names of the children of a quota, sorted."""
        level = self._levels.get(name)
        return sorted(level.children) if level is not None else []

    @property
    def total(self) -> Amounts:
        """Return what there is in all, in use by the reserved quotas or not."""
        return self._total

    @total.setter
    def total(self, total: Amounts) -> None:
        if total != self._total:
            self._total = total
            self._pool_changed()

    @property
    def pool(self) -> Amounts:
        """Return what the quotas share: all, less what system and default pods use. Can be negative."""
        return amounts_of(self._shared())

    def _shared(self) -> Nanos:
        """Return the pool; the same object until it changes."""
        if self._pool is None:
            pool = nanos_of(self._total)
            for name in (SYSTEM, DEFAULT):
                if quota := self._quotas.get(name):
                    for resource, number in quota.below.used.items():
                        pool[resource] = pool.get(resource, 0) - number
            self._pool = pool
        return self._pool

    def _pool_changed(self) -> None:
        self._pool = None
        self.version += 1
        self._touched.add(ROOT)
        self._unsettled.add(ROOT)

    def _changing(self, parent: str) -> RuntimeCalculator:
        """Return the level of a parent, about to change."""
        self._unsettled.add(parent)
        self.version += 1
        return self._level(parent)

    def _level(self, parent: str) -> RuntimeCalculator:
        level = self._levels.get(parent)
        if level is None:
            level = RuntimeCalculator(scales_min=self._scales_min, keeps_guarantee=self._keeps_guarantee)
            self._levels[parent] = level
        return level

    def _names(self, parent: str) -> tuple[str, ...]:
        """Return the resources that the parent's children share, sorted."""
        return self._shared_names.names() if parent == ROOT else tuple(sorted(self._quotas[parent].max))

    # Quotas

    def set_quota(self, spec: QuotaSpec) -> None:
        """Note that a quota is new or has changed. Parents may come later than their children."""
        if spec.name == ROOT:
            return
        keeps = self._keeps_guarantee
        lends = spec.lends and not keeps
        self._touched.add(spec.name)
        quota = self._quotas.get(spec.name)
        if quota is None:
            quota = Quota(spec=spec, lends=lends, keeps=keeps, below=self._from_children(spec.name))
            self._quotas[spec.name] = quota
            quota.follow(spec, lends=lends)
            self._attach(quota)
        elif quota.spec.parent != spec.parent:
            self._detach(quota)
            self._respecify(quota, spec, lends)
            self._attach(quota)
        elif quota.spec != spec:
            self._change(quota, spec, lends)

    def _change(self, quota: Quota, spec: QuotaSpec, lends: bool) -> None:
        """Note that the quota stays where it is."""
        before, former_min, former_guarantee = passed_on(quota).copy(), quota.min, quota.guaranteed
        self._count_names(quota, -1)
        self._respecify(quota, spec, lends)
        self._count_names(quota, 1)
        if spec.name not in OUTSIDE_THE_SHARES:
            self._changing(spec.parent).respecified(quota, former_min)
        self._pass_on(spec.parent, passed_on(quota).minus(before))
        self._guarantee(quota, former_guarantee)

    def _respecify(self, quota: Quota, spec: QuotaSpec, lends: bool) -> None:
        """Takes over a spec; pods are counted anew where it names other resources."""
        if quota.max.keys() != spec.max.keys():
            for key, known in quota.pods.items():
                counted = count_pod(known.request, spec.max, known.is_preemptible, known.is_assigned)
                delta = change_of(known, counted)
                quota.pods[key] = counted
                quota.own.add(delta)
                quota.below.add(delta)
            if self._keeps_guarantee:
                quota.allocated = self._allocated(quota)
        quota.follow(spec, lends=lends)
        if spec.name in self._levels:
            self._changing(spec.name).set_names(self._names(spec.name))

    def remove_quota(self, name: str) -> None:
        """Note that a quota is gone, with what its pods asked for. The reserved ones stay."""
        quota = self._quotas.get(name)
        if quota is None or name == ROOT or name in OUTSIDE_THE_SHARES:
            return
        self._detach(quota)
        del self._quotas[name]
        self._chains.forget()
        if not self.children(name):
            self._levels.pop(name, None)
        self._unsettled.discard(name)

    def _from_children(self, name: str) -> Sums:
        """Return what children pass on that were there before their parent."""
        sums = Sums()
        for child in self.children(name):
            sums.add(passed_on(self._quotas[child]))
        return sums

    def _attach(self, quota: Quota) -> None:
        parent = quota.spec.parent
        self._count_names(quota, 1)
        if quota.spec.name not in OUTSIDE_THE_SHARES:
            if self._keeps_guarantee:
                quota.allocated = self._allocated(quota)
            self._changing(parent).attach(quota)
            self._allocate(parent, quota.guaranteed)
        self._pass_on(parent, passed_on(quota))

    def _detach(self, quota: Quota) -> None:
        parent = quota.spec.parent
        self._count_names(quota, -1)
        if quota.spec.name not in OUTSIDE_THE_SHARES:
            self._changing(parent).detach(quota)
            self._allocate(parent, negated(quota.guaranteed))
        self._pass_on(parent, passed_on(quota).negative())

    def _count_names(self, quota: Quota, sign: int) -> None:
        self._chains.forget()
        if quota.spec.name in OUTSIDE_THE_SHARES:
            return
        self._shared_names.count(quota.max, sign)
        self.version += 1
        self._unsettled.add(ROOT)

    # Demand goes up

    def _pass_on(self, name: str, delta: Sums) -> None:
        """Adds to the sums of a quota and its ancestors; a parent sees requests within max only."""
        known = self._quotas.get(name)
        if known is None:
            return
        chain = self._chains.of(known)
        self._touched.update(chain.names)
        if chain.is_outside and delta.used:
            self._pool_changed()
        for quota in chain.quotas:
            quota.below.add(delta)
            if quota.spec.name == ROOT:
                return
            asked = quota.ask(delta.request)
            if asked and quota.spec.name not in OUTSIDE_THE_SHARES:
                self._changing(quota.spec.parent).asks(quota, asked)
            if asked != delta.request:
                delta = Sums(
                    request=asked,
                    non_preemptible_request=delta.non_preemptible_request,
                    used=delta.used,
                    non_preemptible_used=delta.non_preemptible_used,
                )

    # What is never taken back goes up, too

    def _guarantee(self, quota: Quota, before: Nanos) -> None:
        """Pass on the difference when the guarantee of a quota was another one before."""
        if not self._keeps_guarantee or quota.spec.name in OUTSIDE_THE_SHARES:
            return
        if delta := grown(quota.guaranteed, before):
            self._changing(quota.spec.parent).keeps(quota)
            self._allocate(quota.spec.parent, delta)

    def _allocate(self, name: str, delta: Nanos) -> None:
        """Own pods of a quota use more or less, or its children are guaranteed so; as far up as that reaches."""
        quota = self._quotas.get(name)
        if quota is None or not self._keeps_guarantee or name in OUTSIDE_THE_SHARES:
            return
        before, quota.allocated = quota.guaranteed, dict(quota.allocated)
        accumulate_in_place(quota.allocated, delta)
        self._touched.add(name)
        if name != ROOT:
            self._guarantee(quota, before)

    def _allocated(self, quota: Quota) -> Nanos:
        """Return what own pods use, and what children are guaranteed."""
        allocated = dict(quota.own.used)
        if quota.spec.name in self._levels:
            for child in self._levels[quota.spec.name].children.values():
                accumulate_in_place(allocated, child.guaranteed)
        return allocated

    # Pods

    def add_pod(self, quota_name: str, pod: QuotaPodRequest) -> None:
        """Note that a pod was created, or seen for the first time."""
        quota = self._quotas.get(quota_name)
        if quota is None or pod.key in quota.pods or pod.is_ignored:
            return
        self._count(quota, pod, is_assigned=pod.is_on_node)

    def update_pod(self, quota_name: str, pod: QuotaPodRequest, was_in: str | None = None) -> None:
        """Note that a pod changed; `was_in` is its former quota when that is another one."""
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
        is_assigned = pod.is_on_node or (known is not None and known.is_assigned)
        self._count(quota, pod, is_assigned=is_assigned)

    def remove_pod(self, quota_name: str, key: str) -> None:
        """Note that a pod is gone, or no longer counts."""
        quota = self._quotas.get(quota_name)
        if quota is not None:
            self._replace(quota, key, None)

    def reserve(self, quota_name: str, key: str) -> bool:
        """Note that a node was found for the pod, which uses its quota from now on. Return whether it did not yet."""
        return self._assign(quota_name, key, True)

    def unreserve(self, quota_name: str, key: str) -> bool:
        """Note that the node was given up. Return whether there was one."""
        return self._assign(quota_name, key, False)

    def _assign(self, quota_name: str, key: str, is_assigned: bool) -> bool:
        quota = self._quotas.get(quota_name)
        known = quota.pods.get(key) if quota is not None else None
        if quota is None or known is None or known.is_assigned == is_assigned:
            return False
        quota.pods[key] = known.placed(is_assigned)
        delta = known.amounts if is_assigned else negated(known.amounts)
        chain = self._chains.of(quota)
        accumulate_in_each(chain.used, delta)
        if not known.is_preemptible:
            accumulate_in_each(chain.non_preemptible_used, delta)
        self._touched.update(chain.names)
        if chain.is_outside:
            self._pool_changed()
        self._used_otherwise(quota, delta)
        return True

    def _used_otherwise(self, quota: Quota, delta: Nanos) -> None:
        """Note that the own pods of a quota use more or less."""
        if quota.spec.name in self._levels:
            self._changing(quota.spec.name)
        self._allocate(quota.spec.name, delta)

    def _count(self, quota: Quota, pod: QuotaPodRequest, *, is_assigned: bool) -> None:
        counted = count_pod(nanos_of(pod.request), quota.max, pod.is_preemptible, is_assigned)
        self._replace(quota, pod.key, counted)

    def _replace(self, quota: Quota, key: str, counted: CountedRequest | None) -> None:
        """Counts a pod instead of what was counted for it before."""
        before = quota.pods.pop(key, None)
        if counted is not None:
            quota.pods[key] = counted
        if before == counted:
            return
        delta = change_of(before, counted)
        quota.own.add(delta)
        self._pass_on(quota.spec.name, delta)
        if any(delta.used.values()):
            self._used_otherwise(quota, delta.used)

    # Runtime goes down

    def refresh(self, name: str) -> Amounts:
        """Bring what the quota may use up to date from the top and return it; only for the quotas on its path.

        Empty for one that is not known. A quota whose tree is broken keeps what it had.
        """
        quota = self.bring_up_to_date(name)
        if quota is None:
            return {}
        if name == ROOT:
            return self.pool
        if name in OUTSIDE_THE_SHARES:
            return quota.spec.max
        return mask(amounts_of(quota.runtime), quota.spec.max)

    def bring_up_to_date(self, name: str) -> Quota | None:
        """`refresh` for who counts: the quota, whose `runtime` is that of now."""
        quota = self._quotas.get(name)
        if quota is not None and quota.fresh_version == self.version:
            return quota
        if name == ROOT and quota is not None:
            quota.runtime = mask(self._shared(), self._names(ROOT))
        if quota is None or name == ROOT or name in OUTSIDE_THE_SHARES:
            return quota
        path = self.path(name)
        if path[-1] == ROOT:
            parent = ROOT
            for each in reversed(path[:-1]):
                if each not in OUTSIDE_THE_SHARES:
                    level = self._levels[parent]
                    level.set_total(self._total_for(parent))
                    level.set_names(self._names(parent))
                    known = self._quotas[each]
                    former = known.runtime
                    level.refresh(known)
                    if known.runtime is not former and each in self._levels:
                        self._unsettled.add(
                            each
                        )  # who settles compares with what was told, which may be that of before
                    known.fresh_version = self.version
                parent = each
        return quota

    def settle(self) -> set[str]:
        """Brings all quotas up to date whose runtime changed since the last call; their names.

        Costs what changed: levels are looked at from the top, and only those that something reached.
        """
        changed: set[str] = set()
        waiting, broken = list[tuple[int, str]](), set[str]()
        while self._unsettled or waiting:
            for name in self._unsettled:
                path = self.path(name)
                if path[-1] == ROOT:
                    heapq.heappush(waiting, (len(path), name))
                else:
                    broken.add(name)
            self._unsettled.clear()
            if waiting:
                changed.update(self._settle(heapq.heappop(waiting)[1]))
        self._unsettled = broken
        return changed

    def _settle(self, parent: str) -> list[str]:
        level = self._levels.get(parent)
        if level is None:
            return []
        if parent != ROOT and parent not in OUTSIDE_THE_SHARES:
            quota = self._quotas[parent]
            self._levels[quota.spec.parent].refresh(quota)  # somebody may have looked in between
        level.set_total(self._total_for(parent))
        level.set_names(self._names(parent))
        changed = level.take_changed()
        for name in changed:
            if name in self._levels:
                level.refresh(self._quotas[name])
                self._unsettled.add(name)
        return changed

    def _total_for(self, parent: str) -> Nanos:
        """Return what the children of an up-to-date quota share."""
        quota = self._quotas[parent]
        if parent == ROOT:
            return self._shared()
        total = quota.max if parent in OUTSIDE_THE_SHARES else quota.runtime
        if not any(quota.own.used.values()):
            return total
        return {name: number - quota.own.used.get(name, 0) for name, number in total.items()}
