"""Evictions, of many pods with several limits."""

from tests.reference.act.parts import GIB, KUBE, Chance, Json, maybe


def _evictable(chance: Chance, name: str) -> Json:
    """A pod of batch, mid or prod, as its priority says."""
    priority = chance.choice((5000, 5000, 5500, 5999, 7000, 7500, 9000))
    kind = {5: "kubernetes.io/batch-", 7: "kubernetes.io/mid-", 9: ""}[priority // 1000]
    qos = "BE" if priority < 6000 else chance.choice(("LS", "BE", ""))
    labels = {
        **({"koordinator.sh/qosClass": qos} if qos else {}),
        **maybe(
            chance,
            0.9,
            **{"koordinator.sh/eviction-enabled": chance.choice(("true", "true", "true", "false"))},
        ),
        **maybe(
            chance, 0.3, **{"koordinator.sh/priority": chance.choice(("1", "2000", "9000", "-5", "many"))}
        ),
    }
    policies = {
        "koordinator.sh/eviction-policy": chance.choice(
            ('["BECPUEvict", "MemoryEvict"]', '["CPUEvict"]', "[]", "{")
        )
    }
    containers = [
        {
            "name": f"c{index}",
            "resources": {
                "requests": {
                    **maybe(chance, 0.8, **{f"{kind}cpu": _cpu(chance, kind)}),
                    **maybe(chance, 0.8, **{f"{kind}memory": str(chance.randint(0, 8) * GIB)}),
                }
            },
        }
        for index in range(chance.randint(1, 2))
    ]
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": name,
            "labels": labels,
            "annotations": maybe(chance, 0.15, **policies),
        },
        "spec": {"priority": priority, "containers": containers},
        "status": {"phase": chance.choice(("Running", "Running", "Running", "Pending"))},
    }


def _cpu(chance: Chance, kind: str) -> str:
    milli = chance.choice((0, 250, 500, 1000, 1000, 2000, 4000))
    return str(milli) if kind else f"{milli}m"


def _evict(chance: Chance, resource: str, features: tuple[str, ...]) -> Json:
    unit = 1.0 if resource == "cpu" else float(GIB)
    pods = [_evictable(chance, f"p{index:02}") for index in range(chance.randint(1, 10))]
    used = {
        pod["metadata"]["name"]: chance.choice((0.25, 0.5, 1.0, 1.5, 4.0)) * unit
        for pod in pods
        if chance.random() < 0.9
    }
    capacity = chance.choice((16, 32, 100))
    config = {
        "enable": True,
        f"{resource}EvictThresholdPercent": (threshold := chance.randint(40, 90)),
        **maybe(chance, 0.7, **{f"{resource}EvictLowerPercent": threshold - chance.randint(1, 10)}),
        **maybe(chance, 0.9, evictEnabledPriorityThreshold=chance.choice((5000, 5999, 7500, 9999))),
        f"{resource}AllocatableEvictThresholdPercent": (above := chance.randint(50, 120)),
        f"{resource}AllocatableEvictLowerPercent": above - chance.randint(1, 20),
        **maybe(chance, 0.9, allocatableEvictPriorityThreshold=chance.choice((5000, 5999, 7500, 7999))),
        **maybe(chance, 0.8, cpuEvictBESatisfactionLowerPercent=chance.randint(20, 60)),
        **maybe(chance, 0.8, cpuEvictBESatisfactionUpperPercent=chance.randint(50, 99)),
        **maybe(chance, 0.3, cpuEvictPolicy=chance.choice(("evictByRealLimit", "evictByAllocatable"))),
        **maybe(chance, 0.3, cpuEvictTimeWindowSeconds=chance.choice((10, 300))),
    }
    if chance.random() < 0.3:
        return {
            "op": "candidates",
            "feature": chance.choice(features),
            "priorityThreshold": chance.choice((5000, 5999, 7500, 9999)),
            "pods": pods,
            "podUsed": used,
        }
    lent = {name: _lent(chance, name) for name in ("kubernetes.io/batch-", "kubernetes.io/mid-")}
    node = {"cpu": str(capacity), "memory": f"{capacity}Gi"}
    allocatable = node | {f"{kind}{resource}": amount for kind, amount in lent.items() if amount is not None}
    sample = {
        "usage": chance.randint(0, 9) * 1000,
        "realLimit": chance.randint(0, 9) * 1000,
        "request": chance.randint(0, 20) * 1000,
    }
    return {
        "op": "round",
        "features": [name for name in features if chance.random() < 0.6],
        "node": {"capacity": node, "allocatable": allocatable},
        "pods": pods,
        "podUsed": used,
        "config": config,
        **maybe(chance, 0.9, nodeUsed=capacity * chance.choice((0.3, 0.8, 0.9, 1.0)) * unit),
        **maybe(
            chance,
            0.9,
            be={"avg": {"count": chance.choice((1, 30, 300)), **sample}, "current": {"count": 1, **sample}},
        ),
        "evictionFails": [pod["metadata"]["name"] for pod in pods if chance.random() < 0.1],
    }


