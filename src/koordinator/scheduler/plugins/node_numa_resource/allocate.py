"""A pod's share of each NUMA node, and its CPUs. Source: behaviour/numa-cpu 9."""

from collections.abc import Mapping

import msgspec

from koordinator.api import resources
from koordinator.api.annotations.placement import CPUBindPolicy
from koordinator.api.node_labels import NUMAAllocateStrategy
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.node_numa_resource import node_allocation as node_allocations
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    CPU_MILLI,
    Amounts,
    CPUMask,
    NodeCPUTopology,
    Zones,
)
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NOT_ENOUGH,
    CPUDecision,
    CPURequest,
    FreeCPUs,
    FreeZones,
    NodeAllocation,
    take_preferred,
)
from koordinator.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions

NUMAMask = int
"""A set of NUMA node ids: bit i is NUMA node i."""

NO_ZONES = unresolvable("insufficient resources on NUMA Node")


class NUMANodeState(msgspec.Struct, frozen=True):
    """A node as far as CPUs and NUMA nodes go."""

    options: TopologyOptions
    node_allocation: NodeAllocation
    zones: Zones
    """Amounts that each NUMA node offers, amplified."""
    cpu_ratio: float = 1.0
    """CPU amplification; 1 is none."""
    strategy: str = NUMAAllocateStrategy.LEAST_ALLOCATED


class AllocationRequest(msgspec.Struct, frozen=True):
    """The demand of a pod on a node. `amounts` are not amplified."""

    amounts: Amounts
    cpu_count: int = 0
    """CPUs to bind; 0 when the pod binds none."""
    bind_policy: str = ""
    is_policy_required: bool = False
    exclusive: str = ""

    @property
    def binds_cpus(self) -> bool:
        return self.cpu_count > 0

    @property
    def required_policy(self) -> str:
        """Return the bind policy that must be met exactly; "" is none."""
        return self.bind_policy if self.binds_cpus and self.is_policy_required else ""


class GivenBack(msgspec.Struct, frozen=True):
    """The amounts that reservations let go of for a pod that may use them."""

    zones: Zones = {}
    preferred_cpus: CPUMask = 0
    """Used up before others."""
    required_zones: Zones | None = None
    """All that the pod may use, when it must stay within a reservation."""


class Allocation(msgspec.Struct, frozen=True):
    """The allocation of a pod: amounts per NUMA node (CPU not amplified) and CPUs; nothing when `status` is a
    refusal."""

    numa: Zones = {}
    cpus: CPUMask = 0
    status: Status = SUCCESS


NOTHING_GIVEN_BACK = GivenBack()


class FreeForPod(msgspec.Struct, frozen=True):
    """The room that a node has left for one pod, whatever NUMA nodes are chosen."""

    free: FreeCPUs
    """Only CPUs that can serve under the required policy."""
    available: Zones
    """Amounts of each NUMA node; no more CPU than there are usable CPUs."""
    preferred: CPUMask = 0


def allocate(
    node: NUMANodeState,
    request: AllocationRequest,
    numa_nodes: NUMAMask | None,
    given_back: GivenBack = NOTHING_GIVEN_BACK,
) -> Allocation:
    """Return the pod's part of these NUMA nodes (None leaves them open), and its CPUs when it binds any."""
    return allocate_in(room_of(node, request, given_back), node, request, numa_nodes)


def room_of(
    node: NUMANodeState, request: AllocationRequest, given_back: GivenBack = NOTHING_GIVEN_BACK
) -> FreeForPod:
    """Return what the node has left for the pod; to be computed once where several NUMA nodes are tried."""
    topology, free = node.options.cpus, free_cpus(node, given_back)
    available = given_back.required_zones
    if available is None:
        available = free_zones(node, given_back).available
    usable = usable_cpus(topology, free.cpus, request.required_policy)
    return FreeForPod(
        msgspec.structs.replace(free, cpus=usable),
        _trimmed(available, topology, usable) if request.required_policy else available,
        given_back.preferred_cpus,
    )


def allocate_in(
    room: FreeForPod, node: NUMANodeState, request: AllocationRequest, numa_nodes: NUMAMask | None
) -> Allocation:
    """`allocate`, with what is left already known."""
    numa: Zones = {}
    if numa_nodes is not None:
        if not node.zones:
            return Allocation(status=NO_ZONES)
        numa, status = split(request, room.available, node.zones, numa_nodes, node.options.cpus)
        if not status.is_success:
            return Allocation(status=status)
    if not request.binds_cpus:
        return Allocation(numa)
    return _with_cpus(node, request, numa, room.free, room.preferred)


def fits_in(room: FreeForPod, node: NUMANodeState, request: AllocationRequest, numa_nodes: NUMAMask) -> bool:
    """Return whether `allocate_in` gives the pod what it wants of these NUMA nodes; CPUs are counted, not picked,
    if that tells.

    Picking succeeds whenever enough CPUs are usable. It keeps cores whole, too, where whole cores are picked out of
    whole cores; only other picks need to be seen.
    """
    if not node.zones:
        return False
    topology = node.options.cpus
    numa, status = split(request, room.available, node.zones, numa_nodes, topology)
    if not status.is_success or not request.binds_cpus:
        return status.is_success
    if not numa:
        return allocate_in(room, node, request, numa_nodes).status.is_success
    counts = [
        min(
            (room.free.cpus & topology.numa_nodes.get(numa_id, 0)).bit_count(),
            amounts.get(resources.CPU, 0) // CPU_MILLI,
        )
        for numa_id, amounts in numa.items()
    ]
    if sum(counts) != request.cpu_count:
        return False
    if request.required_policy != CPUBindPolicy.FULL_PCPUS:
        return True
    if room.preferred or any(count % topology.cpus_per_core for count in counts):
        return allocate_in(room, node, request, numa_nodes).status.is_success
    return True


