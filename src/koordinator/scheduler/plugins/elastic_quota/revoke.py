"""Taking back what a quota uses beyond its runtime: when, and from which pods. Source: behaviour/elastic-quota 15."""

import enum
from collections.abc import Iterable

import msgspec

from koordinator.api.resource_list import Amounts, add, sub
from koordinator.scheduler.plugins.elastic_quota.amounts import exceeding
from koordinator.scheduler.plugins.elastic_quota.preempt import Rival, by_importance


class OveruseReason(enum.Enum):
    """What the check of a quota found."""

    WITHIN = "the quota is within its runtime"
    WAITING = "above its runtime, but not for long enough"
    EVICT = "above its runtime for longer than delayEvictTime"


class OveruseCheck(msgspec.Struct, frozen=True):
    """The finding, and since when the quota counts as above its runtime for the next check."""

    reason: OveruseReason
    last_under_s: float


def check_overuse(last_under_s: float, now_s: float, is_above: bool, delay_s: float) -> OveruseCheck:
    """Whether it is time to evict; after that the delay begins anew. `is_above`: the quota uses more than its runtime
    now."""
    if not is_above:
        return OveruseCheck(OveruseReason.WITHIN, now_s)
    if now_s - last_under_s > delay_s:
        return OveruseCheck(OveruseReason.EVICT, now_s)
    return OveruseCheck(OveruseReason.WAITING, last_under_s)


class RevokeReason(enum.Enum):
    """How far evictions help."""

    WITHIN = "nothing to take back"
    ENOUGH = "within the runtime after these evictions"
    NOT_ENOUGH = "above the runtime even without all pods that may be evicted"


class RevokeDecision(msgspec.Struct, frozen=True):
    """Pods to evict, in this order."""

    reason: RevokeReason
    evict: tuple[Rival, ...] = ()


def revoke(used: Amounts, runtime: Amounts, assigned: Iterable[Rival]) -> RevokeDecision:
    """Takes the least important pods until the quota is within its runtime, then gives back, the most
    important first, what turns out not to be needed. Pods that are not preemptible stay."""
    taken: list[Rival] = []
    for pod in reversed(by_importance(assigned)):
        if not exceeding(used, runtime):
            break
        if pod.is_preemptible:
            used = sub(used, pod.request)
            taken.append(pod)
    if exceeding(used, runtime):
        return RevokeDecision(RevokeReason.NOT_ENOUGH, tuple(taken))
    evicted: list[Rival] = []
    for pod in reversed(taken):
        with_pod = add(used, pod.request)
        if exceeding(with_pod, runtime):
            evicted.append(pod)
        else:
            used = with_pod
    return RevokeDecision(RevokeReason.ENOUGH if taken else RevokeReason.WITHIN, tuple(evicted))
