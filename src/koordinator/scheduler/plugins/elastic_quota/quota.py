"""One quota of a tree: what its owner wrote, and what its pods and its children add up to, and the way to its root; and
what quotas need of resource lists besides `api.resource_list`. Source: behaviour/elastic-quota 2.1, 4 and 5.

Trees count in plain integers (`Nanos`), exactly, at a tenth of what `Amounts` cost; those are for specs, for
decisions that people read, and for the wire.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from koordinator.api import labels, normalization, quota_labels, resource_list, resources
from koordinator.api.quantity import NANO, Family, Quantity
from koordinator.api.resource_list import Amounts, mask, maximum
from koordinator.api.sigs import ElasticQuota

Nanos = dict[str, int]
"""Resource name → exact amount in 10^-9. A missing name is not the same as zero."""

_NANOS_PER_UNIT = {resources.CPU: NANO // 1000}
_WRITTEN_BINARY = frozenset(
    (resources.MEMORY, resources.BATCH_MEMORY, resources.MID_MEMORY, resources.EPHEMERAL_STORAGE)
)


def nanos_of(amounts: Amounts) -> Nanos:
    """Return the same list to count with."""
    return {name: amount.nanos for name, amount in amounts.items()}


def amounts_of(nanos: Mapping[str, int], like: Mapping[str, Quantity] | None = None) -> Amounts:
    """Return the same list for people and the wire: written as amounts of that name in `like`, else memory in powers of
    1024."""
    known = like or {}
    return {
        name: Quantity(number, known[name].family if name in known else _family(name))
        for name, number in nanos.items()
    }


def _family(name: str) -> Family:
    return Family.BINARY if name in _WRITTEN_BINARY else Family.DECIMAL


def nanos_per_unit(name: str) -> int:
    """Return how many 10^-9 the unit has that shares are computed in: milli-cores, else whole units."""
    return _NANOS_PER_UNIT.get(name, NANO)


def to_units(nanos: int, per_unit: int) -> int:
    """Return the integer that shares are computed with, rounded away from zero."""
    return -(-nanos // per_unit) if nanos > 0 else nanos // per_unit


def accumulate_in_place(total: Nanos, delta: Mapping[str, int]) -> None:
    """Adds `delta` to `total` in place; no entry falls below zero."""
    for name, number in delta.items():
        number += total.get(name, 0)
        total[name] = number if number > 0 else 0


def accumulate_in_each(totals: Iterable[Nanos], delta: Mapping[str, int]) -> None:
    """`accumulate_in_place` for many totals."""
    for total in totals:
        for name, number in delta.items():
            number += total.get(name, 0)
            total[name] = number if number > 0 else 0


def negated(nanos: Mapping[str, int]) -> Nanos:
    """Return the same amounts with the other sign."""
    return {name: -number for name, number in nanos.items()}


def grown(after: Mapping[str, int], before: Mapping[str, int]) -> Nanos:
    """Return what was added between two lists: entries that are the same are left out."""
    changes = {name: number - before.get(name, 0) for name, number in after.items()}
    changes.update((name, -number) for name, number in before.items() if name not in after)
    return {name: number for name, number in changes.items() if number}


def above(nanos: Mapping[str, int], limit: Mapping[str, int]) -> bool:
    """Return whether any entry is above the limit. A name that `limit` lacks is not limited."""
    return any(number > limit[name] for name, number in nanos.items() if name in limit)


def exceeding(amounts: Amounts, limit: Amounts) -> tuple[str, ...]:
    """Return names whose amount is above the limit, sorted. A name that `limit` lacks is not limited."""
    return tuple(sorted(name for name, amount in amounts.items() if name in limit and amount > limit[name]))


def text(amounts: Amounts) -> str:
    """Return the list for people: `cpu:2,memory:4Gi`, or `<empty>`."""
    return ",".join(f"{name}:{amounts[name].text}" for name in sorted(amounts)) or "<empty>"


class SharedNames:
    """The number of quotas that count each resource. Source: behaviour/elastic-quota 6.3."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sorted: tuple[str, ...] | None = ()

    def count(self, names: Iterable[str], sign: int) -> None:
        """Note that a quota that counts these came (1) or went (-1)."""
        for name in names:
            self._counts[name] += sign
        self._sorted = None

    def names(self) -> tuple[str, ...]:
        """Return the names that any quota counts, sorted."""
        if self._sorted is None:
            self._sorted = tuple(sorted(name for name, count in self._counts.items() if count))
        return self._sorted


