"""Random cases for the stock plugins: a small cluster, arguments, and what the filters let go. A number always gives
the same case."""

import itertools
from typing import Any

from koordinator import clock
from koordinator.descheduler.plugins.stock.common import PREFER_NO_EVICTION
from tests.descheduler.stock_plugins.arguments import ARGUMENTS, evictor_arguments
from tests.descheduler.stock_plugins.draw import (
    GPU,
    KINDS,
    NAMESPACES,
    NOW_S,
    PREFERRED,
    REASONS,
    REQUIRED,
    Draw,
    Json,
    selector,
)

NODES = ("n0", "n1", "n2", "n3", "n4")
PHASES = ("Running", "Pending", "Failed", "Succeeded", "Unknown")
TAINTS = (("dedicated", "batch"), ("dedicated", "web"), ("gpu", ""), ("level", "3"))
EFFECTS = ("NoSchedule", "NoSchedule", "PreferNoSchedule", "NoExecute")

UNORDERED = ("RemoveDuplicates", "RemovePodsViolatingTopologySpreadConstraint")
"""Plugins that evict by the order of a map: which pods a limit lets go is chance."""
Case = dict[str, Any]


def drawn(plugin: str, number: int) -> Case:
    """Return the case of this number for a plugin."""
    draw = Draw(plugin, number)
    nodes = [_node(draw, name) for name in NODES[: draw.randint(2, 5)]]
    ranks = _ranks(draw)[: draw.randint(8 if plugin == "RemoveDuplicates" else 1, 12)]
    pods = [_pod(draw, number, len(nodes), rank) for number, rank in enumerate(ranks)]
    keys = [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in pods]
    case = {
        "plugin": plugin,
        "args": ARGUMENTS[plugin](draw),
        "now": NOW_S,
        "nodes": nodes,
        "pods": [one for at, one in enumerate(pods) if keys.index(keys[at]) == at],
        "spared": draw.some(keys, 3) if draw.chance(0.1 if "Spread" in plugin else 0.3) else [],
        "failing": draw.some(keys, 3) if draw.chance(0.3) else [],
    }
    if plugin not in UNORDERED and draw.chance(0.2):
        case["limits"] = {name: draw.randint(0, 3) for name in draw.some(("node", "namespace", "total"), 3)}
    if plugin == "DefaultEvictor" or draw.chance(0.1):
        case |= {
            "namespaces": [
                {"metadata": {"name": name, "labels": _labels(draw)}} for name in draw.some(NAMESPACES, 3)
            ],
            "budgets": [_budget(draw, at) for at in range(draw.randint(0, 3))],
            "claims": [_claim(draw, name) for name in draw.some(("c0", "c1", "c2"), 3)],
            "classes": [{"metadata": {"name": "high"}, "value": draw.choice((7, 100, 1000))}],
        }
        if plugin != "DefaultEvictor":
            case["evictor"] = evictor_arguments(draw)
    return case


def _ranks(draw: Draw) -> list[tuple[int | None, int, bool]]:
    """Priority, QoS and whether it asks to stay, of 12 pods; no two go at once, so that their order is known."""
    if "Spread" in draw.plugin:  # where only priorities count
        return [(one, draw.randrange(3), draw.chance(0.5)) for one in draw.sample((None, *range(11)), 12)]
    return draw.sample(list(itertools.product((None, 0, 7, 100, 2_000_000_000), range(3), (False, True))), 12)


# Objects


def _labels(draw: Draw) -> dict[str, str]:
    found = {"app": draw.choice(("web", "db"))} if draw.chance(0.9) else {}
    return found | ({"tier": draw.choice(("front", "back"))} if draw.chance(0.4) else {})


def _taint(draw: Draw) -> Json:
    name, value = draw.choice(TAINTS)
    return {"key": name, "effect": draw.choice(EFFECTS), **({"value": value} if value else {})}


def _toleration(draw: Draw) -> Json:
    name, value = draw.choice(TAINTS)
    operator = draw.choice(("Exists", "Equal", "", "Lt" if name == "level" else "Equal"))
    found = {"key": name, "effect": draw.choice(("", *EFFECTS))}
    if operator:
        found["operator"] = operator
    if operator != "Exists":
        found["value"] = "5" if operator == "Lt" else value
    elif draw.chance(0.1):
        del found["key"]
    return found


