"""Decide which pods may exist: QoS, priority, resources, devices, reserved annotations (behaviour/manager 14.6 a,
b, e).

Pure. A pod's user gets all violations of the QoS rules at once, and the first one of the device rules.
"""

import enum
from collections.abc import Iterator

import msgspec

from koordinator.api import labels, pod_resources, priority, qos, quantity, resources
from koordinator.api.core import Container, Pod
from koordinator.api.qos import QoSClass
from koordinator.api.qos_priority_rules import FORBIDDEN_PRIORITIES
from koordinator.api.resource_list import Amounts

WHOLE_GPU_PERCENT = 100
_REQUESTS = "pod.spec.containers[*].resources.requests"
_WHOLE_CORE_CLASSES = (QoSClass.LSR, QoSClass.LSE)


class PodRule(enum.StrEnum):
    """The rule that a pod can break."""

    RESERVED_ANNOTATION = "reserved-annotation"
    QOS_IMMUTABLE = "qos-immutable"
    PRIORITY_CLASS_IMMUTABLE = "priority-class-immutable"
    SUB_PRIORITY_IMMUTABLE = "sub-priority-immutable"
    BATCH_NEEDS_BE = "batch-needs-be"
    BE_PRIORITY = "be-priority"
    LSR_PRIORITY = "lsr-priority"
    CPU_REQUIRED = "cpu-required"
    CPU_NOT_INTEGER = "cpu-not-integer"
    GPU_FORM = "gpu-form"


IMMUTABLE = (PodRule.QOS_IMMUTABLE, PodRule.PRIORITY_CLASS_IMMUTABLE, PodRule.SUB_PRIORITY_IMMUTABLE)


class Violation(msgspec.Struct, frozen=True):
    """A broken rule, and its words for the pod's user: field, value, what is wrong."""

    rule: PodRule
    message: str


_PRIORITY_RULES = {QoSClass.BE: PodRule.BE_PRIORITY, QoSClass.LSR: PodRule.LSR_PRIORITY}


def reserved_annotations(pod: Pod) -> list[Violation]:
    """A pod must not pass itself off as a reservation of the scheduler."""
    if labels.RESERVE_POD not in pod.metadata.annotations:
        return []
    message = f"metadata.annotations: Forbidden: {labels.RESERVE_POD} is for the scheduler's own use"
    return [Violation(PodRule.RESERVED_ANNOTATION, message)]


def colocation(pod: Pod, old: Pod | None, *, skip_sub_priority: bool = False) -> list[Violation]:
    """Violations of the QoS and priority rules; `old` is the pod before an update, None at creation.

    `skip_sub_priority` is the feature gate ColocationProfileSkipValidatingPriority: label
    `koordinator.sh/priority` may then change. Raises: quantity.QuantityError.
    """
    requests = pod_resources.spec_requests(pod.spec)
    changed = [] if old is None else list(_immutable(pod, old, skip_sub_priority))
    return [*changed, *_batch_needs_be(pod, requests), *_priority(pod), *_cores(pod, requests)]


def _immutable(pod: Pod, old: Pod, skip_sub_priority: bool) -> Iterator[Violation]:
    checks = [
        (PodRule.QOS_IMMUTABLE, f"labels.{labels.QOS_CLASS}", qos.raw(old), qos.raw(pod)),
        (PodRule.PRIORITY_CLASS_IMMUTABLE, "spec.priority", priority.raw(old), priority.raw(pod)),
    ]
    for rule, path, before, after in checks:
        if before != after:
            yield Violation(rule, f'{path}: Invalid value: "{after}": field is immutable')
    was, now = (each.metadata.labels.get(labels.PRIORITY, "") for each in (old, pod))
    if was != now and not skip_sub_priority:
        message = f'labels.{labels.PRIORITY}: Invalid value: "{now}": field is immutable'
        yield Violation(PodRule.SUB_PRIORITY_IMMUTABLE, message)


def _batch_needs_be(pod: Pod, requests: Amounts) -> Iterator[Violation]:
    asks_for_batch = any(requests.get(name, quantity.ZERO) for name in resources.BATCH_RESOURCES)
    if asks_for_batch and qos.raw(pod) is not QoSClass.BE:
        message = (
            f"labels.{labels.QOS_CLASS}: Required value: "
            "must specify koordinator QoS BE with koordinator colocation resources"
        )
        yield Violation(PodRule.BATCH_NEEDS_BE, message)