def free_cpus(node: NUMANodeState, given_back: GivenBack) -> FreeCPUs:
    """Return CPUs that the pod may take."""
    options = node.options
    return node_allocations.free_cpus(
        node.node_allocation,
        options.cpus,
        options.reserved_mask,
        (given_back.preferred_cpus,),
        options.ref_count_max,
    )


def free_zones(node: NUMANodeState, given_back: GivenBack) -> FreeZones:
    """Return what is left of each NUMA node."""
    return node_allocations.free_zones(
        node.node_allocation, node.options.cpus, node.zones, given_back.zones, node.cpu_ratio
    )


def usable_cpus(topology: NodeCPUTopology, cpus: CPUMask, required_policy: str) -> CPUMask:
    """Return the CPUs that can serve under a required policy: whole cores, or one CPU per core."""
    if required_policy == CPUBindPolicy.FULL_PCPUS:
        return topology.whole_cores(cpus)
    if required_policy == CPUBindPolicy.SPREAD_BY_PCPUS:
        return topology.one_per_core(cpus)
    return cpus


def _trimmed(available: Zones, topology: NodeCPUTopology, usable: CPUMask) -> Zones:
    """Return the available amounts with no more CPU than there are usable CPUs."""
    left: Zones = {}
    for numa, amounts in available.items():
        left[numa] = amounts
        if amounts.get(resources.CPU, 0):
            usable_milli = CPU_MILLI * (topology.numa_nodes.get(numa, 0) & usable).bit_count()
            left[numa] = {**amounts, resources.CPU: min(amounts[resources.CPU], usable_milli)}
    return left


def split(
    request: AllocationRequest,
    available: Mapping[int, Mapping[str, int]],
    zones: Mapping[int, Mapping[str, int]],
    numa_nodes: NUMAMask,
    topology: NodeCPUTopology,
) -> tuple[Zones, Status]:
    """Return each requested resource that any zone offers, spread evenly; the emptiest take what others lack.

    The fullest NUMA node is asked first: it gives what it can, and the remainder is shared among the others. CPUs to
    bind come from where they are whole, and so do whole cores.
    """
    offered = {name for zone in zones.values() for name in zone}
    ids = [numa for numa in zones if numa_nodes >> numa & 1]
    given: Zones = {}
    short: list[str] = []
    for name in sorted(request.amounts.keys() & offered):
        left, unit = request.amounts[name], _unit(request, name, topology)
        free_of = {numa: max(0, available.get(numa, {}).get(name, 0)) for numa in ids}
        order = sorted(ids, key=lambda numa: (free_of[numa], numa))
        for i, numa in enumerate(order):
            got = min(free_of[numa] // unit, left // unit // (len(order) - i)) * unit
            left -= got
            if got > 0:
                given.setdefault(numa, {})[name] = got
        if left > 0:
            short.append(f"Insufficient NUMA {name}")
    if short:
        return {}, unschedulable(*short)
    return dict(sorted(given.items())), SUCCESS


def _unit(request: AllocationRequest, name: str, topology: NodeCPUTopology) -> int:
    """Return what a NUMA node gives multiples of: of CPUs to bind whole ones, or whole cores."""
    if name != resources.CPU or not request.binds_cpus:
        return 1
    return CPU_MILLI * (topology.cpus_per_core if request.required_policy == CPUBindPolicy.FULL_PCPUS else 1)


def _with_cpus(
    node: NUMANodeState, request: AllocationRequest, numa: Zones, free: FreeCPUs, preferred: CPUMask
) -> Allocation:
    topology = node.options.cpus
    if free.cpus.bit_count() < request.cpu_count:
        return Allocation(status=NOT_ENOUGH)
    wanted = CPURequest(request.cpu_count, request.bind_policy, request.exclusive, node.strategy)
    if not numa:
        found = take_preferred(topology, free, preferred, wanted)
    else:
        found = _cpus_of_zones(topology, free, preferred, wanted, numa)
    status = found.status
    if status.is_success:
        status = _check_required(topology, found.cpus, request.required_policy)
    return Allocation(numa, found.cpus) if status.is_success else Allocation(status=status)


def _cpus_of_zones(
    topology: NodeCPUTopology, free: FreeCPUs, preferred: CPUMask, wanted: CPURequest, numa: Zones
) -> CPUDecision:
    """Pick as many CPUs of each NUMA node as the pod has whole CPUs there."""
    cpus: CPUMask = 0
    for numa_id, amounts in numa.items():
        inside = free.cpus & topology.numa_nodes.get(numa_id, 0)
        count = min(inside.bit_count(), amounts.get(resources.CPU, 0) // CPU_MILLI)
        decision = take_preferred(
            topology,
            msgspec.structs.replace(free, cpus=inside),
            preferred,
            msgspec.structs.replace(wanted, count=count),
        )
        if not decision.status.is_success:
            return decision
        cpus |= decision.cpus
    return CPUDecision(cpus) if cpus.bit_count() == wanted.count else CPUDecision(0, NOT_ENOUGH)


def _check_required(topology: NodeCPUTopology, cpus: CPUMask, policy: str) -> Status:
    per_core = {CPUBindPolicy.FULL_PCPUS: topology.cpus_per_core, CPUBindPolicy.SPREAD_BY_PCPUS: 1}
    if not policy or topology.core_count_of(cpus) * per_core[CPUBindPolicy(policy)] == cpus.bit_count():
        return SUCCESS
    return unschedulable(f"insufficient CPUs to satisfy required cpu bind policy {policy}")
