"""Decide which nodes a pod may be on: node selector, required affinity, taints. Pure. Source: behaviour/descheduler
4.4.
"""

from collections.abc import Iterable

from koordinator.api import node_selector
from koordinator.api.affinity import NodeSelector, NodeSelectorTerm
from koordinator.api.core import Node, Pod, Taint
from koordinator.api.tolerations import is_tolerated, keeps_out


def required_affinity(pod: Pod) -> NodeSelector | None:
    """The node affinity that the pod insists on."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required_during_scheduling_ignored_during_execution


def selects(pod: Pod, node: Node) -> bool:
    """Return whether node selector and required affinity of the pod hold on the node."""
    node_labels = node.metadata.labels
    if any(node_labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = required_affinity(pod)
    return required is None or any(term_matches(term, node) for term in required.node_selector_terms)


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Return whether all conditions of the term hold on the node."""
    return node_selector.term_matches(term, node.metadata.labels, node.metadata.name)


def tolerates_all(pod: Pod, taints: Iterable[Taint]) -> bool:
    """Return whether the pod bears each of the taints, whatever their effect."""
    return all(is_tolerated(pod.spec.tolerations, taint) for taint in taints)


def bears_taints(pod: Pod, node: Node) -> bool:
    """Return whether no taint of the node forbids the pod; PreferNoSchedule forbids nothing."""
    return not keeps_out(tuple(pod.spec.tolerations), node.spec.taints)
