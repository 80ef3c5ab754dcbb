"""A tree of quotas: counts pods and passes demand up, hands runtime down.

Policy is in `runtime`; here is the bookkeeping, driven by events. Nothing here knows the time or an API.
Amounts that a pod added are taken away exactly as they were added. A change costs its path to the root; the
siblings on each level of it are looked at when somebody asks for a runtime. Source: spec 06, sections 5 to 11.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from koordinator.api.resource_list import Amounts, mask
from koordinator.scheduler.plugins.elastic_quota.amounts import (
    Nanos,
    amounts_of,
    masked,
    nanos_of,
)
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
    the default quota, which only the default tree has.

    Upstream keeps what it counted for a pod when its quota comes to count other resources; that is `recounts` off.
    """

    def __init__(
        self,
        *,
        reserved: Mapping[str, Amounts] | None = None,
        scales_min: bool = True,
        keeps_guarantee: bool = False,
        recounts: bool = True,
    ) -> None:
        self._recounts = recounts
        self._total: Amounts = {}
        self._pool: Nanos | None = None
        self._scales_min = scales_min
        self._keeps_guarantee = keeps_guarantee
        root = Quota(spec=QuotaSpec(name=ROOT, parent="", is_parent=True), lends=True)
        self._quotas: dict[str, Quota] = {ROOT: root}
        self._levels: dict[str, Level] = {}
        self._counted_names: Counter[str] = Counter()
        """Resource → how many quotas that share the root's have it in their max."""
        self._root_names: tuple[str, ...] | None = ()
        self._touched: set[str] = set()
        for name, ceiling in (reserved or {}).items():
            self.set_quota(QuotaSpec(name=name, max=ceiling))

    # What is known

    def get(self, name: str) -> Quota | None:
        """The quota, to be read only; None when there is none of the name."""
        return self._quotas.get(name)

    def names(self) -> list[str]:
        """Names of all quotas, sorted."""
        return sorted(self._quotas)

    def take_touched(self) -> set[str]:
        """Quotas whose figures changed since the last call: sums, specs, runtimes as far as anybody asked."""
        touched, self._touched = self._touched, set()
        return touched

    def children(self, name: str) -> list[str]:
        """Names of the children of a quota, sorted."""
        level = self._levels.get(name)
        return sorted(level.children) if level is not None else []

    @property
    def total(self) -> Amounts:
        """What there is in all, in use by the reserved quotas or not."""
        return self._total

    @total.setter
    def total(self, total: Amounts) -> None:
        if total != self._total:
            self._total, self._pool = total, None
            self._touched.add(ROOT)

    @property
    def pool(self) -> Amounts:
        """What the quotas share: all, less what system and default pods use. Can be negative."""
        return amounts_of(self._shared())

    def _shared(self) -> Nanos:
        """The pool; the same object until it changes."""
        if self._pool is None:
            pool = nanos_of(self._total)
            for name in (SYSTEM, DEFAULT):
                if quota := self._quotas.get(name):
                    for resource, number in quota.below.used.items():
                        pool[resource] = pool.get(resource, 0) - number
            self._pool = pool
        return self._pool

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
        level = self._levels.get(parent)
        if level is None:
            level = Level(scales_min=self._scales_min, keeps_guarantee=self._keeps_guarantee)
            self._levels[parent] = level
        return level

    def _names(self, parent: str) -> tuple[str, ...]:
        """The resources that the parent's children share, sorted."""
        if parent != ROOT:
            return tuple(sorted(self._quotas[parent].max))
        if self._root_names is None:
            self._root_names = tuple(sorted(name for name, count in self._counted_names.items() if count))
        return self._root_names

    # Quotas

    def set_quota(self, spec: QuotaSpec) -> None:
        """A quota is new or has changed. Parents may come later than their children."""
        if spec.name == ROOT:
            return
        lends = spec.lends and not self._keeps_guarantee
        self._touched.add(spec.name)
        quota = self._quotas.get(spec.name)
        if quota is None:
            quota = Quota(spec=spec, lends=lends)
            quota.below = self._from_children(spec.name)
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
        """The quota stays where it is."""
        before, former_min = _passed_on(quota).copy(), quota.min
        turned = quota.spec.is_parent != spec.is_parent
        self._count_names(quota, -1)
        self._respecify(quota, spec, lends)
        self._count_names(quota, 1)
        if spec.name not in OUTSIDE_THE_SHARES:
            self._level(spec.parent).respecified(quota, former_min)
        self._pass_on(spec.parent, _passed_on(quota).minus(before))
        if turned and self._keeps_guarantee:
            self._allocate(quota)
        self._guarantee(quota)

    def _respecify(self, quota: Quota, spec: QuotaSpec, lends: bool) -> None:
        """Takes over a spec; pods are counted anew where it names other resources."""
        if self._recounts and quota.max.keys() != spec.max.keys():
            for key, known in quota.pods.items():
                counted = _counted(known.request, spec.max, known.is_preemptible, known.is_assigned)
                delta = _change_of(known, counted)
                quota.pods[key] = counted
                quota.own.add(delta)
                quota.below.add(delta)
        quota.follow(spec, lends=lends)
        if spec.name in self._levels:
            self._levels[spec.name].set_names(self._names(spec.name))

    def remove_quota(self, name: str) -> None:
        """A quota is gone, with what its pods asked for. The reserved ones stay."""
        quota = self._quotas.get(name)
        if quota is None or name == ROOT or name in OUTSIDE_THE_SHARES:
            return
        self._detach(quota)
        del self._quotas[name]
        level = self._levels.get(name)
        if level is not None and not level.children:
            del self._levels[name]

    def _from_children(self, name: str) -> Sums:
        """What children pass on that were there before their parent."""
        sums = Sums()
        for child in self._level(name).children.values() if name in self._levels else ():
            sums.add(_passed_on(child))
        return sums

    def _attach(self, quota: Quota) -> None:
        parent = quota.spec.parent
        self._count_names(quota, 1)
        if quota.spec.name not in OUTSIDE_THE_SHARES:
            self._level(parent).attach(quota)
        self._pass_on(parent, _passed_on(quota))
        self._guarantee(quota)

    def _detach(self, quota: Quota) -> None:
        parent = quota.spec.parent
        self._count_names(quota, -1)
        if quota.spec.name not in OUTSIDE_THE_SHARES:
            self._level(parent).detach(quota)
        self._pass_on(parent, _passed_on(quota).negative())
        self._guarantee_from(parent)

    def _count_names(self, quota: Quota, sign: int) -> None:
        if quota.spec.name in OUTSIDE_THE_SHARES:
            return
        for name in quota.max:
            self._counted_names[name] += sign
        self._root_names = None

    # Demand goes up

    def _pass_on(self, name: str, delta: Sums) -> None:
        """Adds to the sums of a quota and its ancestors; a parent sees requests within max only."""
        for each in self.path(name):
            quota = self._quotas.get(each)
            if quota is None:
                return
            quota.below.add(delta)
            self._touched.add(each)
            if each == ROOT:
                return
            if each in OUTSIDE_THE_SHARES and delta.used:
                self._pool = None
            asked = quota.ask(delta.request)
            if asked and each not in OUTSIDE_THE_SHARES:
                self._level(quota.spec.parent).asks(quota, asked)
            delta = Sums(
                request=asked,
                non_preemptible_request=delta.non_preemptible_request,
                used=delta.used,
                non_preemptible_used=delta.non_preemptible_used,
            )

    def _guarantee(self, quota: Quota) -> None:
        """Brings up to date what the quota and its ancestors never give back."""
        if not self._keeps_guarantee:
            return
        name = quota.spec.name
        if quota.spec.is_parent or self.children(name):
            self._guarantee_from(name)
        else:
            self._guarantee_from(quota.spec.parent)

    def _guarantee_from(self, name: str) -> None:
        if not self._keeps_guarantee:
            return
        for quota in self._upwards(name):
            allocated: Nanos = {}
            level = self._level(quota.spec.name)
            for child in level.children.values():
                for resource, number in child.guaranteed.items():
                    allocated[resource] = allocated.get(resource, 0) + number
            quota.allocated = allocated
            if quota.spec.name != ROOT and quota.spec.name not in OUTSIDE_THE_SHARES:
                self._level(quota.spec.parent).keeps(quota)

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
        counted = Counted(
            request=known.request,
            amounts=known.amounts,
            is_preemptible=known.is_preemptible,
            is_assigned=is_assigned,
        )
        self._replace(quota, key, counted)

    def _count(self, quota: Quota, pod: PodAsk, *, is_assigned: bool) -> None:
        counted = _counted(nanos_of(pod.request), quota.max, pod.is_preemptible, is_assigned)
        self._replace(quota, pod.key, counted)

    def _replace(self, quota: Quota, key: str, counted: Counted | None) -> None:
        """Counts a pod instead of what was counted for it before."""
        before = quota.pods.pop(key, None)
        if counted is not None:
            quota.pods[key] = counted
        delta = _change_of(before, counted)
        quota.own.add(delta)
        self._pass_on(quota.spec.name, delta)
        if self._keeps_guarantee and any(delta.used.values()):
            self._allocate(quota)

    def _allocate(self, quota: Quota) -> None:
        name = quota.spec.name
        if not quota.spec.is_parent and not self.children(name):
            quota.allocated = masked(quota.below.used, self._names(ROOT))
        if name not in OUTSIDE_THE_SHARES:
            self._level(quota.spec.parent).keeps(quota)
        self._guarantee(quota)

    # Runtime goes down

    def refresh(self, name: str) -> Amounts:
        """What the quota may use now, brought up to date from the top; only for the quotas on its path.

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
        if name == ROOT and quota is not None:
            quota.runtime = masked(self._shared(), self._names(ROOT))
        if quota is None or name == ROOT or name in OUTSIDE_THE_SHARES:
            return quota
        path = self.path(name)
        if path[-1] == ROOT:
            total, parent = self._shared(), ROOT
            for each in reversed(path[:-1]):
                level = self._levels[parent]
                level.set_total(total)
                level.set_names(self._names(parent))
                known = self._quotas[each]
                before = known.runtime
                level.refresh(known)
                if known.runtime is not before:
                    self._touched.add(each)
                total, parent = known.runtime, each
        return quota


def _takes_up(pod: PodAsk) -> bool:
    return pod.is_on_node and not pod.is_over


def _counted(request: Nanos, names: Collection[str], is_preemptible: bool, is_assigned: bool) -> Counted:
    amounts = masked(request, names)
    return Counted(
        request=request if len(amounts) < len(request) else amounts,
        amounts=amounts,
        is_preemptible=is_preemptible,
        is_assigned=is_assigned,
    )


def _change_of(before: Counted | None, after: Counted | None) -> Sums:
    """What the sums of a pod's quota grow by; lists that stay the same are empty."""
    if before is None:
        return Sums() if after is None else _sums_of(after)
    if after is None:
        return _sums_of(before).negative()
    return _sums_of(after).minus(_sums_of(before))


def _sums_of(counted: Counted) -> Sums:
    """Shares lists with `counted`: to be read only."""
    amounts: Nanos = counted.amounts
    fixed: Nanos = {} if counted.is_preemptible else amounts
    if not counted.is_assigned:
        return Sums(request=amounts, non_preemptible_request=fixed)
    return Sums(request=amounts, non_preemptible_request=fixed, used=amounts, non_preemptible_used=fixed)


def _passed_on(quota: Quota) -> Sums:
    """What the parent of a quota sees of it; shares lists with it: to be read only."""
    below = quota.below
    return Sums(
        request=quota.limited_request,
        non_preemptible_request=below.non_preemptible_request,
        used=below.used,
        non_preemptible_used=below.non_preemptible_used,
    )
