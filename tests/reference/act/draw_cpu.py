"""Suppressing and bursting CPU, on machines of several sizes."""

from tests.reference.act.parts import KUBE, QOS, Chance, Json, maybe, range_of


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
            {"qos": chance.choice(("LSE", "LSR", "LSR", "LS", "")), "cpuset": range_of(some(0.3))}
            for _ in range(chance.randint(0, 3))
        ],
        **maybe(chance, 0.3, reservedCPUs=range_of(some(0.2))),
        **maybe(
            chance,
            0.3,
            systemQOS={
                "cpuset": range_of(some(0.2)),
                **maybe(chance, 0.5, cpusetExclusive=chance.random() < 0.5),
            },
        ),
        **(
            {"beMilliCPU": chance.randint(-500, len(ids) * 1100), "oldCPUSet": range_of(some(1.0))}
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
            **maybe(
                chance,
                0.4,
                reservation=chance.choice(({"resources": {"cpu": "2500m"}}, {"reservedCPUs": "0-2"}, {})),
            ),
        },
        "nodeUsedCores": chance.randint(0, capacity * 64) / 64,
        "pods": [
            {"uid": name, "qos": chance.choice(("LS", "BE", "LSR", "")), "kubeQOS": chance.choice(KUBE)}
            for name in names
            if chance.random() < 0.9
        ],
        "podUsedCores": {name: chance.randint(0, 128) / 64 for name in names if chance.random() < 0.9},
        "hostApps": [
            {
                "name": name,
                "qos": chance.choice(("LS", "BE")),
                **maybe(chance, 0.5, cgroupBase=chance.choice(("KubepodsBesteffort", "Kubepods"))),
            }
            for name in applications
        ],
        "hostAppUsedCores": {
            name: chance.randint(0, 128) / 64 for name in applications if chance.random() < 0.9
        },
        "thresholdPercent": chance.randint(0, 100),
        **maybe(chance, 0.4, minPercent=chance.randint(0, 40)),
    }


# cpu-burst


def cpu_burst(chance: Chance) -> Json:
    config = {
        "policy": chance.choice(("auto", "auto", "cpuBurstOnly", "cfsQuotaBurstOnly", "none")),
        "cpuBurstPercent": chance.choice((0, 50, 1000, 10000)),
        **maybe(chance, 0.9, cfsQuotaBurstPercent=chance.choice((50, 100, 130, 300))),
        **maybe(chance, 0.9, cfsQuotaBurstPeriodSeconds=chance.choice((-1, -1, 0, 10, 600))),
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
                **maybe(chance, 0.8, throttledRatio=chance.choice((0, 0.01, 0.5))),
                **maybe(chance, 0.8, usedCores=limit / 1000 * chance.choice((0.3, 0.59, 0.61, 1.0, 1.7))),
                **maybe(chance, 0.1, running=False),
                "initialTokens": chance.randint(-500, 500),
                "secondsSinceLast": chance.choice((0, 1, 1, 5)),
            }
        )
    if chance.random() < 0.3:
        return _node_state(chance)
    if chance.random() < 0.3:
        return _sequence(chance, config)
    return {
        "op": "quota_step",
        "config": config,
        "nodeState": chance.choice(("idle", "cooling", "overload", "unknown")),
        "podQuota": chance.choice((-1, total, total)),
        "containers": containers,
    }


def _sequence(chance: Chance, config: Json) -> Json:
    limit = chance.choice((333, 2000))
    return {
        "op": "sequence",
        "config": config,
        "limitCPU": f"{limit}m",
        "quota": limit * 100,
        "podQuota": chance.choice((-1, limit * 100, limit * 150)),
        "initialTokens": chance.randint(-100, 1000),
        "rounds": [
            {
                "nodeState": chance.choice(("idle", "idle", "cooling", "overload")),
                **maybe(chance, 0.8, throttledRatio=chance.choice((0, 0.3))),
                **maybe(chance, 0.8, usedCores=limit / 1000 * chance.choice((0.3, 0.8, 1.0, 1.7))),
                **maybe(chance, 0.3, seconds=chance.choice((0, 3, 30))),
            }
            for _ in range(chance.randint(1, 8))
        ],
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
                "qos": chance.choice(("LSE", *QOS)),
                "requestCPU": chance.choice(("0", "500m", "2", "4")),
            }
            for name in names
        ],
        "podUsedCores": {name: chance.randint(0, 16) / 8 for name in names if chance.random() < 0.8},
        "sharePoolThresholdPercent": chance.choice((0, 50, 70, 100)),
    }
