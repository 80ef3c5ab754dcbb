"""Checks of Jobs and CronJobs.

Source: pkg/apis/batch/validation of kubernetes/kubernetes.
"""

from typing import Any

from koordinator.api import cron
from koordinator.api.errors import ProtocolError
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names
from koordinator.local.schema.builtin.checks import pods
from koordinator.local.schema.builtin.checks.common import selects
from koordinator.local.schema.builtin.checks.workloads import check_selected, unselected

Json = dict[str, Any]

_CRON_NAME_MAX = 52  # a Job's name adds eleven characters
_RULES_MAX = 20
_CONDITIONS_MAX = 20
_EXIT_CODES_MAX = 255
_INDEXES_CHARS_MAX = 64 * 1024
_INDEXES_MAX, _PARALLELISM_MAX = 100_000, 100_000
_MANAGER_BYTES_MAX = 63
_LIMIT_OF_MANY = 10_000
"""Pods at a time, and failed indexes, of a Job with more than `_INDEXES_MAX` completions."""
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS = ("In", "NotIn")
_STATUSES = ("False", "True", "Unknown")


class IndexesError(ValueError):
    """A text is no list of indexes; the message says why."""


def check_job(obj: Json) -> list[StatusCause]:
    """Check a Job."""
    spec = obj.get("spec") or {}
    selector, template = spec.get("selector"), spec.get("template") or {}
    if selector is None:
        causes = [errors.required("spec.selector"), unselected(template)]
    elif spec.get("manualSelector"):
        causes = check_selected(selector, template)
    else:
        causes = _check_generated(obj.get("metadata") or {}, selector, template)
    return causes + _check_job_spec(spec, "spec") + _check_pod_name(obj, spec)


def _check_pod_name(obj: Json, spec: Json) -> list[StatusCause]:
    """Check that the last pod of an indexed Job can have the name that it would get."""
    name, total = (obj.get("metadata") or {}).get("name", ""), spec.get("completions") or 0
    if spec.get("completionMode") != "Indexed" or total <= 0:
        return []
    pod = f"{name}-{total - 1}"
    detail = f"will not able to create pod with invalid DNS label: {pod}"
    return [errors.invalid("metadata.name", name, detail)] if names.label_1123(pod) else []


def _check_generated(meta: Json, selector: Json, template: Json) -> list[StatusCause]:
    """Check that a Job's pods have the labels by which it finds them, which its creation has given them."""
    uid, name = meta.get("uid", ""), meta.get("name", "")
    wanted = {
        "controller-uid": uid,
        "job-name": name,
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
    }
    labels = (template.get("metadata") or {}).get("labels") or {}
    causes = []
    for key, value in wanted.items():
        field, detail = f"spec.template.metadata.labels[{key}]", f"must be '{value}'"
        if key not in labels:
            causes.append(errors.required(field, detail))
        elif labels[key] != value:
            causes.append(errors.invalid(field, labels, detail))
    if not selects(selector, wanted):
        causes.append(errors.invalid("spec.selector", selector, "`selector` not auto-generated"))
    return causes


