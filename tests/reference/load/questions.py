"""What questions about load and scores must keep to, and more of them."""

import random
from typing import Any

Json = dict[str, Any]
_CLASSES = {"koord-prod": 9500, "koord-mid": 7500, "koord-batch": 5500, "koord-free": 3500, "": None}
_NAMES = {"koord-mid": "kubernetes.io/mid-", "koord-batch": "kubernetes.io/batch-"}
_KINDS = ("avg", "p50", "p90", "p95", "p99")


def _without_sidecars(asked: Json) -> Json | None:
    """This release takes sidecars for other init containers. Weights are none of them negative."""
    if any(each.get("weight", 0) < 0 for each in asked["args"].get("resources", {}).values()):
        return None
    pod = dict(asked["pod"])
    inits = [
        {name: value for name, value in each.items() if name != "restartPolicy"}
        for each in pod.get("initContainers", ())
    ]
    return {**asked, "pod": {**pod, "initContainers": inits}}


def _pods_once(asked: Json) -> Json | None:
    """A pod is on the node once, and percentages are at most 100."""
    names = [each["pod"]["metadata"]["name"] for each in asked["assignedPods"]]
    percents = asked["args"].get("prodUsageThresholds", {}).values()
    return asked if len(set(names)) == len(names) and max(percents, default=0) <= 100 else None


def _reported(asked: Json) -> Json | None:
    return _pods_once(asked) if asked["nodeMetric"] is not None else None


def _loaded(chance: random.Random) -> Json:
    """A node with pods that are reported, not yet, or wrongly, and a pod that comes."""
    pods = [_pod(chance, f"p{number}") for number in range(chance.randint(0, 6))]
    return {
        "args": _arguments(chance),
        "node": {
            "allocatable": _amounts(chance, 20, 80),
            "annotations": _thresholds_of_node(chance) if chance.random() < 0.3 else {},
        },
        "nodeMetric": _metric(chance, pods) if chance.random() < 0.95 else None,
        "assignedPods": [_assigned(chance, pod) for pod in pods if chance.random() < 0.9],
        "pod": _pod(chance, "incoming"),
    }


def _reported_load(chance: random.Random) -> Json:
    asked = _loaded(chance)
    return {**asked, "nodeMetric": asked["nodeMetric"] or _metric(chance, [])}


def _arguments(chance: random.Random) -> Json:
    args: Json = {"filterExpiredNodeMetrics": chance.random() < 0.3}
    options: Json = {
        "usageThresholds": _percents(chance),
        "prodUsageThresholds": _percents(chance),
        "prodUsageIncludeSys": True,
        "scoreAccordingProdUsage": True,
        "resourceWeights": {"cpu": chance.randint(1, 5), "memory": chance.randint(1, 5)},
        "dominantResourceWeight": chance.randint(0, 5),
        "estimatedScalingFactors": {"cpu": chance.randint(1, 100), "memory": chance.randint(1, 100)},
        "estimatedSecondsAfterPodScheduled": chance.choice((0, 30, 120)),
        "estimatedSecondsAfterInitialized": chance.choice((0, 30, 120)),
        "allowCustomizeEstimation": True,
        "nodeMetricExpirationSeconds": chance.choice((60, 180)),
        "enableScheduleWhenNodeMetricsExpired": True,
        "aggregated": {
            "usageThresholds": _percents(chance),
            "usageAggregationType": chance.choice(_KINDS),
            "usageAggregatedDuration": chance.choice(("0s", "5m", "10m")),
            "scoreAggregationType": chance.choice(_KINDS),
            "scoreAggregatedDuration": chance.choice(("0s", "5m", "10m")),
        },
    }
    return {**args, **{name: value for name, value in options.items() if chance.random() < 0.35}}


def _percents(chance: random.Random) -> Json:
    return {name: chance.randint(0, 100) for name in ("cpu", "memory") if chance.random() < 0.8}


