"""Account what pods hold of a node's CPUs and NUMA nodes, what that leaves, and pick CPUs out of those that are free.
Source: behaviour/numa-cpu 4 and 8.

The pick goes from the tightest place to the loosest: one NUMA node, one socket, whole sockets, anything. Exclusive
policies are best effort: each stage first avoids what a pod of the same policy holds, then does without.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordinator.api import node_labels, resource_list, resource_vector, resources
from koordinator.api.annotations.placement import CPUBindPolicy, CPUExclusivePolicy
from koordinator.api.cpuset import CPUSet
from koordinator.api.node_labels import NUMAAllocateStrategy
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    CPU_MILLI,
    CPUMask,
    NodeCPUTopology,
    Zones,
    cpus_of,
    mask_of,
    union_of,
)

NOT_ENOUGH = unschedulable("not enough cpus available to satisfy request")
FAILED = unschedulable("failed to allocate cpus")


class CPUHold(msgspec.Struct, frozen=True):
    """The number of pods that hold a CPU, and the exclusive policy of the last of them ("" is none)."""

    ref_count: int
    exclusive: str = ""


class CPURequest(msgspec.Struct, frozen=True):
    """The number of CPUs that a pod wants, and how it wants them. `exclusive` is a `CPUExclusivePolicy`, "" is none."""

    count: int
    bind_policy: str = CPUBindPolicy.FULL_PCPUS
    exclusive: str = ""
    strategy: str = NUMAAllocateStrategy.LEAST_ALLOCATED
    """Order in which NUMA nodes and sockets are tried: the fullest for MostAllocated, else the emptiest."""


class FreeCPUs(msgspec.Struct, frozen=True):
    """CPUs that may be taken, and by whom CPUs are held (those that may be shared can be free and held)."""

    cpus: CPUMask
    holds: Mapping[int, CPUHold] = {}
    ref_count_max: int = 1
    """Most pods that may hold one CPU."""


class CPUDecision(msgspec.Struct, frozen=True):
    """The CPUs that a pod gets; none when `status` is a refusal."""

    cpus: CPUMask
    status: Status = SUCCESS


def take_preferred(
    topology: NodeCPUTopology, free: FreeCPUs, preferred: CPUMask, request: CPURequest
) -> CPUDecision:
    """Return CPUs for the request, those of `preferred` first."""
    first = preferred & free.cpus
    if not first:
        return take(topology, free, request)
    first_count = min(request.count, first.bit_count())
    decision = take(
        topology,
        msgspec.structs.replace(free, cpus=first),
        msgspec.structs.replace(request, count=first_count),
    )
    if not decision.status.is_success or first_count == request.count:
        return decision
    others = take(
        topology,
        msgspec.structs.replace(free, cpus=free.cpus & ~preferred),
        msgspec.structs.replace(request, count=request.count - first_count),
    )
    return CPUDecision(decision.cpus | others.cpus, SUCCESS) if others.status.is_success else others


def take(topology: NodeCPUTopology, free: FreeCPUs, request: CPURequest) -> CPUDecision:
    """Return CPUs for the request; fails only when fewer are free than are wanted."""
    if request.count < 1:
        return CPUDecision(0)
    if request.count > free.cpus.bit_count():
        return CPUDecision(0, NOT_ENOUGH)
    accumulator = _Accumulator(topology, free, request)
    accumulator.run()
    return CPUDecision(accumulator.taken) if not accumulator.need else CPUDecision(0, FAILED)


class _Accumulator:
    """One run: what is free, what is taken so far, how many are still needed."""

    def __init__(self, topology: NodeCPUTopology, free: FreeCPUs, request: CPURequest) -> None:
        self.topology, self.request = topology, request
        self.need = request.count
        self.free = free.cpus
        self.taken: CPUMask = 0
        self._refs = (
            {cpu: hold.ref_count for cpu, hold in free.holds.items()} if free.ref_count_max > 1 else {}
        )
        self._sign = 1 if request.strategy == NUMAAllocateStrategy.MOST_ALLOCATED else -1
        self._blocked_cores = self._held_by(free.holds, CPUExclusivePolicy.PCPU_LEVEL, topology.cores)
        self._blocked_numa = self._held_by(
            free.holds, CPUExclusivePolicy.NUMA_NODE_LEVEL, topology.numa_nodes
        )

    def _held_by(self, holds: Mapping[int, CPUHold], policy: str, groups: Mapping[int, CPUMask]) -> CPUMask:
        """Return the groups that pods of `policy` are in, if our pod has that policy as well."""
        if self.request.exclusive != policy:
            return 0
        held = self.topology.mask_of(cpu for cpu, hold in holds.items() if hold.exclusive == policy)
        return union_of(group for group in groups.values() if group & held)

    def run(self) -> None:
        is_full = self.request.bind_policy == CPUBindPolicy.FULL_PCPUS
        if is_full or self.topology.cpus_per_core == 1:
            self._take_whole_cores()
        if self.need and not is_full:
            self._take_near_each_other()
        for avoids in (True, False):
            if self.need:
                self._take(self._spread(self._all_free(avoids))[: self.need])

    def _take(self, cpus: Sequence[int]) -> None:
        mask = mask_of(cpus)
        self.free &= ~mask
        self.taken |= mask
        self.need -= len(cpus)
        if self.request.exclusive == CPUExclusivePolicy.PCPU_LEVEL:
            self._blocked_cores |= union_of(
                self.topology.cores[self.topology.places[cpu].core] for cpu in cpus
            )
        elif self.request.exclusive == CPUExclusivePolicy.NUMA_NODE_LEVEL:
            self._blocked_numa |= union_of(
                self.topology.numa_nodes[self.topology.places[cpu].numa] for cpu in cpus
            )

    def _take_first_fitting(self, groups: Iterable[CPUMask]) -> bool:
        """Take all from the first group that has enough; only that one is put in order."""
        for cpus in groups:
            if cpus.bit_count() >= self.need:
                self._take(self._in_core_order(cpus)[: self.need])
                return True
        return False

    # Whole cores

    def _take_whole_cores(self) -> None:
        if self.need <= self.topology.cpus_per_numa_node:
            for avoids in (True, False):
                candidates = self.free & ~self._blocked_numa if avoids else self.free
                whole = self.topology.whole_cores(candidates)
                by_numa = {numa: whole & mask for numa, mask in self.topology.numa_nodes.items()}
                if self._take_first_fitting(self._numa_order(by_numa, candidates)):
                    return
        whole = self.topology.whole_cores(self.free)
        groups = self._socket_order({socket: whole & mask for socket, mask in self.topology.sockets.items()})
        if self.need <= self.topology.cpus_per_socket and self._take_first_fitting(groups):
            return
        too_long = []
        for cpus in sorted(groups, key=int.bit_count, reverse=True):
            if self.need < cpus.bit_count():
                too_long.append(cpus)
            else:
                self._take(self._in_core_order(cpus))
        per_core = self.topology.cpus_per_core
        for cpus in sorted(too_long, key=int.bit_count):
            count = min(self.need // per_core, cpus.bit_count() // per_core) * per_core
            if count:
                self._take(self._in_core_order(cpus)[:count])

    # CPUs that need not share cores

    def _take_near_each_other(self) -> None:
        if self.need <= self.topology.cpus_per_numa_node:
            for avoids in (True, False):
                blocked = self._blocked_cores | self._blocked_numa if avoids else 0
                candidates = self.free & ~blocked
                groups = {numa: candidates & mask for numa, mask in self.topology.numa_nodes.items()}
                if self._take_spread(self._numa_order(groups, candidates), avoids):
                    return
        if self.need <= self.topology.cpus_per_socket:
            for avoids in (True, False):
                candidates = self.free & ~self._blocked_cores if avoids else self.free
                groups = {socket: candidates & mask for socket, mask in self.topology.sockets.items()}
                sizes = {
                    socket: self.topology.core_count_of(cpus) if avoids else cpus.bit_count()
                    for socket, cpus in groups.items()
                }
                if self._take_spread(self._socket_order(groups, sizes), avoids):
                    return

    def _take_spread(self, groups: Iterable[CPUMask], one_per_core: bool) -> bool:
        """Take all from the first group that has enough CPUs, or enough cores where only one of each counts."""
        for cpus in groups:
            size = self.topology.core_count_of(cpus) if one_per_core else cpus.bit_count()
            if size >= self.need:
                ordered = self._in_cpu_order(cpus)
                if one_per_core:
                    ordered = self._first_of_each_core(ordered)
                self._take(self._spread(ordered)[: self.need])
                return True
        return False

    def _all_free(self, avoids: bool) -> list[int]:
        """Everything free: sockets where the pod is already come first, then broken cores before whole ones."""
        topology, sign = self.topology, self._sign
        candidates = self.free & ~(self._blocked_cores | self._blocked_numa) if avoids else self.free
        taken = {socket: (mask & self.taken).bit_count() for socket, mask in topology.sockets.items()}
        in_socket = {socket: (mask & candidates).bit_count() for socket, mask in topology.sockets.items()}
        in_numa = {numa: (mask & candidates).bit_count() for numa, mask in topology.numa_nodes.items()}

        def rank(core: int) -> tuple[int, ...]:
            cpus = topology.cores[core] & candidates
            place = topology.places[next(cpus_of(cpus))]
            return (
                -taken[place.socket],
                sign * in_socket[place.socket],
                sign * in_numa[place.numa],
                cpus.bit_count(),
                place.socket,
                self._core_ref(cpus),
                core,
            )

        cores = sorted((core for core, mask in topology.cores.items() if mask & candidates), key=rank)
        return [cpu for core in cores for cpu in self._in_cpu_order(topology.cores[core] & candidates)]

    # Orders

    def _numa_order(self, groups: Mapping[int, CPUMask], candidates: CPUMask) -> list[CPUMask]:
        """Return the CPUs of NUMA nodes, in the order in which these are tried."""
        topology, sign = self.topology, self._sign
        in_socket = {
            socket: sign * (mask & candidates).bit_count() for socket, mask in topology.sockets.items()
        }

        def rank(numa: int) -> tuple[int, int, int]:
            return sign * groups[numa].bit_count(), in_socket[topology.socket_of_numa[numa]], numa

        return [groups[numa] for numa in sorted(groups, key=rank)]

    def _socket_order(
        self, groups: Mapping[int, CPUMask], sizes: Mapping[int, int] | None = None
    ) -> list[CPUMask]:
        """Return the CPUs of sockets that have any, in the order in which these are tried."""
        if sizes is None:
            sizes = {socket: cpus.bit_count() for socket, cpus in groups.items()}
        order = sorted(groups, key=lambda socket: (self._sign * sizes[socket], socket))
        return [groups[socket] for socket in order if groups[socket]]

    def _in_core_order(self, cpus: CPUMask) -> list[int]:
        """Cores with the most of these CPUs first, then those that fewer pods share, then by id."""
        if not self._refs and self.topology.whole_cores(cpus) == cpus:
            return self._first_whole_cores(cpus)
        cores = [(core, mask & cpus) for core, mask in self.topology.cores.items() if mask & cpus]
        cores.sort(key=lambda entry: (-entry[1].bit_count(), self._core_ref(entry[1]), entry[0]))
        return [cpu for _, mask in cores for cpu in cpus_of(mask)]

    def _first_whole_cores(self, cpus: CPUMask) -> list[int]:
        """`_in_core_order` of whole cores of equal size, as far as it is needed."""
        found: list[int] = []
        for mask in self.topology.cores.values():
            if mask & cpus:
                found += cpus_of(mask & cpus)
                if len(found) >= self.need:
                    break
        return found

    def _in_cpu_order(self, cpus: CPUMask) -> list[int]:
        return sorted(cpus_of(cpus), key=lambda cpu: (self._refs.get(cpu, 0), cpu))

    def _core_ref(self, cpus: CPUMask) -> int:
        return sum(self._refs.get(cpu, 0) for cpu in cpus_of(cpus)) if self._refs else 0

    def _first_of_each_core(self, cpus: Iterable[int]) -> list[int]:
        first: dict[int, int] = {}
        for cpu in cpus:
            first.setdefault(self.topology.places[cpu].core, cpu)
        return list(first.values())

    def _spread(self, cpus: list[int]) -> list[int]:
        """Round after round the first CPU that is left of each core; within a round in the order of the list."""
        if len(cpus) <= self.topology.cpus_per_core:
            return cpus
        rounds: list[list[int]] = []
        round_of_core: dict[int, int] = {}
        for cpu in cpus:
            core = self.topology.places[cpu].core
            count = round_of_core.get(core, 0)
            if count == len(rounds):
                rounds.append([])
            rounds[count].append(cpu)
            round_of_core[core] = count + 1
        return [cpu for each in rounds for cpu in each]


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
            self.numa[numa] = resource_list.sum_of((self.numa.get(numa, {}), amounts))

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
            self.numa[numa] = resource_list.sum_of(holders)
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
    A resource that is given back though nobody holds it counts as 0.
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
            used[resources.CPU] = used.get(resources.CPU, 0) + more_milli
        back = reusable.get(numa, {})
        used = dict.fromkeys(back, 0) | resource_vector.less(used, back)
        allocated[numa] = used
        available[numa] = dict.fromkeys(used, 0) | resource_vector.less(zone, used)
    return FreeZones(available, allocated)
