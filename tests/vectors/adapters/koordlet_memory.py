"""Areas `cgreconcile` and `resctrl-schemata`."""

from typing import Any

import msgspec

from koordinator.api import labels, quantity
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.slo_qos import MemoryQOS, ResctrlQOS, ResourceQOS, ResourceQOSStrategy
from koordinator.host.cgroup_knobs import V1
from koordinator.host.resctrl import parse_schemata
from koordinator.koordlet.hooks import resctrl_pod
from koordinator.koordlet.qos import memory_qos, resctrl
from koordinator.koordlet.qos.memory_qos import Texts
from koordinator.koordlet.qos.resctrl import ResctrlCPU
from tests.vectors.adapters.koordlet_hooks import answered, errors_alike


def cgreconcile(case: dict[str, Any]) -> Any:
    version = case.get("cgroupVersion", V1)
    allocatable = quantity.value(case.get("nodeAllocatableMemory", 0))
    if case["op"] == "round":
        return _round(case, allocatable, version)
    pod = from_builtins(case["pod"], Pod)
    settings = memory_qos.settings_of(pod, from_builtins(case["nodeConfig"], MemoryQOS))
    match case["op"]:
        case "config":
            return {"config": msgspec.to_builtins(settings)}
        case "pod":
            return {"files": _files(memory_qos.pod_texts(pod, settings, version))}
        case "container":
            texts = memory_qos.container_texts(pod, pod.spec.containers[0], settings, allocatable)
            return {"files": _files(texts)}
    raise AssertionError(case["op"])


def _round(case: dict[str, Any], allocatable: int, version: int) -> Any:
    pods = [from_builtins(raw, Pod) for raw in case["pods"]]
    strategy = from_builtins(case["strategy"], ResourceQOSStrategy)
    names = case.get("notStarted", [])
    not_started = [(pod.metadata.uid, name) for pod in pods for name in names]
    plan = memory_qos.plan(pods, strategy, allocatable, version, not_started)
    name_of = {pod.metadata.uid: pod.metadata.name for pod in pods}
    return {
        "qos": {kube.value: _files(texts) for kube, texts in plan.classes.items()},
        "pods": {name_of[uid]: _files(texts) for uid, texts in plan.pods.items()},
        "containers": {
            f"{name_of[uid]}/{container}": _files(texts)
            for uid, containers in plan.containers.items()
            for container, texts in containers.items()
        },
    }


def _files(texts: Texts) -> dict[str, str]:
    return {knob.value: text for knob, text in texts.items()}


def resctrl_schemata(case: dict[str, Any]) -> Any:
    return {
        "l3_mask": _l3_mask,
        "mba": _mba,
        "lines": _lines,
        "parse": _parse,
        "groups": _groups,
        "pod_group": _pod_group,
        "new_tasks": _new_tasks,
        "annotation": _annotation,
        "support": _support,
    }[case["op"]](case)


def _l3_mask(case: dict[str, Any]) -> Any:
    mask = resctrl.l3_mask(resctrl.full_mask_of(case["cbm"]), case["startPercent"], case["endPercent"])
    return {"mask": None if mask is None else f"{mask:x}"}


def _mba(case: dict[str, Any]) -> Any:
    value = resctrl.bandwidth(case["vendor"], case["percent"])
    return {"value": None if value is None else str(value)}


def _lines(case: dict[str, Any]) -> Any:
    lines = {}
    if case.get("mask") is not None:
        lines["l3"] = resctrl.l3_line(dict.fromkeys(case["cacheIds"], int(case["mask"], 16)))
    if case.get("value") is not None:
        lines["mb"] = resctrl.mb_line(dict.fromkeys(case["cacheIds"], int(case["value"])))
    return lines


def _parse(case: dict[str, Any]) -> Any:
    found = parse_schemata(case["content"])
    return {
        kind: {str(cache): number for cache, number in numbers.items()}
        for kind, numbers in (("L3", found.l3), ("MB", found.mb))
    }


def _cpu(case: dict[str, Any]) -> ResctrlCPU:
    ids = tuple(case["cacheIds"])
    return ResctrlCPU(case["vendor"], resctrl.full_mask_of(case["cbm"]), ids, ids)


def _groups(case: dict[str, Any]) -> Any:
    strategy = from_builtins(case["strategy"], ResourceQOSStrategy)
    return {"lines": resctrl.group_lines(strategy, _cpu(case))}


def _pod_group(case: dict[str, Any]) -> Any:
    sections = {
        name: ResourceQOS(resctrl_qos=ResctrlQOS(enable=is_on)) for name, is_on in case["enable"].items()
    }
    strategy = ResourceQOSStrategy(
        lsr_class=sections.get("lsrClass"),
        ls_class=sections.get("lsClass"),
        be_class=sections.get("beClass"),
        system_class=sections.get("systemClass"),
    )
    return {"group": resctrl.pod_group(from_builtins(case["pod"], Pod), strategy)}


def _new_tasks(case: dict[str, Any]) -> Any:
    return {"write": [str(task) for task in resctrl.new_tasks(case["cgroupTasks"], case["groupTasks"])]}


def _annotation(case: dict[str, Any]) -> Any:
    annotations = {labels.RESCTRL: case["annotation"]}
    group = resctrl_pod.group_of(annotations, case["podUID"], _cpu(case))
    assert group is not None, case
    return {"error": False, "group": group.name, "schemata": group.schemata}


def _support(case: dict[str, Any]) -> Any:
    support = resctrl.support_of(case["cpuinfoFlags"].split())
    return {"cat": support.cache, "mba": support.bandwidth}


ADAPTERS = {"cgreconcile": answered(cgreconcile), "resctrl-schemata": answered(resctrl_schemata)}
COMPARE = dict.fromkeys(ADAPTERS, errors_alike)
