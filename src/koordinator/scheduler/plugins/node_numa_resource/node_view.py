"""One node in plain integers: what a change of one row needs, without arrays. Source: behaviour/numa-cpu 5.3, 7 and 10.

A `NUMANodeView` is made once per change of a node; columns are written from it. Where a single NUMA node is enough
for a pod, or no NUMA policy is in force, everything is said here; else `admission` has to try.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import node_labels, resource_vector, resources
from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.plugins.node_numa_resource import allocate, score
from koordinator.scheduler.plugins.node_numa_resource import node_allocation as node_allocations
from koordinator.scheduler.plugins.node_numa_resource.admission import NUMAPlacement, NUMAPodTerms
from koordinator.scheduler.plugins.node_numa_resource.allocate import FreeForPod
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPU_MILLI, Amounts, CPUMask, Zones
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHint
from koordinator.scheduler.plugins.node_numa_resource.holdings import NO_FACTS, NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NOT_ENOUGH,
    FreeCPUs,
    NodeAllocation,
    NUMAStatus,
)
from koordinator.scheduler.plugins.node_numa_resource.policy import BoundCPUUsage, NodeNUMAResourceArgs
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategy


class NUMANodeView(msgspec.Struct, frozen=True, eq=False):
    """A node with what its pods leave."""

    facts: NodeTopologyFacts = NO_FACTS
    available: Zones = {}
    allocated: Zones = {}
    """Amounts on NUMA nodes that anybody uses; CPU amplified."""
    free: FreeCPUs = FreeCPUs(0)
    usable: tuple[CPUMask, CPUMask, CPUMask] = (0, 0, 0)
    """Free CPUs that can serve under each of `KINDS`."""
    usable_counts: tuple[tuple[int, ...], ...] = ((), (), ())
    """The number of these by slot, the position of a NUMA node among `facts.zones`."""
    statuses: Mapping[int, NUMAStatus] = {}
    pinned_count: int = 0
    pinned_milli: int = 0
    """Amount that pinned CPUs take of the amplified capacity."""

    @classmethod
    def of(cls, facts: NodeTopologyFacts, node_allocation: NodeAllocation) -> "NUMANodeView":
        topology = facts.options.cpus
        zones = node_allocations.free_zones(node_allocation, topology, facts.zones, {}, facts.cpu_ratio)
        free = allocate.free_cpus(facts.state(node_allocation), allocate.NOTHING_GIVEN_BACK)
        whole, single = topology.whole_cores(free.cpus), topology.one_per_core(free.cpus)
        usable = (free.cpus, whole, single)
        inside = [topology.numa_nodes.get(numa, 0) for numa in facts.zones]
        pinned_count = node_allocation.pinned(topology).bit_count()
        return cls(
            facts=facts,
            available=zones.available,
            allocated=zones.allocated,
            free=free,
            usable=usable,
            usable_counts=tuple(tuple((cpus & numa).bit_count() for numa in inside) for cpus in usable),
            statuses=node_allocation.numa_status(topology) if pinned_count else {},
            pinned_count=pinned_count,
            pinned_milli=node_labels.amplify(CPU_MILLI * pinned_count, facts.cpu_ratio),
        )


def judge(view: NUMANodeView, terms: NUMAPodTerms, usage: BoundCPUUsage | None) -> Status | None:
    """Return whether the node can take the pod: success, the refusal, or None where a trial has to tell, at least the
    words."""
    status = terms.check(usage, view.facts.cpu_ratio)
    if not status.is_success:
        return status
    if not terms.policy:
        if terms.binding.binds_cpus and view.usable[terms.kind].bit_count() < terms.request.cpu_count:
            return NOT_ENOUGH
        return SUCCESS
    for slot, numa in enumerate(view.facts.zones):
        if _fits(view, terms, slot, numa):
            return SUCCESS
    return None


def has_room(view: NUMANodeView, terms: NUMAPodTerms) -> bool:
    """Return whether all NUMA nodes together have what the pod asks for."""
    for name, amount in terms.amounts:
        if sum(zone.get(name, 0) for zone in view.available.values()) < amount:
            return False
    return sum(view.usable_counts[terms.kind]) >= terms.request.cpu_count


def verdict_key(view: NUMANodeView, terms: NUMAPodTerms) -> tuple[object, ...] | None:
    """Equal for nodes of one kind on which a trial says the same of the pod, words included.

    An amount above the pod's request cannot matter, so that on full clusters most nodes are alike. None where it
    does matter: with BestEffort an exclusive pod may be sent to NUMA nodes that are too small, by their scores.
    """
    is_exclusive = terms.plan.is_exclusive
    if is_exclusive and terms.policy is NUMATopologyPolicy.BEST_EFFORT:
        return None
    need = terms.request.cpu_count
    available = tuple(
        min(view.available[numa].get(name, 0), amount)
        for numa in view.facts.zones
        for name, amount in terms.amounts
    )
    usable = tuple([min(count, need) for count in view.usable_counts[terms.kind]])
    statuses = tuple([view.statuses.get(numa) for numa in view.facts.zones]) if is_exclusive else ()
    total = min(view.usable[terms.kind].bit_count(), need)
    return (tuple(view.facts.zones), available, usable, statuses, total, view.facts.cpu_ratio)


def _fits(view: NUMANodeView, terms: NUMAPodTerms, slot: int, numa: int) -> bool:
    """Return whether one NUMA node can hold the pod alone."""
    if not terms.is_known:
        return False
    available = view.available[numa]
    for name, amount in terms.amounts:
        if available.get(name, 0) < amount:
            return False
    if terms.request.cpu_count > view.usable_counts[terms.kind][slot]:
        return False
    return not (terms.plan.is_exclusive and view.statuses.get(numa) is NUMAStatus.SHARED)


def best_numa(view: NUMANodeView, terms: NUMAPodTerms, strategy: NUMAScoringStrategy) -> int | None:
    """Return the NUMA node with the most points among those that can hold the pod alone, the first among equals."""
    fitting = [(slot, numa) for slot, numa in enumerate(view.facts.zones) if _fits(view, terms, slot, numa)]
    if len(fitting) < 2:
        return fitting[0][1] if fitting else None
    demand = terms.demand(view.facts.cpu_ratio)
    best, most = None, -1
    for slot, numa in fitting:
        capacity = view.facts.zones[numa]
        available = _trimmed(view, terms, slot, numa)
        used = resource_vector.less(capacity, available)
        points = score.score(strategy, used, capacity, demand)
        if points > most:
            best, most = numa, points
    return best


def _trimmed(view: NUMANodeView, terms: NUMAPodTerms, slot: int, numa: int) -> Amounts:
    """Return what a NUMA node has left; no more CPU than there are usable CPUs."""
    available = view.available[numa]
    if not terms.kind or not available.get(resources.CPU, 0):
        return available
    usable_milli = CPU_MILLI * view.usable_counts[terms.kind][slot]
    return {**available, resources.CPU: min(available[resources.CPU], usable_milli)}


def points(
    view: NUMANodeView,
    terms: NUMAPodTerms,
    allocatable: Amounts,
    requested: Amounts,
    args: NodeNUMAResourceArgs,
) -> int | None:
    """Return the node's score; None where a trial has to tell."""
    used, capacity = requested, allocatable
    if not terms.policy:
        if view.facts.cpu_ratio > 1 and terms.plan.cpu_milli:
            more_milli = view.pinned_milli - CPU_MILLI * view.pinned_count
            used = {**used, resources.CPU: used.get(resources.CPU, 0) + more_milli}
    else:
        numa = best_numa(view, terms, args.numa_scoring_strategy)
        if numa is None:
            return None
        if not _collapses(view, terms):
            used, capacity = view.allocated.get(numa, {}), view.facts.zones[numa]
        if terms.binding.binds_cpus:
            used = {**used, resources.CPU: view.pinned_milli}
    return score.score(args.scoring_strategy, used, capacity, terms.demand(view.facts.cpu_ratio))