def _priority(pod: Pod) -> Iterator[Violation]:
    qos_class, priority_class = qos.raw(pod), priority.raw(pod)
    if priority_class in FORBIDDEN_PRIORITIES.get(qos_class, ()):
        message = (
            f"Pod: Forbidden: {labels.QOS_CLASS}={qos_class} and priorityClass={priority_class} "
            "cannot be used in combination"
        )
        yield Violation(_PRIORITY_RULES[qos_class], message)


def _cores(pod: Pod, requests: Amounts) -> Iterator[Violation]:
    qos_class = qos.raw(pod)
    if qos_class not in _WHOLE_CORE_CLASSES:
        return
    cpu = requests.get(resources.CPU, quantity.ZERO)
    if cpu.milli <= 0:
        message = f"{_REQUESTS}: Required value: {qos_class} Pod must declare the requested CPUs"
        yield Violation(PodRule.CPU_REQUIRED, message)
    elif cpu.milli % 1000:
        message = (
            f'{_REQUESTS}: Invalid value: "{cpu}": the requested CPUs of {qos_class} Pod must be integer'
        )
        yield Violation(PodRule.CPU_NOT_INTEGER, message)


def devices(pod: Pod) -> list[Violation]:
    """Return the first thing wrong with the GPU requests of the app containers; feature gate
    ValidatePodDeviceResource.

    Raises: quantity.QuantityError.
    """
    for index, container in enumerate(pod.spec.containers):
        if problem := _gpu_problem(container):
            path = f"spec.containers[{index}].resources.requests"
            return [Violation(PodRule.GPU_FORM, f"{path}: {problem}")]
    return []


def gpu_percents(pod: Pod) -> list[Violation]:
    """Return the first request for `koordinator.sh/gpu` that says no number of cards.

    Asked before admission splits the amount into others, which no longer tell. Raises: quantity.QuantityError.
    """
    for index, container in enumerate(pod.spec.containers):
        if problem := _percent_problem(container):
            return [Violation(PodRule.GPU_FORM, f"spec.containers[{index}].resources.requests: {problem}")]
    return []


def _percent_problem(container: Container) -> str:
    requests = container.resources.requests
    if resources.GPU not in requests:
        return ""
    percent = quantity.value(requests[resources.GPU])
    if percent <= 0:
        return f"{resources.GPU} must be above 0"
    if percent > WHOLE_GPU_PERCENT and percent % WHOLE_GPU_PERCENT:
        return f"{resources.GPU} above {WHOLE_GPU_PERCENT} must be a multiple of it, not {percent}"
    return ""


def _gpu_problem(container: Container) -> str:
    requests = container.resources.requests
    if resources.GPU in requests and resources.GPU_SHARED in requests:
        return f"{resources.GPU} cannot be used together with {resources.GPU_SHARED}"
    if problem := _percent_problem(container):
        return problem
    if resources.GPU_SHARED in requests:
        return _shared_gpu_problem({name: quantity.value(amount) for name, amount in requests.items()})
    return ""


def _shared_gpu_problem(requests: dict[str, int]) -> str:
    count = requests[resources.GPU_SHARED]
    if count <= 0:
        return f"{resources.GPU_SHARED} must be above 0"
    if requests.get(resources.HUAWEI_NPU_CORE, 0):
        return ""  # these cards are divided by templates, not by percents
    if bool(requests.get(resources.GPU_MEMORY, 0)) == bool(requests.get(resources.GPU_MEMORY_RATIO, 0)):
        return f"exactly one of {resources.GPU_MEMORY} and {resources.GPU_MEMORY_RATIO} must be set"
    for name in (resources.GPU_CORE, resources.GPU_MEMORY_RATIO):
        if requests.get(name, 0) % count:
            return f"{name} {requests[name]} must be a multiple of {resources.GPU_SHARED} {count}"
    return ""


def malformed_amount(pod: Pod) -> str:
    """Return the first amount of a pod that is none, by its path; empty when all are fine."""
    spec = pod.spec
    lists = [("spec.overhead", spec.overhead)]
    parts = [("spec.containers", spec.containers), ("spec.initContainers", spec.init_containers)]
    needs = [(f"{path}[{at}]", each.resources) for path, members in parts for at, each in enumerate(members)]
    if spec.resources is not None:
        needs.append(("spec", spec.resources))
    for path, each in needs:
        lists += [(f"{path}.resources.requests", each.requests), (f"{path}.resources.limits", each.limits)]
    for path, amounts in lists:
        for name, amount in amounts.items():
            try:
                quantity.of(amount)
            except quantity.QuantityError as error:
                return f"{path}.{name}: {error}"
    return ""
