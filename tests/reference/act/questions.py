"""What questions about the node agent's acting must keep to."""

from typing import Any

from koordinator.api import priority, quantity
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.priority import PriorityClass
from tests.reference.act import draw_cpu, draw_evictions, draw_files, draw_hooks

Json = dict[str, Any]

_PRIORITY = "koordinator.sh/eviction-priority"
_PAGE_CACHE = "pageCacheLimit"
_LATER = "the cases are of a later commit: "
_NO_ANNOTATION = _LATER + "release 1.8.0 does not know the annotation for the order of eviction"
_EVICTED_BEFORE = _LATER + "release 1.8.0 does not count what pods gave back that were evicted before"
_NO_PAGE_CACHE = _LATER + "release 1.8.0 does not limit the page cache"
_NO_SCORES = _LATER + "release 1.8.0 does not know scores of processes"
MOST_PODS = 12
"""Up to so many are sorted in a stable way."""


def _evict_common(asked: Json) -> Json | None:
    if asked["op"] == "eviction_priority":
        return None
    if asked["op"] != "arbitrate":
        return asked
    tasks = [task for task in asked["tasks"] if any(amount > 0 for amount in task["toRelease"].values())]
    return {**asked, "tasks": tasks, "alreadyEvicted": []}


def _evict(asked: Json) -> Json | None:
    """Pods of different names, by name as ties go; what a later commit counts is left out."""
    if "pods" not in asked:
        return asked
    pods: dict[str, Json] = {}
    for pod in asked["pods"]:
        metadata, spec = pod.get("metadata", {}), pod.get("spec", {})
        if "name" not in metadata or metadata.get("uid") != metadata["name"] or "containers" not in spec:
            return None
        annotations = {
            name: text for name, text in metadata.get("annotations", {}).items() if name != _PRIORITY
        }
        spec = {name: value for name, value in spec.items() if name != "initContainers"}
        pods.setdefault(
            metadata["name"], {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec}
        )
    if asked["op"] == "allocatable" or any("Allocatable" in name for name in asked.get("features", ())):
        pods = {name: pod for name, pod in pods.items() if _is_lent_to(pod)}
    found = {**asked, "pods": [pods[name] for name in sorted(pods)[:MOST_PODS]]}
    return {**found, "alreadyEvicted": []} if asked["op"] == "round" else found


def _is_lent_to(pod: Json) -> bool:
    """Batch, mid, or too important to be evicted: native requests of others count wrongly there."""
    found = from_builtins(pod, Pod)
    is_lent = priority.default(found) in (PriorityClass.BATCH, PriorityClass.MID)
    return is_lent or priority.default_number(found) > 7999


def _cpu_evict(asked: Json) -> Json | None:
    return _evict(asked) if _has_marks(asked, "cpuEvict", "cpuAllocatableEvict") else None


def _memory_evict(asked: Json) -> Json | None:
    return _evict(asked) if _has_marks(asked, "memoryEvict", "memoryAllocatableEvict") else None


def _has_marks(asked: Json, *names: str) -> bool:
    """Other marks are refused before anything is worked out with them."""
    config = asked.get("config") or {}
    name = dict(zip(("used_threshold", "allocatable"), names, strict=True)).get(asked["op"])
    if name is None:
        return True
    threshold = config.get(f"{name}ThresholdPercent", -1)
    return bool(threshold >= 0 and config.get(f"{name}LowerPercent", -1) <= threshold)


def _cpu_suppress(asked: Json) -> Json | None:
    """No negative samples; each CPU once; cores within NUMA nodes, and these within sockets, numbered in one order."""
    used = [*asked.get("podUsedCores", {}).values(), *asked.get("hostAppUsedCores", {}).values()]
    if min(used, default=0) < 0:
        return None
    if "processors" not in asked:
        return asked
    lists = [asked.get("reservedCPUs"), asked.get("oldCPUSet"), (asked.get("systemQOS") or {}).get("cpuset")]
    if any(
        (text or "").startswith("-") for text in [*lists, *(pod["cpuset"] for pod in asked.get("pods", ()))]
    ):
        return None
    rows: dict[int, Json] = {}
    nodes: dict[int, int] = {}
    sockets: dict[int, int] = {}
    for row in asked["processors"]:
        cpu, core, socket, node = (row.get(name, -1) for name in ("cpu", "core", "socket", "node"))
        if min(cpu, core, socket, node) < 0 or any(
            (node < other) != (socket < of) for other, of in sockets.items() if socket != of
        ):
            continue
        if nodes.setdefault(core, node) == node and sockets.setdefault(node, socket) == socket:
            rows.setdefault(cpu, row)
    return {**asked, "processors": list(rows.values())}


