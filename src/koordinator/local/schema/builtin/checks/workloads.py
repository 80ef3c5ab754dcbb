"""Checks of workload kinds."""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import cron, errors, names
from koordinator.local.schema.builtin.checks import pods
from koordinator.local.schema.builtin.checks.common import (
    check_int_or_percent,
    check_kept,
    check_label_selector,
    is_empty_selector,
    is_zero,
    percent_of,
    selects,
    tidy,
)

Json = dict[str, Any]

_CRON_NAME_MAX = 52  # a Job's name adds eleven characters


def _check_selector_and_template(obj: Json, empty: str) -> list[StatusCause]:
    """Selector, template, and that the one selects the other."""
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    causes: list[StatusCause] = []
    selector = spec.get("selector")
    if selector is not None:
        causes += check_label_selector(selector, "spec.selector")
        if is_empty_selector(selector):
            causes.append(errors.invalid("spec.selector", selector, empty))
        labels = (template.get("metadata") or {}).get("labels") or {}
        if not causes and not selects(selector, labels):
            detail = "`selector` does not match template `labels`"
            causes.append(errors.invalid("spec.template.metadata.labels", labels, detail))
    claims = [
        (claim.get("metadata") or {}).get("name", "") for claim in spec.get("volumeClaimTemplates") or ()
    ]
    causes += pods.check_template(template, "spec.template", claims)
    return causes


def _check_always_restarts(spec: Json) -> list[StatusCause]:
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy", "Always")
    if policy in {"OnFailure", "Never"}:
        return [errors.not_supported("spec.template.spec.restartPolicy", policy, ["Always"])]
    return []


def check_pod_template(obj: Json) -> list[StatusCause]:
    """A PodTemplate."""
    return pods.check_template(obj.get("template") or {}, "template")


def check_deployment(obj: Json) -> list[StatusCause]:
    """A Deployment."""
    spec = obj.get("spec") or {}
    causes = _check_selector_and_template(obj, "empty selector is invalid for deployment")
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
    """A ReplicaSet."""
    causes = _check_selector_and_template(obj, "empty selector is invalid for deployment")
    return causes + _check_always_restarts(obj.get("spec") or {})


def check_replication_controller(obj: Json) -> list[StatusCause]:
    """A ReplicationController: a plain label map selects."""
    spec = obj.get("spec") or {}
    selector, template = spec.get("selector") or {}, spec.get("template") or {}
    if not selector:
        return [errors.required("spec.selector")]
    labels = (template.get("metadata") or {}).get("labels") or {}
    causes: list[StatusCause] = []
    if not selects({"matchLabels": selector}, labels):
        detail = "`selector` does not match template `labels`"
        causes.append(errors.invalid("spec.template.metadata.labels", labels, detail))
    return causes + pods.check_template(template, "spec.template") + _check_always_restarts(spec)


def check_stateful_set(obj: Json) -> list[StatusCause]:
    """A StatefulSet."""
    causes = _check_selector_and_template(obj, "empty selector is invalid for statefulset")
    spec = obj.get("spec") or {}
    causes += _check_always_restarts(spec)
    service = spec.get("serviceName")
    reason = names.label_1123(service) if service else ""
    if reason:
        causes.append(errors.invalid("spec.serviceName", service, reason))
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete" and strategy.get("rollingUpdate"):
        detail = "only allowed for updateStrategy 'RollingUpdate'"
        causes.append(errors.invalid("spec.updateStrategy.rollingUpdate", strategy["rollingUpdate"], detail))
    return causes


def check_daemon_set(obj: Json) -> list[StatusCause]:
    """A DaemonSet."""
    causes = _check_selector_and_template(obj, "empty selector is invalid for daemonset")
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
            causes.append(errors.invalid(f"{field}.maxUnavailable", unavailable, detail))
        elif not is_zero(surge) and not is_zero(unavailable):
            detail = "may not be set when maxUnavailable is non-zero"
            causes.append(errors.invalid(f"{field}.maxSurge", surge, detail))
    return causes


