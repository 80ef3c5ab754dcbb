"""Say what questions about what the agent observes must keep to."""

from typing import Any

from koordinator.api import cpuset
from koordinator.koordlet import metric_kinds
from tests.reference.observing import draw_devices, draw_host, draw_reports, draw_topology

Json = dict[str, Any]


def _unique(members: list[Json], *names: str) -> list[Json]:
    """Those whose every one of these values nobody before has; empty ones may repeat."""
    kept = []
    seen: dict[str, set[Any]] = {name: set() for name in names}
    for each in members:
        values = {name: each.get(name) for name in names}
        if not any(values[name] in seen[name] for name in names):
            kept.append(each)
            for name in names:
                seen[name] |= {values[name]} - {None, ""}
    return kept


def _pods(pods: list[Json]) -> list[Json]:
    """One of a UID, and one of a name, without what a later release counts: amounts of whole pods, and sidecars'."""
    metas = _unique([pod["metadata"] for pod in pods if "metadata" in pod], "uid", "name")
    return [_simple(pod) for pod in pods if any(pod.get("metadata") is meta for meta in metas)]


def _simple(pod: Json) -> Json:
    spec = {name: value for name, value in pod.get("spec", {}).items() if name != "resources"}
    if "initContainers" in spec:
        spec["initContainers"] = [
            {name: value for name, value in container.items() if name != "restartPolicy"}
            for container in spec["initContainers"]
        ]
    return {**pod, "spec": spec}


def _reclaimable(asked: Json) -> Json | None:
    """Ages of all, and amounts that are not negative."""
    pods = _pods(asked["pods"])
    known = asked["predictions"]
    peaks = [known["system"], *known.get("classes", {}).values(), *known["pods"].values()]
    if any(peak["p95"]["cpuMilli"] < 0 or peak["p98"]["memoryBytes"] < 0 for peak in peaks):
        return None
    if any("ageSeconds" not in pod or '": "-' in str(pod).replace("'", '"') for pod in pods):
        return None
    return {**asked, "pods": pods} if asked["safetyMarginPercent"] >= -100 else None


_WINDOWS = ("1m", "5m", "10m", "15m", "30m", "1h", "2h")
_PARTS = (
    "nodeUsage",
    "systemUsage",
    "aggregatedNodeUsages",
    "aggregatedSystemUsages",
    "podsMetric",
    "hostApplicationMetric",
)


def _node_metric(asked: Json) -> Json | None:
    """Series with the properties of their kind, whose points the store takes; windows that can be told as they are
    written; parts that this release reports."""
    spec = asked.get("nodeMetricSpec") or {}
    windows = (spec.get("metricCollectPolicy") or {}).get("nodeAggregatePolicy")
    if windows is not None and (
        not windows.get("durations") or any(text not in _WINDOWS for text in windows["durations"])
    ):
        return None
    if asked["op"] != "report":
        return asked
    series: dict[Any, Json] = {}
    for each in asked["series"]:
        properties = each.get("properties", {})
        if set(properties) == metric_kinds.PROPERTIES[each["kind"]]:
            key = (each["kind"], *sorted(properties.items()))
            series.setdefault(key, {**each, "points": _points(each["points"])})
    read = [name for name in asked["read"] if name in _PARTS]
    found = {**asked, "series": list(series.values()), "read": list(dict.fromkeys(read))}
    for name, keys in (("gpus", ("uuid", "minor")), ("hostApplications", ("name",))):
        if name in asked:
            found[name] = _unique(asked[name], *keys)
    if "pods" in asked:
        found["pods"] = _pods(asked["pods"])
    if any(gpu["memoryTotal"] <= 0 for gpu in found.get("gpus", ())):
        return None
    return found if read else None


def _points(points: list[Any]) -> list[list[float]]:
    """Pairs, each of its own time, in their order: late ones are asked of the store alone (`series-aggregate`)."""
    found: dict[int, float] = {}
    for pair in points:
        if len(pair) == 2 and pair[0] == int(pair[0]):
            found.setdefault(int(pair[0]), pair[1])
    return [list(point) for point in sorted(found.items())]


