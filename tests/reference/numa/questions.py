"""What questions about CPUs and NUMA nodes must keep to."""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from koordinator.api import cpuset, resource_vector
from tests.reference.numa import reports

Json = dict[str, Any]
_LIST = re.compile(r"^(\d+(-\d+)?(,|$))*$")


def _cpu_accumulator(asked: Json) -> Json | None:
    """Each CPU once, each core within one NUMA node, each NUMA node within one socket; only CPUs that there are."""
    rows: dict[int, list[int]] = {}
    sockets: dict[int, int] = {}
    nodes: dict[tuple[int, int], int] = {}
    for row in asked["topology"]:
        if len(row) != 4 or min(row) < 0:
            continue
        socket, node, core, cpu = row
        if sockets.setdefault(node, socket) == socket and nodes.setdefault((socket, core), node) == node:
            rows.setdefault(cpu, row)
    if not rows or asked["maxRefCount"] < 1:
        return None
    held = Counter(each["cpu"] for each in asked["allocated"])
    if any(count > 1 for count in held.values()):
        return None
    available = cpuset.parse(asked["availableCPUs"]) & rows.keys()
    return {
        **asked,
        "topology": list(rows.values()),
        "availableCPUs": cpuset.text_of(sorted(available)),
        "allocated": [each for each in asked["allocated"] if each["cpu"] in rows],
    }


def _allocate(asked: Json) -> Json | None:
    """Whole CPUs where they are bound, a required policy only then, and NUMA nodes that there are."""
    zones = asked["numaZones"]
    hint = asked.get("hint")
    if not _is_machine(asked["topology"]) or not zones or any(not 0 <= int(numa) < 60 for numa in zones):
        return None
    if hint is not None and (not hint or any(str(numa) not in zones for numa in hint)):
        return None
    scoring = asked.get("numaScoring") or {"resources": {}}
    if min(scoring["resources"].values(), default=1) < 1:
        return None
    cpu_milli = resource_vector.amount("cpu", asked["requests"].get("cpu", "0"))
    topology = asked["topology"]
    if (
        topology["sockets"] > 2
        and asked["bindPolicy"] == "FullPCPUs"
        and cpu_milli // 1000 % topology["cpusPerCore"]
    ):
        return None  # a CPU more than asked for, in the original
    binds = asked["requestCPUBind"] and cpu_milli > 0 and cpu_milli % 1000 == 0 and asked["bindPolicy"] != ""
    return {
        **asked,
        "numCPUsNeeded": cpu_milli // 1000,
        "requestCPUBind": binds,
        "requiredBindPolicy": binds and asked["requiredBindPolicy"],
        "bindPolicy": asked["bindPolicy"] if binds else "",
        "existing": [_within(asked["topology"], pod) for pod in asked["existing"]],
    }


def _is_machine(topology: Json | None) -> bool:
    return topology is not None and min(value for value in topology.values() if isinstance(value, int)) > 0


def _cpu_count(topology: Json) -> int:
    cores = topology["coresPerNUMA"] if "coresPerNUMA" in topology else topology["coresPerNuma"]
    return topology["sockets"] * topology["numaPerSocket"] * cores * topology["cpusPerCore"]


def _cpus(topology: Json, text: str) -> str:
    """Those CPUs of a list that there are; none where it is no list."""
    if not _LIST.match(text):
        return ""
    return cpuset.text_of(cpu for cpu in sorted(cpuset.parse(text)) if cpu < _cpu_count(topology))


def _within(topology: Json, pod: Json) -> Json:
    """The pod with only CPUs that there are."""
    return {**pod, "cpuset": _cpus(topology, pod.get("cpuset") or "")}


def _available(asked: Json) -> Json | None:
    topology = asked["topology"]
    if not _is_machine(topology) or asked.get("maxRefCount", 1) < 1:
        return None
    if asked["kind"] == "numa":
        return {**asked, "pods": [_within(topology, pod) for pod in asked["pods"]]}
    lists = {name: [_cpus(topology, text) for text in asked[name]] for name in ("podCPUSets", "givenBack")}
    return {**asked, **lists, "reservedCPUs": _cpus(topology, asked["reservedCPUs"])}


def _merge(asked: Json) -> Json | None:
    """Hints name NUMA nodes, and each NUMA node has a status."""
    hints = [hint for provider in asked["providers"] for found in provider.values() for hint in found or ()]
    if any(hint["affinity"] == [] for hint in hints) or not asked["numaNodes"]:
        return None
    numbers = [*asked["numaNodes"], *(numa for hint in hints for numa in hint["affinity"] or ())]
    if not 0 <= min(numbers) <= max(numbers) < 60:
        return None
    statuses = [*asked["numaStatus"], *["idle"] * (max(numbers) + 1 - len(asked["numaStatus"]))]
    return {**asked, "numaNodes": sorted(set(asked["numaNodes"])), "numaStatus": statuses}


