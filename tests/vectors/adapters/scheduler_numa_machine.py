"""Machines and nodes of the NUMA areas; no area of its own."""

from typing import Any

from koordinator.api import cpuset, resource_vector
from koordinator.api.resources import CPU
from koordinator.scheduler.plugins.node_numa_resource.allocate import AllocationRequest, NUMANodeState
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    NO_TOPOLOGY,
    Amounts,
    NodeCPUTopology,
    Zones,
    topology_of,
)
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation, PodHolding
from koordinator.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions

Case = dict[str, Any]

ADAPTERS: dict[str, Any] = {}


def machine(flat: Case | None) -> NodeCPUTopology:
    """A regular machine; CPU ids count up thread by thread, core by core, NUMA node by NUMA node."""
    if flat is None:
        return NO_TOPOLOGY
    cores_per_numa = flat["coresPerNUMA"] if "coresPerNUMA" in flat else flat["coresPerNuma"]
    threads, per_socket = flat["cpusPerCore"], flat["numaPerSocket"]
    cores = range(flat["sockets"] * per_socket * cores_per_numa)
    return topology_of(
        (
            core // (cores_per_numa * per_socket),
            core // cores_per_numa,
            core,
            core * threads + thread,
        )
        for core in cores
        for thread in range(threads)
    )


def zones_of(flat: Case) -> Zones:
    """Zones by ascending id."""
    return {int(numa): resource_vector.integers(flat[numa]) for numa in sorted(flat, key=int)}


def node_allocation_of(pods: list[Case]) -> NodeAllocation:
    """A ledger with these pods."""
    node_allocation = NodeAllocation()
    for i, pod in enumerate(pods):
        node_allocation.add(
            PodHolding(
                f"uid-{i}", cpuset.parse(pod.get("cpuset") or ""), numa=zones_of(pod.get("numa") or {})
            )
        )
    return node_allocation


def node_of(case: Case) -> NUMANodeState:
    """The node of a case with zones, pods and amplification."""
    ratio = case["cpuAmplificationRatio"] or 1.0
    options = TopologyOptions(machine(case["topology"]), zones=zones_of(case["numaZones"]))
    return NUMANodeState(
        options,
        node_allocation_of(case["existing"]),
        options.amplified_zones({CPU: ratio}),
        ratio,
        case.get("numaAllocateStrategy", "LeastAllocated"),
    )


def request_of(case: Case) -> AllocationRequest:
    """What the pod of a case asks for."""
    return AllocationRequest(
        resource_vector.integers(case["requests"]),
        case["numCPUsNeeded"] if case["requestCPUBind"] else 0,
        case["bindPolicy"],
        case["requiredBindPolicy"],
    )


def wire(amounts: Amounts) -> Case:
    """CPU as a quantity, others as numbers."""
    return {
        name: resource_vector.amount_text(name, amount) if name == CPU else amount
        for name, amount in amounts.items()
    }
