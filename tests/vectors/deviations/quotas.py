"""What the reference answers about trees of quotas, worked out from what we answer."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import msgspec

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts
from koordinator.api.resource_vector import add_in_place
from koordinator.scheduler.plugins.elastic_quota import evictions, runtime, runtime_calculator
from koordinator.scheduler.plugins.elastic_quota.evictions import QuotaPod
from koordinator.scheduler.plugins.elastic_quota.quota import (
    OUTSIDE_THE_SHARES,
    ROOT,
    Nanos,
    Quota,
    QuotaSpec,
    Sums,
    exceeding,
    grown,
    negated,
    to_units,
)
from koordinator.scheduler.plugins.elastic_quota.runtime_calculator import (
    ChildQuota,
    ChildQuotas,
    RuntimeCalculator,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from koordinator.scheduler.plugins.preemption import victims
from tests.vectors.adapters.scheduler_quota_tree import RESERVED, Play
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


def rounded_each(case: Case, ask: Ask) -> Any:
    """Each part of what is shared out is rounded by itself, so that all together are more or less than there is."""
    with (
        mock.patch.object(runtime, "split", _split),
        mock.patch.object(runtime_calculator, "ARRAYS_FROM", 2**63),
        mock.patch.object(ChildQuotas, "_have_enough", lambda *_: False),
    ):
        return ask(case)


def _split(amount: int, weights: list[int]) -> list[int] | None:
    whole = float(sum(weights))
    return None if whole <= 0 else [int(float(weight) * float(amount) / whole + 0.5) for weight in weights]


class _TakesWholeRequests(GroupQuotaTree):
    """A parent loses all that a quota asks for when that goes, also what is above its max and never came to it."""

    def _detach(self, quota: Quota) -> None:
        super()._detach(quota)
        parent = self.get(quota.spec.parent)
        passed = quota.limited_request
        beyond = {name: asked - passed.get(name, 0) for name, asked in quota.request.items()}
        if parent is not None and any(beyond.values()):
            left = parent.below.request
            taken = {name: min(amount, left.get(name, 0)) for name, amount in beyond.items()}
            self._pass_on(parent.spec.name, Sums(request=negated(taken)))

    def _change(self, quota: Quota, spec: QuotaSpec, lends: bool) -> None:
        is_reset = (quota.spec.is_parent, quota.lends) != (spec.is_parent, lends)
        super()._change(quota, spec, lends)
        if is_reset:  # all is counted anew
            for name in sorted(self._quotas, key=lambda name: len(self.path(name)), reverse=True):
                known = self._quotas[name]
                asked = dict(known.own.request)
                for each in self._quotas.values():
                    if each.spec.parent == name:
                        add_in_place(asked, each.limited_request)
                self._pass_on(name, Sums(request=grown(asked, known.below.request)))


class _LevelAskedLate(RuntimeCalculator):
    """Children share by what they were last heard to ask for."""

    def __init__(self, *, scales_min: bool, keeps_guarantee: bool) -> None:
        super().__init__(scales_min=scales_min, keeps_guarantee=keeps_guarantee)
        self.heard: dict[str, Nanos] = {}

    def _entry(self, child: Quota, name: str, unit: int) -> ChildQuota:
        entry, heard = super()._entry(child, name, unit), self.heard.get(child.spec.name)
        if heard is None:
            return entry
        return msgspec.structs.replace(entry, request=to_units(heard.get(name, 0), unit))


class _AsksLate(GroupQuotaTree):
    """A quota that does not lend asks for its minimum from when pods below it come, go or change."""

    def _level(self, parent: str) -> RuntimeCalculator:
        settings = {"scales_min": self._scales_min, "keeps_guarantee": self._keeps_guarantee}
        return self._levels.setdefault(parent, _LevelAskedLate(**settings))

    def _hear(self, quota: Quota, asked: Nanos) -> None:
        level = self._level(quota.spec.parent)
        assert isinstance(level, _LevelAskedLate)
        if level.heard.get(quota.spec.name, quota.limited_request) != asked:
            self._changing(quota.spec.parent)
        level.heard[quota.spec.name] = dict(asked)
        level.respecified(quota, quota.min)

    def _hear_all(self, name: str) -> None:
        for each in self._chains.of(self._quotas[name]).quotas if name in self._quotas else ():
            if each.spec.name not in (ROOT, *OUTSIDE_THE_SHARES):
                self._hear(each, each.limited_request)

    def _pass_on(self, name: str, delta: Sums) -> None:
        super()._pass_on(name, delta)
        if any(delta.request.values()) or any(delta.non_preemptible_request.values()):
            self._hear_all(name)

    def _attach(self, quota: Quota) -> None:
        super()._attach(quota)
        if quota.spec.name not in OUTSIDE_THE_SHARES:
            self._hear(quota, quota.limited_request if any(quota.below.request.values()) else {})
            self._hear_all(quota.spec.parent)

    def _change(self, quota: Quota, spec: QuotaSpec, lends: bool) -> None:
        former, request, lent = quota.spec, quota.request, quota.lends
        super()._change(quota, spec, lends)
        if (former.is_parent, lent) != (spec.is_parent, lends):
            for name in self._quotas:
                self._hear_all(name)
        elif former.max != spec.max:
            ceiling = quota.max
            self._hear(quota, {name: min(asked, ceiling.get(name, asked)) for name, asked in request.items()})
        if (former.max, former.min) != (spec.max, spec.min):
            self._hear_all(spec.parent)


class _KeepsFormerGuarantees(GroupQuotaTree):
    """Of what was guaranteed to a quota that goes, its parent loses only what pods use; it takes no more elsewhere."""

    _leaving: Quota | None = None

    def _detach(self, quota: Quota) -> None:
        self._leaving = quota
        super()._detach(quota)
        self._leaving = None

    def _allocate(self, name: str, delta: Nanos) -> None:
        leaving, self._leaving = self._leaving, None
        super()._allocate(name, delta if leaving is None else negated(leaving.below.used))

    def _allocated(self, quota: Quota) -> Nanos:
        return dict(quota.below.used)


class _SharesAll(GroupQuotaTree):
    """Children share all that their parent has, also what the parent's own pods use."""

    def _total_for(self, parent: str) -> Nanos:
        return (
            super()._total_for(parent)
            if parent in (ROOT, *OUTSIDE_THE_SHARES)
            else self._quotas[parent].runtime
        )


