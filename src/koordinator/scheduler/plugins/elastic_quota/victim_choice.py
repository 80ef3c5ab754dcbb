"""Preemption inside a quota: a pod may take the place of less important ones of the same quota.

Budgets and the ranking of nodes are those of stock preemption. Source: behaviour/elastic-quota 14.
"""

import enum
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api.resource_list import Amounts, add, mask, sub
from koordinator.scheduler.plugin.status import Code
from koordinator.scheduler.plugins.elastic_quota.amounts import accumulate, exceeding
from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT


class QuotaPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod in the eyes of quota preemption, be it the one that wants a place or the one that has it."""

    name: str = ""
    quota: str
    priority: int
    start_s: float = 0.0
    request: Amounts = {}
    """Already reduced to the resources that the quota counts."""
    is_preemptible: bool = True
    is_counted: bool = True
    """Whether it is part of what the quota uses."""
    is_terminating: bool = False


class VictimReason(enum.Enum):
    """The reason whether one pod may be evicted for another."""

    OK = "may be evicted"
    NON_PREEMPTIBLE = "the victim is not preemptible"
    DEFAULT_QUOTA = "pods of the default quota are not preempted"
    PRIORITY = "the victim is as important"
    OTHER_QUOTA = "the victim belongs to another quota"


def may_evict(pod: QuotaPod, victim: QuotaPod, *, protects_default: bool) -> VictimReason:
    """Return whether `victim` may be evicted for `pod`."""
    if not victim.is_preemptible:
        return VictimReason.NON_PREEMPTIBLE
    if protects_default and victim.quota == DEFAULT:
        return VictimReason.DEFAULT_QUOTA
    if pod.priority <= victim.priority:
        return VictimReason.PRIORITY
    return VictimReason.OK if pod.quota == victim.quota else VictimReason.OTHER_QUOTA


def objection(
    pod: QuotaPod, *, never: bool, nominated_code: Code, on_nominated_node: Iterable[QuotaPod]
) -> str:
    """Return why the pod may not preempt now, empty when it may. `on_nominated_node` is empty without nomination."""
    if never:
        return "not eligible due to preemptionPolicy=Never."
    if nominated_code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
        return ""
    for other in on_nominated_node:
        if other.is_terminating and (other.quota == pod.quota) and (other.priority < pod.priority):
            return "not eligible due to a terminating pod on the nominated node."
    return ""


class VictimChoice(msgspec.Struct, frozen=True):
    """Pods to evict, in the order they were decided on, and how many of them violate a budget."""

    code: Code
    victims: tuple[QuotaPod, ...] = ()
    violations: int = 0


def by_importance(pods: Iterable[QuotaPod]) -> list[QuotaPod]:
    """Higher priority first, among equals the one that runs longest."""
    return sorted(pods, key=lambda pod: (-pod.priority, pod.start_s))


def choose_victims(
    request: Amounts,
    violating: Sequence[QuotaPod],
    harmless: Sequence[QuotaPod],
    *,
    used: Amounts,
    limit: Amounts,
    fits: Callable[[Sequence[QuotaPod]], bool],
) -> VictimChoice:
    """Choose which of the pods that may be evicted from a node have to go for `request`.

    `violating` and `harmless` are those pods, most important first, split by whether a disruption budget
    protects them; `used` and `limit` belong to the quota. `fits` tells whether the node holds the pod beside
    these of them. A pod may stay if both node and quota have room with it.
    """
    everyone = (*violating, *harmless)
    if not everyone:
        return VictimChoice(Code.UNSCHEDULABLE_AND_UNRESOLVABLE)
    if not fits(()):
        return VictimChoice(Code.UNSCHEDULABLE)
    for pod in everyone:
        used = accumulate(used, sub({}, pod.request)) if pod.is_counted else used
    staying: list[QuotaPod] = []
    victims: list[QuotaPod] = []
    violations = 0
    for is_violating, group in ((True, violating), (False, harmless)):
        for pod in group:
            has_room = fits((*staying, pod))
            used_with = add(used, pod.request) if pod.is_counted else used
            if has_room and not exceeding(mask(add(used_with, request), request), limit):
                staying.append(pod)
                used = used_with
                continue
            victims.append(pod)
            # As upstream counts: not one that leaves for the sake of the quota.
            violations += is_violating and not has_room
    return VictimChoice(Code.SUCCESS, tuple(victims), violations)
