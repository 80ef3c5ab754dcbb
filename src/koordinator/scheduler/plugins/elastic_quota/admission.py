"""Decide whether a pod may be placed now, as far as its quota is concerned, and report how quotas stand, for people:
the rows of a tree, and what a pod meets at its quota. Pure. Source: behaviour/elastic-quota 13.

The figures come from the scheduler's books, or from ElasticQuota objects, on which the scheduler writes them every
second. Loans are no fact of behaviour/elastic-quota: amounts that siblings use above their minimum count as taken
from the minima that others of them leave idle, in proportion; the rest is spare, or was borrowed further up.
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from koordinator.api import labels, readable, resource_list, resources
from koordinator.api.quantity import ZERO, Quantity
from koordinator.api.resource_list import Amounts, add, mask
from koordinator.scheduler.plugins.elastic_quota.quota import (
    ROOT,
    Nanos,
    Quota,
    amounts_of,
    exceeding,
    nanos_of,
    nanos_per_unit,
    text,
)
from koordinator.scheduler.plugins.elastic_quota.runtime import split
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree


class AdmissionReason(enum.Enum):
    """The answer of its quota to a pod."""

    OK = "within the quota"
    QUOTA = "Insufficient quotas"
    NON_PREEMPTIBLE = "Insufficient non-preemptible quotas"
    ANCESTOR = "Insufficient quotas of an ancestor"
    ANCESTOR_MISSING = "an ancestor of the quota is not known"


class AdmissionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, with the quota and the figures that it hangs on."""

    reason: AdmissionReason
    quota: str
    path: tuple[str, ...] = ()
    """From the top down to the pod's quota; for the reasons that are about ancestors."""
    limit: Amounts = {}
    used: Amounts = {}
    request: Amounts = {}
    exceeded: tuple[str, ...] = ()
    """The resources of which there is too little, sorted."""
    pod_count: int = 1
    """Number of pods that ask, for the words."""

    @property
    def is_allowed(self) -> bool:
        return self.reason is AdmissionReason.OK

    @property
    def message(self) -> str:
        """Return the words for people; empty when the pod is allowed."""
        path = " ".join(self.path)
        who = "pod's request" if self.pod_count == 1 else f"request of {self.pod_count} pods together"
        request = f"{who}: {text(self.request)}, exceedDimensions: [{' '.join(self.exceeded)}]"
        limit, used = text(self.limit), text(self.used)
        match self.reason:
            case AdmissionReason.OK:
                return ""
            case AdmissionReason.QUOTA:
                about = f"quotaName: {self.quota}, runtime: {limit}, used: {used}"
                return f"Insufficient quotas, {about}, {request}"
            case AdmissionReason.NON_PREEMPTIBLE:
                about = f"quotaName: {self.quota}, min: {limit}, nonPreemptibleUsed: {used}"
                return f"Insufficient non-preemptible quotas, {about}, {request}"
            case AdmissionReason.ANCESTOR:
                about = f"quotaNameTopo: [{path}], runtime: {limit}, used: {used}"
                return f"Insufficient quotas, {about}, {request}"
            case AdmissionReason.ANCESTOR_MISSING:
                return f"Could not find the elasticQuota {self.quota}, quotaNameTopo: [{path}]"


def has_room(request: Nanos, quota: Quota, limit: Nanos, is_preemptible: bool = True) -> bool:
    """Return whether `admit` allows the request, for who asks about each pod; ancestors are another question (`fits`).

    `request` is the whole one of the pod; `limit` is what the quota may use now.
    """
    counted, used = quota.max, quota.below.used
    for name, number in request.items():  # `fits`, without a call
        if name in limit and name in counted and number + used.get(name, 0) > limit[name]:
            return False
    return is_preemptible or fits(request, counted, quota.below.non_preemptible_used, quota.min)


