"""What the reference answers about trees of quotas, worked out from what we answer."""

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.plugins.elastic_quota import evictions
from koordinator.scheduler.plugins.elastic_quota.evictions import QuotaPod
from koordinator.scheduler.plugins.elastic_quota.quota import (
    ROOT,
    Nanos,
    Quota,
    QuotaSpec,
    Sums,
    exceeding,
    negated,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from tests.vectors.adapters.scheduler_quota_tree import Play
from tests.vectors.deviations.question import Ask, Case, Question

_SHARES = ("runtime", "autoScaleMin")
"""What siblings decide; all else is counted."""
_SPEC = ("min", "max", "sharedWeight")

Read = dict[str, dict[str, dict[str, Any]]]
"""Check → quota → field → value."""


def _mixed(ours: Read, other: Read, takes: Callable[[str], bool]) -> Read:
    """Our answer, with the fields that `takes` names from the other one."""
    return {
        check: {
            name: {
                field: other[check][name][field] if takes(field) else value for field, value in fields.items()
            }
            for name, fields in quotas.items()
        }
        for check, quotas in ours.items()
    }


def with_all_resources_asked_for(case: Case, ask: Ask) -> Any:
    """A pod asks for nothing of the resources that it does not name, and is refused where they are overdrawn."""
    pod = case["pod"]
    if case["kind"] == "snapshot":
        quotas = [each for each in case["quotas"] if each["name"] == pod["quota"]]
    else:
        quotas = [step["quota"] for step in case["steps"] if step["op"] == "setQuota"]
        quotas = [each for each in quotas if each["name"] == pod["quota"]]
    named = {name: "0" for each in quotas for name in each.get("max") or ()}
    if named.keys() <= pod["request"].keys():
        return None
    return ask({**case, "pod": {**pod, "request": {**named, **pod["request"]}}})


def counted_once(case: Case, ask: Ask) -> Any:
    """Pods keep what was counted for them when they came, whatever their quotas name later."""
    if "steps" not in case:
        return None
    former: dict[str, Case] = {}
    has_pods, steps = False, []
    for step in case["steps"]:
        has_pods = has_pods or step["op"] == "podAdd"
        if step["op"] == "setQuota":
            quota = step["quota"]
            known = former.setdefault(quota["name"], quota.get("max") or {})
            if has_pods and known.keys() != (quota.get("max") or {}).keys():
                ceiling = {name: (quota.get("max") or {}).get(name, amount) for name, amount in known.items()}
                step = {**step, "quota": {**quota, "max": ceiling}}
        steps.append(step)
    if steps == case["steps"]:
        return None
    return _mixed(ask(case), ask({**case, "steps": steps}), lambda field: field not in (*_SHARES, *_SPEC))


def shared_with_pods_of_parents(case: Case, ask: Ask) -> Any:
    """Children share all that their parent has, also what the parent's own pods use."""
    if "steps" not in case:
        return None
    parents = {step["quota"].get("parent") or ROOT for step in case["steps"] if step["op"] == "setQuota"} - {
        ROOT
    }
    steps = []
    for step in case["steps"]:
        is_own = step.get("quota") in parents if isinstance(step.get("quota"), str) else False
        if is_own and step["op"] in ("reserve", "unreserve"):
            continue
        if is_own and step["op"] in ("podAdd", "podUpdate"):
            step = {**step, "pod": {**step["pod"], "node": ""}}
        steps.append(step)
    if steps == case["steps"]:
        return None
    return _mixed(ask(case), ask({**case, "steps": steps}), lambda field: field in _SHARES)


def judged_by_the_last_pod(case: Case, ask: Ask) -> Any:
    """Over-use is judged by the resources that the pod looked at last asks for."""
    if case["kind"] == "monitor":
        return None
    with mock.patch.object(evictions, "revoke", _revoke):
        return ask(case)


def _revoke(used: Amounts, runtime: Amounts, assigned: Iterable[QuotaPod]) -> list[QuotaPod]:
    taken: list[QuotaPod] = []
    for pod in reversed(evictions.by_importance(assigned)):
        if not exceeding(used, runtime):
            break
        if pod.is_preemptible:
            used = resource_list.mask(resource_list.sub(used, pod.request), pod.request)
            taken.append(pod)
    if exceeding(used, runtime):
        return taken
    evicted: list[QuotaPod] = []
    for pod in reversed(taken):
        used = resource_list.mask(resource_list.add(used, pod.request), pod.request)
        if exceeding(used, runtime):
            evicted.append(pod)
            used = resource_list.sub(used, pod.request)
    return evicted


class _TakesWholeRequests(GroupQuotaTree):
    """A parent loses all that a quota asks for when that goes, also what is above its max and never came to it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._missing: dict[str, Nanos] = {}

    def _detach(self, quota: Quota) -> None:
        super()._detach(quota)
        parent = self.get(quota.spec.parent)
        passed = quota.limited_request
        beyond = {name: asked - passed.get(name, 0) for name, asked in quota.request.items()}
        if parent is not None and any(beyond.values()):
            left = parent.below.request
            taken = {name: min(amount, left.get(name, 0)) for name, amount in beyond.items()}
            self._pass_on(parent.spec.name, Sums(request=negated(taken)))
            gone = self._missing.setdefault(parent.spec.name, {})
            for name, amount in taken.items():
                gone[name] = gone.get(name, 0) + amount

    def _change(self, quota: Quota, spec: QuotaSpec, lends: bool) -> None:
        is_reset = (quota.spec.is_parent, quota.lends) != (spec.is_parent, lends)
        super()._change(quota, spec, lends)
        if is_reset:
            for name, gone in self._missing.items():
                self._pass_on(name, Sums(request=gone))
            self._missing = {}


def taken_as_a_whole(case: Case, ask: Ask) -> Any:
    """What a quota that goes asks for leaves its parent without the limit that it came there with (G15)."""
    if "steps" not in case or "args" in case:
        return None
    return Play(case.get("options") or {}, _TakesWholeRequests).run(case["steps"])


def scaled_on_demand(question: Question) -> bool:
    """A child keeps its whole minimum until somebody asks for it.

    Only the shares below a parent whose minima do not fit may differ, and only until each of its children was
    refreshed twice after the last change: the first time scales them all, the second time shares by that. A minimum
    is ours or the whole one, and a share is away from ours by no more than was ever scaled away below that parent.
    """
    if "steps" not in question.input or not (question.input.get("options") or {}).get("minScale", True):
        return False
    for check, (specs, refreshed) in _refreshes(question.input["steps"]).items():
        for name, fields in question.expected[check].items():
            parent = specs[name]["parent"] if name in specs else None
            siblings = [each for each in specs.values() if each["parent"] == parent]
            is_settled = all(refreshed.get(each["name"], 0) >= 2 for each in siblings)
            for field, value in fields.items():
                ours = question.ours[check][name][field]
                if question.same(value, ours):
                    continue
                if field not in _SHARES or is_settled:
                    return False
                if field == "autoScaleMin" and not question.same(value, specs[name].get("min") or {}):
                    return False
                if not _is_within(value, ours, _scaled_away(siblings, question, check)):
                    return False
    return True


def _is_within(value: Case, ours: Case, tolerance: Amounts) -> bool:
    a, b = resource_list.of(value), resource_list.of(ours)
    return all(
        abs(amount.nanos) <= (tolerance[name].nanos if name in tolerance else 0)
        for name, amount in resource_list.sub(a, b).items()
    )


def _refreshes(steps: list[Case]) -> dict[str, tuple[dict[str, Case], dict[str, int]]]:
    """Check → the quotas as specified, and how often each was refreshed since anything else changed."""
    specs: dict[str, Case] = {}
    refreshed: dict[str, int] = {}
    found = {}
    for step in steps:
        match step["op"]:
            case "setQuota":
                specs[step["quota"]["name"]] = {"parent": ROOT, **step["quota"]}
                refreshed = {}
            case "refresh":
                for name in step["quotas"]:
                    refreshed[name] = refreshed.get(name, 0) + 1
            case "check":
                found[step["id"]] = (dict(specs), dict(refreshed))
            case _:
                refreshed = {}
    return found


def _scaled_away(siblings: list[Case], question: Question, check: str) -> Amounts:
    """How much more the whole minima of siblings are than our scaled ones, which fit: the most until the check."""
    names = [each["name"] for each in siblings]
    whole = resource_list.sum_of(resource_list.of(each.get("min") or {}) for each in siblings)
    read = {"op": "check", "id": "scaled", "read": {name: ["autoScaleMin"] for name in names}}
    most: Amounts = {}
    for at, step in enumerate(question.input["steps"]):
        if step["op"] == "refresh":
            steps = [*question.input["steps"][:at], {"op": "refresh", "quotas": names}, read]
            scaled = question.ask({**question.input, "steps": steps})["scaled"]
            sums = resource_list.sum_of(
                resource_list.of(each["autoScaleMin"]) for each in scaled.values() if each["autoScaleMin"]
            )
            most = resource_list.maximum(most, resource_list.sub(whole, sums)) if sums else most
        if step.get("id") == check:
            break
    return most
