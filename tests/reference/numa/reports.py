"""Questions about what nodes report of their CPUs and NUMA nodes."""

import json
import random
from typing import Any

Json = dict[str, Any]

_LISTS = ("", "0", "0-3", "1,5", "2-2", "0-31", "x", "3-1", "0,", "100")


def topology_options(chance: random.Random) -> Json:
    """A report of which parts are malformed."""
    sockets, nodes, cores, threads = (chance.choice(few) for few in ((1, 2), (1, 2), (1, 2, 4), (1, 2)))
    detail = []
    for core in range(sockets * nodes * cores):
        for thread in range(threads):
            numa = core // cores
            cpu = core * threads + thread
            detail.append({"id": cpu, "core": core, "socket": numa // nodes, "node": numa})
    annotations: Json = {"node.koordinator.sh/cpu-topology": {"detail": detail}}
    pods = [
        {
            "uid": chance.choice(("u", "")),
            "cpuset": chance.choice(_LISTS),
            "managedByKubelet": chance.random() < 0.7,
        }
        for _ in range(chance.randint(0, 3))
    ]
    ratios = chance.choice(({"cpu": 1.5}, {"cpu": 0.5}, {}, {"memory": 2}))
    for key, value in (
        ("node.koordinator.sh/pod-cpu-allocs", pods),
        (
            "kubelet.koordinator.sh/cpu-manager-policy",
            {"policy": "static", "reservedCPUs": chance.choice(_LISTS)},
        ),
        (
            "node.koordinator.sh/reservation",
            {"reservedCPUs": chance.choice(_LISTS), "resources": {"cpu": "1"}},
        ),
        (
            "node.koordinator.sh/system-qos-resource",
            {"cpuset": chance.choice(_LISTS), "cpusetExclusive": chance.choice((None, True, False))},
        ),
        ("node.koordinator.sh/resource-amplification-ratio", ratios),
    ):
        if chance.random() < 0.5:
            annotations[key] = value
    policies = ("BestEffort", "Restricted", "SingleNUMANodePodLevel", "None", "SingleNUMANodeContainerLevel")
    names = [f"node-{numa}" for numa in range(sockets * nodes)]
    chance.shuffle(names)
    return {
        "annotations": {
            key: "{" if chance.random() < 0.05 else json.dumps(value) for key, value in annotations.items()
        },
        "zones": [_zone(chance, name) for name in names if chance.random() < 0.9],
        "topologyPolicies": chance.sample(policies, chance.randint(0, 2)),
    }


def _zone(chance: random.Random, name: str) -> Json:
    amounts = {
        "cpu": chance.choice(("8", "7500m", "0", "100m", "2")),
        "memory": chance.choice(("1Gi", "1500M", "0")),
        "nvidia.com/gpu": chance.choice(("2", "0")),
    }
    resources = [
        {"name": resource, **dict.fromkeys(("capacity", "allocatable", "available"), text)}
        for resource, text in amounts.items()
        if chance.random() < 0.8
    ]
    odd = chance.choice(("node-x", "numa0", "node-", "xnode-1", "node-1node-"))
    kind = chance.choice(("Node",) * 9 + ("Socket",))
    return {"name": odd if chance.random() < 0.05 else name, "type": kind, "resources": resources}
