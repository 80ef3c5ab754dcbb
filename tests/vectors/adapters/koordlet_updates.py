"""Area `resource-update-order`."""

from typing import Any

from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.koordlet.writing import update_plan
from koordinator.koordlet.writing.update_plan import CacheEntry, Update, UpdatePlan, WriteOutcome
from tests.vectors.adapters.koordlet_hooks import answered, errors_alike

_FAR_S = 1e9
_RESULTS = {
    WriteOutcome.WRITTEN: "written",
    WriteOutcome.UNCHANGED: "unchanged",
    WriteOutcome.SKIPPED: "skipped",
}


def resource_update_order(case: dict[str, Any]) -> Any:
    return {
        "merge": _merge,
        "differs": _differs,
        "leveled": _leveled,
        "cache": _cache,
        "be_cpuset": _be_cpuset,
    }[case["op"]](case)


def _merge(case: dict[str, Any]) -> Any:
    value = update_plan.widened(Knob(case["resource"]), case["version"], case["old"], case["new"])
    if value is not None:
        value = cgroup_knobs.encode(Knob(case["resource"]), case["version"], value)
    return {"error": False, "write": value is not None, "value": value}


def _differs(case: dict[str, Any]) -> Any:
    return {"write": update_plan.differs(Knob(case["resource"]), case["old"], case["new"])}


def _leveled(case: dict[str, Any]) -> Any:
    version = case.get("version", V1)
    names = {_path(name, version): name for name in case["files"]}
    contents = {path: case["files"][name] for path, name in names.items()}
    levels = [
        [Update(each["group"], Knob(each["resource"]), each["value"]) for each in level]
        for level in case["levels"]
    ]
    plan = update_plan.plan_leveled(levels, contents, version, {}, _FAR_S)
    final = dict(case["files"])
    for write in plan.writes:
        final[names[write.path]] = write.text
    return {"writes": _texts(plan, names), "final": final}


def _path(name: str, version: int) -> str:
    group, _, resource = name.rpartition("/")
    return cgroup_knobs.path(Knob(resource), version, group)


def _texts(plan: UpdatePlan, names: dict[str, str]) -> list[str]:
    return [f"{names[write.path]}={write.text}" for write in plan.writes]


def _cache(case: dict[str, Any]) -> Any:
    knob, content = Knob(case["resource"]), case["initial"]
    path = cgroup_knobs.path(knob, V1, "group")
    cache: dict[str, CacheEntry] = {}
    results = []
    for step in case["steps"]:
        now_s = step["at"]
        content = step.get("external", content)
        if "set" not in step:
            continue
        cache = update_plan.unexpired(cache, now_s)
        is_cacheable = step.get("cacheable", True)
        known = cache if is_cacheable else {}
        plan = update_plan.plan([Update("group", knob, step["set"])], {path: content}, V1, known, now_s)
        for write in plan.writes:
            content = write.text
        if is_cacheable:
            cache |= {each: CacheEntry(value, now_s) for each, value in plan.cached.items()}
        results.append(_RESULTS[plan.results[0].outcome])
    return {"results": results, "final": content}


def _be_cpuset(case: dict[str, Any]) -> Any:
    paths = {cgroup_knobs.path(Knob.CPUSET, V1, group): group for group in case["groups"]}
    levels = [[Update(group, Knob.CPUSET, case["new"])] for group in case["groups"]]
    plan = update_plan.plan_leveled(levels, dict.fromkeys(paths, case["old"]), V1, {}, _FAR_S)
    return {"writes": _texts(plan, paths)}


ADAPTERS = {"resource-update-order": answered(resource_update_order)}
COMPARE = {"resource-update-order": errors_alike}
