"""Checks of HorizontalPodAutoscalers.

Source: pkg/apis/autoscaling/validation of kubernetes/kubernetes.
"""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks.common import nanos

Json = dict[str, Any]

_SOURCES = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
_TARGETS = ("Utilization", "Value", "AverageValue")
_SELECT_POLICIES = ("Disabled", "Max", "Min")
_POLICIES = ("Percent", "Pods")
_STABILIZATION_S_MAX, _PERIOD_S_MAX = 3600, 1800


def check_autoscaler(autoscaler: Json) -> list[StatusCause]:
    """A HorizontalPodAutoscaler of any version."""
    spec, field = autoscaler.get("spec") or {}, "spec"
    causes: list[StatusCause] = []
    low, high = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if low is not None and low < 1:
        why = "must be greater than or equal to 1"
        causes.append(errors.invalid(f"{field}.minReplicas", low, why))
    if high < 1:
        causes.append(errors.invalid(f"{field}.maxReplicas", high, "must be greater than 0"))
    if low is not None and high < low:
        why = "must be greater than or equal to `minReplicas`"
        causes.append(errors.invalid(f"{field}.maxReplicas", high, why))
    target = spec.get("scaleTargetRef") or {}
    causes += _check_reference(target, f"{field}.scaleTargetRef")
    if "/" not in (target.get("apiVersion") or "") and target.get("apiVersion") != "v1":
        why = "apiVersion must specify API group"
        causes.append(
            errors.invalid(f"{field}.scaleTargetRef.apiVersion", target.get("apiVersion") or "", why)
        )
    for index, metric in enumerate(spec.get("metrics") or ()):
        causes += _check_metric(metric, f"{field}.metrics[{index}]")
    if low == 0 and not any(m.get("type") in ("Object", "External") for m in spec.get("metrics") or ()):
        why = "must specify at least one Object or External metric to support scaling to zero replicas"
        causes.append(errors.forbidden(f"{field}.metrics", why))
    percent = spec.get("targetCPUUtilizationPercentage")
    if percent is not None and percent < 1:
        where = f"{field}.metrics[0].resource.target.averageUtilization"
        causes.append(errors.invalid(where, percent, "must be greater than 0"))
    behavior = spec.get("behavior") or {}
    for way in ("scaleUp", "scaleDown"):
        if behavior.get(way) is not None:
            causes += _check_rules(behavior[way], f"{field}.behavior.{way}")
    return causes


