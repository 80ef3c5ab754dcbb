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
    while text.strip() and at <= len(text):
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


_NAME_RE = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_SUBDOMAIN_RE = re.compile(SUBDOMAIN)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN}')"
)
_NAME_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME_RE.pattern}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_NAME_RE.pattern})?')"
)


def subdomain_fault(text: str) -> str:
    """Return why a text is no DNS-1123 subdomain, in the API server's words; empty when it is one."""
    if len(text) > 253:
        return "must be no more than 253 bytes"
    return "" if _SUBDOMAIN_RE.fullmatch(text) else _SUBDOMAIN_TEXT


@lru_cache(maxsize=8192)
def key_faults(key: str) -> tuple[str, ...]:
    """Return what is wrong with a label key (an optional DNS subdomain and `/`, then a name of at most 63 characters),
    in the API server's words."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return (f"a qualified name {_NAME_TEXT} {optional}",)
    faults = []
    if slash and not prefix:
        faults.append("prefix part must be non-empty")
    elif slash and (fault := subdomain_fault(prefix)):
        faults.append(f"prefix part {fault}")
    if not name:
        faults.append("name part must be non-empty")
    elif len(name) > 63:
        faults.append("name part must be no more than 63 bytes")
    if not _NAME_RE.fullmatch(name):
        faults.append(f"name part {_NAME_TEXT}")
    return tuple(faults)


@lru_cache(maxsize=8192)
def value_faults(value: str) -> tuple[str, ...]:
    """Return what is wrong with a label value (empty, or a name of at most 63 characters), as `key_faults` says it."""
    faults = ["must be no more than 63 bytes"] if len(value) > 63 else []
    if value and not _NAME_RE.fullmatch(value):
        faults.append(_VALUE_TEXT)
    return tuple(faults)


def _check(where: str, key: str, values: Iterable[str]) -> None:
    if key_faults(key):
        raise ProtocolError("", f"labelSelector.{where}", f"{key!r} is no key of a label")
    for value in values:
        if value_faults(value):
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