def _lent(chance: Chance, kind: str) -> str | None:
    return chance.choice((None, "0", "4000", "8000", "20000")) if kind else None


def cpu_evict(chance: Chance) -> Json:
    return _evict(chance, "cpu", ("BECPUEvict", "CPUAllocatableEvict", "CPUEvict"))


def memory_evict(chance: Chance) -> Json:
    return _evict(chance, "memory", ("BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"))


def _request(chance: Chance) -> Json:
    """Pods of any class, with init containers and overhead."""
    qos = chance.choice(("", "LS", "BE", "LSR", "SYSTEM"))
    classes = ("koord-prod", "koord-mid", "koord-batch", "koord-free", "else")
    labels = {
        **({"koordinator.sh/qosClass": qos} if qos else {}),
        **maybe(chance, 0.3, **{"koordinator.sh/priority-class": chance.choice(classes)}),
    }

    def container(index: int) -> Json:
        kinds = ("", "kubernetes.io/batch-", "kubernetes.io/mid-")
        requests = {
            f"{kind}{resource}": _cpu(chance, kind) if resource == "cpu" else str(chance.randint(0, 8) * GIB)
            for kind in kinds
            for resource in ("cpu", "memory")
            if chance.random() < 0.6
        }
        return {"name": f"c{index}", "resources": {"requests": requests}}

    spec = {
        "containers": [container(index) for index in range(chance.randint(1, 3))],
        **maybe(
            chance, 0.4, initContainers=[container(index) for index in range(5, 5 + chance.randint(1, 2))]
        ),
        **maybe(chance, 0.3, overhead={"cpu": "250m", "memory": "120Mi"}),
        **maybe(
            chance,
            0.7,
            priority=chance.choice((0, 120, 3000, 3999, 4500, 5000, 5999, 7000, 8500, 9000, 9999, 10001)),
        ),
    }
    metadata = {"namespace": "default", "name": "p", "uid": "p", "labels": labels}
    status = {"phase": "Running", "qosClass": chance.choice(KUBE)}
    pod = {"metadata": metadata, "spec": spec, "status": status}
    return {
        "op": chance.choice(("request", "priority")),
        "pod": pod,
        "resource": chance.choice(("cpu", "memory")),
    }


def evict_common(chance: Chance) -> Json:
    """Arbitration, and what pods request; mutation does the rest."""
    if chance.random() < 0.5:
        return _request(chance)
    names = [f"p{index}" for index in range(chance.randint(1, 8))]
    kinds = ("cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/mid-memory")

    def amounts(most: int) -> Json:
        return {kind: chance.randint(1, most) * 100 for kind in chance.sample(kinds, chance.randint(1, 2))}

    def task() -> Json:
        order = chance.sample(names, chance.randint(0, len(names)))
        return {
            "target": chance.choice(("used", "request")),
            "toRelease": amounts(20),
            "order": order,
            "counts": {name: amounts(8) for name in names if chance.random() < 0.9},
        }

    return {
        "op": "arbitrate",
        "tasks": [task() for _ in range(chance.randint(1, 3))],
        "evictionFails": [name for name in names if chance.random() < 0.1],
    }