def fits(request: Nanos, counted: Collection[str], used: Nanos, limit: Nanos) -> bool:
    """Return whether the counted resources of a request are there beside what is used. A name that `limit` lacks is not
    limited."""
    return not any(
        number + used.get(name, 0) > limit[name]
        for name, number in request.items()
        if name in limit and name in counted
    )


def admit(
    request: Amounts,
    quota: Quota,
    *,
    has_runtime: bool,
    is_preemptible: bool = True,
    ancestors: Sequence[Quota | str] = (),
    pod_count: int = 1,
) -> AdmissionDecision:
    """Return whether the quota has room for a request, then whether its minimum has (for a pod that cannot be
    preempted), then its ancestors. All are up to date; `has_runtime`: runtimes limit quotas.

    `ancestors` go from the parent up, without the root; a name stands for one that is not known. `pod_count` pods ask
    together. Upstream refuses a pod also for a resource that it does not ask for, when its quota is above the limit
    there already.
    """
    asked, below = mask(request, quota.max), quota.below
    path = (
        *(each if isinstance(each, str) else each.spec.name for each in reversed(ancestors)),
        quota.spec.name,
    )
    limit = _limit_of(quota, has_runtime)
    decision = _compared(AdmissionReason.QUOTA, asked, quota, below.used, limit, pod_count)
    if decision.is_allowed and not is_preemptible:
        used, limit = below.non_preemptible_used, quota.spec.min
        decision = _compared(AdmissionReason.NON_PREEMPTIBLE, asked, quota, used, limit, pod_count)
    for ancestor in ancestors if decision.is_allowed else ():
        above = admit_above(asked, ancestor, has_runtime=has_runtime, path=path, pod_count=pod_count)
        if not above.is_allowed:
            return above
    return decision


def admit_above(
    asked: Amounts, ancestor: Quota | str, *, has_runtime: bool, path: tuple[str, ...], pod_count: int = 1
) -> AdmissionDecision:
    """Return whether an ancestor (a name: one that is not known) of the quota at the end of `path` has room for what
    its descendants count of a request."""
    if isinstance(ancestor, str):
        return AdmissionDecision(reason=AdmissionReason.ANCESTOR_MISSING, quota=ancestor, path=path)
    used, limit = ancestor.below.used, _limit_of(ancestor, has_runtime)
    return _compared(AdmissionReason.ANCESTOR, asked, ancestor, used, limit, pod_count, path)


def _compared(
    refusal: AdmissionReason,
    asked: Amounts,
    quota: Quota,
    used: Nanos,
    limit: Amounts,
    pod_count: int,
    path: tuple[str, ...] = (),
) -> AdmissionDecision:
    """Return whether the limit leaves what is asked for beside what is used, which is written as in the request."""
    taken = amounts_of(used, asked)
    exceeded = exceeding(mask(add(asked, taken), asked), limit)
    return AdmissionDecision(
        reason=refusal if exceeded else AdmissionReason.OK,
        quota=quota.spec.name,
        path=path,
        limit=limit,
        used=taken,
        request=asked,
        exceeded=exceeded,
        pod_count=pod_count,
    )


def _limit_of(quota: Quota, has_runtime: bool) -> Amounts:
    """Return the limit for people: a maximum as its owner wrote it."""
    limit = quota.limit(has_runtime=has_runtime)
    return quota.spec.max if limit is quota.max else amounts_of(limit)


ROOT_SHOWN = "root"
"""Name of the root of a tree in messages."""
LENDERS_SHOWN = 3


class QuotaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts that a quota has and uses at some moment."""

    name: str
    parent: str
    tree_id: str = ""
    is_parent: bool = False
    lends: bool = True
    min: Amounts = {}
    max: Amounts = {}
    """Empty for the root: nothing limits it."""
    runtime: Amounts = {}
    """Amount that it may use now; of the root what all share. Empty where nobody has said it yet."""
    used: Amounts = {}
    request: Amounts = {}


class Borrowing(msgspec.Struct, frozen=True):
    """The use that a quota makes of another one's minimum."""

    lender: str
    """Path of the other quota."""
    amounts: Amounts