def _check_job_spec(spec: Json, field: str) -> list[StatusCause]:
    pod = (spec.get("template") or {}).get("spec") or {}
    causes = pods.check_mounts(pod, f"{field}.template.spec")
    causes += _check_restarts(
        spec, pod.get("restartPolicy") or "Always", f"{field}.template.spec.restartPolicy"
    )
    if spec.get("completionMode") == "Indexed":
        causes += _check_indexed(spec, field)
    else:
        is_known = (spec.get("completionMode") or "NonIndexed") == "NonIndexed"
        bound = ("backoffLimitPerIndex", "maxFailedIndexes") if is_known else ()
        causes += [
            errors.invalid(f"{field}.{name}", spec[name], "requires indexed completion mode")
            for name in (*bound, "successPolicy")
            if spec.get(name) is not None
        ]
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        causes.append(errors.required(f"{field}.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    if (policy := spec.get("podFailurePolicy")) is not None:
        causes += _check_failure_policy(policy, spec, pod, f"{field}.podFailurePolicy")
        if spec.get("podReplacementPolicy") == "TerminatingOrFailed":
            replacement = f"{field}.podReplacementPolicy"
            causes.append(errors.not_supported(replacement, "TerminatingOrFailed", ["Failed"]))
    return causes


def _check_indexed(spec: Json, field: str) -> list[StatusCause]:
    total, failed, parallel = (
        spec.get("completions"),
        spec.get("maxFailedIndexes"),
        spec.get("parallelism") or 0,
    )
    causes = []
    if total is None:
        causes.append(errors.required(f"{field}.completions", "when completion mode is Indexed"))
    if parallel > _PARALLELISM_MAX:
        detail = f"must be less than or equal to {_PARALLELISM_MAX} when completion mode is Indexed"
        causes.append(errors.invalid(f"{field}.parallelism", parallel, detail))
    if total is not None and failed is not None and failed > total:
        detail = "must be less than or equal to completions"
        causes.append(errors.invalid(f"{field}.maxFailedIndexes", failed, detail))
    if (failed or 0) > _INDEXES_MAX:
        detail = f"must be less than or equal to {_INDEXES_MAX}"
        causes.append(errors.invalid(f"{field}.maxFailedIndexes", failed, detail))
    if (total or 0) > _INDEXES_MAX and spec.get("backoffLimitPerIndex") is not None:
        detail = (
            f"must be less than or equal to {_LIMIT_OF_MANY} when completions are above {_INDEXES_MAX} and used with "
            "backoff limit per index"
        )
        if failed is None:
            needed = f"must be specified when completions is above {_INDEXES_MAX}"
            causes.append(errors.required(f"{field}.maxFailedIndexes", needed))
        if parallel > _LIMIT_OF_MANY:
            causes.append(errors.invalid(f"{field}.parallelism", parallel, detail))
        if (failed or 0) > _LIMIT_OF_MANY:
            causes.append(errors.invalid(f"{field}.maxFailedIndexes", failed, detail))
    if (policy := spec.get("successPolicy")) is not None:
        causes += _check_success_policy(policy, total, f"{field}.successPolicy.rules")
    return causes


def _check_success_policy(policy: Json, total: int | None, field: str) -> list[StatusCause]:
    rules = policy.get("rules") or []
    causes = []
    if not rules:
        detail = "at least one rules must be specified when the successPolicy is specified"
        causes.append(errors.required(field, detail))
    if len(rules) > _RULES_MAX:
        causes.append(errors.too_many(field, len(rules), _RULES_MAX))
    for number, rule in enumerate(rules):
        causes += _check_success_rule(rule, total, f"{field}[{number}]")
    return causes


def _check_success_rule(rule: Json, total: int | None, field: str) -> list[StatusCause]:
    count, indexes = rule.get("succeededCount"), rule.get("succeededIndexes")
    if count is None and indexes is None:
        detail = "at least one of succeededCount or succeededIndexes must be specified"
        return [errors.required(field, detail)]
    causes, named = [], 0
    if indexes is not None:
        where = f"{field}.succeededIndexes"
        if len(indexes) > _INDEXES_CHARS_MAX:
            causes.append(errors.too_long(where, _INDEXES_CHARS_MAX))
        try:
            named = _count_indexes(indexes, total or 0)
        except IndexesError as error:
            causes.append(errors.invalid(where, indexes, f"error parsing succeededIndexes: {error}"))
    if count is not None:
        where = f"{field}.succeededCount"
        if total is not None and count > total:
            detail = f"must be less than or equal to {total} (the number of specified completions)"
            causes.append(errors.invalid(where, count, detail))
        if indexes is not None and count > named:
            of = "the number of indexes in the specified succeededIndexes field"
            causes.append(errors.invalid(where, count, f"must be less than or equal to {named} ({of})"))
    return causes


def _count_indexes(text: str, total: int) -> int:
    """Return how many indexes a text like "0,2-5" names. Raises: IndexesError."""
    count, last = 0, -1
    for part in text.split(",") if text else ():
        limits = part.split("-")
        if len(limits) > 2:
            raise IndexesError(
                f"the fragment {errors.shown(part)} violates the requirement that an index interval can have at most "
                "two parts separated by '-'"
            )
        numbers = [_index(each, total) for each in limits]
        if len(numbers) == 2 and numbers[0] >= numbers[1]:
            raise IndexesError(f"non-increasing order, previous: {numbers[0]}, current: {numbers[1]}")
        if last >= numbers[0]:
            raise IndexesError(f"non-increasing order, previous: {last}, current: {numbers[0]}")
        last = numbers[-1]
        count += last - numbers[0] + 1
    return count


def _index(text: str, total: int) -> int:
    if not text.isdecimal():
        raise IndexesError(f"cannot convert string to integer for index: {errors.shown(text)}")
    if int(text) >= total:
        raise IndexesError(f"too large index: {errors.shown(text)}")
    return int(text)


def _check_failure_policy(policy: Json, spec: Json, pod: Json, field: str) -> list[StatusCause]:
    rules = policy.get("rules") or []
    causes = [errors.too_many(f"{field}.rules", len(rules), _RULES_MAX)] if len(rules) > _RULES_MAX else []
    containers = {
        each.get("name") for kind in ("containers", "initContainers") for each in pod.get(kind) or ()
    }
    for number, rule in enumerate(rules):
        where = f"{field}.rules[{number}]"
        causes += _check_action(rule.get("action"), spec, f"{where}.action")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or []
        if codes is not None:
            causes += _check_exit_codes(codes, containers, f"{where}.onExitCodes")
        causes += _check_conditions(conditions, f"{where}.onPodConditions")
        if (codes is not None) == bool(conditions):
            both = "specifying both OnExitCodes and OnPodConditions is not supported"
            one = "specifying one of OnExitCodes and OnPodConditions is required"
            causes.append(errors.invalid_whole(where, both if conditions else one))
    return causes


def _check_action(action: Any, spec: Json, field: str) -> list[StatusCause]:
    if not action:
        return [errors.required(field, f"valid values: {_quoted(_ACTIONS)}")]
    if action not in _ACTIONS:
        return [errors.not_supported(field, action, _ACTIONS)]
    if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        return [errors.invalid(field, action, "requires the backoffLimitPerIndex to be set")]
    return []


def _check_exit_codes(codes: Json, containers: set[Any], field: str) -> list[StatusCause]:
    operator, name, values = codes.get("operator"), codes.get("containerName"), codes.get("values") or []
    causes = []
    if not operator:
        causes.append(errors.required(f"{field}.operator", f"valid values: {_quoted(_OPERATORS)}"))
    elif operator not in _OPERATORS:
        causes.append(errors.not_supported(f"{field}.operator", operator, _OPERATORS))
    if name is not None and name not in containers:
        detail = "must be one of the container or initContainer names in the pod template"
        causes.append(errors.invalid(f"{field}.containerName", name, detail))
    field = f"{field}.values"
    if not values:
        causes.append(errors.invalid(field, [], "at least one value is required"))
    elif len(values) > _EXIT_CODES_MAX:
        causes.append(errors.too_many(field, len(values), _EXIT_CODES_MAX))
    for number, value in enumerate(values):
        if operator == "In" and value == 0:
            causes.append(errors.invalid(f"{field}[{number}]", value, "must not be 0 for the In operator"))
        if value in values[:number]:
            causes.append(errors.duplicate(f"{field}[{number}]", value))
    if sorted(values) != values:
        causes.append(errors.invalid(field, values, "must be ordered"))
    return causes


def _check_conditions(conditions: list[Json], field: str) -> list[StatusCause]:
    causes = []
    if len(conditions) > _CONDITIONS_MAX:
        causes.append(errors.too_many(field, len(conditions), _CONDITIONS_MAX))
    for number, condition in enumerate(conditions):
        where = f"{field}[{number}]"
        causes += names.check(names.qualified_name, condition.get("type", ""), f"{where}.type")
        if condition.get("status") not in _STATUSES:
            causes.append(errors.not_supported(f"{where}.status", condition.get("status"), _STATUSES))
    return causes


def _quoted(words: tuple[str, ...]) -> str:
    return "[" + " ".join(f'"{word}"' for word in words) + "]"


def _check_restarts(spec: Json, policy: str, field: str) -> list[StatusCause]:
    """Check whether the pods of a Job restart in place."""
    if policy == "Always":
        return [errors.required(field, 'valid values: "OnFailure", "Never"')]
    if policy not in {"OnFailure", "Never"}:
        return [errors.not_supported(field, policy, ["OnFailure", "Never"], is_sorted=True)]
    if spec.get("podFailurePolicy") is not None and policy != "Never":
        why = 'only "Never" is supported when podFailurePolicy is specified'
        return [errors.invalid(field, policy, why)]
    return []


def check_time_zone(zone: str, field: str) -> list[StatusCause]:
    """Check the time zone of a CronJob."""
    if not zone:
        return [errors.invalid(field, zone, "timeZone must be nil or non-empty string")]
    if zone.lower() == "local":
        detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        return [errors.invalid(field, zone, detail)]
    try:
        cron.time_zone(zone)
    except ProtocolError as error:
        return [errors.invalid(field, zone, error.reason)]
    return []


def check_managed_by(manager: str, field: str) -> list[StatusCause]:
    """Check that the controller of a Job is named by a domain and a path."""
    if not manager:
        return [errors.required(field)]
    domain, _, path = manager.partition("/")
    if not domain or not path:
        detail = 'must be a domain-prefixed path (such as "acme.io/foo")'
        causes = [errors.invalid(field, manager, detail)]
    else:
        causes = names.check(names.subdomain_1123, domain, field) + names.check(names.http_path, path, field)
    if len(manager) > _MANAGER_BYTES_MAX:
        causes.append(errors.too_long(field, _MANAGER_BYTES_MAX))
    return causes


def check_cron_job(obj: Json) -> list[StatusCause]:
    """Check a CronJob."""
    spec, name = obj.get("spec") or {}, (obj.get("metadata") or {}).get("name", "")
    causes: list[StatusCause] = []
    if len(name) > _CRON_NAME_MAX:
        causes.append(
            errors.invalid("metadata.name", name, f"must be no more than {_CRON_NAME_MAX} characters")
        )
    template = (spec.get("jobTemplate") or {}).get("spec") or {}
    if (selector := template.get("selector")) is not None:
        field, detail = "spec.jobTemplate.spec.selector", "`selector` will be auto-generated"
        causes.append(errors.invalid(field, selector, detail))
    if template.get("manualSelector"):
        field = "spec.jobTemplate.spec.manualSelector"
        causes.append(errors.not_supported(field, True, ["nil", "false"]))
    return causes + _check_job_spec(template, "spec.jobTemplate.spec")
