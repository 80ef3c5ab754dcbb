"""Decide whether the conditions of a node selector hold. Pure; `scheduler.label_columns` is the same over many
nodes.

Source: the Kubernetes API's NodeSelectorTerm. A condition that cannot be read (an operator with values that do
not go with it) never holds.
"""

from collections.abc import Iterable, Mapping

from koordinator.api.affinity import NodeSelectorRequirement, NodeSelectorTerm
from koordinator.api.scalars import ScalarError, parse_int

NAME_FIELD = "metadata.name"


def matches(terms: Iterable[NodeSelectorTerm], labels: Mapping[str, str], name: str) -> bool:
    """Return whether one of the terms holds for an object with these labels and this name."""
    return any(term_matches(term, labels, name) for term in terms)


def term_matches(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Return whether all conditions of the term hold; an empty term holds for nothing."""
    return bool(term.match_expressions or term.match_fields) and (
        all(holds(each, labels.get(each.key)) for each in term.match_expressions)
        and all(each.key == NAME_FIELD and holds(each, name) for each in term.match_fields)
    )


def holds(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    """Return whether one condition holds for the value of its key (None: the key is not there)."""
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return bool(requirement.values) and value not in requirement.values
        case "Exists":
            return value is not None and not requirement.values
        case "DoesNotExist":
            return value is None and not requirement.values
        case "Gt" | "Lt":
            return value is not None and _compares(requirement, value)
    return False


def _compares(requirement: NodeSelectorRequirement, value: str) -> bool:
    """Above or below as 64-bit integers; other texts never are."""
    if len(requirement.values) != 1:
        return False
    try:
        number, limit = parse_int(value), parse_int(requirement.values[0])
    except ScalarError:
        return False
    return number > limit if requirement.operator == "Gt" else number < limit
