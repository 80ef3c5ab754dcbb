"""Draws reports of nodes for questions about what the scheduler reads there."""

import json
import random
from typing import Any

Json = dict[str, Any]

_AMOUNTS = ("0", "1", "8", "7500m", "1Gi", "20Gi", "100", "1.5")
_ODD = ("{", "null", "", "[]", "{}")


def _machine(chance: random.Random) -> list[Json]:
    sockets, nodes = chance.choice((1, 2, 2)), chance.choice((1, 1, 2))
    cores, threads = chance.randint(1, 4), chance.choice((1, 2))
    return [
        {"id": core * threads + thread, "core": core, "node": core // cores, "socket": core // cores // nodes}
        for core in range(sockets * nodes * cores)
        for thread in range(threads)
    ]


def _cpus(chance: random.Random, detail: list[Json]) -> str:
    some = ",".join(str(cpu["id"]) for cpu in detail if chance.random() < 0.2)
    return chance.choice((some,) * 6 + ("", "0-1", "x", "900"))


def topology_options(chance: random.Random) -> Json:
    """A question of `numa-topology-options`."""
    detail = _machine(chance)
    allocated = [
        {
            "uid": chance.choice((f"u{index}", f"u{index}", "")),
            "cpuset": _cpus(chance, detail),
            "managedByKubelet": chance.random() < 0.8,
        }
        for index in range(chance.randint(0, 3))
    ]
    system: Json = {"cpuset": _cpus(chance, detail)}
    if chance.random() < 0.5:
        system["cpusetExclusive"] = chance.random() < 0.5
    said = {
        "node.koordinator.sh/pod-cpu-allocs": allocated,
        "kubelet.koordinator.sh/cpu-manager-policy": {
            "policy": "static",
            "reservedCPUs": _cpus(chance, detail),
        },
        "node.koordinator.sh/reservation": {"reservedCPUs": _cpus(chance, detail), "resources": {"cpu": "2"}},
        "node.koordinator.sh/system-qos-resource": system,
        "node.koordinator.sh/resource-amplification-ratio": {"cpu": 1.5},
    }
    annotations = {
        name: chance.choice((json.dumps(value),) * 8 + _ODD)
        for name, value in said.items()
        if chance.random() < 0.5
    }
    if chance.random() < 0.95:
        annotations["node.koordinator.sh/cpu-topology"] = chance.choice(
            (json.dumps({"detail": detail}),) * 9 + _ODD
        )
    names = (
        "node-0",
        "node-1",
        "node-2",
        "node-x",
        "node-",
        "numa-node-3",
        "xnode-4",
        "node-01",
        "node-node-1",
    )
    zones = []
    for name in chance.sample(names[:3] * 3 + names, chance.randint(0, 4)):
        if name not in [zone["name"] for zone in zones] and not (name == "node-01" and zones):
            resources = [
                {"name": each, "capacity": "9", "allocatable": chance.choice(_AMOUNTS), "available": "1"}
                for each in chance.sample(
                    ("cpu", "memory", "hugepages-2Mi", "x.io/gpu"), chance.randint(0, 4)
                )
            ]
            zones.append(
                {"name": name, "type": chance.choice(("Node",) * 6 + ("Socket",)), "resources": resources}
            )
    policies = ("None", "BestEffort", "Restricted", "SingleNUMANodePodLevel", "SingleNUMANodeContainerLevel")
    more = (*policies, "BestEffortPodLevel", "RestrictedPodLevel", "BestEffortContainerLevel", "x")
    return {
        "annotations": annotations,
        "zones": zones,
        "topologyPolicies": chance.sample(more, chance.choice((0, 1, 1, 2))),
    }