def _cpu_burst(asked: Json) -> Json | None:
    """Each container once; buckets have a size, and are not filled at random; a pod has what its containers have."""
    if asked["op"] == "limiter":
        return asked if asked["burstPercent"] >= 100 and asked["periodSeconds"] >= 0 else None
    if asked["op"] == "sequence":
        if quantity.milli(asked["limitCPU"]) <= 0:
            return None
        return _with_pod_quota({"initialTokens": 10, **asked}, asked["quota"])
    if "containers" not in asked:
        return asked
    containers = {each["name"]: each for each in asked["containers"]}
    mended = {**asked, "containers": [{"initialTokens": 10, **each} for each in containers.values()]}
    return _with_pod_quota(mended, sum(max(each.get("quota", 0), 0) for each in containers.values()))


def _with_pod_quota(asked: Json, least: int) -> Json:
    quota = asked.get("podQuota", 0)
    return {**asked, "podQuota": max(quota, least) if quota > 0 else -1}


def _cgreconcile(asked: Json) -> Json | None:
    """Pods of different names and containers, nothing negative; the size of the page cache is of a later commit."""
    asked = _without(asked, _PAGE_CACHE)
    if _has_negative(asked):
        return None
    pods: dict[str, Json] = {}
    for pod in [*asked.get("pods", ()), *([asked["pod"]] if "pod" in asked else [])]:
        containers = [each.get("name") for each in pod.get("spec", {}).get("containers", [])]
        if len(set(containers)) < len(containers) or (asked["op"] == "container" and not containers):
            return None
        name = pod["metadata"].get("name")
        pods.setdefault(name, {**pod, "metadata": {**pod["metadata"], "uid": name}})
    return {**asked, "pods": list(pods.values())} if "pods" in asked else asked


def _has_negative(value: Any, name: str = "") -> bool:
    """Whether an amount or a percentage is below zero."""
    if isinstance(value, dict):
        return any(_has_negative(member, key) for key, member in value.items())
    if isinstance(value, list):
        return any(map(_has_negative, value))
    if name.endswith("Percent"):
        return bool(value < 0)
    return isinstance(value, str) and value.startswith("-")


def _without(value: Any, name: str) -> Any:
    """A value in which nothing has this name, nor are there texts that hold it."""
    if isinstance(value, dict):
        return {
            key: _without(member, name)
            for key, member in value.items()
            if name not in key and not (isinstance(member, str) and name in member)
        }
    return [_without(member, name) for member in value] if isinstance(value, list) else value


def _bvt(asked: Json) -> Json | None:
    """A switch of the kernel is on or off."""
    return asked if asked.get("sysctl", 0) in (0, 1) else None


def _runtime_hooks_misc(asked: Json) -> Json | None:
    """Scores are of a later commit; numbers of classes have four digits, and no bandwidth is negative."""
    if asked["op"] == "oom_score" or str(asked.get("value") or "").startswith("-"):
        return None
    return (
        asked
        if asked["op"] != "class_id" or all(0 <= asked[name] <= 9999 for name in ("major", "minor"))
        else None
    )


def _resctrl(asked: Json) -> Json | None:
    """Caches and tasks once, and some cache at all."""
    if asked.get("cbm") == "0":
        return None
    if asked.get("cacheIds") == []:
        return None
    lists = ("cacheIds", "cgroupTasks", "groupTasks")
    return {name: list(dict.fromkeys(value)) if name in lists else value for name, value in asked.items()}


