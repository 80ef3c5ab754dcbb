"""Make the pods of a Job and judge how they ended: what the failure policy says to that, and sets of completion
indexes as text, such as `0,2-4`, in the status and the success policy. Pure.

Source: kube-controller-manager's job controller.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from koordinator import clock
from koordinator.api.apps import Job, OnExitCodes, PodFailureRule
from koordinator.api.core import ContainerStatus, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import find_condition
from koordinator.local.controllers import pod_control, pod_health
from koordinator.local.registry.metadata import GENERATED_BASE_LENGTH_MAX


def parse(text: str, field: str) -> set[int]:
    """Raises: ProtocolError when the text is no list of indexes and ranges."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ProtocolError("", field, f"{part!r} is neither an index nor a range")
        indexes.update(range(int(first), int(last if dash else first) + 1))
    return indexes


def to_text(indexes: Iterable[int]) -> str:
    """Ascending, three and more neighbours as a range and two apart, as upstream writes them."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and (index is None or index != run[-1] + 1):
            parts.append(
                str(run[0]) if len(run) == 1 else f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}"
            )
            run = []
        if index is not None:
            run.append(index)
    return ",".join(parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
INDEX_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
_INDEX_ENV = "JOB_COMPLETION_INDEX"


class PodFailureAction(enum.Enum):
    """The consequence of a failed pod for its Job."""

    COUNT = "Count"
    IGNORE = "Ignore"
    FAIL_JOB = "FailJob"
    FAIL_INDEX = "FailIndex"


class Judgement(msgspec.Struct, frozen=True):
    """The answer of the failure policy about a pod, and why in words (empty when no rule spoke)."""

    action: PodFailureAction
    message: str = ""


def is_indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def is_tracked(pod: Pod) -> bool:
    """Return whether the pod waits to be counted."""
    return TRACKING in pod.metadata.finalizers


def index_of(pod: Pod) -> int | None:
    """Return the completion index of a pod; None when it has none."""
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if _is_number(text) else None


class IndexFailures(NamedTuple):
    """The failures of an index, those apart that the failure policy ignores."""

    counted: int = 0
    ignored: int = 0


def index_failures(pod: Pod) -> IndexFailures:
    """Return how often the pod's index had failed when it was made."""
    texts = (pod.metadata.annotations.get(name, "") for name in (INDEX_FAILURES, INDEX_IGNORED))
    return IndexFailures(*(int(text) if _is_number(text) else 0 for text in texts))


def failures_with(job: Job, pod: Pod) -> IndexFailures:
    """Return how often its index has failed, with the failure of the pod itself."""
    counted, ignored = index_failures(pod)
    return (
        IndexFailures(counted, ignored + 1) if is_ignored(job, pod) else IndexFailures(counted + 1, ignored)
    )


def replaces_only_failed(job: Job) -> bool:
    """Return whether a pod that is being deleted is replaced only when it has really ended."""
    policy = job.spec.pod_replacement_policy
    if policy is None:
        return job.spec.pod_failure_policy is not None
    return policy == "Failed"


def has_failed(pod: Pod, job: Job) -> bool:
    """Return whether a pod counts as failed: it did, or it is deleted and that is enough."""
    if pod.status.phase == pod_health.FAILED:
        return True
    is_ending = pod.metadata.deletion_timestamp is not None and pod.status.phase != pod_health.SUCCEEDED
    return is_ending and not replaces_only_failed(job)


def finished_s(pod: Pod, now_s: float) -> float:
    """Return when the pod ended: the last of its containers, else the loss of readiness, its deletion, its creation."""
    ends = [
        status.state.terminated.finished_at if status.state.terminated is not None else None
        for status in pod.status.container_statuses
    ]
    if ends and all(ends):
        return max(clock.parse_rfc3339(end) for end in ends if end)
    ready, meta = find_condition(pod.status.conditions, "Ready"), pod.metadata
    if ready is not None and ready.status == "False" and ready.last_transition_time:
        return clock.parse_rfc3339(ready.last_transition_time)
    if meta.deletion_timestamp is not None:
        return clock.parse_rfc3339(meta.deletion_timestamp) - (meta.deletion_grace_period_seconds or 0)
    return clock.parse_rfc3339_or(meta.creation_timestamp, now_s)


def new_pod(job: Job, index: int | None, failures: IndexFailures | None) -> dict[str, Any]:
    """Return the pod to create; `index` for Indexed jobs, `failures` of that index where they are limited."""
    body = pod_control.pod_from_template(job.spec.template, job)
    meta = body["metadata"]
    finalizers = [name for name in meta.get("finalizers", []) if name != TRACKING]
    meta["finalizers"] = [*finalizers, TRACKING]
    if index is None:
        return body
    name = job.metadata.name
    suffix = f"-{index}-"  # stays whole
    meta["generateName"] = f"{name[: GENERATED_BASE_LENGTH_MAX - len(suffix)]}{suffix}"
    meta["labels"] = {**meta.get("labels", {}), INDEX: str(index)}
    meta["annotations"] = {**meta.get("annotations", {}), INDEX: str(index)}
    if failures is not None:
        meta["annotations"][INDEX_FAILURES] = str(failures.counted)
        if failures.ignored:
            meta["annotations"][INDEX_IGNORED] = str(failures.ignored)
    spec = dict(body["spec"])
    spec["hostname"] = f"{name}-{index}"
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_knowing_index(container) for container in spec[field]]
    return {**body, "spec": spec}


def _knowing_index(container: Mapping[str, Any]) -> dict[str, Any]:
    env = container.get("env") or []
    if any(variable.get("name") == _INDEX_ENV for variable in env):
        return dict(container)
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    return {**container, "env": [*env, {"name": _INDEX_ENV, "valueFrom": source}]}


def judge(job: Job, pod: Pod) -> Judgement:
    """Return what the Job's failure policy says about a failed pod; the first rule that matches decides."""
    policy = job.spec.pod_failure_policy
    for number, rule in enumerate(policy.rules if policy is not None else []):
        why = _match(rule, pod)
        if why:
            return Judgement(
                PodFailureAction(rule.action), f"{why} matching {rule.action} rule at index {number}"
            )
    return Judgement(PodFailureAction.COUNT)


def is_ignored(job: Job, pod: Pod) -> bool:
    """Return whether the failure policy does not count a failed pod."""
    return judge(job, pod).action is PodFailureAction.IGNORE


def _match(rule: PodFailureRule, pod: Pod) -> str:
    """Return why a rule speaks about the pod; empty when it does not."""
    name = pod.key
    if rule.on_exit_codes is not None:
        statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
        for status in statuses:
            code = _exit_code(status)
            if code and _is_listed(rule.on_exit_codes, status.name, code):
                return f"Container {status.name} for pod {name} failed with exit code {code}"
        return ""
    for pattern in rule.on_pod_conditions:
        for condition in pod.status.conditions:
            if (condition.type, condition.status) == (pattern.type, pattern.status or "True"):
                return f"Pod {name} has condition {condition.type}"
    return ""


def _exit_code(status: ContainerStatus) -> int:
    ended = status.state.terminated
    return ended.exit_code if ended is not None else 0


def _is_listed(wanted: OnExitCodes, container: str, code: int) -> bool:
    if wanted.container_name is not None and wanted.container_name != container:
        return False
    return (code in wanted.values) == (wanted.operator == "In")
