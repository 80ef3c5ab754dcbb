"""What the reference answers about NUMA nodes, worked out from what we answer."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

from koordinator.api import resources
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.node_numa_resource import allocate
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    AllocationRequest,
    CPUBindPolicy,
    NUMAMask,
)
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPU_MILLI, NodeCPUTopology, Zones
from tests.vectors.deviations.question import Ask, Case


def with_order_by_position(case: Case, ask: Ask) -> Any:
    """Who of the chosen NUMA nodes gives first is not found out by what they have left, but by what those have whose
    ids are the positions in the list. They give parts of CPUs, too, and may all in all give too much."""
    with mock.patch.object(allocate, "split", _split_by_position):
        return ask(case)


def _split_by_position(
    request: AllocationRequest,
    available: Mapping[int, Mapping[str, int]],
    zones: Mapping[int, Mapping[str, int]],
    numa_nodes: NUMAMask,
    topology: NodeCPUTopology,
) -> tuple[Zones, Status]:
    offered = {name for zone in zones.values() for name in zone}
    given: Zones = {}
    short = []
    for name in sorted(request.amounts.keys() & offered):
        left = request.amounts[name]
        free_of = {numa: max(0, amounts.get(name, 0)) for numa, amounts in available.items()}
        order = _sorted_by_position([numa for numa in zones if numa_nodes >> numa & 1], free_of)
        for i, numa in enumerate(order):
            got = min(free_of[numa], _share(request, name, left, len(order) - i, topology))
            left -= got
            if got > 0:
                given.setdefault(numa, {})[name] = got
        if left != 0:
            short.append(f"Insufficient NUMA {name}")
    return ({}, unschedulable(*short)) if short else (dict(sorted(given.items())), SUCCESS)


def _share(request: AllocationRequest, name: str, left: int, parts: int, topology: NodeCPUTopology) -> int:
    if name != resources.CPU or not request.binds_cpus:
        return left // parts
    per_core = topology.cpus_per_core if request.required_policy == CPUBindPolicy.FULL_PCPUS else 1
    return -(-left // CPU_MILLI) // per_core // parts * per_core * CPU_MILLI


def _sorted_by_position(ids: list[int], free_of: Mapping[int, int]) -> list[int]:
    """Insertion sort, as Go sorts short lists."""
    for end in range(1, len(ids)):
        at = end
        while at > 0 and free_of.get(at, 0) < free_of.get(at - 1, 0):
            ids[at - 1 : at + 1] = ids[at], ids[at - 1]
            at -= 1
    return ids
