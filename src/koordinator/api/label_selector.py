"""Whether labels satisfy a `LabelSelector`.

An absent selector is the caller's business: most kinds say that it matches nothing, a
ClusterColocationProfile that it matches everything.
"""

from collections.abc import Callable, Mapping

from koordinator.api.affinity import LabelSelector, LabelSelectorRequirement
from koordinator.api.errors import ProtocolError

Labels = Mapping[str, str]
Predicate = Callable[[Labels], bool]


def compile_selector(selector: LabelSelector) -> Predicate:
    """A function that tells whether labels match; an empty selector matches everything.

    Raises: ProtocolError for an unknown operator, `In`/`NotIn` without values, `Exists`/`DoesNotExist` with.
    """
    wanted = dict(selector.match_labels)
    expressions = [_compile(requirement) for requirement in selector.match_expressions]

    def matches(labels: Labels) -> bool:
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            holds(labels) for holds in expressions
        )

    return matches


def matches(selector: LabelSelector, labels: Labels) -> bool:
    """Like `compile_selector`, for a single question. Raises: ProtocolError."""
    return compile_selector(selector)(labels)


def _compile(requirement: LabelSelectorRequirement) -> Predicate:
    key, values = requirement.key, frozenset(requirement.values)
    match requirement.operator:
        case "In" if values:
            return lambda labels: labels.get(key) in values
        case "NotIn" if values:
            # An object without the label matches NotIn.
            return lambda labels: labels.get(key) not in values
        case "Exists" if not values:
            return lambda labels: key in labels
        case "DoesNotExist" if not values:
            return lambda labels: key not in labels
        case "In" | "NotIn":
            reason = f"operator {requirement.operator} of key {key!r} needs values"
        case "Exists" | "DoesNotExist":
            reason = f"operator {requirement.operator} of key {key!r} takes no values"
        case other:
            reason = f"unknown operator {other!r} of key {key!r}"
    raise ProtocolError("", "labelSelector.matchExpressions", reason)