def _played(kind: type[GroupQuotaTree]) -> Callable[[Case, Ask], Any]:
    def answer(case: Case, ask: Ask) -> Any:
        if "steps" not in case:
            return None
        with mock.patch.object(Play, "kinds", (kind, *Play.kinds)):
            return ask(case)

    return answer


taken_as_a_whole = _played(_TakesWholeRequests)
"""What a quota that goes asks for leaves its parent without the limit that it came there with (G15)."""
shared_with_pods_of_parents = _played(_SharesAll)
asked_late = _played(_AsksLate)
with_former_guarantees = _played(_KeepsFormerGuarantees)


def with_guarantees_of_reserved(case: Case, ask: Ask) -> Any:
    """What system and default pods use is guaranteed to them, besides being taken out of the pool."""
    if "steps" not in case or not (case.get("options") or {}).get("guaranteeUsage"):
        return None
    steps: list[Case] = []
    for name, ceiling in RESERVED.items():
        double = {"name": f"{name}-2", "max": resource_list.to_wire(ceiling), "weight": {"none": "1"}}
        steps.append({"op": "setQuota", "quota": double})
    for step in case["steps"]:
        steps.append(step)
        doubled = {
            key: f"{step[key]}-2"
            for key in ("quota", "oldQuota")
            if isinstance(step.get(key), str) and step[key] in RESERVED
        }
        if doubled:
            steps.append({**step, **doubled})
    return _mixed(ask(case), ask({**case, "steps": steps}), lambda field: field in _SHARES)


def scaled_on_demand(question: Question) -> bool:
    """A child keeps its whole minimum until somebody asks for it.

    Only shares below parents whose minima do not fit may differ, and only until each of their children was refreshed
    twice after the last change, for each of the levels: the first time scales them all, the second time shares by
    that. A share, or a scaled minimum, is away from ours by no more than was ever scaled away on the levels above it.
    """
    if "steps" not in question.input or not (question.input.get("options") or {}).get("minScale", True):
        return False
    for check, (specs, refreshed) in _refreshes(question.input["steps"]).items():
        for name, fields in question.expected[check].items():
            levels = list(_levels_above(specs, name))
            enough = 2 * len(levels)
            is_settled = all(refreshed.get(each["name"], 0) >= enough for level in levels for each in level)
            for field, value in fields.items():
                ours = question.ours[check][name][field]
                if question.same(value, ours):
                    continue
                if field not in _SHARES or is_settled:
                    return False
                if field == "autoScaleMin" and question.same(value, specs[name].get("min") or {}):
                    continue
                away = resource_list.sum_of(_scaled_away(level, question, check) for level in levels)
                if not _is_within(value, ours, away):
                    return False
    return True


def _levels_above(specs: dict[str, Case], name: str) -> Iterator[list[Case]]:
    """The children of its parent, of the parent's parent, and so on."""
    for _ in specs:
        if name in specs:
            parent = specs[name]["parent"]
            yield [each for each in specs.values() if each["parent"] == parent]
            name = parent


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


class _TakenTwice(Exception):
    """A pod is taken away from where it is not any more."""


def taken_twice(case: Case, ask: Ask) -> Any:
    """Who is in the way of the node, and of a quota without room in any case, is taken away twice."""
    if case["kind"] != "victims":
        return None
    with mock.patch.object(victims, "select", _select(victims.select)):
        try:
            return ask(case)
        except _TakenTwice:
            return {"status": "Error", "victims": []}


def _select(select: Callable[..., Any]) -> Callable[..., Any]:
    def checked(
        *asked: Any,
        take: Callable[..., None],
        fits: Callable[[], bool],
        may_stay: Callable[[], bool],
        **more: Any,
    ) -> Any:
        has_room = True

        def note_room() -> bool:
            nonlocal has_room
            has_room = fits()
            return has_room

        def take_once(victim: victims.Victim) -> None:
            take(victim)
            if not (has_room or may_stay()):
                raise _TakenTwice

        return select(*asked, take=take_once, fits=note_room, may_stay=may_stay, **more)

    return checked


def by_labels_of_trees(case: Case, ask: Ask) -> Any:
    """A quota with the label of a tree wakes nobody, also where trees are switched off and the label means nothing."""
    new = case.get("new") or {}
    is_compared = case["kind"] == "quotaUpdate" and case.get("old") and new.get("treeId")
    return {"hint": "Skip"} if is_compared and "MultiQuotaTree" not in (case.get("gates") or ()) else None
