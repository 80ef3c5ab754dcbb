"""Checks of workload kinds and of HorizontalPodAutoscalers.

Source: pkg/apis/autoscaling/validation of kubernetes/kubernetes.
"""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks import cluster, pods
from koordinator.local.schema.builtin.checks.common import (
    check_int_or_percent,
    check_kept,
    check_label_selector,
    fixed,
    is_empty_selector,
    is_zero,
    nanos,
    percent_of,
    selects,
)

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
    """Check a HorizontalPodAutoscaler of any version."""
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
    if low == 0 and not any(m.get("type") in ("Object", "External") for m in spec.get("metrics") or ()):
        why = "must specify at least one Object or External metric to support scaling to zero replicas"
        causes.append(errors.forbidden(f"{field}.metrics", why))
    percent = spec.get("targetCPUUtilizationPercentage")
    if percent is not None and percent < 1:
        where = f"{field}.metrics[0].resource.target.averageUtilization"
        causes.append(errors.invalid(where, percent, "must be greater than 0"))
    return causes


def _check_reference(reference: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for part in ("kind", "name"):
        value = reference.get(part) or ""
        causes += names.check_required(names.path_segment, value, f"{field}.{part}")
    version = reference.get("apiVersion") or ""
    if version.count("/") > 1:
        why = f"unexpected GroupVersion string: {version}"
        causes.append(errors.invalid(f"{field}.apiVersion", version, why))
    return causes


def check_metric(metric: Json, field: str) -> list[StatusCause]:
    """Check a MetricSpec."""
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


def check_scaling_rules(rules: Json, field: str) -> list[StatusCause]:
    """Check HPAScalingRules."""
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
    if not rules.get("policies"):
        causes.append(errors.required(f"{field}.policies", "must specify at least one Policy"))
    return causes


def check_scaling_policy(policy: Json, field: str) -> list[StatusCause]:
    """Check an HPAScalingPolicy."""
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


def _check_selector_and_template(obj: Json, empty: str, maker: str) -> list[StatusCause]:
    """Selector, template, and that the one selects the other; `maker` makes the pods."""
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    causes: list[StatusCause] = []
    selector = spec.get("selector")
    if selector is not None:
        if is_empty_selector(selector):
            causes.append(errors.invalid("spec.selector", selector, empty))
        elif not check_label_selector(selector, "spec.selector"):
            causes += check_selected(selector, template)
    else:
        causes += check_selected({"matchLabels": {"": ""}}, template)  # nothing
    if (template.get("spec") or {}).get("activeDeadlineSeconds") is not None:
        why = f"activeDeadlineSeconds in {maker} is not Supported"
        causes.append(errors.forbidden("spec.template.spec.activeDeadlineSeconds", why))
    claims = [
        (claim.get("metadata") or {}).get("name", "") for claim in spec.get("volumeClaimTemplates") or ()
    ]
    return causes + pods.check_mounts(template.get("spec") or {}, "spec.template.spec", claims)


def check_selected(selector: Json, template: Json) -> list[StatusCause]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    return [] if selects(selector, labels) else [unselected(template)]


def unselected(template: Json) -> StatusCause:
    """Return that the labels of a template are not those that its workload selects."""
    labels = (template.get("metadata") or {}).get("labels")
    detail = "`selector` does not match template `labels`"
    return errors.invalid("spec.template.metadata.labels", labels or None, detail)


def _check_always_restarts(spec: Json) -> list[StatusCause]:
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy", "Always")
    if policy in {"OnFailure", "Never"}:
        return [errors.not_supported("spec.template.spec.restartPolicy", policy, ["Always"])]
    return []


def check_pod_template(obj: Json) -> list[StatusCause]:
    """Check a PodTemplate."""
    return pods.check_mounts((obj.get("template") or {}).get("spec") or {}, "template.spec")


def check_deployment(obj: Json) -> list[StatusCause]:
    """Check a Deployment."""
    spec = obj.get("spec") or {}
    causes = _check_selector_and_template(obj, "empty selector is invalid for deployment", "ReplicaSet")
    causes += _check_always_restarts(spec)
    strategy = spec.get("strategy") or {}
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate" and rolling is not None:
        detail = "may not be specified when strategy `type` is 'Recreate'"
        causes.append(errors.forbidden("spec.strategy.rollingUpdate", detail))
    elif rolling is not None:
        causes += _check_rolling(rolling, "spec.strategy.rollingUpdate")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds", 0)
    if deadline is not None and deadline <= ready:
        causes.append(
            errors.invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")
        )
    return causes


def _check_rolling(rolling: Json, field: str) -> list[StatusCause]:
    surge, unavailable = rolling.get("maxSurge", 0), rolling.get("maxUnavailable", 0)
    causes = check_int_or_percent(unavailable, f"{field}.maxUnavailable")
    causes += check_int_or_percent(surge, f"{field}.maxSurge")
    if not causes and is_zero(surge) and is_zero(unavailable):
        detail = "may not be 0 when `maxSurge` is 0"
        causes.append(errors.invalid(f"{field}.maxUnavailable", unavailable, detail))
    if (percent_of(unavailable) or 0) > 100:
        causes.append(errors.invalid(f"{field}.maxUnavailable", unavailable, "must not be greater than 100%"))
    return causes


def check_replica_set(obj: Json) -> list[StatusCause]:
    """Check a ReplicaSet."""
    causes = _check_selector_and_template(obj, "empty selector is invalid for deployment", "ReplicaSet")
    return causes + _check_always_restarts(obj.get("spec") or {})


def check_replication_controller(obj: Json) -> list[StatusCause]:
    """Check a ReplicationController: a plain label map selects."""
    spec = obj.get("spec") or {}
    selector, template = spec.get("selector") or {}, spec.get("template") or {}
    causes = [] if selector else [errors.required("spec.selector")]
    if spec.get("template") is None:
        return [*causes, errors.required("spec.template")]
    if not selector:
        return causes
    if (template.get("spec") or {}).get("activeDeadlineSeconds") is not None:
        why = "activeDeadlineSeconds in ReplicationController is not Supported"
        causes.append(errors.forbidden("spec.template.spec.activeDeadlineSeconds", why))
    causes += check_selected({"matchLabels": selector}, template)
    causes += pods.check_mounts(template.get("spec") or {}, "spec.template.spec")
    return causes + _check_always_restarts(spec)


def check_stateful_set(obj: Json) -> list[StatusCause]:
    """Check a StatefulSet."""
    causes = _check_selector_and_template(obj, "empty selector is invalid for statefulset", "StatefulSet")
    spec = obj.get("spec") or {}
    causes += _check_always_restarts(spec)
    for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
        causes += cluster.check_claim_spec(
            claim.get("spec") or {}, f"spec.volumeClaimTemplates[{index}].spec"
        )
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete" and strategy.get("rollingUpdate"):
        detail = "only allowed for updateStrategy 'RollingUpdate'"
        causes.append(errors.invalid("spec.updateStrategy.rollingUpdate", strategy["rollingUpdate"], detail))
    return causes


def check_daemon_set(obj: Json) -> list[StatusCause]:
    """Check a DaemonSet."""
    causes = _check_selector_and_template(obj, "empty selector is invalid for daemonset", "DaemonSet")
    spec = obj.get("spec") or {}
    causes += _check_always_restarts(spec)
    rolling = (spec.get("updateStrategy") or {}).get("rollingUpdate")
    if rolling:
        field = "spec.updateStrategy.rollingUpdate"
        surge, unavailable = rolling.get("maxSurge", 0), rolling.get("maxUnavailable", 0)
        causes += check_int_or_percent(unavailable, f"{field}.maxUnavailable")
        causes += check_int_or_percent(surge, f"{field}.maxSurge")
        if is_zero(surge) and is_zero(unavailable):
            detail = "cannot be 0 when maxSurge is 0"
            causes.append(errors.required(f"{field}.maxUnavailable", detail))
        elif not is_zero(surge) and not is_zero(unavailable):
            detail = "may not be set when maxUnavailable is non-zero"
            causes.append(errors.invalid(f"{field}.maxSurge", surge, detail))
    return causes


def check_revision(revision: Json) -> list[StatusCause]:
    """Check a ControllerRevision."""
    data = revision.get("data")
    if data is None:
        return [errors.required("data", "data is mandatory")]
    return [] if isinstance(data, dict) else [errors.required("data", "data must be a valid JSON object")]


_STATEFUL_MUTABLE = frozenset(
    {
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    }
)


def check_stateful_set_update(obj: Json, old: Json) -> list[StatusCause]:
    """Check that all but a few fields of a StatefulSet are immutable."""
    if fixed(obj.get("spec") or {}, _STATEFUL_MUTABLE) == fixed(old.get("spec") or {}, _STATEFUL_MUTABLE):
        return []
    detail = (
        "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
        "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
    )
    return [errors.forbidden("spec", detail)]


_SUSPENDED_MUTABLE = ("nodeSelector", "affinity", "tolerations", "schedulingGates")
_JOB_IMMUTABLE = ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")


def check_job_update(obj: Json, old: Json) -> list[StatusCause]:
    """Selector, template, completions and mode of a Job; a suspended one that never ran may be steered."""
    new, before = obj.get("spec") or {}, old.get("spec") or {}
    new_template, old_template = new.get("template") or {}, before.get("template") or {}
    if before.get("suspend") and not (old.get("status") or {}).get("startTime"):
        new_template, old_template = _without_steering(new_template), _without_steering(old_template)
    causes = check_kept(new.get("selector"), before.get("selector"), "spec.selector")
    causes += check_kept(new_template, old_template, "spec.template")
    for name in _JOB_IMMUTABLE:
        causes += check_kept(new.get(name), before.get(name), f"spec.{name}")
    if new.get("completions") != before.get("completions"):
        elastic = new.get("completionMode") == "Indexed" and new.get("completions") == new.get("parallelism")
        if not elastic:
            causes.append(errors.invalid("spec.completions", new.get("completions"), "field is immutable"))
    return causes


def _without_steering(template: Json) -> Json:
    spec = {
        key: value for key, value in (template.get("spec") or {}).items() if key not in _SUSPENDED_MUTABLE
    }
    meta = {k: v for k, v in (template.get("metadata") or {}).items() if k not in {"labels", "annotations"}}
    return {**template, "spec": spec, "metadata": meta}
