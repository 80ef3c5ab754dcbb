"""Rules about single fields of built-in kinds: required, one of a few words, a range of numbers.

They are tables by Go struct, compiled once per type into a walk that visits only what can have rules. Rules
between fields are functions in the neighbouring modules.
"""

import functools
from collections.abc import Callable
from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.decode import struct_name
from koordinator.local.schema.types import Kind, Type

Walk = Callable[[Any, str, list[StatusCause]], None]
"""Value, its path, and where to put the trouble found."""

_PROTOCOLS = ("SCTP", "TCP", "UDP")
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")

ENUMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("PodSpec", "restartPolicy"): ("Always", "Never", "OnFailure"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("Never", "PreemptLowerPriority"),
    ("Container", "imagePullPolicy"): ("Always", "IfNotPresent", "Never"),
    ("Container", "terminationMessagePolicy"): ("FallbackToLogsOnError", "File"),
    ("ContainerPort", "protocol"): _PROTOCOLS,
    ("HTTPGetAction", "scheme"): ("HTTP", "HTTPS"),
    ("Toleration", "operator"): ("Equal", "Exists", "Gt", "Lt"),
    ("Toleration", "effect"): _EFFECTS,
    ("Taint", "effect"): _EFFECTS,
    ("TopologySpreadConstraint", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("TopologySpreadConstraint", "nodeAffinityPolicy"): ("Honor", "Ignore"),
    ("TopologySpreadConstraint", "nodeTaintsPolicy"): ("Honor", "Ignore"),
    ("DeploymentStrategy", "type"): ("Recreate", "RollingUpdate"),
    ("StatefulSetUpdateStrategy", "type"): ("OnDelete", "RollingUpdate"),
    ("DaemonSetUpdateStrategy", "type"): ("OnDelete", "RollingUpdate"),
    ("StatefulSetSpec", "podManagementPolicy"): ("OrderedReady", "Parallel"),
    ("CronJobSpec", "concurrencyPolicy"): ("Allow", "Forbid", "Replace"),
    ("JobSpec", "completionMode"): ("Indexed", "NonIndexed"),
    ("JobSpec", "podReplacementPolicy"): ("Failed", "TerminatingOrFailed"),
    ("ServiceSpec", "type"): ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
    ("ServiceSpec", "sessionAffinity"): ("ClientIP", "None"),
    ("ServiceSpec", "externalTrafficPolicy"): ("Cluster", "Local"),
    ("ServiceSpec", "internalTrafficPolicy"): ("Cluster", "Local"),
    ("ServiceSpec", "ipFamilyPolicy"): ("PreferDualStack", "RequireDualStack", "SingleStack"),
    ("ServicePort", "protocol"): _PROTOCOLS,
    ("NetworkPolicyPort", "protocol"): _PROTOCOLS,
    ("HTTPIngressPath", "pathType"): ("Exact", "ImplementationSpecific", "Prefix"),
    ("EndpointSlice", "addressType"): ("FQDN", "IPv4", "IPv6"),
    ("PersistentVolumeSpec", "persistentVolumeReclaimPolicy"): ("Delete", "Recycle", "Retain"),
    ("PersistentVolumeSpec", "volumeMode"): ("Block", "Filesystem"),
    ("PersistentVolumeClaimSpec", "volumeMode"): ("Block", "Filesystem"),
    ("StorageClass", "reclaimPolicy"): ("Delete", "Retain"),
    ("StorageClass", "volumeBindingMode"): ("Immediate", "WaitForFirstConsumer"),
    ("PriorityClass", "preemptionPolicy"): ("Never", "PreemptLowerPriority"),
    ("PodDisruptionBudgetSpec", "unhealthyPodEvictionPolicy"): ("AlwaysAllow", "IfHealthyBudget"),
    ("CustomResourceDefinitionSpec", "scope"): ("Cluster", "Namespaced"),
    ("CustomResourceConversion", "strategy"): ("None", "Webhook"),
}
for _webhook in ("MutatingWebhook", "ValidatingWebhook"):
    ENUMS[_webhook, "failurePolicy"] = ("Fail", "Ignore")
    ENUMS[_webhook, "matchPolicy"] = ("Equivalent", "Exact")
    ENUMS[_webhook, "sideEffects"] = ("None", "NoneOnDryRun")
    ENUMS[_webhook, "reinvocationPolicy"] = ("IfNeeded", "Never")
for _container in ("EphemeralContainer",):
    for _name in ("imagePullPolicy", "terminationMessagePolicy"):
        ENUMS[_container, _name] = ENUMS["Container", _name]

_INT32_MAX = (1 << 31) - 1
_NOT_NEGATIVE = (0, 1 << 63, "must be greater than or equal to 0")
_PORT = (1, 65535, "must be between 1 and 65535, inclusive")
_POSITIVE = (1, 1 << 63, "must be greater than 0")

RANGES: dict[tuple[str, str], tuple[int, int, str]] = {
    ("DeploymentSpec", "replicas"): _NOT_NEGATIVE,
    ("DeploymentSpec", "minReadySeconds"): _NOT_NEGATIVE,
    ("DeploymentSpec", "revisionHistoryLimit"): _NOT_NEGATIVE,
    ("DeploymentSpec", "progressDeadlineSeconds"): _NOT_NEGATIVE,
    ("ReplicaSetSpec", "replicas"): _NOT_NEGATIVE,
    ("ReplicaSetSpec", "minReadySeconds"): _NOT_NEGATIVE,
    ("ReplicationControllerSpec", "replicas"): _NOT_NEGATIVE,
    ("StatefulSetSpec", "replicas"): _NOT_NEGATIVE,
    ("StatefulSetSpec", "minReadySeconds"): _NOT_NEGATIVE,
    ("StatefulSetSpec", "revisionHistoryLimit"): _NOT_NEGATIVE,
    ("RollingUpdateStatefulSetStrategy", "partition"): _NOT_NEGATIVE,
    ("DaemonSetSpec", "minReadySeconds"): _NOT_NEGATIVE,
    ("DaemonSetSpec", "revisionHistoryLimit"): _NOT_NEGATIVE,
    ("ScaleSpec", "replicas"): _NOT_NEGATIVE,
    ("JobSpec", "parallelism"): _NOT_NEGATIVE,
    ("JobSpec", "completions"): _NOT_NEGATIVE,
    ("JobSpec", "backoffLimit"): _NOT_NEGATIVE,
    ("JobSpec", "backoffLimitPerIndex"): _NOT_NEGATIVE,
    ("JobSpec", "maxFailedIndexes"): _NOT_NEGATIVE,
    ("JobSpec", "activeDeadlineSeconds"): _NOT_NEGATIVE,
    ("JobSpec", "ttlSecondsAfterFinished"): _NOT_NEGATIVE,
    ("CronJobSpec", "startingDeadlineSeconds"): _NOT_NEGATIVE,
    ("CronJobSpec", "successfulJobsHistoryLimit"): _NOT_NEGATIVE,
    ("CronJobSpec", "failedJobsHistoryLimit"): _NOT_NEGATIVE,
    ("PodSpec", "terminationGracePeriodSeconds"): _NOT_NEGATIVE,
    ("PodSpec", "activeDeadlineSeconds"): (1, _INT32_MAX, f"must be between 1 and {_INT32_MAX}, inclusive"),
    ("PodSecurityContext", "runAsUser"): _NOT_NEGATIVE,
    ("PodSecurityContext", "runAsGroup"): _NOT_NEGATIVE,
    ("SecurityContext", "runAsUser"): _NOT_NEGATIVE,
    ("SecurityContext", "runAsGroup"): _NOT_NEGATIVE,
    ("ContainerPort", "containerPort"): _PORT,
    ("ServicePort", "port"): _PORT,
    ("Probe", "initialDelaySeconds"): _NOT_NEGATIVE,
    ("Probe", "timeoutSeconds"): _NOT_NEGATIVE,
    ("Probe", "periodSeconds"): _NOT_NEGATIVE,
    ("Probe", "successThreshold"): _NOT_NEGATIVE,
    ("Probe", "failureThreshold"): _NOT_NEGATIVE,
    ("TopologySpreadConstraint", "maxSkew"): _POSITIVE,
    ("TopologySpreadConstraint", "minDomains"): _POSITIVE,
    ("PreferredSchedulingTerm", "weight"): (1, 100, "must be in the range 1-100"),
    ("WeightedPodAffinityTerm", "weight"): (1, 100, "must be in the range 1-100"),
    ("LeaseSpec", "leaseDurationSeconds"): _POSITIVE,
    ("LeaseSpec", "leaseTransitions"): _NOT_NEGATIVE,
    ("HorizontalPodAutoscalerSpec", "minReplicas"): _POSITIVE,
    ("HorizontalPodAutoscalerSpec", "maxReplicas"): _POSITIVE,
    ("MutatingWebhook", "timeoutSeconds"): (
        1, 30, "the timeout value must be between 1 and 30 seconds",
    ),
    ("ValidatingWebhook", "timeoutSeconds"): (
        1, 30, "the timeout value must be between 1 and 30 seconds",
    ),
}  # fmt: skip

_HELD_BY_VALUE = frozenset({"template", "jobTemplate", "metadata", "podSelector", "involvedObject", "spec"})
"""Structs that Go holds by value: missing means empty, and what they require is missing in turn."""

_MAY_BE_EMPTY = frozenset(
    {
        ("EndpointSlice", "endpoints"),
        ("CSINodeSpec", "drivers"),
        ("PriorityClass", "value"),
        ("ObjectReference", "name"),
        ("Eviction", "metadata"),
        ("Role", "rules"),
        ("ClusterRole", "rules"),
        ("Subject", "name"),
        ("ControllerRevision", "revision"),
        ("ServicePort", "port"),  # has a range, and zero is what it then complains about
        ("NetworkPolicySpec", "podSelector"),
        ("OwnerReference", "apiVersion"),  # local.schema.metadata has its own words for these
        ("OwnerReference", "kind"),
        ("OwnerReference", "name"),
        ("OwnerReference", "uid"),
        ("LabelSelectorRequirement", "operator"),  # the pod checks have their own words
        ("NodeSelectorRequirement", "operator"),
        ("CustomResourceDefinitionSpec", "versions"),
        ("CustomResourceDefinitionNames", "kind"),
        ("CustomResourceDefinitionNames", "plural"),
        ("ScaleSpec", "replicas"),
    }
)
"""Fields that the OpenAPI document calls required and the server takes without."""

_SKIPPED = frozenset({"status", "managedFields"})  # written by components, not by users


@functools.cache
def walk_of(shape: Type) -> Walk | None:
    """The compiled rules of a type; None when nothing below it can have any."""
    match shape.kind:
        case Kind.STRUCT:
            return _struct(shape)
        case Kind.LIST:
            return _list(shape)
        case Kind.MAP:
            element = shape.element
            return None if element is None or element.kind is not Kind.STRUCT else _map(element)
    return None


def _struct(shape: Type) -> Walk:
    steps: list[Walk] | None = None

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        nonlocal steps
        if steps is None:
            steps = _steps(shape)
        for step in steps:
            step(value, path, causes)

    return walk


def _steps(shape: Type) -> list[Walk]:
    owner = struct_name(shape)
    steps: list[Walk] = []
    for field in shape.fields.values():
        key = (owner, field.name)
        if field.name in _SKIPPED:
            continue
        if field.required and key not in _MAY_BE_EMPTY:
            by_value = field.name in _HELD_BY_VALUE and field.type.kind is Kind.STRUCT
            if not by_value:
                steps.append(_required_step(field.name, field.type))
        inner = walk_of(field.type)
        if inner is not None:
            steps.append(_inner_step(field.name, inner, field.required and field.name in _HELD_BY_VALUE))
        if key in ENUMS:
            steps.append(_enum_step(field.name, frozenset(ENUMS[key])))
        if key in RANGES:
            steps.append(_range_step(field.name, *RANGES[key]))
    return steps


def _required_step(name: str, shape: Type) -> Walk:
    is_list = shape.kind is Kind.LIST
    is_text = shape.kind is Kind.STRING

    def step(value: Any, path: str, causes: list[StatusCause]) -> None:
        found = value.get(name)
        if found is None or (is_list and not found) or (is_text and found == ""):
            causes.append(errors.required(f"{path}.{name}" if path else name))

    return step


def _inner_step(name: str, inner: Walk, by_value: bool) -> Walk:
    def step(value: Any, path: str, causes: list[StatusCause]) -> None:
        found = value.get(name)
        if found is None and by_value:
            found = {}
        if found is not None:
            inner(found, f"{path}.{name}" if path else name, causes)

    return step


def _enum_step(name: str, allowed: frozenset[str]) -> Walk:
    def step(value: Any, path: str, causes: list[StatusCause]) -> None:
        found = value.get(name)
        if found and found not in allowed:
            causes.append(errors.not_supported(f"{path}.{name}" if path else name, found, allowed))

    return step


def _range_step(name: str, low: int, high: int, text: str) -> Walk:
    def step(value: Any, path: str, causes: list[StatusCause]) -> None:
        found = value.get(name)
        if found is not None and not low <= found <= high:
            causes.append(errors.invalid(f"{path}.{name}" if path else name, found, text))

    return step


def _list(shape: Type) -> Walk | None:
    element = walk_of(shape.element) if shape.element is not None else None
    if element is None:
        return None
    inner: Walk = element

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        for index, item in enumerate(value):
            inner(item, f"{path}[{index}]", causes)

    return walk


def _map(element: Type) -> Walk | None:
    inner = walk_of(element)
    if inner is None:
        return None
    check: Walk = inner

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        for key, item in value.items():
            check(item, f"{path}[{key}]", causes)

    return walk


__all__ = ["ENUMS", "RANGES", "walk_of"]
