"""Score how well a node suits a pod: integer scores 0 to 100. Source: behaviour/numa-cpu 10."""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import node_labels, resource_list, resources
from koordinator.scheduler.plugin.percent import ScoredResource, ScoringStrategy
from koordinator.scheduler.plugins.node_numa_resource.allocate import Allocation
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPU_MILLI, Amounts, Zones, amplified
from koordinator.scheduler.plugins.node_resources_fit import is_scalar


class NUMAScoringStrategy(ScoringStrategy, frozen=True, forbid_unknown_fields=True):
    """The choice whether full (MostAllocated) or empty nodes score high, and by which resources."""

    resources: tuple[ScoredResource, ...] = (ScoredResource(resources.CPU), ScoredResource(resources.MEMORY))


class NodeUsage(msgspec.Struct, frozen=True):
    """A node's capacity (amplified) and what its pods request (not amplified)."""

    allocatable: Amounts
    requested: Amounts
    cpu_ratio: float = 1.0
    pinned_cpu_count: int = 0
    """CPUs that pods bind."""

    @property
    def pinned_milli(self) -> int:
        """CPU that bound CPUs take of the amplified capacity."""
        return node_labels.amplify(CPU_MILLI * self.pinned_cpu_count, self.cpu_ratio)


def score(
    strategy: NUMAScoringStrategy,
    used: Mapping[str, int],
    capacity: Mapping[str, int],
    request: Mapping[str, int],
) -> int:
    """Weighted mean over the resources that count, cut off; 0 when none does."""
    total = weights = 0
    for resource in strategy.resources:
        name, asked = resource.name, request.get(resource.name, 0)
        if capacity.get(name, 0) <= 0 or (is_scalar(name) and asked == 0):
            continue
        total += resource.weight * strategy.score(used.get(name, 0) + asked, capacity[name])
        weights += resource.weight
    return total // weights if weights else 0


def demand(request: Mapping[str, int], cpu_ratio: float, *, binds_cpus: bool) -> Amounts:
    """Return what the pod takes of amplified capacity: bound CPUs count more."""
    return amplified(request, {resources.CPU: cpu_ratio} if binds_cpus else {})


def node_score(
    strategy: NUMAScoringStrategy, node: NodeUsage, request: Mapping[str, int], *, binds_cpus: bool
) -> int:
    """Score where no NUMA policy is in force: the whole node counts."""
    used = dict(node.requested)
    if node.cpu_ratio > 1 and request.get(resources.CPU, 0) > 0:
        more_milli = node.pinned_milli - CPU_MILLI * node.pinned_cpu_count
        used[resources.CPU] = used.get(resources.CPU, 0) + more_milli
    return score(strategy, used, node.allocatable, demand(request, node.cpu_ratio, binds_cpus=binds_cpus))


def numa_score(
    strategy: NUMAScoringStrategy,
    node: NodeUsage,
    zones: Zones,
    allocated: Zones,
    request: Mapping[str, int],
    allocation: Allocation,
) -> int:
    """Score where a NUMA policy is in force: the zones of the trial allocation count, if it names any.

    A refused trial scores 0. For a pod with CPUs, those bound on the whole node count as used, as users know it.
    """
    if not allocation.status.is_success:
        return 0
    used, capacity = dict(node.requested), node.allocatable
    if allocation.numa:
        used = _total(allocated, allocation.numa)
        capacity = _total(zones, allocation.numa)
    if allocation.cpus:
        used[resources.CPU] = node.pinned_milli
    binds_cpus = allocation.cpus != 0
    return score(strategy, used, capacity, demand(request, node.cpu_ratio, binds_cpus=binds_cpus))


def _total(zones: Zones, numa_nodes: Iterable[int]) -> Amounts:
    return resource_list.sum_of(zones.get(numa, {}) for numa in numa_nodes)
