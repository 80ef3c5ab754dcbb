"""Quotas as behaviour/elastic-quota tells them, worked out from nothing each time, and the promises that they keep."""

from collections.abc import Iterator, Mapping

import msgspec

from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    ROOT,
    SYSTEM,
    Nanos,
    QuotaPodRequest,
    QuotaSpec,
    nanos_of,
    nanos_per_unit,
)

OUTSIDE = (SYSTEM, DEFAULT)


class SlowQuotas:
    """The same questions as a `QuotaTree` answers. Amounts are whole units."""

    def __init__(self) -> None:
        self.total: Nanos = {}
        self.specs: dict[str, QuotaSpec] = {}
        self.pods: dict[str, tuple[str, QuotaPodRequest]] = {}
        """Pod → its quota, and what it asks for; `is_on_node` when it uses its quota."""
        self.begin()

    def begin(self) -> None:
        """Forget what was worked out before: something has changed."""
        self._inside: dict[str, list[QuotaPodRequest]] = {}
        for quota, ask in self.pods.values():
            self._inside.setdefault(quota, []).append(ask)
        self._children: dict[str, list[QuotaSpec]] = {}
        for spec in sorted(self.specs.values(), key=lambda spec: spec.name):
            if spec.name not in OUTSIDE:
                self._children.setdefault(spec.parent, []).append(spec)
        self._asked: dict[str, Nanos] = {}

    def own(self, name: str, *, used: bool, fixed: bool) -> Nanos:
        """What the pods of a quota itself add up to."""
        counted = self.specs[name].max if name in self.specs else {}
        asks = (
            ask
            for ask in self._inside.get(name, ())
            if (ask.is_on_node or not used) and not (fixed and ask.is_preemptible)
        )
        return total_of({k: n for k, n in nanos_of(ask.request).items() if k in counted} for ask in asks)

    def below(self, name: str, *, used: bool = True, fixed: bool = False) -> Nanos:
        """What all pods below a quota add up to, whatever the limits."""
        lists = [self.own(name, used=used, fixed=fixed)]
        lists += [self.below(child.name, used=used, fixed=fixed) for child in self._children.get(name, ())]
        if name == ROOT:
            lists += [self.own(each, used=used, fixed=fixed) for each in OUTSIDE]
        return total_of(lists)

    def child_request(self, name: str) -> Nanos:
        """Own pods' requests and what the children ask for within their maxima."""
        if name not in self._asked:
            lists = [self.own(name, used=False, fixed=False)]
            lists += [self.limited(child) for child in self._children.get(name, ())]
            if name == ROOT:
                lists += [self.own(each, used=False, fixed=False) for each in OUTSIDE]
            self._asked[name] = total_of(lists)
        return self._asked[name]

    def limited(self, spec: QuotaSpec) -> Nanos:
        """What the parent sees of a quota's demand."""
        asked, least, ceiling = self.child_request(spec.name), nanos_of(spec.min), nanos_of(spec.max)
        if not spec.lends:
            asked = {k: max(asked.get(k, 0), least.get(k, 0)) for k in asked.keys() | least.keys()}
        return {k: min(number, ceiling.get(k, number)) for k, number in asked.items()}

    @property
    def pool(self) -> Nanos:
        used = [self.own(each, used=True, fixed=False) for each in OUTSIDE]
        return {k: number - sum(each.get(k, 0) for each in used) for k, number in self.total.items()}

    def runtimes(self) -> dict[str, Nanos]:
        """The fair share of every quota, with scaled minima."""
        found: dict[str, Nanos] = {}
        names = {k for spec in self.specs.values() if spec.name not in OUTSIDE for k in spec.max}
        self._share_out(ROOT, self.pool, names, found)
        return found

    def _share_out(self, parent: str, total: Nanos, names: set[str], found: dict[str, Nanos]) -> None:
        children = self._children.get(parent, [])
        limited = {child.name: self.limited(child) for child in children}
        for child in children:
            found[child.name] = {}
        for k in names:
            unit = nanos_per_unit(k)
            minima = {child.name: nanos_of(child.min).get(k, 0) // unit for child in children}
            there, wanted = total.get(k, 0) // unit, sum(minima.values())
            if k in total and there < wanted:
                minima = {name: max(there, 0) * least // wanted for name, least in minima.items()}
            shares = fair_shares(
                there,
                requests={child.name: limited[child.name].get(k, 0) // unit for child in children},
                weights={child.name: nanos_of(child.weight).get(k, 0) // unit for child in children},
                floors=minima,
                lends={child.name: child.lends for child in children},
            )
            for name, share in shares.items():
                found[name][k] = share * unit
        for child in children:
            used = self.own(child.name, used=True, fixed=False)
            left = {k: number - used.get(k, 0) for k, number in found[child.name].items()}
            self._share_out(child.name, left, set(child.max), found)


def fair_shares(
    total: int,
    *,
    requests: Mapping[str, int],
    weights: Mapping[str, int],
    floors: Mapping[str, int],
    lends: Mapping[str, bool],
) -> dict[str, int]:
    """behaviour/elastic-quota 6.1, step by step."""
    shares = {
        name: requests[name] if lends[name] and requests[name] <= floors[name] else floors[name]
        for name in requests
    }
    hungry = sorted(name for name in requests if requests[name] > floors[name])
    left = total - sum(shares.values())
    while left > 0 and hungry and (whole := sum(weights[name] for name in hungry)) > 0:
        parts = {name: weights[name] * left // whole for name in hungry}
        residual = left - sum(parts.values())
        by_rest = sorted(hungry, key=lambda name: (-(weights[name] * left % whole), name))
        for name in [name for name in by_rest if weights[name] > 0][:residual]:
            parts[name] += 1
        left = 0
        for name in hungry:
            shares[name] += parts[name]
            left += max(shares[name] - requests[name], 0)
            shares[name] = min(shares[name], requests[name])
        hungry = [name for name in hungry if shares[name] < requests[name]]
    return shares


class Standing(msgspec.Struct, frozen=True):
    """A quota at some moment."""

    spec: QuotaSpec
    limited: Nanos
    runtime: Nanos
    total: Nanos
    """What its children share."""


def broken_promises(standings: Mapping[str, Standing], *, guarantees: bool = False) -> Iterator[str]:
    """What does not hold of the shares of a tree.

    The children of a quota get no more than it has, with one exception (behaviour/elastic-quota 6.1, step 3): what
    they are sure of is given out even where it does not fit. Minima are scaled to fit, so that leaves guaranteed
    amounts (gate ElasticQuotaGuaranteeUsage), and resources that the parent has not at all (a name missing, not a
    zero).
    """
    below: dict[str, list[Standing]] = {}
    for each in standings.values():
        if each.spec.name not in (ROOT, *OUTSIDE):
            below.setdefault(each.spec.parent, []).append(each)
    for parent, children in below.items():
        known = standings[parent]
        for k, there in known.total.items():
            minima = sum(nanos_of(each.spec.min).get(k, 0) for each in children)
            given = sum(each.runtime.get(k, 0) for each in children)
            if given > max(there, 0) and not guarantees:
                yield f"{parent} has {there} {k} and gives {given}"
            for each in children:
                yield from _promises_of(each, k, fits=minima <= there, all_given=given >= there)


def _promises_of(each: Standing, k: str, *, fits: bool, all_given: bool) -> Iterator[str]:
    name, share, asked = each.spec.name, each.runtime.get(k, 0), each.limited.get(k, 0)
    least = nanos_of(each.spec.min).get(k, 0)
    if share > nanos_of(each.spec.max).get(k, share):
        yield f"{name} gets {share} {k}, above its max"
    if fits and share < min(asked, least):
        yield f"{name} asks for {asked} {k}, is sure of {least} and gets {share}"
    if not all_given and share < asked and nanos_of(each.spec.weight).get(k, 0) > 0:
        yield f"{name} asks for {asked} {k} and gets {share}, while its parent has some left"


def total_of(lists: "Iterator[Nanos] | list[Nanos]") -> Nanos:
    """The sum, without zeros."""
    total: Nanos = {}
    for each in lists:
        for name, number in each.items():
            total[name] = total.get(name, 0) + number
    return {name: number for name, number in total.items() if number}
