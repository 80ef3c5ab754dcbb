"""Areas `evict-common`, `cpu-evict` and `memory-evict`."""

from collections.abc import Iterable
from typing import Any

from koordinator.api import priority, quantity, resources
from koordinator.api.annotations import koordlet as koordlet_annotations
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.qos import cpu_evict, eviction, memory_evict, threshold_eviction
from koordinator.koordlet.qos.cpu_evict import BE_CPU, CPU, CPU_ALLOCATABLE, BESample, CPUEvict, CPUState
from koordinator.koordlet.qos.eviction import Arbitration, EvictionTask, ReleaseTarget
from koordinator.koordlet.qos.memory_evict import BE_MEMORY, MEMORY_ALLOCATABLE, MemoryState
from koordinator.koordlet.qos.threshold_eviction import Marks, ThresholdProblem
from tests.vectors.compare import subset


def evict_common(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "policy":
            allowed = koordlet_annotations.allows_eviction_by(case["annotations"], case["feature"])
            return {"allowed": allowed}
        case "sub_priority":
            return {"value": priority.sub_priority(case["labels"], case["default"])}
        case "eviction_priority":
            return {"value": eviction.eviction_priority(case["annotations"])}
        case "priority":
            pod = from_builtins(case["pod"], Pod)
            return {"class": priority.default(pod).value, "value": priority.default_number(pod)}
        case "request":
            asked = eviction.request(from_builtins(case["pod"], Pod), case["resource"])
            return {"resource": asked.resource, "amount": asked.amount}
        case "arbitrate":
            return _arbitrate(case)
    raise AssertionError(case["op"])


def _arbitrate(case: dict[str, Any]) -> Any:
    tasks = [
        EvictionTask(CPU, ReleaseTarget(raw["target"]), raw["toRelease"], tuple(raw["order"]), raw["counts"])
        for raw in case["tasks"]
    ]
    arbitration = _carry_out(tasks, case.get("alreadyEvicted", []), case.get("evictionFails", []))
    released = {
        target.value: {name: amount for name, amount in amounts.items() if amount}
        for target, amounts in arbitration.released.items()
    }
    return {
        "victims": list(arbitration.evicted),
        "newlyEvicted": bool(arbitration.evicted),
        "released": {target: amounts for target, amounts in released.items() if amounts},
        "left": [arbitration.left(task) for task in tasks],
    }


def _carry_out(tasks: list[EvictionTask], already: Iterable[str], fails: Iterable[str]) -> Arbitration:
    arbitration = Arbitration(tasks, already)
    while (victim := arbitration.next_victim()) is not None:
        arbitration.settle(victim, victim.uid not in fails)
    return arbitration


def _strategy(raw: dict[str, Any] | None) -> ResourceThresholdStrategy | None:
    return None if raw is None else from_builtins(raw, ResourceThresholdStrategy)


def _config(case: dict[str, Any]) -> Any:
    feature, strategy = case["feature"], _strategy(case["config"])
    if feature == BE_CPU:
        problem = cpu_evict.satisfaction_problem(strategy)
    else:
        rules = cpu_evict if feature in CPUEvict.gates else memory_evict
        marks = rules.marks_of(feature, strategy)
        problem = marks if isinstance(marks, ThresholdProblem) else None
    return {"valid": problem is None, "problem": None if problem is None else problem.value}


def _marks(case: dict[str, Any], threshold: str, lower: str) -> Marks:
    config = case["config"]
    least = config.get(lower, config[threshold] - 2)
    return Marks(config[threshold], least, config.get("allocatableEvictPriorityThreshold"))


def _pods(case: dict[str, Any]) -> list[Pod]:
    return [from_builtins(raw, Pod) for raw in case["pods"]]


def _amounts(raw: dict[str, str]) -> dict[str, int]:
    return {name: _amount(name, value) for name, value in raw.items()}


def _amount(name: str, raw: str) -> int:
    return quantity.milli(raw) if name == resources.CPU else quantity.value(raw)


def _allocatable_release(case: dict[str, Any], resource: str, key: str) -> Any:
    marks = _marks(case, f"{key}ThresholdPercent", f"{key}LowerPercent")
    allocatable = _amounts(case["allocatable"])
    return {"release": threshold_eviction.allocatable_release(resource, _pods(case), allocatable, marks)}


def _used_release(capacity: int, used: int, marks: Marks) -> Any:
    return {"release": int(threshold_eviction.above_lower(capacity, used, marks)) if capacity > 0 else 0}


def cpu_evict_area(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "config":
            return _config(case)
        case "satisfaction":
            return {"releaseMilliCPU": _satisfaction(case)}
        case "used_threshold":
            marks = _marks(case, "cpuEvictThresholdPercent", "cpuEvictLowerPercent")
            return _used_release(quantity.milli(case["capacity"]), int(case["usedAvg"] * 1000), marks)
        case "allocatable":
            return _allocatable_release(case, resources.CPU, "cpuAllocatableEvict")
        case "candidates":
            feature, pods, used = case["feature"], _pods(case), case["podUsed"]
            if feature == BE_CPU:
                return _names(cpu_evict.starved_first(pods, used))
            limit = case["priorityThreshold"]
            requested = resources.CPU if feature == CPU_ALLOCATABLE else None
            return _names(eviction.by_priority(feature, pods, used, limit, requested=requested))
        case "round":
            return _cpu_round(case)
    raise AssertionError(case["op"])


def _names(pods: list[Pod]) -> Any:
    return {"order": [pod.metadata.name for pod in pods]}


def _be_sample(raw: dict[str, Any] | None) -> BESample | None:
    return None if raw is None else BESample(raw["count"], raw["usage"], raw["request"], raw["realLimit"])


def _satisfaction(case: dict[str, Any]) -> int:
    strategy = _strategy(case["config"])
    assert strategy is not None
    average, latest = _be_sample(case["avg"]), _be_sample(case.get("current"))
    interval_s, batch = case["collectIntervalSeconds"], case.get("batchAllocatable")
    return cpu_evict.satisfaction_release_milli(strategy, average, latest, interval_s, batch)


def _cpu_round(case: dict[str, Any]) -> Any:
    be = case.get("be") or {}
    state = CPUState(
        capacity_milli=quantity.milli(case["node"]["capacity"]["cpu"]),
        node_cores=case.get("nodeUsed"),
        pods_cores=case["podUsed"],
        be_average=_be_sample(be.get("avg")),
        be_latest=_be_sample(be.get("current")),
        collect_interval_s=case.get("collectIntervalSeconds", 1),
    )
    allocatable = _amounts(case["node"]["allocatable"])
    pods = _pods(case)
    tasks = cpu_evict.tasks(_features(case), _strategy(case["config"]), state, allocatable, pods)
    return _round(case, tasks, pods)


def _features(case: dict[str, Any]) -> list[str]:
    return list(case["features"])


def _round(case: dict[str, Any], tasks: list[EvictionTask], pods: list[Pod]) -> Any:
    name_of = {pod.metadata.uid: pod.metadata.name for pod in pods}
    fails = [uid for uid, name in name_of.items() if name in case.get("evictionFails", [])]
    arbitration = _carry_out(tasks, case.get("alreadyEvicted", []), fails)
    return {
        "victims": [name_of[uid] for uid in arbitration.evicted],
        "newlyEvicted": bool(arbitration.evicted),
        "tasks": [{"feature": task.feature, "toRelease": task.wanted} for task in tasks],
    }


def memory_evict_area(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "config":
            return _config(case)
        case "used_threshold":
            marks = _marks(case, "memoryEvictThresholdPercent", "memoryEvictLowerPercent")
            return _used_release(quantity.value(case["capacity"]), int(case["used"]), marks)
        case "allocatable":
            return _allocatable_release(case, resources.MEMORY, "memoryAllocatableEvict")
        case "candidates":
            feature, pods, used = case["feature"], _pods(case), case["podUsed"]
            if feature == BE_MEMORY:
                return _names(eviction.largest_first(feature, pods, used))
            limit = case["priorityThreshold"]
            requested = resources.MEMORY if feature == MEMORY_ALLOCATABLE else None
            return _names(eviction.by_priority(feature, pods, used, limit, requested=requested))
        case "round":
            return _memory_round(case)
    raise AssertionError(case["op"])


def _memory_round(case: dict[str, Any]) -> Any:
    capacity = quantity.value(case["node"]["capacity"]["memory"])
    state = MemoryState(capacity, case.get("nodeUsed"), case["podUsed"])
    allocatable, pods = _amounts(case["node"]["allocatable"]), _pods(case)
    tasks = memory_evict.tasks(_features(case), _strategy(case["config"]), state, allocatable, pods)
    return _round(case, tasks, pods)


def _same_but_wording(expected: Any, actual: Any) -> bool:
    if isinstance(expected, dict) and "problem" in expected:
        is_same_validity = expected["valid"] == actual["valid"]
        return bool(is_same_validity and (expected["problem"] is None) == (actual["problem"] is None))
    return subset(expected, actual)


ADAPTERS = {"evict-common": evict_common, "cpu-evict": cpu_evict_area, "memory-evict": memory_evict_area}
COMPARE = {"cpu-evict": _same_but_wording, "memory-evict": _same_but_wording}
