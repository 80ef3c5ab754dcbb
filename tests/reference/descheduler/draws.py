"""Questions to the descheduler, drawn from nothing."""

from random import Random
from typing import Any

Json = dict[str, Any]

CLASSES = (None, None, "koord-prod", "koord-mid", "koord-batch", "koord-free", "bogus")
QOS = (None, None, "LSE", "LSR", "LS", "BE", "SYSTEM", "bogus")
KUBE_QOS = (None, "BestEffort", "Burstable", "Guaranteed")
PRIORITIES = (None, 0, 5, 3500, 5500, 5999, 7500, 9000, 9500, 9999, 2_000_000_000)
COSTS = ("1", "2", "-2", "0", "abc", "+1", "2147483647")
TIER = "tier"


def rarely(chance: Random, value: Any, odds: int = 8) -> Any:
    return value if chance.randrange(odds) == 0 else None


def given(members: Json) -> Json:
    return {name: member for name, member in members.items() if member not in (None, {}, [])}


def _amounts(chance: Random, cpu: int, memory: int) -> Json:
    """Up to so many milli-cores and bytes; some say it in other units."""
    millis, some = chance.randint(0, cpu), chance.randint(0, memory)
    whole = {"cpu": f"{millis}m" if chance.random() < 0.8 else f"{millis}123u", "memory": str(some)}
    if chance.random() < 0.2:
        whole["memory"] = f"{some >> 20}Mi"
    if chance.random() < 0.1:
        del whole[chance.choice(("cpu", "memory"))]
    return whole


def owner(
    chance: Random, kinds: tuple[str, ...] = ("ReplicaSet", "ReplicaSet", "StatefulSet", "Job")
) -> Json:
    kind, number = chance.choice(kinds), chance.randint(0, 2)
    name = f"{kind.lower()}-{number}"
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def pod(chance: Random, name: str, node: str, **more: Any) -> Json:
    labels = {
        "koordinator.sh/priority-class": chance.choice(CLASSES),
        "koordinator.sh/qosClass": chance.choice(QOS),
        "app": chance.choice((None, "x", "y")),
    }
    annotations = {
        "controller.kubernetes.io/pod-deletion-cost": rarely(chance, chance.choice(COSTS)),
        "scheduling.koordinator.sh/eviction-cost": rarely(chance, chance.choice(COSTS)),
        "descheduler.alpha.kubernetes.io/evict": rarely(chance, "true", 20),
    }
    container = {"name": "c", "resources": given({"requests": _amounts(chance, 1500, 1 << 30)})}
    spec = {
        "nodeName": node,
        "priority": chance.choice(PRIORITIES),
        "containers": [container] * chance.choice((1, 1, 1, 2)),
        "nodeSelector": rarely(chance, {TIER: chance.choice(("a", "b"))}),
        "tolerations": rarely(chance, [{"operator": "Exists"}]),
        **more,
    }
    phase = chance.choice(("Running",) * 12 + ("Pending", "Succeeded", "Failed"))
    return {
        "metadata": {
            "namespace": chance.choice(("default", "default", "other")),
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": chance.randint(0, 100_000) / 10,
            "ownerReferences": [owner(chance)],
            "labels": given(labels),
            "annotations": given(annotations),
        },
        "spec": given(spec),
        "status": given({"phase": phase, "qosClass": chance.choice(KUBE_QOS)}),
    }


def node(chance: Random, name: str) -> Json:
    cores, gibs = chance.randint(2, 16), chance.randint(4, 32)
    taint = {
        "key": "k",
        "value": "v",
        "effect": chance.choice(("NoSchedule", "NoExecute", "PreferNoSchedule")),
    }
    raw = f'{{"cpu":"{cores - 1}","memory":"{gibs}Gi"}}'
    return {
        "metadata": {
            "name": name,
            "labels": {TIER: chance.choice(("a", "b", "c"))},
            "annotations": given({"node.koordinator.sh/raw-allocatable": rarely(chance, raw, 12)}),
        },
        "spec": given({"unschedulable": rarely(chance, True, 12), "taints": rarely(chance, [taint], 8)}),
        "status": {
            "allocatable": {
                "cpu": f"{cores}000m",
                "memory": f"{gibs}Gi",
                "pods": str(chance.randint(3, 30)),
                "ephemeral-storage": "100Gi",
            }
        },
    }