class SiblingLending(msgspec.Struct, frozen=True):
    """The loans among siblings of one resource."""

    resource: str
    lent: int
    taken: Mapping[str, int]
    """Quota → how much of it has."""
    idle: Mapping[str, int]
    """Quota → what it leaves of its minimum."""


class QuotaLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a tree."""

    figures: QuotaSummary
    path: str
    """Names from the top, joined by slashes."""
    depth: int
    """0 for the root of the default tree, and for the top quotas of others."""
    borrowed: Amounts = {}
    """Amount that it uses above its minimum; zeros are left out."""
    lent: Amounts = {}
    """Amount that its siblings use of its minimum; zeros are left out."""


class PodStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The standing of a pod at its quota."""

    path: str
    figures: QuotaSummary
    decision: AdmissionDecision
    """The quota that refuses it, and by which figures; or that it fits."""
    loans: tuple[Borrowing, ...] = ()
    """Quotas whose minima the refusing one uses, nearest first."""
    spare: Amounts = {}
    """Amount that it uses above its minimum and that nobody is sure of."""

    @property
    def text(self) -> str:
        """`queue at root/ads: runtime 120 cores, used 118, you ask 4; borrowed 20 from root/search`."""
        decision = self.decision
        if decision.reason is AdmissionReason.ANCESTOR_MISSING:
            return f"queue at {self.path}: {decision.message}"
        names = decision.exceeded or tuple(sorted(decision.request))
        limit, used = decision.limit, decision.used
        if decision.is_allowed:
            limit, used = self.figures.runtime or self.figures.max, self.figures.used
        bound = "min" if decision.reason is AdmissionReason.NON_PREEMPTIBLE else "runtime"
        verb = "used by pods that cannot be preempted" if bound == "min" else "used"
        asker = "you" if decision.pod_count == 1 else f"{decision.pod_count} members"
        parts = [
            f"{'' if name == resources.CPU else name + ' '}{bound} {_shown(name, limit.get(name))}, "
            f"{verb} {_number(name, used.get(name))}, {asker} ask {_number(name, decision.request.get(name))}"
            for name in names
        ]
        return "; ".join((f"queue at {self.path}: {'; '.join(parts)}", *self._borrowings(names)))

    def _borrowings(self, names: Sequence[str]) -> Iterator[str]:
        if self.decision.reason is AdmissionReason.NON_PREEMPTIBLE:
            return
        for name in names:
            kind = "" if name == resources.CPU else f" {name}"
            loans = [(loan.lender, loan.amounts[name]) for loan in self.loans if loan.amounts.get(name)]
            loans.sort(key=lambda each: (-each[1].nanos, each[0]))
            parts = [
                f"{readable.cell(name, amount)}{kind} from {lender}"
                for lender, amount in loans[:LENDERS_SHOWN]
            ]
            if more := loans[LENDERS_SHOWN:]:
                rest = sum((amount for _, amount in more), ZERO)
                parts.append(f"{readable.cell(name, rest)}{kind} from {len(more)} others")
            if spare := self.spare.get(name):
                parts.append(f"{readable.cell(name, spare)}{kind} that no quota is sure of")
            if parts:
                yield f"borrowed {', '.join(parts)}"


