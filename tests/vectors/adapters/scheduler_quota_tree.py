"""Areas `quota-runtime`, `quota-min-scale`, `quota-accounting`, `quota-guarantee`: one level, and whole trees."""

from typing import Any

from koordinator.api import quantity, resource_list
from koordinator.api.resource_list import Amounts, mask
from koordinator.scheduler.plugins.elastic_quota.book import Capacity
from koordinator.scheduler.plugins.elastic_quota.forest import TerminatingPolicy, is_ignored
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    ROOT,
    SYSTEM,
    Quota,
    QuotaPodRequest,
    QuotaSpec,
    amounts_of,
)
from koordinator.scheduler.plugins.elastic_quota.runtime_calculator import ChildQuota, ChildQuotas
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree

Case = dict[str, Any]
NOW_S = 1_800_000_000.0
RESERVED = {
    name: resource_list.of({"cpu": 1844674407370955161, "memory": 1844674407370955161})
    for name in (SYSTEM, DEFAULT)
}
POLICIES = {
    "count": TerminatingPolicy.COUNT,
    "afterGrace": TerminatingPolicy.AFTER_GRACE,
    "immediate": TerminatingPolicy.IMMEDIATE,
}


def level(case: Case) -> Any:
    children = sorted(case["children"], key=lambda each: str(each["name"]))
    columns = ChildQuotas(1, map(_entry, children))
    columns.compute(case["total"], None)
    return {"runtime": {each["name"]: columns.share(row) for row, each in enumerate(children)}}


def _entry(child: Case) -> ChildQuota:
    return ChildQuota(
        weight=child["weight"],
        request=child["request"],
        least=max(child.get("min", 0), child.get("guarantee", 0)),
        lends=child.get("lend", True),
    )


def runtime(case: Case) -> Any:
    return level(case) if case.get("kind") == "level" else events(case)


def events(case: Case) -> Any:
    return Play(case.get("options") or {}).run(case["steps"])


class Play:
    """A tree that steps are played on."""

    kinds: tuple[type[GroupQuotaTree], ...] = ()
    """What it does otherwise: how deviations say what the reference would answer."""

    def __init__(self, options: Case) -> None:
        self.policy = POLICIES[options.get("terminatingMode", "count")]
        self.capacity = Capacity()
        self.tree = type("Tree", (*self.kinds, GroupQuotaTree), {})(
            reserved=RESERVED,
            scales_min=options.get("minScale", True),
            keeps_guarantee=options.get("guaranteeUsage", False),
        )

    def run(self, steps: list[Case]) -> Any:
        seen = {}
        for step in steps:
            if step["op"] == "check":
                seen[step["id"]] = {
                    name: {field: self.read(name, field) for field in fields}
                    for name, fields in step["read"].items()
                }
            else:
                self.apply(step)
        return seen

    def apply(self, step: Case) -> None:
        tree = self.tree
        match step["op"]:
            case "nodeAdd":
                self.capacity.update(step["name"], resource_list.of(step["allocatable"]))
            case "nodeUpdate":
                self.capacity.update(step["name"], resource_list.of(step["new"]))
            case "nodeDelete":
                self.capacity.remove(step["name"])
            case "setQuota":
                tree.set_quota(spec_of(step["quota"]))
            case "deleteQuota":
                tree.remove_quota(step["name"])
            case "podAdd":
                tree.add_pod(step["quota"], self.pod(step["pod"]))
            case "podUpdate":
                tree.update_pod(step["quota"], self.pod(step["pod"]), step.get("oldQuota"))
            case "podDelete":
                tree.remove_pod(step["quota"], step["pod"]["name"])
            case "reserve":
                tree.reserve(step["quota"], step["pod"]["name"])
            case "unreserve":
                tree.unreserve(step["quota"], step["pod"]["name"])
            case "refresh":
                for name in step["quotas"]:
                    tree.refresh(name)
            case other:
                raise AssertionError(f"unknown step {other}")
        tree.total = self.capacity.total

    def pod(self, pod: Case) -> QuotaPodRequest:
        terminating = pod.get("terminating")
        deleted_s = NOW_S - terminating["secondsSinceDeletionTimestamp"] if terminating else None
        grace_s = terminating.get("gracePeriodSeconds") if terminating else None
        return QuotaPodRequest(
            key=pod["name"],
            request=resource_list.of(pod["request"]),
            is_on_node=bool(pod.get("node")) and pod.get("phase") not in ("Succeeded", "Failed"),
            is_preemptible=not pod.get("nonPreemptible", False),
            is_ignored=is_ignored(self.policy, NOW_S, deleted_s, grace_s),
        )

    def read(self, name: str, field: str) -> Any:
        quota = self.tree.get(name)
        if field == "exists":
            return quota is not None
        if field in ("pool", "total"):
            return resource_list.to_wire(self.tree.pool if field == "pool" else self.tree.total)
        if quota is None:
            return None
        if field == "pods":
            return sorted(quota.pods)
        return resource_list.to_wire(field_of(quota, field))


def field_of(quota: Quota, field: str) -> Amounts:
    own, below = quota.own, quota.below
    return amounts_of(
        {
            "request": quota.request,
            "limitedRequest": quota.limited_request,
            "childRequest": below.request,
            "selfRequest": own.request,
            "nonPreemptibleRequest": below.non_preemptible_request,
            "selfNonPreemptibleRequest": own.non_preemptible_request,
            "used": below.used,
            "selfUsed": own.used,
            "nonPreemptibleUsed": below.non_preemptible_used,
            "selfNonPreemptibleUsed": own.non_preemptible_used,
            "allocated": quota.allocated,
            "guaranteed": quota.guaranteed,
            "min": quota.min,
            "max": quota.max,
            "sharedWeight": quota.weight,
            "autoScaleMin": quota.auto_min,
            "runtime": mask(quota.runtime, quota.max),
        }[field]
    )


def spec_of(quota: Case) -> QuotaSpec:
    ceiling = resource_list.of(quota.get("max") or {})
    weight = resource_list.of(quota.get("weight") or {})
    return QuotaSpec(
        name=quota["name"],
        parent=quota.get("parent") or ROOT,
        is_parent=quota.get("isParent", False),
        lends=quota.get("lend", True),
        min=resource_list.of(quota.get("min") or {}),
        max=ceiling,
        weight=ceiling if resource_list.is_zero(weight) else weight,
    )


def same(expected: Any, actual: Any) -> bool:
    """Lists of amounts by value, where a missing name is zero."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = expected.keys() | actual.keys()
        return all(same(expected.get(name, "0"), actual.get(name, "0")) for name in names)
    if isinstance(expected, str | int) and isinstance(actual, str | int) and not isinstance(expected, bool):
        try:
            return quantity.of(expected) == quantity.of(actual)
        except quantity.QuantityError:
            return expected == actual
    return bool(expected == actual)


AREAS = ("quota-runtime", "quota-min-scale", "quota-accounting", "quota-guarantee")
ADAPTERS = dict.fromkeys(AREAS, runtime)
COMPARE = dict.fromkeys(AREAS, same)