def check_job(obj: Json) -> list[StatusCause]:
    """A Job."""
    spec = obj.get("spec") or {}
    causes: list[StatusCause] = []
    selector = spec.get("selector")
    if selector is None:
        if spec.get("manualSelector"):
            causes.append(errors.required("spec.selector"))
    else:
        causes += check_label_selector(selector, "spec.selector")
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if not spec.get("manualSelector") and not _is_generated(selector):
            causes.append(errors.invalid("spec.selector", selector, "`selector` not auto-generated"))
        elif not selects(selector, labels):
            detail = "`selector` does not match template `labels`"
            causes.append(errors.invalid("spec.template.metadata.labels", labels, detail))
    return causes + _check_job_spec(spec, "spec")


def _is_generated(selector: Json) -> bool:
    labels = selector.get("matchLabels") or {}
    return "batch.kubernetes.io/controller-uid" in labels or "controller-uid" in labels


def _check_job_spec(spec: Json, field: str) -> list[StatusCause]:
    causes = pods.check_template(spec.get("template") or {}, f"{field}.template")
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy", "Always")
    if policy not in {"OnFailure", "Never"}:
        causes.append(
            errors.required(f"{field}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
            if not policy
            else errors.not_supported(f"{field}.template.spec.restartPolicy", policy, ["OnFailure", "Never"])
        )
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        detail = "when completion mode is Indexed"
        causes.append(errors.required(f"{field}.completions", detail))
    return causes


def check_cron_job(obj: Json) -> list[StatusCause]:
    """A CronJob."""
    spec, name = obj.get("spec") or {}, (obj.get("metadata") or {}).get("name", "")
    causes: list[StatusCause] = []
    if len(name) > _CRON_NAME_MAX:
        causes.append(
            errors.invalid("metadata.name", name, f"must be no more than {_CRON_NAME_MAX} characters")
        )
    schedule = spec.get("schedule", "")
    reason = cron.trouble(schedule) if schedule else ""
    if reason:
        causes.append(errors.invalid("spec.schedule", schedule, reason))
    template = (spec.get("jobTemplate") or {}).get("spec") or {}
    if template.get("manualSelector"):
        field = "spec.jobTemplate.spec.manualSelector"
        causes.append(errors.not_supported(field, True, ["nil", "false"]))
    return causes + _check_job_spec(template, "spec.jobTemplate.spec")


def check_selector_kept(obj: Json, old: Json) -> list[StatusCause]:
    """Selectors of Deployments, ReplicaSets and DaemonSets are immutable."""
    new = (obj.get("spec") or {}).get("selector")
    return check_kept(new, (old.get("spec") or {}).get("selector"), "spec.selector")


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
    """All but a few fields of a StatefulSet are immutable."""

    def fixed(spec: Json) -> Any:
        return tidy({key: value for key, value in spec.items() if key not in _STATEFUL_MUTABLE})

    if fixed(obj.get("spec") or {}) == fixed(old.get("spec") or {}):
        return []
    detail = (
        "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
        "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
    )
    return [errors.forbidden("spec", detail)]


_SUSPENDED_MUTABLE = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


def check_job_update(obj: Json, old: Json) -> list[StatusCause]:
    """Selector, template, completions and mode of a Job; a suspended one that never ran may be steered."""
    new, before = obj.get("spec") or {}, old.get("spec") or {}
    new_template, old_template = new.get("template") or {}, before.get("template") or {}
    if before.get("suspend") and not (old.get("status") or {}).get("startTime"):
        new_template, old_template = _without_steering(new_template), _without_steering(old_template)
    causes = check_kept(new.get("selector"), before.get("selector"), "spec.selector")
    causes += check_kept(new_template, old_template, "spec.template")
    causes += check_kept(new.get("completionMode"), before.get("completionMode"), "spec.completionMode")
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