class LendingReport:
    """Quotas of one tree by name, and what they borrow from each other."""

    def __init__(self, figures: Iterable[QuotaSummary]) -> None:
        self._quotas = {each.name: each for each in figures}
        self._below: dict[str, list[str]] = {}
        self._paths: dict[str, str] = {}
        self._known_lending: dict[str, list[SiblingLending]] = {}
        for name in sorted(self._quotas):
            if name != ROOT:
                self._below.setdefault(self._quotas[name].parent, []).append(name)

    def get(self, name: str) -> QuotaSummary | None:
        """Return a quota."""
        return self._quotas.get(name)

    def path(self, name: str) -> str:
        """`root/ads/web`; quotas whose parents are not known begin with `?`."""
        names: list[str] = []
        seen: set[str] = set()
        top = name
        while top in self._quotas and top not in seen and top not in self._paths:
            names.append(top)
            seen.add(top)
            top = self._quotas[top].parent
        above = self._paths.get(top)
        if above is None:
            is_default = bool(names) and not self._quotas[names[0]].tree_id
            above = ROOT_SHOWN if top == ROOT and ROOT not in seen and is_default else ""
            above = above or ("?" if top and top != ROOT else "")
        for each in reversed(names):
            shown = ROOT_SHOWN if each == ROOT else each
            above = f"{above}/{shown}" if above else shown
            if top not in seen:  # else they go round in a circle, and each begins with itself
                self._paths[each] = above
        return above

    def rows(self) -> list[QuotaLine]:
        """Return all quotas, each before its children, siblings by name. Quotas that hang nowhere come last."""
        tops = [ROOT] if ROOT in self._quotas else self._below.get(ROOT, [])
        strays = [name for name in sorted(self._quotas) if self._quotas[name].parent not in self._quotas]
        rings = sorted(self._quotas)  # what nothing leads to: quotas that are each other's parents
        found: list[QuotaLine] = []
        seen: set[str] = set()
        lent = self._lent(tops)
        for top in (*tops, *strays, *rings):
            self._add_rows(top, found, seen, lent)
        return found

    def _add_rows(self, top: str, found: list[QuotaLine], seen: set[str], lent: dict[str, Nanos]) -> None:
        waiting = [(top, 0)]
        while waiting:
            name, depth = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            each = self._quotas[name]
            found.append(
                QuotaLine(
                    figures=each,
                    path=self.path(name),
                    depth=depth,
                    borrowed=amounts_of(_over(each)) if name != ROOT else {},
                    lent=amounts_of(lent.get(name, {})),
                )
            )
            children = self._below.get(name, [])
            lent.update(self._lent(children))
            waiting.extend((child, depth + 1) for child in reversed(children))

    def _lent(self, siblings: Sequence[str]) -> dict[str, Nanos]:
        found: dict[str, Nanos] = {}
        for lending in self._lending(siblings):
            for lender, amount in _split(lending.resource, lending.lent, lending.idle).items():
                found.setdefault(lender, {})[lending.resource] = amount
        return found

    def loans(self, name: str) -> tuple[tuple[Borrowing, ...], Amounts]:
        """Return the loans: whose minima a quota uses, nearest first, and what it uses that nobody is sure of."""
        loans: list[Borrowing] = []
        known = self._quotas.get(name)
        left = _over(known) if known is not None else {}
        seen: set[str] = set()
        while known is not None and known.name not in seen and left:
            seen.add(known.name)
            by_lender: dict[str, Nanos] = {}
            for lending in self._lending_of(known.parent):
                resource = lending.resource
                part = min(lending.taken.get(known.name, 0), left.get(resource, 0))
                for lender, amount in _split(resource, part, lending.idle).items():
                    by_lender.setdefault(lender, {})[resource] = amount
                    left[resource] -= amount
            loans += [Borrowing(self.path(each), amounts_of(by_lender[each])) for each in sorted(by_lender)]
            left = {resource: amount for resource, amount in left.items() if amount > 0}
            known = self._quotas.get(known.parent)
        return tuple(loans), amounts_of(left)

    def _lending_of(self, parent: str) -> "list[SiblingLending]":
        known = self._known_lending.get(parent)
        if known is None:
            known = self._known_lending[parent] = list(self._lending(self._below.get(parent, [])))
        return known

    def _lending(self, siblings: Sequence[str]) -> "Iterator[SiblingLending]":
        over: dict[str, dict[str, int]] = {}
        idle: dict[str, dict[str, int]] = {}
        for name in siblings:
            each = self._quotas[name]
            for resource, amount in _in_whole_units(_over(each)).items():
                over.setdefault(resource, {})[name] = amount
            for resource, amount in _in_whole_units(_idle(each)).items():
                idle.setdefault(resource, {})[name] = amount
        for resource in sorted(over.keys() & idle.keys()):
            lent = min(sum(over[resource].values()), sum(idle[resource].values()))
            yield SiblingLending(resource, lent, _split(resource, lent, over[resource]), idle[resource])


