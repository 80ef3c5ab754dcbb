"""What questions about CPUs and NUMA nodes must keep to."""

from collections import Counter
from typing import Any

from koordinator.api import cpuset

Json = dict[str, Any]


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


MEND = {"cpu-accumulator": _cpu_accumulator}
