"""Decide whether a pod's node selector and required node affinity hold on a node. Pure. Source: the scheduler's rules
(NodeAffinity)."""

from koordinator.api.affinity import NodeSelector, any_term_holds
from koordinator.api.core import Node, PodSpec


def required(spec: PodSpec) -> NodeSelector | None:
    """Return the node affinity that a pod insists on."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None


def selects(spec: PodSpec, node: Node) -> bool:
    """Return whether a node is among those that a pod may be on; taints are another matter (`tolerations`)."""
    node_labels = node.metadata.labels
    if any(node_labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    wanted = required(spec)
    return wanted is None or any_term_holds(wanted.node_selector_terms, node_labels, node.metadata.name)
