"""Checks of ResourceQuotas and LimitRanges. Source: pkg/apis/core/validation of kubernetes/kubernetes."""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import (
    COMPUTE,
    COUNTED,
    check_container_resource,
    check_resource_name,
    is_extended,
    is_standard_in_quotas,
    nanos,
)

Json = dict[str, Any]

_OF_PODS = frozenset(("pods", *COMPUTE))
_SCOPES = {
    "Terminating": _OF_PODS,
    "NotTerminating": _OF_PODS,
    "BestEffort": frozenset(("pods",)),
    "NotBestEffort": _OF_PODS,
    "PriorityClass": _OF_PODS,
    "CrossNamespacePodAffinity": _OF_PODS,
    "VolumeAttributesClass": frozenset(("persistentvolumeclaims", "requests.storage")),
}
"""Scopes of quotas, and the resources that each can be about."""
_ONLY_EXISTS = frozenset(
    ("BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "CrossNamespacePodAffinity")
)
_CONFLICTING = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
_LIMIT_TYPES = ("Pod", "Container", "PersistentVolumeClaim")


def check_quota(quota: Json) -> list[StatusCause]:
    """Check a ResourceQuota."""
    spec = quota.get("spec") or {}
    hard = spec.get("hard") or {}
    causes: list[StatusCause] = []
    for name, amount in sorted(hard.items()):
        field = f"spec.hard[{name}]"
        causes += check_resource_name(name, field)
        if "/" not in name and not is_standard_in_quotas(name):
            causes.append(errors.invalid(field, name, "must be a standard resource for quota"))
        if nanos(amount) < 0:
            causes.append(errors.invalid(field, amount, "must be greater than or equal to 0"))
        if (name in COUNTED or is_extended(name)) and nanos(amount) % 10**9:
            causes.append(errors.invalid(field, amount, "must be an integer"))
    causes += _check_scopes(spec, hard)
    selector = spec.get("scopeSelector")
    return causes if selector is None else causes + _check_scope_selector(selector, spec, hard)


def _unfit(scope: str, hard: Json) -> list[str]:
    """Return the standard resources of a quota that a scope cannot be about."""
    fit = _SCOPES.get(scope)
    return [] if fit is None else [name for name in hard if is_standard_in_quotas(name) and name not in fit]


def _check_scopes(spec: Json, hard: Json) -> list[StatusCause]:
    scopes, field = spec.get("scopes") or [], "spec.scopes"
    causes: list[StatusCause] = []
    for scope in scopes:
        if scope not in _SCOPES:
            causes.append(errors.invalid(field, scopes, "unsupported scope"))
        causes += [
            errors.invalid(field, scopes, "unsupported scope applied to resource")
            for _ in _unfit(scope, hard)
        ]
    return causes + _check_pairs(scopes, field, scopes)


def _check_pairs(scopes: list[str], field: str, shown: Any) -> list[StatusCause]:
    return [
        errors.invalid(field, shown, "conflicting scopes")
        for pair in _CONFLICTING
        if set(pair) <= set(scopes)
    ]


def _check_scope_selector(selector: Json, spec: Json, hard: Json) -> list[StatusCause]:
    field = "spec.scopeSelector.matchExpressions"
    causes: list[StatusCause] = []
    scopes: list[str] = []
    for requirement in selector.get("matchExpressions") or ():
        scope, operator = requirement.get("scopeName", ""), requirement.get("operator", "")
        values = requirement.get("values") or []
        scopes.append(scope)
        if scope not in _SCOPES:
            causes.append(errors.invalid(f"{field}.scopeName", scope, "unsupported scope"))
        causes += [
            errors.invalid(field, selector, "unsupported scope applied to resource")
            for _ in _unfit(scope, hard)
        ]
        if scope in _ONLY_EXISTS and operator != "Exists":
            why = (
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "
                "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort "
                "or ResourceQuotaScopeCrossNamespacePodAffinity"
            )
            causes.append(errors.invalid(f"{field}.operator", operator, why))
        if operator in ("In", "NotIn"):
            if not values:
                why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                causes.append(errors.required(f"{field}.values", why))
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                causes.append(errors.invalid(f"{field}.values", values, why))
        else:
            causes.append(errors.invalid(f"{field}.operator", operator, "not a valid selector operator"))
    return causes + _check_pairs(scopes, field, spec.get("scopes"))


def check_limit_range(limit_range: Json) -> list[StatusCause]:
    """Check a LimitRange."""
    causes: list[StatusCause] = []
    seen: set[str] = set()
    for index, limit in enumerate((limit_range.get("spec") or {}).get("limits") or ()):
        field, kind = f"spec.limits[{index}]", limit.get("type") or ""
        if kind in seen:
            causes.append(errors.duplicate(f"{field}.type", kind))
        seen.add(kind)
        causes += _check_limit(limit, kind, field)
    return causes


def check_limit_type(kind: str, field: str) -> list[StatusCause]:
    """Check what a limit is about."""
    causes = names.check(names.qualified_name, kind, field)
    if not causes and "/" not in kind and kind not in _LIMIT_TYPES:
        why = "must be a standard limit type or fully qualified"
        causes.append(errors.invalid(field, kind, why))
    return causes


_PARTS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def _check_limit(limit: Json, kind: str, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    check = check_container_resource if kind in ("Pod", "Container") else check_resource_name
    for part in _PARTS:
        amounts = limit.get(part) or {}
        if kind == "Pod" and part.startswith("default"):
            if amounts:
                causes.append(
                    errors.forbidden(f"{field}.{part}", "may not be specified when `type` is 'Pod'")
                )
            continue
        causes += [cause for name in amounts for cause in check(name, f"{field}.{part}[{name}]")]
    if kind == "PersistentVolumeClaim":
        bounds = {**(limit.get("min") or {}), **(limit.get("max") or {})}
        if "storage" not in bounds:
            why = "either minimum or maximum storage value is required, but neither was provided"
            causes.append(errors.required(f"{field}.limits", why))
    keys = sorted({name for part in _PARTS for name in limit.get(part) or ()})
    return causes + [cause for name in keys for cause in _check_order(limit, name, field)]


# Which amounts may not exceed which: the lesser and its word, the greater and its word, and whose field is blamed.
_ORDERS = (
    ("min", "min", "max", "max", "min"),
    ("min", "min", "defaultRequest", "default request", "defaultRequest"),
    ("defaultRequest", "default request", "max", "max", "defaultRequest"),
    ("defaultRequest", "default request", "default", "default limit", "defaultRequest"),
    ("min", "min", "default", "default", "default"),
    ("default", "default", "max", "max", "default"),
)


def _check_order(limit: Json, name: str, field: str) -> list[StatusCause]:
    amounts = {part: limit[part][name] for part in _PARTS if name in (limit.get(part) or {})}
    causes: list[StatusCause] = []
    for low, low_word, high, high_word, blamed in _ORDERS:
        if low in amounts and high in amounts and nanos(amounts[low]) > nanos(amounts[high]):
            # The API server shows the other amount where it blames a default.
            shown = amounts[high if low == blamed else low] if blamed == "default" else amounts[blamed]
            why = f"{low_word} value {amounts[low]} is greater than {high_word} value {amounts[high]}"
            causes.append(errors.invalid(f"{field}.{blamed}[{name}]", shown, why))
    ratio = amounts.get("maxLimitRequestRatio")
    if ratio is not None and nanos(ratio) < 10**9:
        where = f"{field}.maxLimitRequestRatio[{name}]"
        causes.append(errors.invalid(where, ratio, f"ratio {ratio} is less than 1"))
    if ratio is not None and "min" in amounts and "max" in amounts and nanos(amounts["min"]) > 0:
        spread = nanos(amounts["max"]) / nanos(amounts["min"])
        if nanos(ratio) / 10**9 > spread:
            where = f"{field}.maxLimitRequestRatio[{name}]"
            causes.append(errors.invalid(where, ratio, f"ratio {ratio} is greater than max/min = {spread:f}"))
    return causes
