"""Which nodes a pod may be on: node selector, required affinity, taints. Pure. Source: spec 09, section 4.4."""

from collections.abc import Iterable, Mapping

from koordinator.api.affinity import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from koordinator.api.core import Node, Pod, Taint, Toleration
from koordinator.api.scalars import ScalarError, parse_int

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
_NAME_FIELD = "metadata.name"


def required_affinity(pod: Pod) -> NodeSelector | None:
    """The node affinity that the pod insists on."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required_during_scheduling_ignored_during_execution


def selects(pod: Pod, node: Node) -> bool:
    """Whether node selector and required affinity of the pod hold on the node."""
    node_labels = node.metadata.labels
    if any(node_labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = required_affinity(pod)
    return required is None or any(term_matches(term, node) for term in required.node_selector_terms)


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Whether all conditions hold; an empty term and one that cannot be read match nothing."""
    if not (term.match_expressions or term.match_fields):
        return False
    fields = {_NAME_FIELD: node.metadata.name}
    return all(_holds(r, node.metadata.labels) for r in term.match_expressions) and all(
        r.key in fields and _holds(r, fields) for r in term.match_fields
    )


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration matches a taint. An empty key is valid with `Exists` only."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key != taint.key and not (not toleration.key and toleration.operator == "Exists"):
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def tolerates_all(pod: Pod, taints: Iterable[Taint]) -> bool:
    """Whether the pod bears each of the taints, whatever their effect."""
    return all(any(tolerates(toleration, taint) for toleration in pod.spec.tolerations) for taint in taints)


def bears_taints(pod: Pod, node: Node) -> bool:
    """Whether no taint of the node forbids the pod; PreferNoSchedule forbids nothing."""
    return tolerates_all(pod, (t for t in node.spec.taints if t.effect in (NO_SCHEDULE, NO_EXECUTE)))


def _holds(requirement: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    found = values.get(requirement.key)
    match requirement.operator:
        case "In":
            return found is not None and found in requirement.values
        case "NotIn":
            return bool(requirement.values) and (found is None or found not in requirement.values)
        case "Exists":
            return found is not None and not requirement.values
        case "DoesNotExist":
            return found is None and not requirement.values
        case "Gt" | "Lt":
            return found is not None and _compares(requirement, found)
    return False


def _compares(requirement: NodeSelectorRequirement, found: str) -> bool:
    if len(requirement.values) != 1:
        return False
    try:
        number, limit = parse_int(found), parse_int(requirement.values[0])
    except ScalarError:
        return False
    return number > limit if requirement.operator == "Gt" else number < limit
