"""Decide whether an online pod of the lender may be on a node at all. Pure. Source: the scheduler's rules of node
selectors, required node affinity and taints."""

from koordinator.api import affinity
from koordinator.api.core import Node, Pod
from koordinator.api.tolerations import keeps_out


def may_run(pod: Pod, node: Node) -> bool:
    """Return whether selector, required affinity and taints let the pod be on the node."""
    spec, names = pod.spec, node.metadata.labels
    if node.spec.unschedulable or keeps_out(tuple(spec.tolerations), node.spec.taints):
        return False
    if any(names.get(key) != value for key, value in spec.node_selector.items()):
        return False
    wanted = spec.affinity.node_affinity if spec.affinity is not None else None
    required = wanted.required_during_scheduling_ignored_during_execution if wanted is not None else None
    if required is None:
        return True
    return affinity.any_term_holds(required.node_selector_terms, names, node.metadata.name)