def _update_order(asked: Json) -> Json | None:
    """Versions that there are; memory has no negative limit; groups in the order of a walk, below the first."""
    if asked.get("version", 1) not in (1, 2):
        return None
    if asked["op"] == "merge":
        is_quota = asked["resource"] == "cpu.cfs_quota_us"
        if asked["new"].startswith("-") and not (is_quota and asked["new"] == "-1"):
            return None
        if is_quota and asked["version"] == 1 and asked["old"] == "max":
            return None
    if asked["op"] == "leveled":
        wanted = [(each["group"], each["resource"]) for level in asked["levels"] for each in level]
        texts = [(each["resource"], each["value"]) for level in asked["levels"] for each in level]
        if len(set(wanted)) < len(wanted) or any(
            of != "cpuset.cpus" and not _is_number(text) for of, text in texts
        ):
            return None
    if asked["op"] != "be_cpuset":
        return asked
    groups = sorted(
        {"be", *(group for group in asked["groups"] if group.startswith("be/") and group.count("/") < 3)}
    )
    return {
        **asked,
        "groups": [group for group in groups if group == "be" or group.rpartition("/")[0] in groups],
    }


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _sysconfig(asked: Json) -> Json | None:
    """Settings of whole disks have names; nanoseconds are not negative."""
    is_root = (
        asked["op"] == "blkio_needs_write"
        and asked["file"].startswith("blkio.cost.")
        and "weight" not in asked["file"]
    )
    if (asked.get("strategy") or {}).get("schedIdleSaverWmark", 0) < 0:
        return None
    return None if is_root and "=" not in asked["value"] else asked


MEND = {
    "evict-common": _evict_common,
    "cpu-evict": _cpu_evict,
    "memory-evict": _memory_evict,
    "cpu-suppress": _cpu_suppress,
    "cpu-burst": _cpu_burst,
    "cgreconcile": _cgreconcile,
    "bvt": _bvt,
    "runtime-hooks-misc": _runtime_hooks_misc,
    "resctrl-schemata": _resctrl,
    "resource-update-order": _update_order,
    "sysconfig-blkio": _sysconfig,
}
DRAW = {
    "evict-common": draw_evictions.evict_common,
    "cpu-evict": draw_evictions.cpu_evict,
    "memory-evict": draw_evictions.memory_evict,
    "cpu-suppress": draw_cpu.cpu_suppress,
    "cpu-burst": draw_cpu.cpu_burst,
    "cgreconcile": draw_files.cgreconcile,
    "cpuset-hook": draw_hooks.cpuset_hook,
    "batchresource": draw_hooks.batchresource,
    "bvt": draw_hooks.bvt,
    "runtime-hooks-misc": draw_hooks.runtime_hooks_misc,
    "runtime-proxy-merge": draw_hooks.runtime_proxy_merge,
    "resctrl-schemata": draw_files.resctrl_schemata,
    "resource-update-order": draw_files.resource_update_order,
    "sysconfig-blkio": draw_files.sysconfig_blkio,
}
OUTDATED = {
    "evict-common": {
        "eviction priority: positive": _NO_ANNOTATION,
        "eviction priority: not a number": _NO_ANNOTATION,
        "eviction priority: too big for 32 bits": _NO_ANNOTATION,
    },
    "cpu-evict": {
        "candidates BECPUEvict: side-car requests count": _LATER + "release 1.8.0 does not count side-cars",
        "candidates CPUEvict: eviction priority annotation comes before everything": _NO_ANNOTATION,
        "round: earlier evictions suffice, nobody new": _EVICTED_BEFORE,
    },
    "memory-evict": {
        "candidates MemoryEvict: eviction priority annotation comes before everything": _NO_ANNOTATION
    },
    "cpu-suppress": {
        "no CPU usable at all, nothing written": _LATER + "release 1.8.0 crashes where no CPU is usable"
    },
    "cgreconcile": {
        "pod: page cache size over the memory limit": _NO_PAGE_CACHE,
        "pod: page cache size wins over percent": _NO_PAGE_CACHE,
        "pod: page cache size without a memory limit": _NO_PAGE_CACHE,
    },
    "runtime-hooks-misc": {
        "oom score: none": _NO_SCORES,
        "oom score: pod value": _NO_SCORES,
        "oom score: container value wins": _NO_SCORES,
        "oom score: broken list": _NO_SCORES,
        "oom score: out of range": _NO_SCORES,
        "oom score: lowest": _NO_SCORES,
    },
}
