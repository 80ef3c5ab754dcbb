"""Decide whether a pod may be placed now, as far as its quota is concerned. Source: behaviour/elastic-quota 13."""

import enum
from collections.abc import Collection, Sequence

import msgspec

from koordinator.api.resource_list import Amounts, add, mask
from koordinator.scheduler.plugins.elastic_quota.quota import Nanos, Quota, amounts_of, exceeding, text


class AdmissionReason(enum.Enum):
    """The answer of its quota to a pod."""

    OK = "within the quota"
    QUOTA = "Insufficient quotas"
    NON_PREEMPTIBLE = "Insufficient non-preemptible quotas"
    ANCESTOR = "Insufficient quotas of an ancestor"
    ANCESTOR_MISSING = "an ancestor of the quota is not known"


class QuotaStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a quota that decide. `limit` is its runtime, or its max where runtime is not used."""

    name: str
    max: Amounts
    min: Amounts
    used: Amounts
    non_preemptible_used: Amounts
    limit: Amounts

    @classmethod
    def of(cls, quota: Quota, *, has_runtime: bool, like: Amounts | None = None) -> "QuotaStanding":
        """Return a quota as it stands; its runtime has been refreshed by the caller. Its use is written as in
        `like`, the request of the pod that asks.
        """
        return cls(
            name=quota.spec.name,
            max=quota.spec.max,
            min=quota.spec.min,
            used=amounts_of(quota.below.used, like),
            non_preemptible_used=amounts_of(quota.below.non_preemptible_used, like),
            limit=amounts_of(quota.runtime) if has_runtime else quota.spec.max,
        )


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
    """How many pods ask, for the words."""

    @property
    def is_allowed(self) -> bool:
        return self.reason is AdmissionReason.OK

    @property
    def message(self) -> str:
        """The words for people; empty when the pod is allowed."""
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
    """Return whether `admit` allows the request, for who asks about each pod; ancestors are another question
    (`fits`).

    `request` is the whole one of the pod; `limit` is what the quota may use now.
    """
    counted, used = quota.max, quota.below.used
    for name, number in request.items():  # `fits`, without a call
        if name in limit and name in counted and number + used.get(name, 0) > limit[name]:
            return False
    return is_preemptible or fits(request, counted, quota.below.non_preemptible_used, quota.min)


def fits(request: Nanos, counted: Collection[str], used: Nanos, limit: Nanos) -> bool:
    """Return whether the counted resources of a request are there beside what is used. A name that `limit` lacks is
    not limited.
    """
    return not any(
        number + used.get(name, 0) > limit[name]
        for name, number in request.items()
        if name in limit and name in counted
    )


def admit(
    request: Amounts,
    quota: QuotaStanding,
    *,
    is_preemptible: bool = True,
    ancestors: Sequence[QuotaStanding | str] = (),
    pod_count: int = 1,
) -> AdmissionDecision:
    """Return whether the quota has room for a request, then whether its minimum has (for a pod that cannot be
    preempted), then its ancestors.

    `ancestors` go from the parent up, without the root; a name stands for one that is not known. `pod_count` pods ask
    together. Upstream refuses a pod also for a resource that it does not ask for, when its quota is above the limit
    there already.
    """
    asked = mask(request, quota.max)
    path = (*(each if isinstance(each, str) else each.name for each in reversed(ancestors)), quota.name)
    questions = [(AdmissionReason.QUOTA, quota.used, quota.limit)]
    if not is_preemptible:
        questions.append((AdmissionReason.NON_PREEMPTIBLE, quota.non_preemptible_used, quota.min))
    for reason, used, limit in questions:
        if exceeded := exceeding(mask(add(asked, used), asked), limit):
            return AdmissionDecision(
                reason=reason,
                quota=quota.name,
                limit=limit,
                used=used,
                request=asked,
                exceeded=exceeded,
                pod_count=pod_count,
            )
    for ancestor in ancestors:
        decision = admit_above(asked, ancestor, path=path, pod_count=pod_count)
        if not decision.is_allowed:
            return decision
    return AdmissionDecision(reason=AdmissionReason.OK, quota=quota.name, request=asked, pod_count=pod_count)


def admit_above(
    asked: Amounts, ancestor: QuotaStanding | str, *, path: tuple[str, ...], pod_count: int = 1
) -> AdmissionDecision:
    """Return whether an ancestor (a name: one that is not known) of the quota at the end of `path` has room for
    what its descendants count of a request.
    """
    if isinstance(ancestor, str):
        return AdmissionDecision(reason=AdmissionReason.ANCESTOR_MISSING, quota=ancestor, path=path)
    exceeded = exceeding(mask(add(asked, ancestor.used), asked), ancestor.limit)
    return AdmissionDecision(
        reason=AdmissionReason.ANCESTOR if exceeded else AdmissionReason.OK,
        quota=ancestor.name,
        path=path,
        limit=ancestor.limit,
        used=ancestor.used,
        request=asked,
        exceeded=exceeded,
        pod_count=pod_count,
    )