def _thresholds(chance: Random) -> Json:
    names = chance.choice(
        (("cpu",), ("cpu", "memory"), ("cpu", "memory", "pods"), ("memory",), ("cpu", "pods"))
    )
    low = {name: chance.choice((chance.randint(5, 50), chance.randint(50, 450) / 10)) for name in names}
    high = {name: chance.randint(int(percent) + 1, 80) for name, percent in low.items()}
    pool = {"lowThresholds": low, "highThresholds": high, "useDeviationThresholds": rarely(chance, True, 5)}
    if chance.random() < 0.4:
        pool["prodHighThresholds"] = {name: chance.randint(3, percent) for name, percent in high.items()}
        pool["prodLowThresholds"] = {
            n: chance.randint(1, most) for n, most in pool["prodHighThresholds"].items()
        }
    pool["resourceWeights"] = {name: chance.randint(1, 5) for name in ("cpu", "memory", "pods")}
    return given(pool)


def _metrics(chance: Random, nodes: list[Json], pods: list[Json], now: float) -> Json:
    """Cool, warm and hot nodes."""
    found = {}
    for each in nodes:
        name, room = each["metadata"]["name"], each["status"]["allocatable"]
        own = [one["metadata"] for one in pods if one["spec"].get("nodeName") == name]
        heat = chance.choice((0.1, 0.2, 0.5, 0.9, 1.2)) / (len(own) + 1)
        cpu, memory = int(int(room["cpu"][:-1]) * heat * 2), int((int(room["memory"][:-2]) << 30) * heat * 2)
        found[name] = {
            "status": {
                "updateTime": now - chance.choice((0, 1, 30, 30, 30, 179, 180, 400)),
                "nodeMetric": {"systemUsage": {"resources": _amounts(chance, cpu, memory)}},
                "podsMetric": [
                    {
                        "namespace": meta["namespace"],
                        "name": meta["name"],
                        "podUsage": {"resources": _amounts(chance, cpu, memory)},
                    }
                    for meta in own
                    if chance.random() < 0.95
                ],
            }
        }
    return found


def _cluster(chance: Random, nodes: int = 4, pods: int = 12) -> tuple[list[Json], list[Json]]:
    machines = [node(chance, f"n{index}") for index in range(chance.randint(2, nodes))]
    names = [each["metadata"]["name"] for each in machines]
    return machines, [
        pod(chance, f"p{index}", chance.choice(names)) for index in range(chance.randint(2, pods))
    ]


def classify(chance: Random) -> Json:
    nodes, pods = _cluster(chance)
    return {
        "pool": _thresholds(chance),
        "nodes": nodes,
        "pods": pods,
        "node_metrics": _metrics(chance, nodes, pods, 60),
        "now": 60,
        "node_metric_expiration_seconds": 180,
    }


def _rejects(chance: Random, pods: list[Json]) -> list[str]:
    keys = [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in pods]
    return [key for key in keys if chance.random() < 0.1]


