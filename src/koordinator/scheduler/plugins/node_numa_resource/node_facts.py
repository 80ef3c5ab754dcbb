"""Combine what a node says about CPUs and NUMA nodes in its object and in its report. Source: behaviour/numa-cpu 2
and 3.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import labels, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.node_labels import NodeCPUBindPolicy, NUMAAllocateStrategy, cpu_bind_policy
from koordinator.scheduler.plugins.node_numa_resource import policy
from koordinator.scheduler.plugins.node_numa_resource.allocate import NUMANodeState
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation
from koordinator.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koordinator.scheduler.plugins.node_numa_resource.zones import Zones

NO_REPORT = TopologyOptions()


class NodeTopologyFacts(msgspec.Struct, frozen=True):
    """All that stays the same on a node while pods come and go."""

    options: TopologyOptions = NO_REPORT
    has_report: bool = False
    zones: Zones = {}
    """What each NUMA node offers, amplified."""
    cpu_ratio: float = 1.0
    """CPU amplification; 1 is none."""
    is_ratio_readable: bool = True
    strategy: str = ""
    """Which NUMA nodes fill first (`NUMAAllocateStrategy`); "" leaves it to the scheduler's configuration."""
    bind_policy: NodeCPUBindPolicy = NodeCPUBindPolicy.NONE
    numa_policy: NUMATopologyPolicy = NUMATopologyPolicy.NONE
    ratios: Mapping[str, float] = {}
    """Amplification by resource, as the node object says it."""
    problems: tuple[ProtocolError, ...] = ()
    """What could not be read, for the log; it counts as absent."""

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
        ratios = node_annotations.AMPLIFICATION_RATIO.read(meta.annotations, obj) or {}
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
