"""Account what pods hold of a node's CPUs and NUMA nodes, and what that leaves. Source: behaviour/numa-cpu 4."""

import enum
from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api import node_labels, resources
from koordinator.api.cpuset import CPUSet
from koordinator.scheduler.plugins.node_numa_resource.accumulator import CPUHold, FreeCPUs
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    CPU_MILLI,
    CPUMask,
    NodeCPUTopology,
    Zones,
    cpus_of,
    mask_of,
    total,
)


class NUMAStatus(enum.StrEnum):
    """The holders of a NUMA node's CPUs."""

    IDLE = "idle"
    """Nobody."""
    SINGLE = "single"
    """Only pods that bind CPUs of no other NUMA node."""
    SHARED = "shared"
    """A pod that binds CPUs of others, too."""


class PodHolding(msgspec.Struct, frozen=True):
    """The resources that one pod (or reservation) got of a node; CPU amounts are not amplified."""

    uid: str
    cpus: CPUSet = frozenset()
    exclusive: str = ""
    """`CPUExclusivePolicy`; "" is none."""
    numa: Zones = {}


class FreeZones(msgspec.Struct, frozen=True):
    """The free amounts per NUMA node, and what is used (only of those that anybody uses)."""

    available: Zones
    allocated: Zones


class NodeAllocation:
    """Holdings of the pods on one node, and their sums.

    It does not need to know the machine, so that what is heard before the node's report is not lost.
    """

    def __init__(self) -> None:
        self.holdings: dict[str, PodHolding] = {}
        self.holds: dict[int, CPUHold] = {}
        self.numa: Zones = {}
        self.mask: CPUMask = 0
        """All CPUs of `holds`."""
        self._masks: dict[str, CPUMask] = {}

    def add(self, holding: PodHolding) -> None:
        """Notes a pod; nothing when its UID is known (`update` replaces)."""
        if holding.uid in self.holdings:
            return
        self.holdings[holding.uid] = holding
        if holding.cpus:
            mask = self._masks[holding.uid] = mask_of(holding.cpus)
            self.mask |= mask
        for cpu in holding.cpus:
            held = self.holds.get(cpu)
            self.holds[cpu] = CPUHold(held.ref_count + 1 if held else 1, holding.exclusive)
        for numa, amounts in holding.numa.items():
            self.numa[numa] = total((self.numa.get(numa, {}), amounts))

    def remove(self, uid: str) -> None:
        """Forgets a pod; nothing when it is not known."""
        holding = self.holdings.pop(uid, None)
        if holding is None:
            return
        self._masks.pop(uid, None)
        for cpu in holding.cpus:
            _let_go(self.holds, cpu)
            if cpu not in self.holds:
                self.mask &= ~(1 << cpu)
        for numa in holding.numa:
            self._sum_zone(numa)

    def update(self, holding: PodHolding) -> None:
        """Notes what the pod holds now."""
        self.remove(holding.uid)
        self.add(holding)

    def _sum_zone(self, numa: int) -> None:
        # Summed anew: subtracting would need a floor, and a floor would hide a lost update.
        holders = [h.numa[numa] for h in self.holdings.values() if numa in h.numa]
        if holders:
            self.numa[numa] = total(holders)
        else:
            self.numa.pop(numa, None)

    def pinned(self, topology: NodeCPUTopology) -> CPUMask:
        """Return the CPUs of the machine that any pod holds."""
        return self.mask & topology.all

    def numa_status(self, topology: NodeCPUTopology) -> dict[int, NUMAStatus]:
        """Return who binds CPUs of each NUMA node of the machine."""
        statuses = dict.fromkeys(topology.numa_nodes, NUMAStatus.IDLE)
        for mask in self._masks.values():
            # Nearly all pods keep to the NUMA node of their first CPU.
            first = topology.places.get((mask & -mask).bit_length() - 1)
            if first is not None and not mask & ~topology.numa_nodes[first.numa]:
                if statuses[first.numa] is NUMAStatus.IDLE:
                    statuses[first.numa] = NUMAStatus.SINGLE
                continue
            touched = [numa for numa, cpus in topology.numa_nodes.items() if cpus & mask]
            for numa in touched:
                if len(touched) > 1:
                    statuses[numa] = NUMAStatus.SHARED
                elif statuses[numa] is NUMAStatus.IDLE:
                    statuses[numa] = NUMAStatus.SINGLE
        return statuses


def free_cpus(
    node_allocation: NodeAllocation,
    topology: NodeCPUTopology,
    reserved: CPUMask = 0,
    given_back: Sequence[CPUMask] = (),
    ref_count_max: int = 1,
) -> FreeCPUs:
    """Return CPUs that another pod may hold once each set of `given_back` has let go of its CPUs, one holder each."""
    holds = node_allocation.holds
    if ref_count_max == 1 and not any(given_back):
        return FreeCPUs(topology.all & ~node_allocation.mask & ~reserved, holds, ref_count_max)
    if any(given_back):
        holds = dict(holds)
        for mask in given_back:
            for cpu in cpus_of(mask):
                _let_go(holds, cpu)
    taken = topology.mask_of(cpu for cpu, hold in holds.items() if hold.ref_count >= ref_count_max)
    return FreeCPUs(topology.all & ~taken & ~reserved, holds, ref_count_max)


def _let_go(holds: dict[int, CPUHold], cpu: int) -> None:
    held = holds.get(cpu)
    if held is None:
        return
    if held.ref_count > 1:
        holds[cpu] = CPUHold(held.ref_count - 1, held.exclusive)
    else:
        del holds[cpu]


def free_zones(
    node_allocation: NodeAllocation,
    topology: NodeCPUTopology,
    zones: Mapping[int, Mapping[str, int]],
    reusable: Mapping[int, Mapping[str, int]],
    cpu_ratio: float = 1.0,
) -> FreeZones:
    """Return what is left of the (amplified) zones when `reusable` is given back.

    Bound CPUs count amplified, since their holders recorded real ones; what shared pods requested counts as is.
    """
    pinned = node_allocation.pinned(topology) if cpu_ratio > 1 else 0
    available: Zones = {}
    allocated: Zones = {}
    for numa, zone in zones.items():
        if numa not in node_allocation.numa:
            available[numa] = dict(zone)
            continue
        used = dict(node_allocation.numa[numa])
        if cpu_ratio > 1:
            pinned_milli = CPU_MILLI * (topology.numa_nodes.get(numa, 0) & pinned).bit_count()
            more_milli = node_labels.amplify(pinned_milli, cpu_ratio) - pinned_milli
            if more_milli:
                used[resources.CPU] = used.get(resources.CPU, 0) + more_milli
        back = reusable.get(numa, {})
        used = {name: max(0, amount - back.get(name, 0)) for name, amount in used.items()}
        allocated[numa] = used
        available[numa] = dict.fromkeys(used, 0) | {
            name: max(0, amount - used.get(name, 0)) for name, amount in zone.items()
        }
    return FreeZones(available, allocated)