def _thresholds_of_node(chance: random.Random) -> Json:
    cpu, memory = chance.randint(0, 100), chance.randint(0, 100)
    text = chance.choice(
        (
            f'{{"usageThresholds": {{"cpu": {cpu}, "memory": {memory}}}}}',
            f'{{"prodUsageThresholds": {{"cpu": {cpu}}}}}',
            f'{{"aggregatedUsage": {{"usageThresholds": {{"cpu": {cpu}}}, "usageAggregationType": "p95"}}}}',
            f'{{"aggregatedUsage": {{"usageThresholds": {{"memory": {memory}}}, "usageAggregationType": "p50", '
            '"usageAggregatedDuration": "5m"}}',
        )
    )
    return {"scheduling.koordinator.sh/usage-thresholds": text}


def _amounts(chance: random.Random, least: int, most: int) -> Json:
    return {
        "cpu": f"{chance.randint(least, most) * 250}m",
        "memory": f"{chance.randint(least, most) * 300}Mi",
    }


def _pod(chance: random.Random, name: str) -> Json:
    of_class = chance.choice(tuple(_CLASSES))
    prefix = _NAMES.get(of_class, "")
    amounts = {
        f"{prefix}{kind}": text for kind, text in _amounts(chance, 1, 16).items() if chance.random() < 0.9
    }
    if prefix and f"{prefix}cpu" in amounts:
        amounts[f"{prefix}cpu"] = amounts[f"{prefix}cpu"].removesuffix("m")
    held: Json = {"requests": amounts}
    if chance.random() < 0.4:
        held["limits"] = amounts
    pod: Json = {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"containers": [{"name": "main", "resources": held}]},
    }
    if (priority := _CLASSES[of_class]) is not None:
        pod["spec"]["priority"] = priority
    if chance.random() < 0.1:
        pod["metadata"]["ownerReferences"] = [
            {"kind": "DaemonSet", "name": "d", "apiVersion": "apps/v1", "uid": "u"}
        ]
    if chance.random() < 0.1:
        pod["metadata"]["labels"] = {"koordinator.sh/priority-class": chance.choice(tuple(_CLASSES))}
    return pod


def _assigned(chance: random.Random, pod: Json) -> Json:
    assigned: Json = {"pod": pod}
    if chance.random() < 0.8:
        assigned["scheduledAgeSeconds"] = chance.randint(0, 200)
    if chance.random() < 0.4:
        assigned["initializedAgeSeconds"] = chance.randint(0, 150)
    return assigned


def _metric(chance: random.Random, pods: list[Json]) -> Json:
    metric: Json = {
        "reportIntervalSeconds": chance.choice((30, 60, 120)),
        "updateAgeSeconds": chance.choice((0, 10, 60, 100, 179, 180, 300, None)),
        "nodeUsage": _amounts(chance, 5, 60) if chance.random() < 0.95 else None,
        "systemUsage": _amounts(chance, 0, 5),
        "pods": [
            {
                "namespace": "default",
                "name": pod["metadata"]["name"],
                "priority": chance.choice(tuple(_CLASSES)),
                "usage": _amounts(chance, 0, 16) if chance.random() < 0.9 else {},
            }
            for pod in pods
            if chance.random() < 0.8
        ],
    }
    if chance.random() < 0.5:
        metric["aggregatedNodeUsages"] = [
            {
                "durationSeconds": seconds,
                "usage": {
                    kind: _amounts(chance, 5, 60) if chance.random() < 0.8 else {}
                    for kind in _KINDS
                    if chance.random() < 0.8
                },
            }
            for seconds in chance.sample((300, 600, 1800), chance.randint(0, 3))
        ]
    return metric


MEND = {
    "fitplus-score": _without_sidecars,
    "loadaware-filter": _pods_once,
    "loadaware-score": _pods_once,
    "loadaware-podcache": _reported,
}
DRAW = {"loadaware-filter": _loaded, "loadaware-score": _loaded, "loadaware-podcache": _reported_load}
OUTDATED = {"fitplus-score": {"sidecar-sums": "this release takes sidecars for other init containers"}}
