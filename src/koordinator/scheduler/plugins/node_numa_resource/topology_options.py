"""Derive from a NodeResourceTopology: CPUs, zones, reserved CPUs, the kubelet's policies. Source: behaviour/numa-cpu
3.1 to 3.4. A part that cannot be read counts as absent and is named in `problems`; the others still apply."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from koordinator.api import cpuset, resource_vector, resources, scalars
from koordinator.api.annotations import node
from koordinator.api.annotations.node import (
    CPU_TOPOLOGY,
    KUBELET_CPU_MANAGER_POLICY,
    POD_CPU_ALLOCS,
    KubeletCPUManagerPolicy,
)
from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.api.cpuset import CPUSet
from koordinator.api.errors import KoordinatorError
from koordinator.api.node_topology import NodeResourceTopology, Zone
from koordinator.api.scalars import ScalarError
from koordinator.scheduler.plugins.node_numa_resource import cpu_topology
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    CPU_MILLI,
    NO_TOPOLOGY,
    CPUMask,
    NodeCPUTopology,
    Topologies,
    Zones,
    topology_of,
)

P = TypeVar("P")

NUMA_ID_MAX = 1_023
"""The highest NUMA node id: that of the kernel, and hints stay small masks."""

_KUBELET_POLICIES = {
    "BestEffort": NUMATopologyPolicy.BEST_EFFORT,
    "Restricted": NUMATopologyPolicy.RESTRICTED,
    "SingleNUMANodePodLevel": NUMATopologyPolicy.SINGLE_NUMA_NODE,
}
"""Only what the kubelet decides for whole pods; container level means no policy."""


class TopologyOptions(msgspec.Struct, frozen=True):
    """A node's CPUs and NUMA nodes as pods may use them."""

    cpus: NodeCPUTopology = NO_TOPOLOGY
    reserved: CPUSet = frozenset()
    """CPUs that no pod gets; may name some that the machine does not have."""
    zones: Zones = {}
    """By ascending id; CPU of reserved CPUs is subtracted, which may leave less than nothing."""
    kubelet_policy: NUMATopologyPolicy = NUMATopologyPolicy.NONE
    kubelet: KubeletCPUManagerPolicy | None = None
    ratios: Mapping[str, float] | None = None
    """Amplification that the zones contain already; None when they do not."""
    ref_count_max: int = 1
    """Most pods that may hold one CPU."""
    problems: tuple[KoordinatorError, ...] = ()
    """Parts that could not be read, for the log."""

    @property
    def reserved_mask(self) -> CPUMask:
        return self.cpus.mask_of(self.reserved)

    def amplified_zones(self, node_ratios: Mapping[str, float]) -> Zones:
        """Return what the zones offer in amplified amounts, by the node's ratios unless the report is amplified."""
        ratios = node_ratios if self.ratios is None else {}
        # A zone that loses more CPU to reserved CPUs than it has offers none, not less than none.
        return {
            numa: cpu_topology.amplified(resource_vector.less(amounts, {}), ratios)
            for numa, amounts in self.zones.items()
        }


def options_of(report: NodeResourceTopology, topologies: Topologies | None = None) -> TopologyOptions:
    """Return what the report says. `topologies` remembers machines that were seen before. Raises: nothing; what is
    malformed is among `problems`."""
    obj = f"NodeResourceTopology {report.metadata.name}"
    annotations = report.metadata.annotations
    problems: list[KoordinatorError] = []
    known = topologies if topologies is not None else Topologies(1)

    def read(part: Callable[[Mapping[str, str], str], P], absent: P) -> P:
        try:
            return part(annotations, obj)
        except KoordinatorError as error:
            problems.append(error)
            return absent

    def read_cpus(annotations: Mapping[str, str], obj: str) -> NodeCPUTopology:
        return known.get(annotations.get(CPU_TOPOLOGY.key, ""), lambda: _cpus(annotations, obj))

    cpus = read(read_cpus, NO_TOPOLOGY)
    kubelet = read(KUBELET_CPU_MANAGER_POLICY.read, None)
    ratios = read(node.amplification_ratios, None)
    reserved = nothing = CPUSet()
    for source in (_by_kubelet, _of_kubelet, _by_node, _by_system_qos):
        reserved |= read(source, nothing)
    return TopologyOptions(
        cpus=cpus,
        reserved=reserved,
        zones=_without_reserved(_zones(report.zones, problems), cpus, reserved),
        kubelet_policy=next(
            (_KUBELET_POLICIES[name] for name in report.topology_policies if name in _KUBELET_POLICIES),
            NUMATopologyPolicy.NONE,
        ),
        kubelet=kubelet,
        ratios=ratios,
        problems=tuple(problems),
    )


def _cpus(annotations: Mapping[str, str], obj: str) -> NodeCPUTopology:
    found = CPU_TOPOLOGY.read(annotations, obj)
    if found is None:
        return NO_TOPOLOGY
    return topology_of((cpu.socket, cpu.node, cpu.core, cpu.id) for cpu in found.detail)


# The four sources of reserved CPUs


def _by_kubelet(annotations: Mapping[str, str], obj: str) -> CPUSet:
    """Return CPUs that the kubelet bound to pods; a pod whose list is malformed is left out."""
    cpus: set[int] = set()
    for pod in POD_CPU_ALLOCS.read(annotations, obj) or ():
        if not (pod.managed_by_kubelet and pod.uid and pod.cpuset):
            continue
        try:
            cpus |= cpuset.parse(pod.cpuset)
        except cpuset.CPUSetError:
            continue
    return frozenset(cpus)


def _of_kubelet(annotations: Mapping[str, str], obj: str) -> CPUSet:
    kubelet = KUBELET_CPU_MANAGER_POLICY.read(annotations, obj)
    return cpuset.parse(kubelet.reserved_cpus) if kubelet is not None else frozenset()


def _by_node(annotations: Mapping[str, str], obj: str) -> CPUSet:
    reservation = node.NODE_RESERVATION.read(annotations, obj)
    return cpuset.parse(reservation.reserved_cpus) if reservation is not None else frozenset()


def _by_system_qos(annotations: Mapping[str, str], obj: str) -> CPUSet:
    system = node.SYSTEM_QOS_RESOURCE.read(annotations, obj)
    return cpuset.parse(system.cpuset) if system is not None and system.is_exclusive else frozenset()


# Zones


def _zones(reported: list[Zone], problems: list[KoordinatorError]) -> Zones:
    found: Zones = {}
    for numa, zone in _numa_zones(reported):
        try:
            found[numa] = resource_vector.integers({r.name: r.allocatable for r in zone.resources})
        except KoordinatorError as error:
            problems.append(error)
    return dict(sorted(found.items()))


def _numa_zones(reported: list[Zone]) -> Iterator[tuple[int, Zone]]:
    """Zones of type Node with the id in their names; other names are not NUMA nodes."""
    for zone in reported:
        parts = zone.name.split("node-")
        if zone.type != "Node" or len(parts) != 2:
            continue
        try:
            numa = scalars.parse_int(parts[1], 32)
        except ScalarError:
            continue
        if 0 <= numa <= NUMA_ID_MAX:
            yield numa, zone


def _without_reserved(found: Zones, cpus: NodeCPUTopology, reserved: CPUSet) -> Zones:
    mask = cpus.mask_of(reserved)
    left: Zones = {}
    for numa, amounts in found.items():
        lost_milli = CPU_MILLI * (cpus.numa_nodes.get(numa, 0) & mask).bit_count()
        cpu = amounts.get(resources.CPU)
        left[numa] = {**amounts, resources.CPU: cpu - lost_milli} if cpu else amounts
    return left
