"""Decide whether labels satisfy a `LabelSelector`.

An absent selector is the caller's business: most kinds say that it matches nothing, a
ClusterColocationProfile that it matches everything.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from koordinator.api.affinity import LabelSelector, LabelSelectorRequirement
from koordinator.api.errors import ProtocolError

Labels = Mapping[str, str]
Predicate = Callable[[Labels], bool]


def compile_selector(selector: LabelSelector) -> Predicate:
    """Return a function that tells whether labels match; an empty selector matches everything.

    Raises: ProtocolError for an unknown operator, `In`/`NotIn` without values, `Exists`/`DoesNotExist` with, and for
    keys and values that no label can have: `NotIn` and `DoesNotExist` would match everything.
    """
    wanted = dict(selector.match_labels)
    for key, value in wanted.items():
        _check("matchLabels", key, (value,))
    expressions = [_compile(requirement) for requirement in selector.match_expressions]

    def matches(labels: Labels) -> bool:
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            holds(labels) for holds in expressions
        )

    return matches


def matches(selector: LabelSelector, labels: Labels) -> bool:
    """Like `compile_selector`, for a single question. Raises: ProtocolError."""
    return compile_selector(selector)(labels)


_REQUIREMENT = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<no>[^\s=!,()]+)"
    r"|(?P<key>[^\s=!,()]+)(?:\s*(?P<equal>==|=|!=)\s*(?P<value>[^\s=!,()]*)"
    r"|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*"
)


def of_text(text: str) -> LabelSelector:
    """Return the selector that a text such as `pool=general,zone in (a,b),!spot` is. Raises: ProtocolError."""
    found: list[LabelSelectorRequirement] = []
    at = 0
    while at < len(text):
        match = _REQUIREMENT.match(text, at)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise ProtocolError("", "labelSelector", f"{text!r} is no label selector")
        at = match.end() + 1
        if match["absent"]:
            found.append(LabelSelectorRequirement(key=match["no"], operator="DoesNotExist"))
        elif match["equal"]:
            operator = "NotIn" if match["equal"] == "!=" else "In"
            values = [match["value"]]
            found.append(LabelSelectorRequirement(key=match["key"], operator=operator, values=values))
        elif match["set"]:
            operator = "In" if match["set"] == "in" else "NotIn"
            values = [one.strip() for one in match["values"].split(",")]
            found.append(LabelSelectorRequirement(key=match["key"], operator=operator, values=values))
        else:
            found.append(LabelSelectorRequirement(key=match["key"], operator="Exists"))
    return LabelSelector(match_expressions=found)


_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_DOMAIN_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KEY = re.compile(rf"(?:(?=[^/]{{1,253}}/){_DOMAIN_PART}(?:\.{_DOMAIN_PART})*/)?(?=.{{1,63}}\Z){_NAME}")
_VALUE = re.compile(rf"(?=.{{0,63}}\Z)({_NAME})?")


@lru_cache(maxsize=8192)
def is_label_key(text: str) -> bool:
    """Return whether a label can have this key: an optional DNS subdomain and `/`, then a name of at most 63
    characters."""
    return _KEY.fullmatch(text) is not None


@lru_cache(maxsize=8192)
def is_label_value(text: str) -> bool:
    """Return whether a label can have this value: empty, or a name of at most 63 characters."""
    return _VALUE.fullmatch(text) is not None


def _check(where: str, key: str, values: Iterable[str]) -> None:
    if not is_label_key(key):
        raise ProtocolError("", f"labelSelector.{where}", f"{key!r} is no key of a label")
    for value in values:
        if not is_label_value(value):
            reason = f"{value!r} is no value of a label (key {key!r})"
            raise ProtocolError("", f"labelSelector.{where}", reason)


def _compile(requirement: LabelSelectorRequirement) -> Predicate:
    key, values = requirement.key, frozenset(requirement.values)
    _check("matchExpressions", key, requirement.values)
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
