"""Read from annotations what a pod holds of its node, and write it back; combine what a node's object and its report
say about CPUs and NUMA nodes. Source: behaviour/numa-cpu 2, 3 and 13."""

from collections.abc import Mapping

import msgspec

from koordinator.api import cpuset, labels, resource_list, resource_vector, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.annotations import placement
from koordinator.api.annotations.placement import (
    CPUExclusivePolicy,
    NUMANodeResource,
    NUMATopologyPolicy,
    ResourceSpec,
    ResourceStatus,
)
from koordinator.api.core import Node, Pod
from koordinator.api.cpuset import CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.node_labels import NodeCPUBindPolicy, NUMAAllocateStrategy, cpu_bind_policy
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.plugins.node_numa_resource import policy
from koordinator.scheduler.plugins.node_numa_resource.allocate import Allocation, NUMANodeState
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPU_ID_MAX, Zones, cpus_of
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation, PodHolding
from koordinator.scheduler.plugins.node_numa_resource.topology_options import NUMA_ID_MAX, TopologyOptions

NO_REPORT = TopologyOptions()


class NodeTopologyFacts(msgspec.Struct, frozen=True):
    """All that stays the same on a node while pods come and go."""

    options: TopologyOptions = NO_REPORT
    has_report: bool = False
    zones: Zones = {}
    """Amounts that each NUMA node offers, amplified."""
    cpu_ratio: float = 1.0
    """CPU amplification; 1 is none."""
    is_ratio_readable: bool = True
    strategy: str = ""
    """Order in which NUMA nodes fill (`NUMAAllocateStrategy`); "" leaves it to the scheduler's configuration."""
    bind_policy: NodeCPUBindPolicy = NodeCPUBindPolicy.NONE
    numa_policy: NUMATopologyPolicy = NUMATopologyPolicy.NONE
    ratios: Mapping[str, float] = {}
    """Amplification by resource, as the node object says it."""
    problems: tuple[ProtocolError, ...] = ()
    """Parts that could not be read, for the log; they count as absent."""

    def state(
        self, node_allocation: NodeAllocation, default_strategy: str = NUMAAllocateStrategy.LEAST_ALLOCATED
    ) -> NUMANodeState:
        """Return the node with what its pods hold."""
        strategy = self.strategy or default_strategy
        return NUMANodeState(self.options, node_allocation, self.zones, self.cpu_ratio, strategy)

    @property
    def is_plain(self) -> bool:
        """Return whether pods that ask for nothing special need not be checked here."""
        return (
            self.bind_policy is NodeCPUBindPolicy.NONE
            and self.numa_policy is NUMATopologyPolicy.NONE
            and self.cpu_ratio <= 1
            and self.is_ratio_readable
        )


NO_FACTS = NodeTopologyFacts()


def facts_of(node: Node, report: TopologyOptions | None) -> NodeTopologyFacts:
    """Return what the node and its report say together."""
    meta = node.metadata
    obj = f"Node {meta.name}"
    problems: list[ProtocolError] = []
    ratios: Mapping[str, float] = {}
    is_ratio_readable = True
    try:
        ratios = node_annotations.amplification_ratios(meta.annotations, obj) or {}
    except ProtocolError as error:
        is_ratio_readable = False
        problems.append(error)
    named = meta.labels.get(labels.NODE_NUMA_TOPOLOGY_POLICY, "")
    if named and not policy.numa_policy_of(named):
        reason = f"{named!r} is no NUMA topology policy; the kubelet's counts"
        problems.append(ProtocolError(obj, labels.NODE_NUMA_TOPOLOGY_POLICY, reason))
    options = report or NO_REPORT
    return NodeTopologyFacts(
        options=options,
        has_report=report is not None,
        zones=options.amplified_zones(ratios),
        cpu_ratio=max(1.0, ratios.get(resources.CPU, 1.0)),
        is_ratio_readable=is_ratio_readable,
        strategy=_strategy(meta.labels),
        bind_policy=cpu_bind_policy(meta.labels, options.kubelet),
        numa_policy=policy.node_numa_policy(meta.labels, options.kubelet_policy),
        ratios=ratios,
        problems=tuple(problems),
    )


def _strategy(node_labels: Mapping[str, str]) -> str:
    named = node_labels.get(labels.NODE_NUMA_ALLOCATE_STRATEGY, "")
    if named in ("", NUMAAllocateStrategy.MOST_ALLOCATED):
        return named
    return NUMAAllocateStrategy.LEAST_ALLOCATED


def holding_of(pod: Pod, uid: str) -> PodHolding | None:
    """Return what the pod's `resource-status` says that it holds; None when that is nothing.

    CPUs and NUMA nodes with ids that no machine has are left out.
    Raises: ProtocolError when the annotation is malformed.
    """
    annotations, obj = pod.metadata.annotations, f"Pod {pod.key}"
    status = placement.RESOURCE_STATUS.read(annotations, obj)
    if status is None:
        return None
    try:
        cpus = frozenset(cpu for cpu in cpuset.parse(status.cpuset) if 0 <= cpu <= CPU_ID_MAX)
        numa = _zones(status)
    except (CPUSetError, QuantityError) as error:
        raise ProtocolError(obj, placement.RESOURCE_STATUS.key, str(error)) from error
    if not cpus and not numa:
        return None
    return PodHolding(uid, cpus, _exclusive(pod, obj), numa)


def _zones(status: ResourceStatus) -> Zones:
    found: Zones = {}
    for part in status.numa_node_resources:
        amounts = {
            name: amount for name, amount in resource_vector.integers(part.resources).items() if amount > 0
        }
        if amounts and 0 <= part.node <= NUMA_ID_MAX:
            found[part.node] = resource_list.sum_of((found.get(part.node, {}), amounts))
    return found


def _exclusive(pod: Pod, obj: str) -> str:
    try:
        spec = placement.RESOURCE_SPEC.read(pod.metadata.annotations, obj) or ResourceSpec()
    except ProtocolError:
        return ""  # it says nothing about CPUs that are held already
    policy = spec.preferred_cpu_exclusive_policy
    return "" if policy == CPUExclusivePolicy.NONE else policy


def held(uid: str, allocation: Allocation, exclusive: str) -> PodHolding | None:
    """Return what a pod holds once it has the allocation; None when that is nothing."""
    if not allocation.cpus and not allocation.numa:
        return None
    return PodHolding(uid, frozenset(cpus_of(allocation.cpus)), exclusive, allocation.numa)


def status_of(allocation: Allocation) -> ResourceStatus:
    """Return the `resource-status` that tells node agent, and schedulers to come, what the pod got."""
    numa = [
        NUMANodeResource(node=node, resources=resource_vector.texts(amounts))
        for node, amounts in allocation.numa.items()
    ]
    return ResourceStatus(cpuset=cpuset.text_of(cpus_of(allocation.cpus)), numa_node_resources=numa)
