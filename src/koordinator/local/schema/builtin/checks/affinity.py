"""Checks of node, pod and anti-affinity."""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import check_label_selector

Json = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check(affinity: Json, field: str) -> list[StatusCause]:
    """An Affinity."""
    causes: list[StatusCause] = []
    node = affinity.get("nodeAffinity") or {}
    if _REQUIRED in node:
        causes += check_node_selector(node[_REQUIRED], f"{field}.nodeAffinity.{_REQUIRED}")
    for index, item in enumerate(node.get(_PREFERRED) or ()):
        where = f"{field}.nodeAffinity.{_PREFERRED}[{index}].preference"
        causes += _check_node_term(item.get("preference") or {}, where)
    for name in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(name) or {}
        for index, term in enumerate(rules.get(_REQUIRED) or ()):
            causes += _check_pod_term(term, f"{field}.{name}.{_REQUIRED}[{index}]")
        for index, item in enumerate(rules.get(_PREFERRED) or ()):
            where = f"{field}.{name}.{_PREFERRED}[{index}].podAffinityTerm"
            causes += _check_pod_term(item.get("podAffinityTerm") or {}, where)
    return causes


def check_node_selector(selector: Json, field: str) -> list[StatusCause]:
    """A NodeSelector."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        return [errors.required(f"{field}.nodeSelectorTerms", "must have at least one node selector term")]
    return [
        cause
        for index, term in enumerate(terms)
        for cause in _check_node_term(term, f"{field}.nodeSelectorTerms[{index}]")
    ]


def _check_node_term(term: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for index, item in enumerate(term.get("matchExpressions") or ()):
        causes += _check_requirement(item, f"{field}.matchExpressions[{index}]")
    for index, item in enumerate(term.get("matchFields") or ()):
        where = f"{field}.matchFields[{index}]"
        if item.get("key") != "metadata.name":
            causes.append(
                errors.invalid(f"{where}.key", item.get("key", ""), "not a valid field selector key")
            )
        if item.get("operator") not in {"In", "NotIn"}:
            causes.append(
                errors.invalid(f"{where}.operator", item.get("operator", ""), "not a valid selector operator")
            )
        elif len(item.get("values") or ()) != 1:
            detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            causes.append(errors.required(f"{where}.values", detail))
    return causes


def _check_requirement(item: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    operator, values = item.get("operator", ""), item.get("values") or []
    match operator:
        case "In" | "NotIn":
            if not values:
                detail = "must be specified when `operator` is 'In' or 'NotIn'"
                causes.append(errors.required(f"{field}.values", detail))
        case "Exists" | "DoesNotExist":
            if values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                causes.append(errors.forbidden(f"{field}.values", detail))
        case "Gt" | "Lt":
            if len(values) != 1:
                detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                causes.append(errors.required(f"{field}.values", detail))
        case _:
            causes.append(errors.invalid(f"{field}.operator", operator, "not a valid selector operator"))
    reason = names.qualified_name(item.get("key", ""))
    if reason:
        causes.append(errors.invalid(f"{field}.key", item.get("key", ""), reason))
    return causes


def _check_pod_term(term: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for name in ("labelSelector", "namespaceSelector"):
        if term.get(name):
            causes += check_label_selector(term[name], f"{field}.{name}")
    key = term.get("topologyKey", "")
    reason = names.qualified_name(key) if key else ""
    if reason:
        causes.append(errors.invalid(f"{field}.topologyKey", key, reason))
    return causes


__all__ = ["check", "check_node_selector"]
