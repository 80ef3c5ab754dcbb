"""Draws questions about the topology that the agent reports."""

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.reference.observing.draw_pods import amounts, draw_pod

Json = dict[str, Any]


def _machine(chance: random.Random) -> list[list[int]]:
    """Sockets, NUMA nodes in them, cores, threads; some CPUs may be offline."""
    sockets, nodes = chance.choice((1, 2, 2, 4)), chance.choice((1, 1, 2, 3))
    cores, threads = chance.randint(1, 6), chance.choice((1, 2, 2))
    count = sockets * nodes * cores
    rows = [
        [thread * count + core, core, core // cores // nodes, core // cores]
        for core in range(count)
        for thread in range(threads)
    ]
    return sorted(chance.sample(rows, chance.randint(1, len(rows)) if chance.random() < 0.3 else len(rows)))


def _cpus(chance: random.Random, rows: list[list[int]], share: float) -> str:
    cpus = sorted(row[0] for row in rows if chance.random() < share)
    return ",".join(map(str, cpus))


def _pinned_pods(chance: random.Random, rows: list[list[int]]) -> list[Json]:
    pods = []
    for index in range(chance.randint(0, 5)):
        pod = draw_pod(chance, f"u{index}")
        texts = (
            json.dumps({"cpuset": _cpus(chance, rows, 0.15)}),
            json.dumps({"cpuset": "0-2"}),
            '{"cpuset":"x"}',
            '{"cpuset":"999"}',
            "{",
            "{}",
        )
        if chance.random() < 0.8:
            text = chance.choice((texts[0],) * 5 + texts)
            pod["metadata"]["annotations"] = {"scheduling.koordinator.sh/resource-status": text}
        pods.append(pod)
    return pods


def _share_pools(chance: random.Random, rows: list[list[int]]) -> Json:
    asked: Json = {"topology": rows, "pods": _pinned_pods(chance, rows)}
    if chance.random() < 0.4:
        asked["kubeletTakenCPUs"] = _cpus(chance, rows, 0.2)
    if chance.random() < 0.4:
        asked["reservedCPUs"] = _cpus(chance, rows, 0.2)
    if chance.random() < 0.5:
        asked["systemQOS"] = {"cpuset": chance.choice((_cpus(chance, rows, 0.3), "0-1", "x", ""))}
        if chance.random() < 0.5:
            asked["systemQOS"]["cpusetExclusive"] = chance.random() < 0.5
    return asked


def _manager_state(chance: random.Random, rows: list[list[int]]) -> Json:
    cpus = (_cpus(chance, rows, 0.3), "0-1", "", "x", "3,2", "1-1")
    entries = {
        f"u{index}": {f"c{number}": chance.choice(cpus) for number in range(chance.randint(0, 2))}
        for index in range(chance.randint(0, 6))
    }
    state: Json = {"policyName": "static", "defaultCpuSet": "0", "checksum": 7}
    if chance.random() < 0.9:
        state["entries"] = entries
    return {"state": json.dumps(state), "pods": _pinned_pods(chance, rows)}


def _node_reservation(chance: random.Random, rows: list[list[int]]) -> Json:
    reservation: Json = {}
    if chance.random() < 0.6:
        reservation["reservedCPUs"] = chance.choice((_cpus(chance, rows, 0.2), "", "x", "0-1", "1,0"))
    if chance.random() < 0.6:
        reservation["resources"] = amounts(chance)
    if chance.random() < 0.4:
        reservation["applyPolicy"] = chance.choice(("Default", "ReservedCPUsOnly", "", "x"))
    text = chance.choice((json.dumps(reservation),) * 8 + ("{", "null", ""))
    return {"topology": rows, "annotations": {"node.koordinator.sh/reservation": text}}


_QUANTITIES = ("0", "1", "4", "3500m", "7999m", "1Gi", "10737418241", "0.5Gi", "100k", "1.5")


def _listed(chance: random.Random, names: Sequence[str]) -> Json:
    return {name: chance.choice(_QUANTITIES) for name in names if chance.random() < 0.8}


_ZONE_AMOUNTS = ("cpu", "memory", "hugepages-2Mi", "hugepages-1Gi", "koordinator.sh/gpu", "x")


def _zone_list(chance: random.Random) -> list[Json]:
    names = chance.sample(("node-0", "node-1", "node-2", "node-10", "other"), chance.randint(0, 3))
    return [{"name": name, "resources": _listed(chance, _ZONE_AMOUNTS)} for name in sorted(names)]


def _object(chance: random.Random) -> Json:
    keys = ("node.koordinator.sh/cpu-topology", "node.koordinator.sh/pod-cpu-allocs", "other")
    basic = {"node.koordinator.sh/cpu-basic-info": '{"cpuModel":"m"}'}
    texts = ('{"a":1,"b":[1]}', '{"b":[1],"a":1.0}', "null", "[]", '{"a":2,"b":[1]}')
    label = chance.choice(("", "true", "false"))
    return {
        "annotations": basic | {key: chance.choice(texts) for key in keys if chance.random() < 0.7},
        "labels": {"node.koordinator.sh/enable-numa-reservation": label} if label else {},
        "policy": chance.choice(("None", "None", "BestEffort")),
        "zones": _zone_list(chance),
    }


def _changed(chance: random.Random, _: Any) -> Json:
    """An object and one that differs in one part, or in none."""
    old = _object(chance)
    new = json.loads(json.dumps(old))
    name = chance.choice((*sorted(new), "nothing"))
    if name != "nothing":
        new[name] = _object(chance)[name]
    old["policies"] = chance.choice(([old["policy"]],) * 9 + ([], ["None", "None"]))
    return {"old": old, "new": new}


def _zones(chance: random.Random, _: Any) -> Json:
    nodes = []
    for _ in range(chance.randint(1, 12)):
        node: Json = {
            "cpus": list(range(chance.randint(0, 4))),
            "memTotalKiB": chance.randint(1 << 23, 1 << 28),
        }
        if chance.random() < 0.7:
            node["hugePages"] = {"2048": chance.randint(0, 100), "1048576": chance.randint(0, 4)}
        nodes.append(node)
    return {"numaNodes": nodes, "hugePageReport": chance.random() < 0.7}


_TOPOLOGY = {
    "share-pools": _share_pools,
    "cpu-manager-state": _manager_state,
    "node-reservation": _node_reservation,
    "changed": _changed,
    "zones": _zones,
    "kubelet-reserve": lambda chance, _: {
        "capacity": _listed(chance, ("cpu", "memory", "x")),
        "allocatable": _listed(chance, ("cpu", "memory", "x")),
    },
    "numa-reserve": lambda chance, _: {
        "zones": [_listed(chance, ("cpu", "memory", "x")) for _ in range(chance.randint(1, 5))],
        "reserved": _listed(chance, ("cpu", "memory")),
    },
    "merge-zones": lambda chance, _: {"old": _zone_list(chance), "new": _zone_list(chance)},
    "topology-policy": lambda chance, _: {
        "policy": chance.choice(("none", "best-effort", "restricted", "single-numa-node", "", "x")),
        "scope": chance.choice(("container", "pod", "", "x")),
    },
}


def draw(chance: random.Random) -> Json:
    op = chance.choice(sorted(_TOPOLOGY))
    return {"op": op, **_TOPOLOGY[op](chance, _machine(chance))}