def _node(draw: Draw, name: str) -> Json:
    labels = {"host": name, "size": str(draw.randint(1, 9))}
    for label, values in (("zone", ("a", "b", "c")), ("disk", ("ssd", "hdd"))):
        if draw.chance(0.85):
            labels[label] = draw.choice(values)
    amounts = {
        "cpu": draw.choice(("2", "3", "4", "3700m")),
        "memory": draw.choice(("4Gi", "8Gi", "5000M")),
        "pods": str(draw.choice((2, 3, 5, 10, 110))),
    }
    if draw.chance(0.4):
        amounts[GPU] = str(draw.randint(0, 4))
    status: Json = {"capacity": amounts} if draw.chance(0.05) else {"capacity": {}, "allocatable": amounts}
    if draw.chance(0.5):
        status["conditions"] = [{"type": "Ready", "status": "True" if draw.chance(0.85) else "Unknown"}]
    spec: Json = {"taints": [_taint(draw) for _ in range(draw.randint(1, 2))]} if draw.chance(0.35) else {}
    if draw.chance(0.1):
        spec["unschedulable"] = True
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def _pod(draw: Draw, number: int, nodes: int, rank: tuple[int | None, int, bool]) -> Json:
    priority, qos, stays = rank
    annotations = {PREFER_NO_EVICTION: ""} if stays else {}
    for name, value, chance in (
        ("descheduler.alpha.kubernetes.io/evict", "", 0.04),
        ("kubernetes.io/config.mirror", "x", 0.03),
        ("kubernetes.io/config.source", draw.choice(("api", "file")), 0.05),
    ):
        if draw.chance(chance):
            annotations[name] = value
    # Names repeat across namespaces.
    name = f"p{number if draw.chance(0.9) else number // 2}"
    metadata = {
        "name": name,
        "namespace": draw.choice(NAMESPACES) if draw.chance(0.3) else "default",
        "uid": f"uid-{number}",
        "creationTimestamp": draw.time(),
        "labels": _labels(draw),
        "annotations": annotations,
        "ownerReferences": _owners(draw),
    }
    if draw.chance(0.05):
        metadata["deletionTimestamp"] = clock.rfc3339(NOW_S + 10)
    spec: Json = {
        "nodeName": draw.choice(NODES[:nodes]),
        "containers": _containers(draw, qos),
        "tolerations": [_toleration(draw) for _ in range(draw.randint(0, 2))],
        "volumes": _volumes(draw),
    }
    if priority is not None:
        spec["priority"] = priority
    if draw.chance(0.2):
        stays_on = {"restartPolicy": "Always"} if draw.chance(0.4) else {}
        wants = {"cpu": "600m"} | ({GPU: "1"} if draw.chance(0.2) else {})
        spec["initContainers"] = [
            {"name": "i", "image": "init", "resources": {"requests": wants}, **stays_on}
        ]
    if draw.chance(0.05):
        spec["resources"] = {"requests": {"cpu": "1500m", "memory": "1Gi"}}
    if draw.chance(0.1):
        spec["overhead"] = {"cpu": "100m"}
    if draw.chance(0.05):
        spec["resourceClaims"] = [{"name": "r", "resourceClaimName": "r"}]
    if draw.chance(0.2):
        spec["nodeSelector"] = draw.choice(({"zone": "a"}, {"disk": "ssd"}, {"zone": "none"}))
    if affinity := _affinity(draw):
        spec["affinity"] = affinity
    if draw.chance(0.9 if "Spread" in draw.plugin else 0.05):
        spec["topologySpreadConstraints"] = [_constraint(draw) for _ in range(draw.randint(1, 2))]
    status = _status(draw)
    if qos != 1 or draw.chance(0.5):
        status["qosClass"] = ("BestEffort", "Burstable", "Guaranteed")[qos]
    return {"metadata": metadata, "spec": spec, "status": status}


def _owners(draw: Draw) -> list[Json]:
    count = draw.choice((0, 1, 1, 1, 1, 1, 1, 1, 2))
    kinds = [draw.choice(KINDS) if draw.chance(0.15) else "ReplicaSet" for _ in range(count)]
    names = draw.sample(("a", "b"), count) if count == 2 or draw.chance(0.3) else ["a"] * count
    return [
        {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{kind}-{name}"}
        for kind, name in zip(kinds, names, strict=True)
    ]


def _containers(draw: Draw, qos: int) -> list[Json]:
    found = []
    for at in range(2 if draw.chance(0.1 if draw.plugin == "RemoveDuplicates" else 0.3) else 1):
        amounts = {"cpu": draw.choice(("100m", "500m", "1")), "memory": draw.choice(("128Mi", "1Gi", "700M"))}
        own: Json = {"requests": {}, "limits": {}}
        if qos == 1:
            own["requests"] = {
                name: amounts[name] for name in draw.sample(sorted(amounts), draw.randint(1, 2))
            }
        elif qos == 2:
            own = {"requests": dict(amounts), "limits": amounts}
        if draw.chance(0.2):
            own["requests"][GPU] = own["limits"][GPU] = draw.choice(("0", "1", "2"))
        found.append(
            {"name": f"c{at}", "image": draw.choice(("web:1", "web:1", "web:1", "db:1")), "resources": own}
        )
    return found


def _volumes(draw: Draw) -> list[Json]:
    known = (
        {"emptyDir": {}},
        {"hostPath": {"path": "/x"}},
        {"configMap": {"name": "x"}},
        *({"persistentVolumeClaim": {"claimName": name}} for name in ("c0", "c1", "c2")),
    )
    return [{"name": f"v{at}", **one} for at, one in enumerate(draw.some(known) if draw.chance(0.3) else [])]


def _node_term(draw: Draw) -> Json:
    if draw.chance(0.1):
        return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [draw.choice(NODES)]}]}
    operator = draw.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    one: Json = {
        "key": "size" if operator in ("Gt", "Lt") else draw.choice(("zone", "disk")),
        "operator": operator,
    }
    if operator in ("In", "NotIn"):
        one["values"] = draw.sample(("a", "b", "c", "ssd", "hdd"), 2)
    elif operator in ("Gt", "Lt"):
        one["values"] = [str(draw.randint(2, 8))]
    return {"matchExpressions": [one]}