ROOT = labels.ROOT_QUOTA_NAME
SYSTEM = labels.SYSTEM_QUOTA_NAME
DEFAULT = labels.DEFAULT_QUOTA_NAME

OUTSIDE_THE_SHARES = frozenset((SYSTEM, DEFAULT))
"""Quotas whose use is taken out of the pool; they take no part in sharing the rest."""


class QuotaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an ElasticQuota. The names in `max` are the resources that the quota counts."""

    name: str
    parent: str = ROOT
    is_parent: bool = False
    lends: bool = True
    min: Amounts = {}
    max: Amounts = {}
    weight: Amounts = {}

    @classmethod
    def of(cls, quota: ElasticQuota) -> "QuotaSpec":
        """Resource names in their current spelling; a weight that is absent or malformed is `max`.
        Raises: QuantityError."""
        quota = normalization.normalize_quota(quota)
        name, own = quota.metadata.name, quota.metadata.labels
        ceiling = resource_list.of(quota.spec.max)
        return cls(
            name=name,
            parent=quota_labels.parent_name(name, own),
            is_parent=quota_labels.is_parent(own),
            lends=quota_labels.allows_lending(own),
            min=resource_list.of(quota.spec.min),
            max=ceiling,
            weight=resource_list.of(quota_labels.shared_weight(quota.metadata.annotations, quota.spec.max)),
        )


class QuotaPodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as its quota sees it. `request` is the effective request of all its containers."""

    key: str
    """`namespace/name`."""
    request: Amounts
    is_on_node: bool = False
    """Whether it uses its quota."""
    is_preemptible: bool = True
    is_ignored: bool = False
    """Being deleted, and not to be counted any more."""


class CountedRequest(msgspec.Struct, frozen=True, gc=False):
    """The share of a pod in its quota: exactly this is taken away again when it leaves."""

    request: Nanos
    """All that it asks for, in case the quota comes to count other resources."""
    amounts: Nanos
    """The part of it that the quota counts."""
    is_preemptible: bool
    is_assigned: bool

    def placed(self, is_assigned: bool) -> "CountedRequest":
        """Return the same pod with a place, or without."""
        return CountedRequest(self.request, self.amounts, self.is_preemptible, is_assigned)


class Sums(msgspec.Struct):
    """Amounts of pods: all of them, and the part of those that cannot be preempted."""

    request: Nanos = {}
    non_preemptible_request: Nanos = {}
    used: Nanos = {}
    non_preemptible_used: Nanos = {}

    def add(self, other: "Sums") -> None:
        """Counts `other` in; no entry falls below zero."""
        if other.request:
            accumulate_in_place(self.request, other.request)
        if other.non_preemptible_request:
            accumulate_in_place(self.non_preemptible_request, other.non_preemptible_request)
        if other.used:
            accumulate_in_place(self.used, other.used)
        if other.non_preemptible_used:
            accumulate_in_place(self.non_preemptible_used, other.non_preemptible_used)

    @property
    def lists(self) -> tuple[Nanos, Nanos, Nanos, Nanos]:
        """Return the four of them, in the order of the fields."""
        return self.request, self.non_preemptible_request, self.used, self.non_preemptible_used

    def copy(self) -> "Sums":
        """Lists of its own with the same amounts."""
        return Sums(*map(dict, self.lists))

    def minus(self, before: "Sums") -> "Sums":
        """Return what was added since `before`; amounts that are the same are left out."""
        return Sums(*map(grown, self.lists, before.lists))

    def negative(self) -> "Sums":
        """Return what takes these sums away again."""
        return Sums(*map(negated, self.lists))