def _devices(asked: Json) -> Json | None:
    """Each card, function and process once; what the original reads in a fixed folder is not asked."""
    if asked["op"] == "rdma-health":
        return None
    found = dict(asked)
    for name, keys in (
        ("gpus", ("uuid", "minor", "busID")),
        ("xpus", ("uuid", "minor")),
        ("rdmas", ("id", "minor")),
        ("processes", ("pid",)),
    ):
        if name in asked:
            found[name] = _unique(asked[name], *keys)
    if any(
        "-" in f"{each['minor']}{each.get('topology', {}).get('p2pLinks')}" for each in found.get("xpus", ())
    ):
        return None
    for rdma in found.get("rdmas", ()):
        rdma["vfs"] = list(dict.fromkeys(rdma.get("vfs", ())))
    for process in found.get("processes", ()):
        process["usage"] = _unique(process["usage"], "minor")
    for name in ("minors", "pids", "entries"):
        if isinstance(found.get(name), list):
            found[name] = list(dict.fromkeys(found[name]))
    if int(found.get("numaNode", "0").strip() or 0) < -1:
        return None
    for process in found.get("processes", ()):
        process["usage"] = [use for use in process["usage"] if use["minor"] in found["minors"]]
    if "kubelet" in found:
        if not all(pod["containers"] for pod in found["kubelet"]):
            return None
        found["pods"] = _unique_pods(found["pods"])
    return found


def _unique_pods(pods: list[Json]) -> list[Json]:
    by_key = {(pod["metadata"].get("namespace"), pod["metadata"].get("name")): pod for pod in pods}
    return list(by_key.values())


def _topology(asked: Json) -> Json | None:
    """Each CPU once, each core within one NUMA node, each node within one socket; pods and zones once."""
    found = dict(asked)
    if "pods" in asked:
        found["pods"] = _pods(asked["pods"])
    if "topology" in asked:
        found["topology"] = rows = _machine(asked["topology"])
        if not rows:
            return None
    for name in ("kubeletTakenCPUs", "reservedCPUs"):
        if asked.get(name):
            known = {row[0] for row in found["topology"]}
            try:
                found[name] = cpuset.text_of(cpuset.parse(asked[name]) & known)
            except cpuset.CPUSetError:
                return None
    if asked["op"] == "numa-reserve" and (not asked["zones"] or "-" in "".join(asked["reserved"].values())):
        return None
    if asked["op"] == "merge-zones":
        found["old"], found["new"] = (_unique(asked[name], "name") for name in ("old", "new"))
    if asked["op"] == "changed":
        if not asked["new"]["annotations"]:
            return None
        for name in ("old", "new"):
            if asked[name] is not None:
                found[name] = {**asked[name], "zones": _unique(asked[name]["zones"], "name")}
    return found


def _machine(rows: list[list[int]]) -> list[list[int]]:
    kept: dict[int, list[int]] = {}
    sockets: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}
    for row in rows:
        if len(row) != 4 or min(row) < 0:
            continue
        cpu, core, socket, node = row
        if sockets.setdefault(node, socket) == socket and places.setdefault(core, (socket, node)) == (
            socket,
            node,
        ):
            kept.setdefault(cpu, row)
    return list(kept.values())


_RATES = {
    "node-cpu": ("lastTicks", "ticks", "elapsedMs"),
    "cgroup-cpu": ("lastNs", "nowNs", "elapsedNs"),
    "be-usage": ("lastNs", "nowNs", "elapsedMs"),
}


def _is_hot(asked: Json) -> bool:
    """Whether memory without cold pages is not below 0: there the original begins anew from the largest number."""
    names = ("memTotalKiB", "memFreeKiB") if asked["level"] == "node" else ("memoryStat",)
    if any(name not in asked for name in names):
        return False
    if asked["level"] == "node":
        used = (asked["memTotalKiB"] - asked["memFreeKiB"]) << 10
    else:
        used = sum(asked["memoryStat"].values())
    return bool(used >= asked["coldBytes"])