def _check_reference(reference: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for part in ("kind", "name"):
        value = reference.get(part) or ""
        reason = names.path_segment(value) if value else ""
        if not value:
            causes.append(errors.required(f"{field}.{part}"))
        elif reason:
            causes.append(errors.invalid(f"{field}.{part}", value, reason))
    version = reference.get("apiVersion") or ""
    if version.count("/") > 1:
        why = f"unexpected GroupVersion string: {version}"
        causes.append(errors.invalid(f"{field}.apiVersion", version, why))
    return causes


def _check_metric(metric: Json, field: str) -> list[StatusCause]:
    kind = metric.get("type") or ""
    causes: list[StatusCause] = []
    present = [part for part in sorted(_SOURCES.values()) if metric.get(part) is not None]
    if kind not in _SOURCES:
        if not kind:
            causes.append(errors.required(f"{field}.type", "must specify a metric source type"))
        causes.append(errors.not_supported(f"{field}.type", kind, _SOURCES))
    if present:
        causes += _check_source(present[0], metric[present[0]], f"{field}.{present[0]}")
    expected = _SOURCES.get(kind, "")
    if expected and expected not in present:
        why = "must populate information for the given metric source"
        causes.append(errors.required(f"{field}.{expected}", why))
    if len(present) != 1:
        why = "must populate the given metric source only"
        causes += [errors.forbidden(f"{field}.{part}", why) for part in present if part != expected]
    return causes


def _check_source(part: str, source: Json, field: str) -> list[StatusCause]:
    target = source.get("target") or {}
    causes: list[StatusCause] = []
    if part in ("resource", "containerResource"):
        if not source.get("name"):
            causes.append(errors.required(f"{field}.name", "must specify a resource name"))
        if part == "containerResource" and not source.get("container"):
            causes.append(errors.required(f"{field}.container", "must specify a container"))
    else:
        if not (source.get("metric") or {}).get("name"):
            causes.append(errors.required(f"{field}.metric.name", "must specify a metric name"))
        if part == "object":
            causes += _check_reference(source.get("describedObject") or {}, f"{field}.describedObject")
    return causes + _check_target(target, f"{field}.target") + _check_amounts(part, target, f"{field}.target")


def _check_target(target: Json, field: str) -> list[StatusCause]:
    kind = target.get("type") or ""
    causes: list[StatusCause] = []
    if not kind:
        causes.append(errors.required(f"{field}.type", "must specify a metric target type"))
    if kind not in _TARGETS:
        why = "must be either Utilization, Value, or AverageValue"
        causes.append(errors.invalid(f"{field}.type", kind, why))
    for part in ("value", "averageValue"):
        amount = target.get(part)
        if amount is not None and nanos(amount) <= 0:
            causes.append(errors.invalid(f"{field}.{part}", amount, "must be positive"))
    percent = target.get("averageUtilization")
    if percent is not None and percent < 1:
        causes.append(errors.invalid(f"{field}.averageUtilization", percent, "must be greater than 0"))
    return causes


def _check_amounts(part: str, target: Json, field: str) -> list[StatusCause]:
    """Check which of the amounts a kind of source needs, and which exclude each other."""
    has = {name: target.get(name) is not None for name in ("value", "averageValue", "averageUtilization")}
    causes: list[StatusCause] = []
    if part in ("resource", "containerResource"):
        if not has["averageUtilization"] and not has["averageValue"]:
            why = "must set either a target raw value or a target utilization"
            causes.append(errors.required(f"{field}.averageUtilization", why))
        if has["averageUtilization"] and has["averageValue"]:
            why = "may not set both a target raw value and a target utilization"
            causes.append(errors.forbidden(f"{field}.averageValue", why))
    elif part == "pods":
        if not has["averageValue"]:
            why = "must specify a positive target averageValue"
            causes.append(errors.required(f"{field}.averageValue", why))
    else:
        if not has["value"] and not has["averageValue"]:
            why = {
                "object": "must set either a target value or averageValue",
                "external": "must set either a target value for metric or a per-pod target",
            }[part]
            causes.append(errors.required(f"{field}.averageValue", why))
        if part == "external" and has["value"] and has["averageValue"]:
            why = "may not set both a target value for metric and a per-pod target"
            causes.append(errors.forbidden(f"{field}.value", why))
    return causes


def _check_rules(rules: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    window_s = rules.get("stabilizationWindowSeconds")
    where = f"{field}.stabilizationWindowSeconds"
    if window_s is not None and window_s < 0:
        causes.append(errors.invalid(where, window_s, "must be greater than or equal to zero"))
    if window_s is not None and window_s > _STABILIZATION_S_MAX:
        why = f"must be less than or equal to {_STABILIZATION_S_MAX}"
        causes.append(errors.invalid(where, window_s, why))
    select = rules.get("selectPolicy")
    if select is not None and select not in _SELECT_POLICIES:
        causes.append(errors.not_supported(f"{field}.selectPolicy", select, _SELECT_POLICIES))
    policies = rules.get("policies") or []
    if not policies:
        causes.append(errors.required(f"{field}.policies", "must specify at least one Policy"))
    for index, policy in enumerate(policies):
        causes += _check_policy(policy, f"{field}.policies[{index}]")
    return causes


def _check_policy(policy: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    if policy.get("type", "") not in _POLICIES:
        causes.append(errors.not_supported(f"{field}.type", policy.get("type", ""), _POLICIES))
    for part in ("value", "periodSeconds"):
        if policy.get(part, 0) <= 0:
            causes.append(errors.invalid(f"{field}.{part}", policy.get(part, 0), "must be greater than zero"))
    if policy.get("periodSeconds", 0) > _PERIOD_S_MAX:
        why = f"must be less than or equal to {_PERIOD_S_MAX}"
        causes.append(errors.invalid(f"{field}.periodSeconds", policy["periodSeconds"], why))
    return causes


__all__ = ["check_autoscaler"]
