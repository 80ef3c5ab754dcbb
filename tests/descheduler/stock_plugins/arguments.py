"""Random arguments of the stock plugins, some of which they refuse."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.descheduler.stock_plugins.draw import (
    AGES_S,
    GPU,
    KINDS,
    NAMESPACES,
    PREFERRED,
    REASONS,
    REQUIRED,
    Draw,
    Json,
    selector,
)


def _common(draw: Draw) -> Json:
    found: Json = {"unknownToAll": 1} if draw.chance(0.02) else {}
    if draw.chance(0.3):
        kinds = ("include", "exclude") if draw.chance(0.1) else (draw.choice(("include", "exclude")),)
        found["namespaces"] = {kind: draw.sample(NAMESPACES, draw.randint(1, 2)) for kind in kinds}
    if draw.chance(0.2):
        found["labelSelector"] = selector(draw) or {}
        if draw.chance(0.1):
            found["labelSelector"] = {"matchExpressions": [{"key": "app", "operator": "Near"}]}
    return found


def _maybe(draw: Draw, chance: float, **given: Callable[[], Any]) -> Json:
    return {name: value() for name, value in given.items() if draw.chance(chance)}


def _pod_life_time(draw: Draw) -> Json:
    conditions = (
        ("type", ("Ready", "Initialized")),
        ("status", ("True", "False")),
        ("reason", ("PodCompleted", "")),
    )

    def condition() -> Json:
        own = {name: draw.choice(known) for name, known in conditions if draw.chance(0.5)}
        if draw.chance(0.5):
            own["minTimeSinceLastTransitionSeconds"] = draw.choice(AGES_S)
        return own

    kinds = draw.choice((("include",), ("exclude",), ("exclude",), ("include", "exclude")))
    states = ("Running", "Pending", "CrashLoopBackOff", "OOMKilled", "Error", "Succeeded", "NodeAffinity")
    return _common(draw) | _maybe(
        draw,
        0.35,
        maxPodLifeTimeSeconds=lambda: draw.choice((*AGES_S, -1 if draw.chance(0.1) else 60)),
        states=lambda: [*draw.some(states, 3), *(["Nonsense"] if draw.chance(0.05) else [])],
        conditions=lambda: [condition() for _ in range(draw.randint(0, 2))],
        exitCodes=lambda: draw.some((0, 1, 137)),
        ownerKinds=lambda: {kind: draw.some(KINDS) for kind in kinds},
        includingInitContainers=lambda: draw.chance(0.7),
        includingEphemeralContainers=lambda: draw.chance(0.7),
    )


def _failed_pods(draw: Draw) -> Json:
    return _common(draw) | _maybe(
        draw,
        0.4,
        minPodLifetimeSeconds=lambda: draw.choice((*AGES_S, 0, 0)),
        reasons=lambda: draw.some(REASONS),
        exitCodes=lambda: draw.some((0, 1, 137)),
        excludeOwnerKinds=lambda: draw.some(KINDS),
        includingInitContainers=lambda: draw.chance(0.7),
    )


def _restarts(draw: Draw) -> Json:
    states = ("Running", "CrashLoopBackOff", *(["OOMKilled"] if draw.chance(0.1) else []))
    return _common(draw) | _maybe(
        draw,
        0.9,
        podRestartThreshold=lambda: draw.choice((0, 1, 1, 3, 4, 10)),
        includingInitContainers=lambda: draw.chance(0.5),
        states=lambda: draw.some(states, 1),
    )


def _node_affinity(draw: Draw) -> Json:
    kinds = draw.choice(([REQUIRED], [PREFERRED], [REQUIRED, PREFERRED], [PREFERRED, REQUIRED]))
    if draw.chance(0.1):
        kinds = draw.choice(([], ["sometimes"]))
    return _common(draw) | {"nodeAffinityType": kinds}


def _node_taints(draw: Draw) -> Json:
    names = ("dedicated", "dedicated=batch", "gpu", "gpu=", "level=3", "nothing")
    return _common(draw) | _maybe(
        draw,
        0.3,
        includePreferNoSchedule=lambda: True,
        excludedTaints=lambda: draw.some(names),
        includedTaints=lambda: draw.some(names),
    )


def _duplicates(draw: Draw) -> Json:
    return _common(draw) | _maybe(draw, 0.3, excludeOwnerKinds=lambda: draw.some(KINDS))


def _spread(draw: Draw) -> Json:
    kinds = ("DoNotSchedule", "ScheduleAnyway", *(["Never"] if draw.chance(0.05) else []))
    return _common(draw) | _maybe(
        draw,
        0.4,
        constraints=lambda: draw.some(kinds),
        topologyBalanceNodeFit=lambda: draw.chance(0.3),
    )


def _percentages(draw: Draw, low: int, high: int) -> Json:
    names = draw.sample(("cpu", "memory", "pods", GPU), draw.choice((1, 1, 2, 3)))
    return {name: draw.randint(low, high) if draw.chance(0.8) else draw.uniform(low, high) for name in names}


def _high(draw: Draw) -> Json:
    return {"thresholds": _percentages(draw, -1 if draw.chance(0.05) else 10, 80)} | _maybe(
        draw,
        0.25,
        numberOfNodes=lambda: draw.randint(0, 2),
        evictionModes=lambda: ["OnlyThresholdingResources", *(["Other"] if draw.chance(0.05) else [])],
        evictableNamespaces=lambda: {
            "include" if draw.chance(0.05) else "exclude": draw.sample(NAMESPACES, 2)
        },
    )


def _low(draw: Draw) -> Json:
    deviates = draw.chance(0.35)
    low = _percentages(draw, 0, 10 if deviates else 50)
    high = {name: value + draw.randint(0, 15 if deviates else 50) for name, value in low.items()}
    if draw.chance(0.03):
        high = _percentages(draw, 10, 105)
    return {"thresholds": low, "targetThresholds": high, "useDeviationThresholds": deviates} | _maybe(
        draw,
        0.2,
        numberOfNodes=lambda: draw.randint(0, 2),
        evictableNamespaces=lambda: {
            "include" if draw.chance(0.05) else "exclude": draw.sample(NAMESPACES, 2)
        },
        evictionLimits=lambda: {"node": draw.randint(0, 2)},
    )


def evictor_arguments(draw: Draw) -> Json:
    """Return arguments of DefaultEvictor."""
    older = ("evictLocalStoragePods", "evictDaemonSetPods", "evictSystemCriticalPods", "ignorePvcPods")
    older = (*older, "ignorePodsWithoutPDB", "evictFailedBarePods")
    extra = ("PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims")
    default = ("PodsWithLocalStorage", "SystemCriticalPods", "FailedBarePods", "DaemonSetPods")
    classes = [{"name": name} for name in draw.some(("fast", "slow", "" if draw.chance(0.1) else "fast"))]

    def protections() -> Json:
        wrong = ["DaemonSetPods"] if draw.chance(0.05) else []
        return {
            "extraEnabled": [*draw.some(extra, 3), *wrong],
            "defaultDisabled": [*draw.some(default, 3), *wrong],
            "config": {"PodsWithPVC": {"protectedStorageClasses": classes}},
        }

    thresholds = (
        {"value": 7},
        {"value": 100},
        {"value": 2_000_000_001},
        {"name": "high"},
        {"name": "none"},
        {},
    )
    found = _maybe(
        draw,
        0.25,
        labelSelector=lambda: selector(draw) or {},
        namespaceLabelSelector=lambda: selector(draw) or {},
        nodeSelector=lambda: draw.choice(("zone=a", "disk in (ssd)", "!zone", "zone=")),
        priorityThreshold=lambda: draw.choice((*thresholds, {"value": 7, "name": "high"})),
        minReplicas=lambda: draw.randint(0, 4),
        minPodAge=lambda: draw.choice(("60s", "1m1s", "1h", "0s")),
        noEvictionPolicy=lambda: draw.choice(("Preferred", "Mandatory", "Mandatory", "Never")),
        nodeFit=lambda: True,
    )
    if draw.chance(0.5):
        found["podProtections"] = protections()
    if "podProtections" not in found or draw.chance(0.1):
        found |= dict.fromkeys(draw.some(older, 3), True)
    return found


JUNK = ("", "x", "5", "1h", 0, -1, -0.5, 1.0, 1.5, 101, True, False, [], [1], ["x"], [[]], {}, {"a": 1})


def spoiled(draw: Draw, args: Json) -> Json:
    """Arguments like these, one member of which is something else."""
    body = json.loads(json.dumps(args)) or {"labelSelector": {}}
    places = list(_places(body))
    holder, at = draw.choice(places)
    holder[at] = draw.choice(JUNK)
    return body


def _places(body: Any) -> Iterator[tuple[Any, Any]]:
    for at, member in body.items() if isinstance(body, dict) else enumerate(body):
        yield body, at
        if isinstance(member, (dict, list)):
            yield from _places(member)


ARGUMENTS: dict[str, Callable[[Draw], Json]] = {
    "PodLifeTime": _pod_life_time,
    "RemoveFailedPods": _failed_pods,
    "RemovePodsHavingTooManyRestarts": _restarts,
    "RemovePodsViolatingInterPodAntiAffinity": _common,
    "RemovePodsViolatingNodeAffinity": _node_affinity,
    "RemovePodsViolatingNodeTaints": _node_taints,
    "RemoveDuplicates": _duplicates,
    "RemovePodsViolatingTopologySpreadConstraint": _spread,
    "LowNodeUtilization": _low,
    "HighNodeUtilization": _high,
    "DefaultEvictor": evictor_arguments,
}