def _policy(asked: Json) -> Json | None:
    """A required policy is the pod's policy; machines have CPUs."""
    if asked["kind"] == "resourceSpecWriteback" and asked["podRequiredPolicy"]:
        return {**asked, "podPolicy": asked["podRequiredPolicy"]}
    topology = asked.get("topology")
    if topology is None:
        return asked
    if not _is_machine(topology):
        return None
    return {**asked, "existingCPUSets": [_cpus(topology, text) for text in asked.get("existingCPUSets", ())]}


def _score(asked: Json) -> Json | None:
    """A resource has one weight, which is positive; no more CPUs are pinned than there are."""
    weights = {each["name"]: each["weight"] for each in asked["strategy"]["resources"]}
    if (
        not weights
        or min(weights.values()) < 1
        or asked["pinnedCPUs"] < 0
        or asked["cpuAmplificationRatio"] < 0
    ):
        return None
    resources = [{"name": name, "weight": weight} for name, weight in weights.items()]
    known = {zone["node"] for zone in asked.get("zones", ())}
    if len(known) < len(asked.get("zones", ())) or not known >= set(asked.get("allocatedZones", ())):
        return None
    found = {**asked, "strategy": {**asked["strategy"], "resources": resources}}
    return {**found, "allocatedZones": sorted(set(asked.get("allocatedZones", ())))}


def _options(asked: Json) -> Json | None:
    """Each zone, and each resource of a zone, once."""
    zones = {
        zone["name"]: {
            **zone,
            "resources": list({each["name"]: each for each in zone.get("resources") or ()}.values()),
        }
        for zone in asked["zones"]
    }
    return {**asked, "zones": list(zones.values())}


def _amplified(asked: Json) -> Json | None:
    return asked if asked["pinnedCPUs"] >= 0 else None


