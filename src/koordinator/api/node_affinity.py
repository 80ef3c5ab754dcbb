"""Decide whether a pod's node selector and required node affinity hold on a node. Pure. Source: the scheduler's rules
(NodeAffinity)."""

from collections.abc import Iterable

from koordinator.api import scalars
from koordinator.api.affinity import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, any_term_holds
from koordinator.api.core import Node, PodSpec
from koordinator.api.scalars import ScalarError


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


def check_terms(terms: Iterable[NodeSelectorTerm]) -> None:
    """Look for conditions that nobody can mean, as the API server does for those of pods. Raises: ValueError."""
    for term in terms:
        for each in term.match_expressions:
            _check(each)
        for each in term.match_fields:
            if each.operator not in ("In", "NotIn") or len(each.values) != 1:
                raise ValueError(f"field {each.key!r} needs operator In or NotIn, and one value")


def _check(condition: NodeSelectorRequirement) -> None:
    """Raises: ValueError."""
    operator, count = condition.operator, len(condition.values)
    about = f"operator {operator!r} of key {condition.key!r}"
    if operator in ("In", "NotIn"):
        if not count:
            raise ValueError(f"{about} needs values")
    elif operator in ("Exists", "DoesNotExist"):
        if count:
            raise ValueError(f"{about} takes no values")
    elif operator in ("Gt", "Lt"):
        if count != 1 or not _is_integer(condition.values[0]):
            raise ValueError(f"{about} needs one whole number of at most 64 bits")
    else:
        raise ValueError(f"{about} is unknown")


def _is_integer(text: str) -> bool:
    try:
        scalars.parse_int(text)
    except ScalarError:
        return False
    return True