def low_node_load(chance: Random) -> Json:
    asked = classify(chance)
    del asked["node_metric_expiration_seconds"]
    asked["pool"]["anomalyCondition"] = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}
    namespaces = {chance.choice(("include", "exclude")): [chance.choice(("default", "other"))]}
    selector = {"name": "s", "selector": {"matchLabels": {"app": chance.choice("xy")}}}
    args = {
        "nodeFit": chance.random() < 0.7,
        "numberOfNodes": rarely(chance, 1, 6),
        "dryRun": rarely(chance, True, 10),
        "evictableNamespaces": rarely(chance, namespaces, 6),
        "podSelectors": rarely(chance, [selector], 6),
        "nodeMetricExpirationSeconds": chance.choice((None, 180)),
    }
    limits = {name: rarely(chance, chance.randint(0, 3), 6) for name in ("perNode", "perNamespace", "total")}
    return {
        **asked,
        "args": given(args),
        "filter_rejects": _rejects(chance, asked["pods"]),
        "cycle_limits": given(limits),
    }


def cycles(chance: Random) -> Json:
    nodes, pods = _cluster(chance, 3, 8)
    pools = []
    for index in range(chance.choice((1, 1, 2))):
        condition = {
            "timeoutSeconds": chance.choice((0, 15, 60, 600)),
            "consecutiveAbnormalities": chance.choice((1, 2, 2, 3)),
            "consecutiveNormalities": chance.choice((1, 2, 3)),
        }
        selector = chance.choice((None, {}, {"matchLabels": {TIER: "a"}}))
        pool = {**_thresholds(chance), "name": f"p{index}", "anomalyCondition": condition}
        pools.append(pool if selector is None else {**pool, "nodeSelector": selector})
    times = sorted(chance.randint(0, 20) * 10 for _ in range(chance.randint(3, 10)))
    metrics = [_metrics(chance, nodes, pods, 0) for _ in range(2)]
    for each in (one for found in metrics for one in found.values()):
        each["status"]["updateTime"] = 100
    return {
        "args": {"nodeFit": chance.random() < 0.5, "nodeMetricExpirationSeconds": 180, "nodePools": pools},
        "detector_cache_ttl_seconds": chance.choice((0, 20, 50, 300)),
        "nodes": nodes,
        "pods": pods,
        "filter_rejects": _rejects(chance, pods),
        "cycles": [{"now": now, "node_metrics": metrics[int(chance.random() < 0.2)]} for now in times],
    }


def pod_sorter(chance: Random) -> Json:
    pods = [pod(chance, f"p{index}", "n") for index in range(chance.randint(2, 10))]
    usage = {
        f"{one['metadata']['namespace']}/{one['metadata']['name']}": _amounts(chance, 4000, 8 << 30)
        for one in pods
        if chance.random() < 0.8
    }
    excess = {"cpu": f"{chance.randint(1, 4000)}m", "memory": str(chance.randint(1, 8 << 30))}
    names = chance.choice((("cpu",), ("memory",), ("cpu", "memory")))
    return {
        "pods": pods,
        "use_usage_key": chance.random() < 0.7,
        "pod_usage": usage,
        "excess": {name: excess[name] for name in names},
        "weights": {name: chance.randint(0, 3) for name in names},
    }


def usage_score(chance: Random) -> Json:
    names = chance.sample(("cpu", "memory", "pods", "example.com/x"), chance.randint(1, 4))

    def amounts(least: int) -> Json:
        found = {name: str(chance.randint(least, 9000)) for name in names}
        if "cpu" in found:
            found["cpu"] += "m"
        return found

    kind = chance.choice(("node", "pod"))
    more = {"capacity": amounts(0)} if kind == "node" else {"excess": amounts(1)}
    return {"kind": kind, "usage": amounts(0), "weights": {n: chance.randint(0, 3) for n in names}, **more}