def _drawn_machine(chance: random.Random) -> Json:
    """A small machine with pods, some of which bind CPUs."""
    topology = {
        "sockets": chance.choice((1, 1, 2, 2, 4)),
        "numaPerSocket": chance.choice((1, 1, 2)),
        "coresPerNuma": chance.choice((2, 4, 6)),
        "cpusPerCore": chance.choice((1, 2, 2, 4)),
        "numbering": "sequential",
    }
    numa_count = topology["sockets"] * topology["numaPerSocket"]
    per_numa = topology["coresPerNuma"] * topology["cpusPerCore"]
    zones = {
        str(numa): {
            "cpu": str(per_numa - chance.choice((0, 0, 1, 2))),
            "memory": f"{chance.choice((8, 16))}Gi",
            **({"nvidia.com/gpu": "2"} if chance.random() < 0.3 else {}),
        }
        for numa in range(numa_count)
    }
    free = list(range(numa_count * per_numa))
    pods = []
    for _ in range(chance.randint(0, 4)):
        cpus = sorted(chance.sample(free, min(len(free), chance.randint(0, per_numa))))
        if chance.random() < 0.3:
            cpus = free[: chance.randint(0, per_numa)]
        free = [cpu for cpu in free if cpu not in cpus]
        held: Json = {}
        for numa in chance.sample(range(numa_count), chance.randint(0, numa_count)):
            bound = sum(cpu // per_numa == numa for cpu in cpus)
            milli = 1000 * bound if bound else chance.choice((0, 500, 1000, 2500))
            held[str(numa)] = {"cpu": f"{milli}m", "memory": f"{chance.randint(0, 9)}Gi"}
        pods.append({"cpuset": cpuset.text_of(cpus), "numa": held})
    return {
        "topology": topology,
        "numaZones": zones,
        "cpuAmplificationRatio": chance.choice((None, None, None, 1.0, 1.5, 2.0, 1.25)),
        "existing": pods,
    }


def _drawn_request(chance: random.Random, cpu_count: int) -> Json:
    binds = chance.random() < 0.6
    cpu_milli = 1000 * chance.randint(1, cpu_count + 1) if binds else chance.randint(0, 4 * cpu_count) * 250
    requests = {"cpu": f"{cpu_milli}m", "memory": f"{chance.randint(0, 20)}Gi"}
    if chance.random() < 0.2:
        requests["nvidia.com/gpu"] = str(chance.randint(1, 5))
    return {
        "requests": {name: text for name, text in requests.items() if name == "cpu" or chance.random() < 0.8},
        "numCPUsNeeded": cpu_milli // 1000,
        "requestCPUBind": binds,
        "requiredBindPolicy": chance.random() < 0.5,
        "bindPolicy": chance.choice(("FullPCPUs", "SpreadByPCPUs")),
    }


def _draw_allocate(chance: random.Random) -> Json:
    machine = _drawn_machine(chance)
    zones = [int(numa) for numa in machine["numaZones"]]
    hint = sorted(chance.sample(zones, chance.randint(1, len(zones)))) if chance.random() < 0.85 else None
    asked = {
        **machine,
        **_drawn_request(chance, _cpu_count(machine["topology"])),
        "numaAllocateStrategy": chance.choice(("LeastAllocated", "MostAllocated")),
        "hint": hint,
    }
    return _allocate(asked) or _draw_allocate(chance)


def _draw_hints(chance: random.Random) -> Json:
    machine = _drawn_machine(chance)
    scoring = {
        "type": chance.choice(("LeastAllocated", "MostAllocated")),
        "resources": {"cpu": chance.randint(1, 3), "memory": chance.randint(1, 3)},
    }
    asked = {
        **machine,
        **_drawn_request(chance, _cpu_count(machine["topology"])),
        "policy": chance.choice(("BestEffort", "Restricted", "SingleNUMANode")),
        "numaScoring": scoring if chance.random() < 0.8 else None,
    }
    return _allocate(asked) or _draw_hints(chance)


def _draw_merge(chance: random.Random) -> Json:
    """Providers with hints as they are generated: smaller sets first."""
    nodes = list(range(chance.randint(1, 4)))
    names = [chance.sample(range(4), chance.choice((0, 1, 1, 2))) for _ in range(chance.randint(1, 3))]
    while sum(map(len, names)) > (3 if len(nodes) > 2 else 5):  # the original tries all combinations
        names.pop()
    sets = [list(found) for size in range(1, len(nodes) + 1) for found in itertools.combinations(nodes, size)]
    return {
        "policy": chance.choice(("BestEffort", "Restricted", "SingleNUMANode")),
        "numaNodes": nodes,
        "exclusivePolicy": chance.choice(("", "Preferred", "Required")),
        "numaStatus": [chance.choice(("idle", "single", "shared")) for _ in nodes],
        "providers": [{f"res{number}": _hints(chance, sets) for number in provider} for provider in names],
    }


def _hints(chance: random.Random, sets: list[list[int]]) -> list[Json] | None:
    if chance.random() < 0.1:
        return None
    return [
        {
            "affinity": None if chance.random() < 0.03 else found,
            "preferred": chance.random() < 0.4,
            "score": chance.choice((0, 0, 25, 50, 500)),
            "unsatisfied": chance.random() < 0.03,
        }
        for found in sets
        if chance.random() < 0.6
    ]


def _draw_score(chance: random.Random) -> Json:
    """What is used of a node or of its zones, at times more than there is."""
    zones = [
        {"node": numa, "capacity": _drawn_amounts(chance, 40), "allocated": _drawn_amounts(chance, 30)}
        for numa in range(chance.randint(1, 4))
    ]
    kind = chance.choice(("node", "numa"))
    ids = [zone["node"] for zone in zones]
    return {
        "kind": kind,
        "strategy": {
            "type": chance.choice(("LeastAllocated", "MostAllocated")),
            "resources": [
                {"name": name, "weight": chance.randint(1, 4)}
                for name in chance.sample(("cpu", "memory", "nvidia.com/gpu", "ephemeral-storage"), 3)
            ],
        },
        "nodeAllocatable": _drawn_amounts(chance, 80),
        "nodeRequested": _drawn_amounts(chance, 60),
        "cpuAmplificationRatio": chance.choice((1, 1, 1.5, 2, 1.01)),
        "pinnedCPUs": chance.choice((0, 0, 3, 8)),
        "podRequests": _drawn_amounts(chance, 20),
        "podCpuset": chance.random() < 0.5,
        **(
            {"zones": zones, "allocatedZones": sorted(chance.sample(ids, chance.randint(0, len(ids))))}
            if kind == "numa"
            else {}
        ),
    }


def _drawn_amounts(chance: random.Random, most: int) -> Json:
    amounts = {
        "cpu": str(chance.randint(0, most)),
        "memory": f"{chance.randint(0, most)}Gi",
        "nvidia.com/gpu": str(chance.randint(0, 8)),
        "ephemeral-storage": f"{chance.randint(0, most)}Gi",
    }
    return {name: text for name, text in amounts.items() if chance.random() < 0.8}


DRAW = {
    "numa-topology-options": reports.topology_options,
    "numa-allocate": _draw_allocate,
    "numa-hints-generate": _draw_hints,
    "numa-hints-merge": _draw_merge,
    "numa-score": _draw_score,
}
_DEBT = re.compile(r'"-\d')


def _without_debts(mend: Callable[[Json], Json | None]) -> Callable[[Json], Json | None]:
    """No amount is less than nothing."""
    return lambda asked: None if _DEBT.search(json.dumps(asked)) else mend(asked)


MEND = {
    area: _without_debts(mend)
    for area, mend in {
        "cpu-accumulator": _cpu_accumulator,
        "numa-allocate": _allocate,
        "numa-hints-generate": _allocate,
        "numa-available": _available,
        "numa-hints-merge": _merge,
        "numa-policy": _policy,
        "numa-score": _score,
        "numa-amplified-filter": _amplified,
        "numa-topology-options": _options,
    }.items()
}