def of_quota(quota: Quota, tree_id: str, runtime: Amounts) -> QuotaSummary:
    """Return a quota of the books; `runtime` is what it may use now."""
    counted = quota.max if quota.spec.name != ROOT else quota.runtime
    return QuotaSummary(
        name=quota.spec.name,
        parent=quota.spec.parent,
        tree_id=tree_id,
        is_parent=quota.spec.is_parent,
        lends=quota.lends,
        min=quota.spec.min,
        max=quota.spec.max,
        runtime=resource_list.mask(runtime, counted),
        used=amounts_of(mask(quota.below.used, counted)),
        request=amounts_of(mask(quota.request, counted)),
    )


def of_path(tree: GroupQuotaTree, tree_id: str, name: str) -> LendingReport:
    """Return a quota of the books with its ancestors, and the siblings of each: enough for `path` and `loans`."""
    tree.bring_up_to_date(name)
    wanted: dict[str, Quota] = {}
    for each in tree.path(name):
        if (quota := tree.get(each)) is not None:
            wanted[each] = quota
            for sibling in tree.children(quota.spec.parent):
                if (other := tree.get(sibling)) is not None:
                    wanted[sibling] = other
    if tree_id:
        wanted.pop(ROOT, None)
    path = frozenset(tree.path(name))
    return LendingReport(
        of_quota(quota, tree_id, tree.refresh(each) if each in path else {}) for each, quota in wanted.items()
    )


def standing(report: LendingReport, name: str, decision: AdmissionDecision) -> PodStanding:
    """Return what a pod of the quota `name` meets there, or at the ancestor that `decision` names."""
    refusing = decision.quota if report.get(decision.quota) is not None else name
    figures = report.get(refusing)
    assert figures is not None, name
    loans, spare = report.loans(refusing)
    return PodStanding(
        path=report.path(refusing), figures=figures, decision=decision, loans=loans, spare=spare
    )


def _over(quota: QuotaSummary) -> Nanos:
    """Return what it uses above its minimum, of the resources that it counts."""
    if quota.name in (labels.SYSTEM_QUOTA_NAME, labels.DEFAULT_QUOTA_NAME):
        return {}
    least = nanos_of(quota.min)
    over = {name: number - least.get(name, 0) for name, number in nanos_of(quota.used).items()}
    return {name: number for name, number in over.items() if number > 0 and name in quota.max}


def _idle(quota: QuotaSummary) -> Nanos:
    if not quota.lends:
        return {}
    used = nanos_of(quota.used)
    idle = {name: number - used.get(name, 0) for name, number in nanos_of(quota.min).items()}
    return {name: number for name, number in idle.items() if number > 0}


def _in_whole_units(nanos: Nanos) -> Nanos:
    """Rounded down to milli-cores and bytes, so that parts are readable."""
    return {name: number - number % nanos_per_unit(name) for name, number in nanos.items()}


def _split(resource: str, amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Whole units of the resource by weight."""
    unit = nanos_per_unit(resource)
    parts = split(amount // unit, list(weights.values())) or ()
    return {name: part * unit for name, part in zip(weights, parts, strict=False) if part}


def _shown(name: str, amount: Quantity | None) -> str:
    return "unlimited" if amount is None else readable.amount(name, amount)


def _number(name: str, amount: Quantity | None) -> str:
    return readable.cell(name, amount or ZERO)