class Quota(msgspec.Struct, kw_only=True):
    """The state of one quota; only its tree changes it."""

    spec: QuotaSpec
    lends: bool
    keeps: bool = False
    """Whether what is allocated is never taken back."""
    min: Nanos = {}
    max: Nanos = {}
    weight: Nanos = {}
    auto_min: Nanos = {}
    """The minimum, scaled down where the parent cannot give all minima."""
    own: Sums = msgspec.field(default_factory=Sums)
    """Pods directly in the quota."""
    below: Sums = msgspec.field(default_factory=Sums)
    """Own pods, and what the children pass on; `below.request` is what upstream calls child request."""
    limited_request: Nanos = {}
    """Request that the parent sees: demand above max never reaches it."""
    allocated: Nanos = {}
    runtime: Nanos = {}
    """Runtime of the last refresh; never changed in place."""
    runtime_version: int = 0
    """The version of the siblings' level that `runtime` was computed from."""
    fresh_version: int = 0
    """The version of the tree at which `runtime` was last known to be that of now."""
    pods: dict[str, CountedRequest] = {}

    def follow(self, spec: QuotaSpec, *, lends: bool) -> None:
        """Note that the owner has written another spec."""
        self.spec, self.lends = spec, lends
        self.min, self.max, self.weight = nanos_of(spec.min), nanos_of(spec.max), nanos_of(spec.weight)
        self.auto_min = self.min
        self.limited_request = self._limited()

    def ask(self, delta: Nanos) -> Nanos:
        """Note that the request below grew by `delta` (already counted in); return how much the limited request
        grew."""
        grown: Nanos = {}
        limited, asked = self.limited_request, self.below.request
        for name in delta:
            number = asked[name]
            if not self.lends and number < self.min.get(name, 0):
                number = self.min[name]
            ceiling = self.max.get(name)
            if ceiling is not None and number > ceiling:
                number = ceiling
            if change := number - limited.get(name, 0):
                grown[name] = change
            limited[name] = number
        return grown

    @property
    def request(self) -> Nanos:
        """Return what is asked for; one that does not lend always asks for its minimum."""
        asked = self.below.request
        return asked if self.lends else maximum(asked, self.min)

    def limit(self, *, has_runtime: bool) -> Nanos:
        """Return what it may use now, as far as it is up to date. `has_runtime`: whether runtimes limit quotas."""
        return self.runtime if has_runtime and self.spec.name not in OUTSIDE_THE_SHARES else self.max

    @property
    def guaranteed(self) -> Nanos:
        """Return what is never taken back: the minimum, or what was allocated already; nothing unless it `keeps`."""
        return maximum(self.allocated, self.min) if self.keeps else {}

    def _limited(self) -> Nanos:
        ceiling = self.max
        return {name: min(number, ceiling.get(name, number)) for name, number in self.request.items()}


def count_pod(
    request: Nanos, names: Collection[str], is_preemptible: bool, is_assigned: bool
) -> CountedRequest:
    """Return a pod in a quota that counts the named resources."""
    amounts = mask(request, names)
    return CountedRequest(
        request if len(amounts) < len(request) else amounts, amounts, is_preemptible, is_assigned
    )


def change_of(before: CountedRequest | None, after: CountedRequest | None) -> Sums:
    """Return what the sums of a pod's quota grow by; lists that stay the same are empty."""
    if before is None:
        return Sums() if after is None else _sums_of(after)
    if after is None:
        return _sums_of(before).negative()
    return _sums_of(after).minus(_sums_of(before))


def _sums_of(counted: CountedRequest) -> Sums:
    """Shares lists with `counted`: to be read only."""
    amounts: Nanos = counted.amounts
    fixed: Nanos = {} if counted.is_preemptible else amounts
    if not counted.is_assigned:
        return Sums(request=amounts, non_preemptible_request=fixed)
    return Sums(request=amounts, non_preemptible_request=fixed, used=amounts, non_preemptible_used=fixed)


def passed_on(quota: Quota) -> Sums:
    """Return what the parent of a quota sees of it; shares lists with it: to be read only."""
    below = quota.below
    return Sums(
        request=quota.limited_request,
        non_preemptible_request=below.non_preemptible_request,
        used=below.used,
        non_preemptible_used=below.non_preemptible_used,
    )


class QuotaChain(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Whatever counts a pod of a quota: the sums share lists with the quotas, which change in place."""

    quotas: tuple[Quota, ...]
    """The quota and those of its ancestors that are known, from the quota up."""
    names: tuple[str, ...]
    """Theirs."""
    used: tuple[Nanos, ...]
    """Amounts that its own pods use, then those used below each of `quotas`."""
    non_preemptible_used: tuple[Nanos, ...]
    is_outside: bool
    """Whether one of them takes what it uses out of the pool."""


class QuotaChains:
    """Paths and ways in a tree of quotas; ways are remembered until `forget`."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._known: dict[str, QuotaChain] = {}

    def forget(self) -> None:
        """Note that a quota came, went or moved."""
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
        """Return the way of a quota of the tree."""
        name = quota.spec.name
        chain = self._known.get(name)
        if chain is None:
            chain = self._known[name] = self._found(quota)
        return chain

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