def _collapses(view: NUMANodeView, terms: NUMAPodTerms) -> bool:
    """On a machine with one NUMA node SingleNUMANode has nothing to decide."""
    return terms.policy is NUMATopologyPolicy.SINGLE_NUMA_NODE and len(view.facts.zones) == 1


def place(
    view: NUMANodeView,
    node_allocation: NodeAllocation,
    terms: NUMAPodTerms,
    usage: BoundCPUUsage | None,
    strategy: NUMAScoringStrategy,
) -> NUMAPlacement | None:
    """Return what the pod gets; None where a trial has to tell."""
    status = judge(view, terms, usage)
    if status is None:
        return None
    if not status.is_success:
        return NUMAPlacement(status=status)
    if not terms.policy and not terms.binding.binds_cpus:
        return NUMAPlacement(binding=terms.binding)
    numa_nodes, hint = None, None
    available: Mapping[int, Amounts] = view.available
    if terms.policy:
        numa = best_numa(view, terms, strategy)
        assert numa is not None
        numa_nodes = None if _collapses(view, terms) else 1 << numa
        hint = NUMATopologyHint(numa_nodes)
        if terms.kind:
            slot = list(view.facts.zones).index(numa)
            available = {**view.available, numa: _trimmed(view, terms, slot, numa)}
    free = msgspec.structs.replace(view.free, cpus=view.usable[terms.kind])
    state = view.facts.state(node_allocation, strategy.type)
    allocation = allocate.allocate_in(FreeForPod(free, dict(available)), state, terms.request, numa_nodes)
    return NUMAPlacement(allocation, terms.binding, terms.policy, hint, status=allocation.status)
