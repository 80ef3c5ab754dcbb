"""Draws questions about what the agent observes from nothing."""

import json
import random
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

_GIB = 1 << 30
_CLASSES = ("koord-prod", "koord-mid", "koord-batch", "koord-free", "gold")
_QOS = ("LSE", "LSR", "LS", "BE", "SYSTEM", "x")


def _amounts(chance: random.Random) -> Json:
    cpu = chance.choice(("0", "100m", "250m", "1", "2", "1500m", "7", f"{chance.randint(0, 9000)}m"))
    memory = chance.choice(("0", "1Gi", "512Mi", "100M", "1", str(chance.randint(0, 8 * _GIB))))
    amounts = {"cpu": cpu, "memory": memory, "kubernetes.io/batch-cpu": "1000"}
    names = chance.sample(sorted(amounts), chance.choice((1, 2, 3)))
    return {name: amounts[name] for name in names}


def _pod(chance: random.Random, uid: str) -> Json:
    meta: Json = {"name": uid, "namespace": chance.choice(("a", "b")), "uid": uid}
    labels: Json = {}
    if chance.random() < 0.3:
        labels["koordinator.sh/priority-class"] = chance.choice(_CLASSES)
    if chance.random() < 0.4:
        labels["koordinator.sh/qosClass"] = chance.choice(_QOS)
    if labels:
        meta["labels"] = labels
    if chance.random() < 0.1:
        meta["deletionTimestamp"] = "2024-01-01T00:00:00Z"
    requests = [{"requests": _amounts(chance)} for _ in range(chance.choice((1, 1, 2)))]
    spec: Json = {
        "containers": [{"name": f"c{index}", "resources": each} for index, each in enumerate(requests)]
    }
    if chance.random() < 0.2:
        spec["initContainers"] = [{"name": "i", "resources": {"requests": _amounts(chance)}}]
    if chance.random() < 0.2:
        spec["overhead"] = _amounts(chance)
    if chance.random() < 0.7:
        spec["priority"] = chance.choice((9000, 9999, 10000, 7500, 5500, 3000, 0, -1))
    phase = chance.choice(("Running",) * 5 + ("Pending", "Succeeded", "Failed", ""))
    status = {"phase": phase, "qosClass": chance.choice(("Guaranteed", "Burstable", "BestEffort", ""))}
    return {"metadata": meta, "spec": spec, "status": status}


def _peak(chance: random.Random) -> Json:
    cpu = chance.choice((0, 25, 500, 1000, chance.randint(0, 9000)))
    return {
        "p95": {"cpuMilli": cpu},
        "p98": {"memoryBytes": chance.choice((0, 5 << 20, _GIB, chance.randint(0, 8 * _GIB)))},
    }


def _reclaimable(chance: random.Random) -> Json:
    cold_s = chance.choice((0, 3600, 86400))
    pods = []
    for index in range(chance.randint(0, 8)):
        age_s = chance.choice((cold_s, cold_s + 1, max(cold_s - 1, 0), 2 * cold_s + 60, 0))
        pods.append({**_pod(chance, f"p{index}"), "ageSeconds": age_s})
    allocatable = {
        "cpu": chance.choice(("4", "8", "16", "64", "15900m")),
        "memory": chance.choice(("8Gi", "16Gi", "256Gi")),
    }
    meta: Json = {"name": "n1"}
    if chance.random() < 0.3:
        raw = json.dumps({"cpu": "12", "memory": "20Gi"})
        meta["annotations"] = {
            "node.koordinator.sh/raw-allocatable": chance.choice((raw, raw, "{", "{}", "null", '{"cpu":"3"}'))
        }
    names = chance.sample(("koord-prod", "none", "koord-mid", "koord-batch"), chance.randint(0, 4))
    predictions = {
        "system": _peak(chance),
        "classes": {name: _peak(chance) for name in names},
        "pods": {pod["metadata"]["uid"]: _peak(chance) for pod in pods if chance.random() < 0.85},
    }
    return {
        "node": {"metadata": meta, "status": {"allocatable": allocatable}},
        "pods": pods,
        "predictions": predictions,
        "safetyMarginPercent": chance.choice((0, 10, 10, 33, 50, 100)),
        "coldStartSeconds": cold_s,
    }


_NOW_MS = 10_000_000


