"""Which events can help a pod that PodTopologySpread refused. Source: behaviour/scheduler B5."""

from collections.abc import Iterable

from koordinator.api.core import Node
from koordinator.scheduler.plugin.events import ClusterEvent, Happening
from koordinator.scheduler.plugins.topology_spread.constraints import Constraint
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.pod_terms import NamespaceLabels

_NAMESPACES = NamespaceLabels()
"""Constraints name one namespace; its labels do not matter."""


def of_pod(happening: Happening, hard: Iterable[Constraint]) -> bool:
    """A pod on a node came, changed or went: whether it counts for a constraint now and did not before, or the
    other way round. One pod more can raise the minimum, one less can empty a domain."""
    return any(
        _counts(constraint, happening.old) != _counts(constraint, happening.new) for constraint in hard
    )


def _counts(constraint: Constraint, pod: object) -> bool:
    if not isinstance(pod, PodInfo) or pod.pod.metadata.deletion_timestamp is not None:
        return False
    return constraint.term.matches(pod.pod, _NAMESPACES)


def of_node(happening: Happening, hard: Iterable[Constraint], keys: Iterable[str]) -> bool:
    """A node came, changed or went. `keys`: labels that decide where and whether it counts."""
    old, new = happening.old, happening.new
    match happening.event:
        case ClusterEvent.NODE_TAINTS:
            return any(constraint.policy.honors_taints for constraint in hard)
        case ClusterEvent.NODE_LABELS if isinstance(old, Node) and isinstance(new, Node):
            before, after = old.metadata.labels, new.metadata.labels
            return any(before.get(key) != after.get(key) for key in keys)
    node = new if isinstance(new, Node) else old
    if not isinstance(node, Node):
        return True
    return all(constraint.key in node.metadata.labels for constraint in hard)
