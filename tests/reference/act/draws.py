"""Questions about the node agent's acting, drawn from nothing: many pods, machines of several sizes, limits."""

import json
import random
from typing import Any

Json = dict[str, Any]
Chance = random.Random

_QOS = ("", "LS", "BE", "BE", "LSR")
_KUBE = ("Guaranteed", "Burstable", "BestEffort")
_GIB = 2**30


def _maybe(chance: Chance, likely: float, **members: Any) -> Json:
    return members if chance.random() < likely else {}


def _range(cpus: list[int]) -> str:
    return ",".join(map(str, cpus))


# evictions


def _evictable(chance: Chance, name: str) -> Json:
    """A pod of batch, mid or prod, as its priority says."""
    priority = chance.choice((5000, 5000, 5500, 5999, 7000, 7500, 9000))
    kind = {5: "kubernetes.io/batch-", 7: "kubernetes.io/mid-", 9: ""}[priority // 1000]
    qos = "BE" if priority < 6000 else chance.choice(("LS", "BE", ""))
    labels = {
        **({"koordinator.sh/qosClass": qos} if qos else {}),
        **_maybe(
            chance,
            0.9,
            **{"koordinator.sh/eviction-enabled": chance.choice(("true", "true", "true", "false"))},
        ),
        **_maybe(
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
                    **_maybe(chance, 0.8, **{f"{kind}cpu": _cpu(chance, kind)}),
                    **_maybe(chance, 0.8, **{f"{kind}memory": str(chance.randint(0, 8) * _GIB)}),
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
            "annotations": _maybe(chance, 0.15, **policies),
        },
        "spec": {"priority": priority, "containers": containers},
        "status": {"phase": chance.choice(("Running", "Running", "Running", "Pending"))},
    }


def _cpu(chance: Chance, kind: str) -> str:
    milli = chance.choice((0, 250, 500, 1000, 1000, 2000, 4000))
    return str(milli) if kind else f"{milli}m"


def _evict(chance: Chance, resource: str, features: tuple[str, ...]) -> Json:
    unit = 1.0 if resource == "cpu" else float(_GIB)
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
        **_maybe(chance, 0.7, **{f"{resource}EvictLowerPercent": threshold - chance.randint(1, 10)}),
        **_maybe(chance, 0.9, evictEnabledPriorityThreshold=chance.choice((5000, 5999, 7500, 9999))),
        f"{resource}AllocatableEvictThresholdPercent": (above := chance.randint(50, 120)),
        f"{resource}AllocatableEvictLowerPercent": above - chance.randint(1, 20),
        **_maybe(chance, 0.9, allocatableEvictPriorityThreshold=chance.choice((5000, 5999, 7500, 7999))),
        **_maybe(chance, 0.8, cpuEvictBESatisfactionLowerPercent=chance.randint(20, 60)),
        **_maybe(chance, 0.8, cpuEvictBESatisfactionUpperPercent=chance.randint(50, 99)),
        **_maybe(chance, 0.3, cpuEvictPolicy=chance.choice(("evictByRealLimit", "evictByAllocatable"))),
        **_maybe(chance, 0.3, cpuEvictTimeWindowSeconds=chance.choice((10, 300))),
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
        **_maybe(chance, 0.9, nodeUsed=capacity * chance.choice((0.3, 0.8, 0.9, 1.0)) * unit),
        **_maybe(
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


# cpu-suppress


def _machine(chance: Chance) -> list[Json]:
    """Processors with or without siblings, which follow each other or are far apart."""
    sockets, nodes, cores, threads = (
        chance.choice((1, 2)),
        chance.choice((1, 2)),
        chance.choice((1, 2, 4)),
        chance.choice((1, 2)),
    )
    total, is_apart = sockets * nodes * cores, chance.random() < 0.5
    rows = []
    for core in range(total):
        node = core // cores
        for thread in range(threads):
            cpu = core + thread * total if is_apart else core * threads + thread
            rows.append({"cpu": cpu, "core": core, "socket": node // nodes, "node": node})
    return sorted(rows, key=lambda row: row["cpu"])


def cpu_suppress(chance: Chance) -> Json:
    processors = _machine(chance)
    ids = [row["cpu"] for row in processors]

    def some(most: float) -> list[int]:
        return sorted(chance.sample(ids, chance.randint(0, int(len(ids) * most))))

    op = chance.choice(("amount", "pick", "cpuset", "cpuset", "recover", "quota"))
    if op == "pick":
        return {"op": op, "count": chance.randint(1, len(ids)), "processors": processors}
    if op == "quota":
        cores = chance.choice((2, 8, 80))
        return {
            "op": op,
            "beMilliCPU": chance.randint(-1000, cores * 1000),
            "capacityCPU": chance.choice((str(cores), f"{cores * 1000 - 500}m")),
            "currentQuota": chance.choice((-1, 2000, chance.randint(2000, cores * 100000))),
        }
    if op == "amount":
        return _amount(chance)
    return {
        "op": op,
        "processors": processors,
        "pods": [
            {"qos": chance.choice(("LSE", "LSR", "LSR", "LS", "")), "cpuset": _range(some(0.3))}
            for _ in range(chance.randint(0, 3))
        ],
        **_maybe(chance, 0.3, reservedCPUs=_range(some(0.2))),
        **_maybe(
            chance,
            0.3,
            systemQOS={
                "cpuset": _range(some(0.2)),
                **_maybe(chance, 0.5, cpusetExclusive=chance.random() < 0.5),
            },
        ),
        **(
            {"beMilliCPU": chance.randint(-500, len(ids) * 1100), "oldCPUSet": _range(some(1.0))}
            if op == "cpuset"
            else {}
        ),
    }


def _amount(chance: Chance) -> Json:
    """Usages are sums of powers of two, which are the same in any order."""
    names = [f"u{index}" for index in range(chance.randint(0, 6))]
    applications = [f"a{index}" for index in range(chance.randint(0, 2))]
    capacity = chance.choice((8, 32))
    return {
        "op": "amount",
        "node": {
            "capacityCPU": str(capacity),
            "allocatableCPU": chance.choice((str(capacity), f"{capacity * 1000 - 1500}m")),
            **_maybe(
                chance,
                0.4,
                reservation=chance.choice(({"resources": {"cpu": "2500m"}}, {"reservedCPUs": "0-2"}, {})),
            ),
        },
        "nodeUsedCores": chance.randint(0, capacity * 64) / 64,
        "pods": [
            {"uid": name, "qos": chance.choice(("LS", "BE", "LSR", "")), "kubeQOS": chance.choice(_KUBE)}
            for name in names
            if chance.random() < 0.9
        ],
        "podUsedCores": {name: chance.randint(0, 128) / 64 for name in names if chance.random() < 0.9},
        "hostApps": [
            {
                "name": name,
                "qos": chance.choice(("LS", "BE")),
                **_maybe(chance, 0.5, cgroupBase=chance.choice(("KubepodsBesteffort", "Kubepods"))),
            }
            for name in applications
        ],
        "hostAppUsedCores": {
            name: chance.randint(0, 128) / 64 for name in applications if chance.random() < 0.9
        },
        "thresholdPercent": chance.randint(0, 100),
        **_maybe(chance, 0.4, minPercent=chance.randint(0, 40)),
    }


# cpu-burst


def cpu_burst(chance: Chance) -> Json:
    config = {
        "policy": chance.choice(("auto", "auto", "cpuBurstOnly", "cfsQuotaBurstOnly", "none")),
        "cpuBurstPercent": chance.choice((0, 50, 1000, 10000)),
        **_maybe(chance, 0.9, cfsQuotaBurstPercent=chance.choice((50, 100, 130, 300))),
        **_maybe(chance, 0.9, cfsQuotaBurstPeriodSeconds=chance.choice((-1, -1, 0, 10, 600))),
    }
    containers, total = [], 0
    for index in range(chance.randint(1, 4)):
        limit = chance.choice((333, 500, 1000, 1999, 8000))
        quota = int(limit * 100 * chance.choice((1, 1, 1.2, 1.5, 3)))
        total += quota
        containers.append(
            {
                "name": f"c{index}",
                "limitCPU": f"{limit}m",
                "quota": quota,
                **_maybe(chance, 0.8, throttledRatio=chance.choice((0, 0.01, 0.5))),
                **_maybe(chance, 0.8, usedCores=limit / 1000 * chance.choice((0.3, 0.59, 0.61, 1.0, 1.7))),
                **_maybe(chance, 0.1, running=False),
                "initialTokens": chance.randint(-500, 500),
                "secondsSinceLast": chance.choice((0, 1, 1, 5)),
            }
        )
    if chance.random() < 0.3:
        return _node_state(chance)
    return {
        "op": "quota_step",
        "config": config,
        "nodeState": chance.choice(("idle", "cooling", "overload", "unknown")),
        "podQuota": chance.choice((-1, total, total)),
        "containers": containers,
    }


def _node_state(chance: Chance) -> Json:
    names = [f"u{index}" for index in range(chance.randint(0, 5))]
    return {
        "op": "node_state",
        "nodeUsedCores": chance.choice((None, *(each / 2 for each in range(17)))),
        "cpus": chance.choice((None, 4, 8, 16)),
        "pods": [
            {
                "uid": name,
                "qos": chance.choice(("LSE", *_QOS)),
                "requestCPU": chance.choice(("0", "500m", "2", "4")),
            }
            for name in names
        ],
        "podUsedCores": {name: chance.randint(0, 16) / 8 for name in names if chance.random() < 0.8},
        "sharePoolThresholdPercent": chance.choice((0, 50, 70, 100)),
    }


# cgreconcile


def cgreconcile(chance: Chance) -> Json:
    def section() -> Json:
        return {
            **_maybe(chance, 0.7, minLimitPercent=chance.choice((0, 50, 100))),
            **_maybe(chance, 0.7, lowLimitPercent=chance.choice((0, 50, 100))),
            **_maybe(chance, 0.7, throttlingPercent=chance.choice((0, 60, 80, 100))),
            **_maybe(chance, 0.5, wmarkRatio=chance.choice((0, 95)), wmarkMinAdj=chance.choice((-25, 50))),
            **_maybe(chance, 0.5, oomKillGroup=1, priority=chance.randint(0, 12), priorityEnable=1),
        }

    def pod(name: str) -> Json:
        qos = chance.choice(("", "LS", "LSR", "BE", "LSE", "SYSTEM"))
        kind = "kubernetes.io/batch-memory" if qos == "BE" else "memory"
        own = {"policy": chance.choice(("", "default", "auto", "none")), **section()}
        containers = []
        for index in range(chance.randint(1, 3)):
            limit = chance.randint(0, 4096) * 2**20
            request = chance.randint(0, limit)
            containers.append(
                {
                    "name": f"c{index}",
                    "resources": {
                        **_maybe(chance, 0.8, requests={kind: str(request)}),
                        **_maybe(chance, 0.7, limits={kind: str(limit)}),
                    },
                }
            )
        return {
            "metadata": {
                "namespace": "default",
                "name": name,
                "uid": name,
                "labels": {"koordinator.sh/qosClass": qos} if qos else {},
                "annotations": _maybe(chance, 0.4, **{"koordinator.sh/memoryQOS": json.dumps(own)}),
            },
            "spec": {"containers": containers},
            "status": {
                "phase": chance.choice(("Running", "Running", "Pending", "Succeeded")),
                "qosClass": "BestEffort" if qos == "BE" else chance.choice(_KUBE[:2]),
            },
        }

    names = ("lsrClass", "lsClass", "beClass", "systemClass")
    return {
        "op": "round",
        "pods": [pod(f"p{index}") for index in range(chance.randint(0, 4))],
        "strategy": {name: {"memoryQOS": {"enable": True, **section()}} for name in names},
        "nodeAllocatableMemory": chance.choice(("8Gi", "16000000001")),
        "cgroupVersion": chance.choice((1, 2)),
        **_maybe(chance, 0.2, notStarted=["c1"]),
    }


# hooks


def cpuset_hook(chance: Chance) -> Json:
    def pools() -> list[Json]:
        nodes = chance.choice((1, 2))
        return [
            {"socket": node, "node": node, "cpuset": f"{node * 8}-{node * 8 + chance.randint(1, 7)}"}
            for node in range(nodes)
        ]

    resources = ({"cpu": "2"}, {"kubernetes.io/batch-cpu": "2000"}, {"memory": "1Gi"}, {})
    status = {
        **_maybe(chance, 0.2, cpuset=chance.choice(("2-4", "", "0,7"))),
        **_maybe(
            chance,
            0.6,
            numaNodeResources=[
                {"node": node, **_maybe(chance, 0.9, resources=chance.choice(resources))}
                for node in chance.sample((0, 1, 2), chance.randint(1, 2))
            ],
        ),
    }
    qos = chance.choice(("", "LS", "LSR", "LSE", "BE", "SYSTEM"))
    topology = {
        "sharePools": pools(),
        "beSharePools": pools(),
        **_maybe(chance, 0.5, kubeletPolicy=chance.choice(("none", "static", ""))),
        **_maybe(chance, 0.4, systemQOSCPUSet=chance.choice(("15", ""))),
    }
    return {
        "op": "container",
        "labels": {"koordinator.sh/qosClass": qos} if qos else {},
        "annotations": _maybe(
            chance, 0.7, **{"scheduling.koordinator.sh/resource-status": json.dumps(status)}
        ),
        "cgroupParent": chance.choice(
            ("kubepods/besteffort/podx/c", "kubepods/burstable/podx/c", "kubepods/podx/c")
        ),
        "topology": chance.choice((None, topology, topology, topology)),
        "beCPUManager": chance.random() < 0.5,
        "keepQuota": chance.random() < 0.3,
    }


def batchresource(chance: Chance) -> Json:
    def side() -> Json:
        return {
            **_maybe(
                chance, 0.8, **{"kubernetes.io/batch-cpu": str(chance.choice((0, 1, 5, 10, 333, 2000)))}
            ),
            **_maybe(
                chance, 0.8, **{"kubernetes.io/batch-memory": chance.choice(("0", "1", "1500M", "2Gi"))}
            ),
        }

    def both() -> Json:
        return {**_maybe(chance, 0.9, requests=side()), **_maybe(chance, 0.8, limits=side())}

    op = chance.choice(("pod", "container"))
    return {
        "op": op,
        "qos": chance.choice(("BE", "BE", "BE", "LS", "")),
        "extended": both()
        if op == "container"
        else {f"c{index}": both() for index in range(chance.randint(1, 3))},
        **_maybe(chance, 0.3, quotaUsed=chance.random() < 0.5),
        **_maybe(chance, 0.5, ratio=chance.choice((-1, 0.5, 1.0, 1.2, 1.333, 3))),
    }


# files


def resctrl_schemata(chance: Chance) -> Json:
    ids = sorted(chance.sample(range(4), chance.randint(1, 3)))

    def span() -> list[int]:
        start = chance.choice((0, 0, 10, 50))
        return [start, chance.choice((start + 30, 100, start))]

    def part(common: Json, single: Any) -> Json:
        each = [{"cacheID": cache, **single()} for cache in ids if chance.random() < 0.7]
        return {**_maybe(chance, 0.7, schemata=common), **_maybe(chance, 0.5, schemataPerCache=each)}

    asked = {
        **_maybe(chance, 0.8, llc=part({"range": span()}, lambda: {"range": span()})),
        **_maybe(
            chance,
            0.6,
            mb=part({"percent": chance.randint(1, 100)}, lambda: {"percent": chance.randint(1, 100)}),
        ),
    }
    return {
        "op": "annotation",
        "annotation": json.dumps(asked),
        "cbm": chance.choice(("ff", "7ff", "fffff")),
        "vendor": chance.choice(("GenuineIntel", "AuthenticAMD", "Else")),
        "cacheIds": ids,
        "podUID": "u1",
    }


def resource_update_order(chance: Chance) -> Json:
    version = chance.choice((1, 2))
    resource = chance.choice(("cpu.cfs_quota_us", "memory.min", "memory.low", "memory.high", "cpuset.cpus"))

    def value() -> str:
        if resource == "cpuset.cpus":
            start = chance.randint(0, 4)
            return f"{start}-{start + chance.randint(1, 4)}"
        return str(chance.randint(1, 9) * 10000)

    def content() -> str:
        if resource == "cpu.cfs_quota_us":
            unlimited = "max" if version == 2 else "-1"
            text = chance.choice((unlimited, f"{chance.randint(1, 9)}5000"))
            return f"{text} 100000" if version == 2 else text
        return value()

    groups = ("kp", "kp/p", "kp/p/c", "kp/q", "kp/q/d")
    return {
        "op": "leveled",
        "version": version,
        "files": {f"{group}/{resource}": content() for group in groups if chance.random() < 0.9},
        "levels": [
            [
                {"group": group, "resource": resource, "value": value()}
                for group in groups
                if group.count("/") == depth
            ]
            for depth in range(3)
        ],
    }


def sysconfig_blkio(chance: Chance) -> Json:
    if chance.random() < 0.5:
        disks = ("8:0", "253:0", "253:16")
        kind = chance.choice(("blkio.throttle.read_iops_device", "blkio.cost.weight", "blkio.cost.qos"))

        def line(disk: str) -> str:
            if kind == "blkio.cost.qos":
                return f"{disk} {chance.choice(('enable=0', 'enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000'))}"
            return f"{disk} {chance.choice((0, 5, 30))}"

        current = [line(disk) for disk in disks if chance.random() < 0.6]
        return {
            "op": "blkio_needs_write",
            "file": kind,
            "current": "\n".join(current),
            "value": line(chance.choice(disks)),
        }
    names = ("ID_IDLE_AVG", "ID_RESCUE_EXPELLEE", "WAKEUP")
    return {
        "op": "sysconfig",
        "strategy": {
            **_maybe(chance, 0.7, minFreeKbytesFactor=chance.choice((0, 1, 99, 100, 400, 10001))),
            **_maybe(chance, 0.7, watermarkScaleFactor=chance.choice((9, 10, 150, 400, 401))),
            **_maybe(chance, 0.7, memcgReapBackGround=chance.choice((-1, 0, 1, 2))),
            **_maybe(chance, 0.4, schedGroupIdentityEnabled=chance.choice((0, 1, 2))),
            **_maybe(chance, 0.4, schedIdleSaverWmark=chance.choice((0, 5000000))),
            "schedFeatures": {name: chance.random() < 0.5 for name in names if chance.random() < 0.5},
        },
        "nodeMemory": chance.choice(("512Mi", "3Gi", "512Gi", "2Ti")),
        "currentFeatures": " ".join(
            chance.choice((name, f"NO_{name}")) for name in names if chance.random() < 0.7
        ),
    }


DRAW = {
    "cpu-evict": cpu_evict,
    "memory-evict": memory_evict,
    "cpu-suppress": cpu_suppress,
    "cpu-burst": cpu_burst,
    "cgreconcile": cgreconcile,
    "cpuset-hook": cpuset_hook,
    "batchresource": batchresource,
    "resctrl-schemata": resctrl_schemata,
    "resource-update-order": resource_update_order,
    "sysconfig-blkio": sysconfig_blkio,
}
