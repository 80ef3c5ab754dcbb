"""Decide which pods may exist: QoS, priority, resources, devices, reserved annotations (behaviour/manager 14.6 a, b,
e).

Pure. A pod's user gets all violations of the QoS rules at once, and the first one of the device rules.

Labels that an administrator requires of pods are in a ConfigMap, which is followed (behaviour/manager 14.6 f, gate
EnablePodEnhancedValidator).

Annotations and labels of users that nobody will be able to read are told when they are written (behaviour/api 16):
elsewhere a typo shows late or never, the pod is not scheduled, the node keeps its old policy. Objects are let in all
the same, since other versions of a component may understand more.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import (
    gang_labels,
    labels,
    node_labels,
    pod_resources,
    priority,
    qos,
    quantity,
    resources,
    slo_config,
)
from koordinator.api.annotations import device, koordlet, node, placement
from koordinator.api.annotations.codec import Annotation, Empty, Payload
from koordinator.api.core import ConfigMap, Container, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.pod_resources import FORBIDDEN_PRIORITIES
from koordinator.api.qos import QoSClass
from koordinator.api.reservation import EXACT_MATCH_RESERVATION, RESERVATION_AFFINITY
from koordinator.api.resource_list import Amounts
from koordinator.cluster.errors import ApiError, NotFound
from koordinator.manager.parts import ManagerContext

log = logging.getLogger(__name__)

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
    """Check that a pod does not pass itself off as a reservation of the scheduler."""
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
    checks: list[tuple[PodRule, str, str, str]] = [
        (PodRule.QOS_IMMUTABLE, f"labels.{labels.QOS_CLASS}", qos.raw(old), qos.raw(pod)),
        (PodRule.PRIORITY_CLASS_IMMUTABLE, "spec.priority", priority.raw(old), priority.raw(pod)),
    ]
    if not skip_sub_priority:
        was, now = (each.metadata.labels.get(labels.PRIORITY, "") for each in (old, pod))
        checks.append((PodRule.SUB_PRIORITY_IMMUTABLE, f"labels.{labels.PRIORITY}", was, now))
    for rule, path, before, after in checks:
        if before != after:
            yield Violation(rule, f'{path}: Invalid value: "{after}": field is immutable')


def _batch_needs_be(pod: Pod, requests: Amounts) -> Iterator[Violation]:
    lent = (*resources.BATCH_RESOURCES, *resources.BATCH_GPU_RESOURCES)
    asks_for_batch = any(requests.get(name, quantity.ZERO) for name in lent)
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
    return _first_gpu_problem(pod, _gpu_problem)


def gpu_percents(pod: Pod) -> list[Violation]:
    """Return the first request for `koordinator.sh/gpu` that says no number of cards.

    Asked before admission splits the amount into others, which no longer tell. Raises: quantity.QuantityError.
    """
    return _first_gpu_problem(pod, _percent_problem)


def _first_gpu_problem(pod: Pod, problem_of: Callable[[Container], str]) -> list[Violation]:
    for index, container in enumerate(pod.spec.containers):
        if problem := problem_of(container):
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


TIMEOUT_S = 2.0
"""For reading the ConfigMap while a pod waits."""
REASON = "LabelRulesNotUsed"


class LabelRule(Payload, frozen=True, kw_only=True):
    """Label keys that pods must have, outside of some namespaces; any value will do."""

    name: str = ""
    required_labels: list[str] = []
    namespace_whitelist: list[str] = []


_RULES = Annotation("rules", list[LabelRule], empty=Empty.ABSENT)


def label_rules(data: Mapping[str, str], obj: str) -> list[LabelRule]:
    """Return the rules that the ConfigMap `obj` has; none while it does not enable them. Raises: ProtocolError."""
    if data.get("enable", "").strip().lower() != "true":
        return []
    return _RULES.decode(data.get(_RULES.key, ""), obj)


def violation(rules: Sequence[LabelRule], namespace: str, pod_labels: Mapping[str, str]) -> str:
    """Return what a pod lacks by the first rule that it breaks, in words; empty when it may exist."""
    if pod_labels.get(labels.POD_SKIP_ENHANCED_VALIDATION) == "true":
        return ""
    for rule in rules:
        missing = [key for key in rule.required_labels if key not in pod_labels]
        if missing and namespace not in rule.namespace_whitelist:
            return f"{_words(missing)} (rule '{rule.name}')"
    return ""


def _words(missing: list[str]) -> str:
    if len(missing) == 1:
        return f"required label '{missing[0]}' is missing"
    return f"required labels are missing: [{' '.join(missing)}]"


class LabelRulesSource:
    """The rules in force. The watch tells a change at once; besides, the ConfigMap is read every interval, when a pod
    comes, so that a watch that went silent cannot keep old rules for ever."""

    def __init__(self, shared: ManagerContext) -> None:
        options = shared.options.enhanced_validator
        self.rules: Sequence[LabelRule] = ()
        self._cluster, self._events = shared.cluster, shared.events
        self._namespace, self._name = options.config_namespace, options.config_name
        self._interval_s = options.reconcile_interval_s
        self._read_s: float | None = None
        self._problem = ""
        self._reading = asyncio.Lock()
        maps = shared.factory.informer(
            ConfigMap, self._namespace, field_selector=f"metadata.name={self._name}"
        )
        maps.add_handler(self._sync, lambda _, found: self._sync(found), self._gone)

    async def fresh(self) -> Sequence[LabelRule]:
        """Return the rules, read again when that is due; those known so far when nobody answers."""
        if self._is_due() and not self._reading.locked():
            async with self._reading:
                self._read_s = self._cluster.clock.now()
                await self._read()
        return self.rules

    def _is_due(self) -> bool:
        since_s = None if self._read_s is None else self._cluster.clock.now() - self._read_s
        return since_s is None or not 0 <= since_s < self._interval_s

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._cluster.get(ConfigMap, self._name, self._namespace)
        except NotFound:
            self._gone(None)
        except (ApiError, TimeoutError) as error:
            facts = {"config_map": f"{self._namespace}/{self._name}", "error": str(error)}
            log.warning("label rules not read, the last ones apply", extra=facts)
        else:
            self._sync(found)

    def _gone(self, found: ConfigMap | None) -> None:
        if found is None or found.metadata.name == self._name:
            self._problem = ""
            self.rules = ()

    def _sync(self, found: ConfigMap) -> None:
        if found.metadata.name != self._name:
            return
        problem = ""
        try:
            self.rules = label_rules(found.data, f"ConfigMap {found.key}")
        except ProtocolError as error:  # the old ones stay
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("label rules invalid", extra={"problem": problem})
            self._events.warning(found, REASON, problem)
        self._problem = problem


Texts = Mapping[str, str]
Read = Callable[[Texts], object]
"""Reads one member of annotations (or labels). Raises: ProtocolError when it is malformed."""


def _by_key(*codecs: Annotation[Any]) -> dict[str, Read]:
    return {codec.key: codec.read for codec in codecs}


_POD_ANNOTATIONS: Mapping[str, Read] = {
    **_by_key(device.DEVICE_ALLOCATE_HINT, device.DEVICE_JOINT_ALLOCATE, device.GPU_PARTITION_SPEC),
    **_by_key(koordlet.EXTENDED_RESOURCE_SPEC, koordlet.CPU_BURST, koordlet.CPU_QOS),
    **_by_key(koordlet.MEMORY_QOS, koordlet.BLKIO_QOS, koordlet.RESCTRL, koordlet.SOFT_EVICTION),
    **_by_key(koordlet.LATENCY_OBJECTIVE),
    **_by_key(placement.RESOURCE_SPEC, placement.NUMA_TOPOLOGY_SPEC, placement.NETWORK_TOPOLOGY_SPEC),
    **_by_key(RESERVATION_AFFINITY, EXACT_MATCH_RESERVATION),
    labels.NETWORK_QOS: koordlet.network_limits,
    labels.OOM_SCORE_ADJ: lambda found: koordlet.oom_score_adj(found, ""),
    labels.SCHEDULING_HINT: placement.scheduling_hint,
    labels.GANG_MIN_AVAILABLE: lambda found: gang_labels.min_available({}, found),
    labels.GANG_TOTAL_NUMBER: gang_labels.total_number,
    labels.GANG_WAITING_TIME: gang_labels.waiting_time_s,
    labels.GANG_GROUPS: gang_labels.groups,
}
_NODE_ANNOTATIONS: Mapping[str, Read] = {
    **_by_key(slo_config.NODE_COLOCATION_STRATEGY, node.NODE_RESERVATION, node.SYSTEM_QOS_RESOURCE),
    **_by_key(node.USAGE_THRESHOLDS, node.THIRD_PARTY_ALLOCATIONS),
    labels.NODE_RESOURCE_AMPLIFICATION_RATIO: node.amplification_ratios,
    labels.NODE_NETWORK_BANDWIDTH: node_labels.network_bandwidth,
}


def _ratio(key: str) -> Read:
    def read(found: Texts) -> None:
        if key in found and node_labels.ratio_percent(found, key) is None:
            raise ProtocolError("", key, f"{found[key]!r} is no ratio such as 0.6")

    return read


_NODE_LABELS: Mapping[str, Read] = {
    labels.NODE_CPU_NORMALIZATION_ENABLED: node_labels.is_cpu_normalization_enabled,
    **{
        key: _ratio(key)
        for key in (
            labels.NODE_CPU_RECLAIM_RATIO,
            labels.NODE_MEMORY_RECLAIM_RATIO,
            labels.NODE_MID_STATIC_CPU_RESERVED_RATIO,
            labels.NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
        )
    },
}


def pod_warnings(annotations: Texts, old: Texts) -> tuple[str, ...]:
    """Return what is malformed in those annotations of a pod that are new or differ from `old`, in words."""
    return tuple(_malformed("metadata.annotations", _POD_ANNOTATIONS, annotations, old))


def node_warnings(annotations: Texts, old: Texts, own: Texts, old_labels: Texts) -> tuple[str, ...]:
    """Return the same of a node's annotations and labels."""
    return (
        *_malformed("metadata.annotations", _NODE_ANNOTATIONS, annotations, old),
        *_malformed("metadata.labels", _NODE_LABELS, own, old_labels),
    )


def _malformed(path: str, readers: Mapping[str, Read], found: Texts, old: Texts) -> Iterator[str]:
    for key in sorted(readers.keys() & found.keys()):
        if found[key] == old.get(key):
            continue
        try:
            readers[key]({key: found[key]})
        except ProtocolError as error:
            yield f"{path}[{key}]: {error.reason}, so it will not be used"