def _affinity(draw: Draw) -> Json:
    found: Json = {}
    if draw.chance(0.7 if "NodeAffinity" in draw.plugin else 0.15):
        own: Json = {}
        if draw.chance(0.7):
            own[REQUIRED] = {"nodeSelectorTerms": [_node_term(draw) for _ in range(draw.randint(1, 2))]}
        if draw.chance(0.5):
            own[PREFERRED] = [
                {"weight": draw.choice((1, 10, 50)), "preference": _node_term(draw)}
                for _ in range(draw.randint(1, 3))
            ]
        found["nodeAffinity"] = own
    if draw.chance(0.7 if "AntiAffinity" in draw.plugin else 0.15):
        terms = [_anti_affinity_term(draw) for _ in range(draw.randint(1, 2))]
        found["podAntiAffinity"] = {draw.choice((REQUIRED, REQUIRED, REQUIRED, "")): terms}
        found["podAntiAffinity"].pop("", None)
    return found


def _anti_affinity_term(draw: Draw) -> Json:
    term: Json = {"topologyKey": draw.choice(("zone", "zone", "host", "disk", "missing"))}
    if (asked := selector(draw)) is not None:
        term["labelSelector"] = asked
    if draw.chance(0.2):
        term["namespaces"] = draw.sample(NAMESPACES, 2)
    return term


def _constraint(draw: Draw) -> Json:
    found: Json = {
        "maxSkew": draw.choice((1, 1, 1, 2)),
        "topologyKey": draw.choice(("zone", "zone", "host", "disk")),
        "whenUnsatisfiable": "DoNotSchedule" if draw.chance(0.7) else "ScheduleAnyway",
    }
    if (asked := selector(draw)) is not None:
        found["labelSelector"] = asked
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if draw.chance(0.3):
            found[field] = draw.choice(("Honor", "Ignore"))
    if draw.chance(0.2):
        found["matchLabelKeys"] = ["tier"]
    return found


def _container_status(draw: Draw) -> Json:
    restarts = draw.choice((0, 0, 1, 3, 10))
    found: Json = {"name": "c", "restartCount": restarts, "ready": True, "image": "i", "imageID": "i"}
    kind = draw.choice(("running", "waiting", "terminated", ""))
    reason = {"reason": draw.choice(REASONS)}
    if kind == "terminated":
        found["state"] = {kind: {**reason, "exitCode": draw.choice((0, 1, 137))}}
    elif kind:
        found["state"] = {kind: reason if kind == "waiting" else {}}
    return found


def _status(draw: Draw) -> Json:
    usual = "Failed" if draw.plugin == "RemoveFailedPods" else "Running"
    found: Json = {"phase": draw.choice(PHASES) if draw.chance(0.25) else usual}
    if draw.chance(0.3):
        found["reason"] = draw.choice(REASONS)
    for field in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        if draw.chance(0.5):
            found[field] = [_container_status(draw) for _ in range(draw.randint(1, 2))]
    if draw.chance(0.5):
        found["startTime"] = draw.time()
    found["conditions"] = [
        {
            "type": name,
            "status": draw.choice(("True", "False")),
            "reason": draw.choice(("", "PodCompleted", "Unschedulable")),
            "lastTransitionTime": draw.time() if draw.chance(0.9) else None,
        }
        for name in draw.some(("Ready", "PodScheduled", "Initialized"), 3)
    ]
    return found


def _budget(draw: Draw, number: int) -> Json:
    spec = {"maxUnavailable": 1}
    if (asked := selector(draw)) is not None:
        spec["selector"] = asked
    return {"metadata": {"name": f"b{number}", "namespace": draw.choice(NAMESPACES)}, "spec": spec}


def _claim(draw: Draw, name: str) -> Json:
    names = draw.choice(
        ({}, {"storageClassName": ""}, {"storageClassName": "fast"}, {"storageClassName": "slow"})
    )
    return {"metadata": {"name": name, "namespace": "default"}, "spec": names}