def _points(chance: random.Random, top: float) -> list[list[float]]:
    """Points up to now or a little before, of a steady or a broken series."""
    step_ms = chance.choice((1_000, 10_000, 30_000, 60_000))
    count = chance.choice((0, 1, 2, 5, 10, 20, 31, 60))
    end_ms = _NOW_MS - chance.choice((0, 0, 1, 30_000, 299_000, 300_001))
    points = []
    for index in range(count):
        if chance.random() < 0.95:
            value = chance.choice((top * chance.random(), top, 0.0, float(int(top * chance.random()))))
            points.append([end_ms - (count - 1 - index) * step_ms, value])
    return points


def _usage_series(chance: random.Random, kinds: Sequence[str], top: float, properties: Json) -> list[Json]:
    return [
        {"kind": kind, "properties": properties, "points": _points(chance, top)}
        for kind in kinds
        if chance.random() < 0.85
    ]


_MEMORY = ("memory_usage", "memory_usage_with_page_cache", "memory_with_hot_page_usage")


def _collect_policy(chance: random.Random) -> Json:
    policy: Json = {}
    if chance.random() < 0.6:
        policy["aggregateDurationSeconds"] = chance.choice((0, 30, 60, 120, 300, 600))
    if chance.random() < 0.3:
        policy["reportIntervalSeconds"] = chance.choice((0, 10, 30, 31, 600))
    if chance.random() < 0.7:
        windows = chance.sample(("1m", "5m", "10m", "30m", "1h"), chance.randint(1, 3))
        policy["nodeAggregatePolicy"] = {"durations": windows}
    if chance.random() < 0.8:
        names = ("usageWithPageCache", "usageWithHotPageCache", "usageWithoutPageCache", "other", "")
        policy["nodeMemoryCollectPolicy"] = chance.choice(names)
    return policy


def _node_metric(chance: random.Random) -> Json:
    gpus = [
        {"uuid": f"g{minor}", "minor": minor, "memoryTotal": chance.choice((1000, 16 * _GIB, 81559 << 20))}
        for minor in range(chance.choice((0, 0, 1, 2)))
    ]
    pods = [_pod(chance, f"p{index}") for index in range(chance.randint(0, 3))]
    apps = [
        {
            "name": name,
            "priority": chance.choice(("koord-prod", "koord-batch")),
            "qos": chance.choice(_QOS[:4]),
        }
        for name in chance.sample(("nginx", "etcd", "agent"), chance.randint(0, 2))
    ]
    series = _usage_series(chance, ("node_cpu_usage", "sys_cpu_usage"), 16.0, {})
    series += _usage_series(chance, [f"node_{name}" for name in _MEMORY], 2.0**36, {})
    series += _usage_series(chance, ("sys_memory_usage",), 2.0**36, {})
    for gpu in gpus:
        at = {"gpu_minor": str(gpu["minor"]), "gpu_device_uuid": gpu["uuid"]}
        series += _usage_series(chance, ("node_gpu_core_usage",), 100.0, at)
        series += _usage_series(chance, ("node_gpu_memory_usage",), float(gpu["memoryTotal"]), at)
        for pod in pods:
            of_pod = {**at, "pod_uid": pod["metadata"]["uid"]}
            series += _usage_series(chance, ("pod_gpu_core_usage",), 100.0, of_pod)
            series += _usage_series(chance, ("pod_gpu_memory_usage",), float(gpu["memoryTotal"]), of_pod)
    for pod in pods:
        at = {"pod_uid": pod["metadata"]["uid"]}
        series += _usage_series(chance, ("pod_cpu_usage",), 4.0, at)
        series += _usage_series(chance, [f"pod_{name}" for name in _MEMORY], 2.0**33, at)
    for app in apps:
        at = {"host_app_name": app["name"]}
        series += _usage_series(chance, ("host_application_cpu_usage",), 4.0, at)
        series += _usage_series(chance, [f"host_application_{name}" for name in _MEMORY], 2.0**33, at)
    parts = ["nodeUsage", "systemUsage", "podsMetric", "hostApplicationMetric"]
    return {
        "op": "report",
        "nowMs": _NOW_MS,
        "nodeMetricSpec": {"metricCollectPolicy": _collect_policy(chance)},
        "series": series,
        "kidledStarted": chance.random() < 0.5,
        "gpus": gpus,
        "pods": pods,
        "hostApplications": apps,
        "read": [*parts, "aggregatedNodeUsages", "aggregatedSystemUsages"],
    }


DRAW = {"prod-reclaimable": _reclaimable, "nodemetric-report": _node_metric}
