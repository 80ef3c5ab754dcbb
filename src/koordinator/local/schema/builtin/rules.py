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
from koordinator.local.schema.types import SchemaType, WireKind

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
ENUMS["ValidatingAdmissionPolicySpec", "failurePolicy"] = ("Fail", "Ignore")
ENUMS["MatchResources", "matchPolicy"] = ("Equivalent", "Exact")
ENUMS["ParamRef", "parameterNotFoundAction"] = ("Allow", "Deny")
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
        ("Validation", "expression"),
        ("Variable", "expression"),
        ("AuditAnnotation", "key"),
        ("AuditAnnotation", "valueExpression"),
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
        ("PolicyRule", "verbs"),  # their checks have their own words
        ("HTTPIngressPath", "pathType"),
        ("HorizontalPodAutoscalerSpec", "maxReplicas"),
        ("MetricTarget", "type"),
        ("MetricSpec", "type"),
    }
)
"""Fields that the OpenAPI document calls required and the server takes without."""

_SKIPPED = frozenset({"status", "managedFields"})  # written by components, not by users


@functools.cache
def walk_of(shape: SchemaType) -> Walk | None:
    """Return the compiled rules of a type; None when nothing below it can have any."""
    match shape.kind:
        case WireKind.STRUCT:
            return _struct(shape)
        case WireKind.LIST:
            return _list(shape)
        case WireKind.MAP:
            element = shape.element
            return None if element is None or element.kind is not WireKind.STRUCT else _map(element)
    return None


def _struct(shape: SchemaType) -> Walk:
    rules: _StructRules | None = None

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        nonlocal rules
        if rules is None:  # compiled on first use: types may contain themselves
            rules = _StructRules(shape)
        prefix = f"{path}." if path else ""
        for name in rules.required:
            if value.get(name) is None or value[name] in _EMPTY:
                causes.append(errors.required(f"{prefix}{name}"))
        for name, check in rules.held_by_value:
            if value.get(name) is None:
                check({}, f"{prefix}{name}", causes)
        checked = rules.checked
        for key, item in value.items():  # few fields of a struct are set, so go by those
            checks = checked.get(key)
            if checks is not None and item is not None:
                for check in checks:
                    check(item, f"{prefix}{key}", causes)

    return walk


_EMPTY: tuple[Any, ...] = ("", [])
"""What counts as missing where a field is required; an empty object does not."""


class _StructRules:
    """The rules of one struct: which fields it needs, and what checks each field."""

    def __init__(self, shape: SchemaType) -> None:
        owner = struct_name(shape)
        self.required: list[str] = []
        self.held_by_value: list[tuple[str, Walk]] = []
        self.checked: dict[str, list[Walk]] = {}
        for field in shape.fields.values():
            key = (owner, field.name)
            if field.name in _SKIPPED:
                continue
            inner = walk_of(field.type)
            by_value = field.name in _HELD_BY_VALUE and field.type.kind is WireKind.STRUCT
            if field.required and by_value and inner is not None:
                self.held_by_value.append((field.name, inner))
            elif field.required and key not in _MAY_BE_EMPTY:
                self.required.append(field.name)
            checks = [inner] if inner is not None else []
            if key in ENUMS:
                checks.append(_enum(frozenset(ENUMS[key])))
            if key in RANGES:
                checks.append(_range(*RANGES[key]))
            if checks:
                self.checked[field.name] = checks


def _enum(allowed: frozenset[str]) -> Walk:
    def check(value: Any, path: str, causes: list[StatusCause]) -> None:
        if value and value not in allowed:
            causes.append(errors.not_supported(path, value, allowed))

    return check


def _range(low: int, high: int, text: str) -> Walk:
    def check(value: Any, path: str, causes: list[StatusCause]) -> None:
        if not low <= value <= high:
            causes.append(errors.invalid(path, value, text))

    return check


def _list(shape: SchemaType) -> Walk | None:
    element = walk_of(shape.element) if shape.element is not None else None
    if element is None:
        return None
    inner: Walk = element

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        for index, item in enumerate(value):
            inner(item, f"{path}[{index}]", causes)

    return walk


def _map(element: SchemaType) -> Walk | None:
    inner = walk_of(element)
    if inner is None:
        return None
    check: Walk = inner

    def walk(value: Any, path: str, causes: list[StatusCause]) -> None:
        for key, item in value.items():
            check(item, f"{path}[{key}]", causes)

    return walk


__all__ = ["ENUMS", "RANGES", "walk_of"]