def _rates(asked: Json) -> Json | None:
    """Counters that go on and periods that are positive; all others give no sample here, on purpose."""
    op = asked["op"]
    if op in ("numa-cpu", "system-numa"):
        return None
    if op in _RATES:
        last, now, elapsed = (asked[name] for name in _RATES[op])
        if (
            elapsed <= 0
            or (last is not None and not 0 <= last <= now)
            or asked.get("clockTicksPerSecond", 1) <= 0
        ):
            return None
    if op == "be-request":
        return {**asked, "pods": [_simple(pod) for pod in asked["pods"]]}
    if op == "be-limit" and (asked["periodUs"] <= 0 or asked["quotaUs"] < -1):
        return None
    if op == "hot-page-memory":
        return asked if _is_hot(asked) else None
    return asked


def _paths(asked: Json) -> Json | None:
    """The two versions of groups; containers of one runtime and one directory each, as statuses have them together."""
    if asked["op"] == "sandbox":
        ids = [*asked["containerIDs"], *asked["initContainerIDs"]]
        if len({each.partition("://")[0] for each in ids}) > 1 or (ids and not asked["containerIDs"]):
            return None
        return {**asked, "podSubdirs": list(dict.fromkeys(asked["podSubdirs"]))}
    return asked if asked.get("cgroupVersion", 1) in (1, 2) else None


def _conversion(asked: Json) -> Json | None:
    """The two versions of groups, and files that this release knows; numbers where the kernel has some."""
    resource = asked.get("resource", "")
    if asked.get("version", 1) not in (1, 2) or resource.startswith("memory.pagecache_limit."):
        return None
    if asked["op"] == "read":
        return asked if _may_be_read(asked["content"], asked["version"], resource) else None
    if asked["op"] in ("write", "validate") and resource != "cpuset.cpus":
        return asked if asked["value"].lstrip("-").isdigit() or asked["value"] == "max" else None
    return asked


def _may_be_read(content: str, version: int, resource: str) -> bool:
    """One id in a line; no number above what the kernel has there, which v1 writes as a number and v2 as a word."""
    is_id = resource in ("tasks", "cgroup.procs")
    largest = (1 << (31 if is_id else 63)) - 1
    if any(word.isdigit() and int(word) > largest for word in content.split()):
        return False
    if resource == "memory.limit_in_bytes" and version == 2 and "-" in content:
        return False
    return not (version == 1 and "max" in content) and not (is_id and " " in content.strip())


MEND = {
    "cgroup-paths": _paths,
    "cgroup-v2-convert": _conversion,
    "prod-reclaimable": _reclaimable,
    "nodemetric-report": _node_metric,
    "device-report": _devices,
    "topology-report": _topology,
    "usage-rates": _rates,
}
DRAW = {
    **draw_reports.DRAW,
    "topology-report": draw_topology.draw,
    "device-report": draw_devices.draw,
    "parse-procfs": draw_host.host_text,
    "storage-info": draw_host.storage,
}
_LATER = "counted since a commit after release 1.8.0: "
OUTDATED = {
    "nodemetric-report": {
        "report: no samples": "this release does not report NUMA nodes",
        "aggregate: empty duration list": "this release takes an empty list for none, and so its defaults",
    },
    "cgroup-v2-convert": {'valid memory.pagecache_limit.sync v2 "2"': "this release does not know the file"},
    "parse-procfs": {
        **dict.fromkeys(
            ("stat-percpu-two", "stat-percpu-bad-value"), "this release does not measure NUMA nodes"
        ),
        **dict.fromkeys(
            ("numa-meminfo-node0", "numa-meminfo-clamped-at-zero"), "this release does not measure NUMA nodes"
        ),
    },
    "device-report": dict.fromkeys(
        ("rdma health: active", "rdma health: down", "rdma health: one of two down", "rdma health: no port"),
        "not asked: ports are looked for in a folder that cannot be moved",
    ),
    "usage-rates": {
        **dict.fromkeys(
            (
                "numa cpu: topology not known yet",
                "numa cpu: clock went backwards",
                "numa cpu: cpu that appeared only now is skipped",
                "numa cpu: decreasing counter is skipped but the node stays if another cpu counts",
                "numa cpu: node with only skipped cpus is absent",
                "system numa: split",
                "system numa: old cpu sample, only memory",
                "system numa: one old cpu sample drops the cpu part of every node",
                "system numa: old node memory drops only that node",
            ),
            "this release does not measure NUMA nodes",
        ),
        "be request: sidecar init containers count, plain init containers do not": _LATER + "sidecars",
    },
}
