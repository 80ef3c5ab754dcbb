"""What questions about the node agent's acting must keep to."""

from typing import Any

from koordinator.api import quantity

Json = dict[str, Any]

_PRIORITY = "koordinator.sh/eviction-priority"
_LATER = "the cases are of a later commit: "
_NO_ANNOTATION = _LATER + "release 1.8.0 does not know the annotation for the order of eviction"
_EVICTED_BEFORE = _LATER + "release 1.8.0 does not count what pods gave back that were evicted before"
MOST_PODS = 12
"""Up to so many are sorted in a stable way."""


def _evict_common(asked: Json) -> Json | None:
    if asked["op"] == "eviction_priority":
        return None
    return {**asked, "alreadyEvicted": []} if asked["op"] == "arbitrate" else asked


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
    found = {**asked, "pods": [pods[name] for name in sorted(pods)[:MOST_PODS]]}
    return {**found, "alreadyEvicted": []} if asked["op"] == "round" else found


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
    """Each CPU once; cores within NUMA nodes, and these within sockets, which are numbered in the same order."""
    if "processors" not in asked:
        return asked
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
    return _with_pod_quota(mended, sum(each.get("quota", 0) for each in containers.values()))


def _with_pod_quota(asked: Json, least: int) -> Json:
    quota = asked.get("podQuota", 0)
    return {**asked, "podQuota": max(quota, least) if quota > 0 else -1}


MEND = {
    "evict-common": _evict_common,
    "cpu-evict": _cpu_evict,
    "memory-evict": _memory_evict,
    "cpu-suppress": _cpu_suppress,
    "cpu-burst": _cpu_burst,
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
}