def _affinity(chance: Random) -> Json:
    def requirement(key: str, values: tuple[str, ...]) -> Json:
        how = chance.choice(("In", "NotIn", "Exists", "DoesNotExist") if key == TIER else ("In", "NotIn"))
        found: Json = {"key": key, "operator": how}
        if how in ("In", "NotIn"):
            found["values"] = chance.sample(values, chance.randint(1, 2 if key == TIER else 1))
        return found

    terms = []
    for _ in range(chance.randint(1, 2)):
        term = {
            "matchExpressions": [requirement(TIER, ("a", "b", "c")) for _ in range(chance.randint(0, 2))],
            "matchFields": [requirement("metadata.name", ("n0", "n1")) for _ in range(chance.randint(0, 1))],
        }
        terms.append(given(term))
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def node_fit(chance: Random) -> Json:
    nodes, pods = _cluster(chance)
    for each in nodes:
        if chance.random() < 0.3:
            each["status"]["allocatable"]["example.com/x"] = "2"
    more: Json = {
        "affinity": rarely(chance, _affinity(chance), 2),
        "overhead": rarely(chance, {"cpu": "250m"}, 5),
        "initContainers": rarely(
            chance,
            [
                {
                    "name": "i",
                    "restartPolicy": chance.choice((None, "Always")),
                    "resources": {"requests": _amounts(chance, 4000, 4 << 30)},
                }
            ],
            3,
        ),
    }
    for one in more["initContainers"] or ():
        if one["restartPolicy"] is None:
            del one["restartPolicy"]
    own = pod(chance, "own", nodes[0]["metadata"]["name"], **more)
    requests = own["spec"]["containers"][0]["resources"].get("requests")
    if requests is not None and chance.random() < 0.3:
        requests[chance.choice(("example.com/x", "ephemeral-storage"))] = chance.choice(("1", "2", "3", "0"))
    return {"pod": own, "nodes": nodes, "other_pods": pods}


def evictable(chance: Random) -> Json:
    asked = node_fit(chance)
    meta, spec = asked["pod"]["metadata"], asked["pod"]["spec"]
    meta["ownerReferences"] = chance.choice(
        ([], [owner(chance)], [owner(chance, ("DaemonSet", "ReplicaSet"))])
    )
    meta["annotations"] |= given(
        {
            "kubernetes.io/config.mirror": rarely(chance, "m", 10),
            "kubernetes.io/config.source": rarely(chance, chance.choice(("api", "file")), 6),
        }
    )
    if chance.random() < 0.1:
        meta["deletionTimestamp"] = 5
    volume = chance.choice(
        ({"hostPath": {"path": "/"}}, {"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}})
    )
    if chance.random() < 0.4:
        spec["volumes"] = [{"name": "v", **volume}]
    flags = ("AllBarePods", "FailedBarePods", "LocalStoragePods", "SystemCriticalPods")
    options = {
        **{f"evict{name}": chance.random() < 0.4 for name in flags},
        "ignorePvcPods": chance.random() < 0.4,
        "priorityThreshold": rarely(chance, chance.choice((0, 5000, 9500)), 3),
        "nodeFit": chance.random() < 0.4,
        "labelSelector": rarely(chance, {"matchLabels": {"app": "x"}}, 4),
    }
    return {**asked, "options": given(options)}


def custom_priority(chance: Random) -> Json:
    nodes, pods = _cluster(chance, 6, 14)
    names = chance.sample(("a", "b", "c"), chance.randint(2, 3))
    args = {
        "evictionOrder": [{"name": name, "nodeSelector": {"matchLabels": {TIER: name}}} for name in names],
        "mode": chance.choice((None, "BestEffort", "DrainNode", "DrainNode")),
        "nodeFit": chance.choice((None, True, True, False)),
        "autoCordon": chance.choice((None, True)),
        "dryRun": rarely(chance, True, 10),
        "nodeSelector": rarely(chance, {"matchLabels": {TIER: chance.choice(names)}}, 12),
        "evictableNamespaces": rarely(chance, {"include": ["default"]}, 5),
        "podSelectors": rarely(chance, [{"name": "s", "selector": {"matchLabels": {"app": "x"}}}], 5),
    }
    args = {name: member for name, member in args.items() if member is not None}
    return {
        "args": args,
        "nodes": nodes,
        "pods": pods,
        "filter_rejects": _rejects(chance, pods),
        "evictions_that_fail": _rejects(chance, pods),
    }
