"""Small machines for the tests of NodeNUMAResource."""

from koordinator.scheduler.plugins.node_numa_resource.allocate import NUMANodeState
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    NodeCPUTopology,
    Zones,
    cpus_of,
    topology_of,
)
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation, PodHolding
from koordinator.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions


def machine(sockets: int = 2, numa_per_socket: int = 1, cores: int = 4, threads: int = 2) -> NodeCPUTopology:
    """`cores` per NUMA node; CPU ids count up thread by thread."""
    count = sockets * numa_per_socket * cores
    return topology_of(
        (core // (cores * numa_per_socket), core // cores, core, core * threads + thread)
        for core in range(count)
        for thread in range(threads)
    )


def node(
    topology: NodeCPUTopology, *holdings: PodHolding, memory_bytes: int = 1_000, ratio: float = 1.0
) -> NUMANodeState:
    """A node whose zones offer all CPUs and some memory."""
    zones: Zones = {
        numa: {"cpu": 1_000 * cpus.bit_count(), "memory": memory_bytes}
        for numa, cpus in topology.numa_nodes.items()
    }
    node_allocation = NodeAllocation()
    for holding in holdings:
        node_allocation.add(holding)
    options = TopologyOptions(topology, zones=zones)
    return NUMANodeState(options, node_allocation, options.amplified_zones({"cpu": ratio}), ratio)


def held(uid: str, topology: NodeCPUTopology, cpus: int, exclusive: str = "") -> PodHolding:
    """A pod that binds these CPUs."""
    numa = {
        numa: {"cpu": 1_000 * (mask & cpus).bit_count()}
        for numa, mask in topology.numa_nodes.items()
        if mask & cpus
    }
    return PodHolding(uid, frozenset(cpus_of(cpus)), exclusive, numa)
