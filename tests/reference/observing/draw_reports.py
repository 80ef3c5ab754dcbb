"""Draws questions about what the agent predicts, reports and measures."""

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.reference.observing.draw_pods import GIB, QOS, draw_pod

Json = dict[str, Any]


def _peak(chance: random.Random) -> Json:
    cpu = chance.choice((0, 25, 500, 1000, chance.randint(0, 9000)))
    return {
        "p95": {"cpuMilli": cpu},
        "p98": {"memoryBytes": chance.choice((0, 5 << 20, GIB, chance.randint(0, 8 * GIB)))},
    }


def _reclaimable(chance: random.Random) -> Json:
    cold_s = chance.choice((0, 3600, 86400))
    pods = []
    for index in range(chance.randint(0, 8)):
        age_s = chance.choice((cold_s, cold_s + 1, max(cold_s - 1, 0), 2 * cold_s + 60, 0))
        pods.append({**draw_pod(chance, f"p{index}"), "ageSeconds": age_s})
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
        {"uuid": f"g{minor}", "minor": minor, "memoryTotal": chance.choice((1000, 16 * GIB, 81559 << 20))}
        for minor in range(chance.choice((0, 0, 1, 2)))
    ]
    pods = [draw_pod(chance, f"p{index}") for index in range(chance.randint(0, 3))]
    apps = [
        {
            "name": name,
            "priority": chance.choice(("koord-prod", "koord-batch")),
            "qos": chance.choice(QOS[:4]),
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


def _measured(chance: random.Random) -> Json:
    return {
        "cores": chance.choice((0.0, 1.5, 8 * chance.random())),
        "bytes": chance.choice((0, 1024, chance.randint(0, GIB))),
        "ageMs": chance.choice((0, 0, 0, 9_999, 10_000, 10_001)),
    }


def _counters(chance: random.Random, top: int) -> tuple[int, int]:
    last = chance.choice((0, chance.randint(0, top)))
    return last, last + chance.choice((0, 1, chance.randint(0, top)))


def _rates(chance: random.Random) -> Json:
    op = chance.choice(
        ("node-cpu", "cgroup-cpu", "be-usage", "throttled-ratio", "system-usage", "host-app-total")
    )
    last, now = _counters(chance, 10**12)
    elapsed_ms = chance.choice((1, 999, 1000, 1001, 60_000))
    if op == "node-cpu":
        ticks = {"lastTicks": last, "ticks": now, "clockTicksPerSecond": chance.choice((100, 250, 1000))}
        return {"op": op, **ticks, "elapsedMs": elapsed_ms}
    if op == "cgroup-cpu":
        return {"op": op, "lastNs": last, "nowNs": now, "elapsedNs": chance.choice((1, 10**9, 999_999_937))}
    if op == "be-usage":
        return {"op": op, "lastNs": chance.choice((last, None)), "nowNs": now, "elapsedMs": elapsed_ms}
    if op == "throttled-ratio":
        periods, throttled = _counters(chance, 50), _counters(chance, 20)
        counts = {"lastPeriods": periods[0], "periods": periods[1]}
        return {"op": op, **counts, "lastThrottled": throttled[0], "throttled": throttled[1]}
    if op == "system-usage":
        return {
            "op": op,
            "outdatedMs": 10_000,
            "node": chance.choice((None, *(_measured(chance) for _ in range(8)))),
            "pods": [_measured(chance) for _ in range(chance.randint(0, 3))],
            "hostApps": chance.choice((None, *(_measured(chance) for _ in range(8)))),
        }
    apps = [
        {
            "cores": chance.choice((0.0, 1.5, 4 * chance.random())),
            "memoryStatUsageBytes": chance.randint(0, GIB),
            "memoryUsageBytes": chance.randint(0, GIB),
        }
        for _ in range(chance.randint(0, 4))
    ]
    policies = ("usageWithPageCache", "usageWithHotPageCache", "usageWithoutPageCache", "", "x")
    return {"op": op, "policy": chance.choice(policies), "apps": apps}


DRAW = {"prod-reclaimable": _reclaimable, "nodemetric-report": _node_metric, "usage-rates": _rates}
