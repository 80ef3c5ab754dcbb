"""Rules of single fields, by Go struct and name: the words that they know, ranges of numbers, what may be left out."""

from typing import Any

_PROTOCOLS = ("SCTP", "TCP", "UDP")

ENUMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("PodSpec", "restartPolicy"): ("Always", "Never", "OnFailure"),
    ("PodSpec", "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("PodSpec", "preemptionPolicy"): ("Never", "PreemptLowerPriority"),
    ("Container", "imagePullPolicy"): ("Always", "IfNotPresent", "Never"),
    ("Container", "terminationMessagePolicy"): ("FallbackToLogsOnError", "File"),
    ("ContainerPort", "protocol"): _PROTOCOLS,
    ("CSIDriverSpec", "fsGroupPolicy"): ("File", "None", "ReadWriteOnceWithFSType"),
    ("SeccompProfile", "type"): ("Localhost", "RuntimeDefault", "Unconfined"),
    ("HTTPGetAction", "scheme"): ("HTTP", "HTTPS"),
    ("Toleration", "operator"): ("Equal", "Exists", "Gt", "Lt"),
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
    ("EndpointPort", "protocol"): _PROTOCOLS,
    ("Container", "restartPolicy"): ("Always", "Never", "OnFailure"),
    ("HTTPIngressPath", "pathType"): ("Exact", "ImplementationSpecific", "Prefix"),
    ("EndpointSlice", "addressType"): ("FQDN", "IPv4", "IPv6"),
    ("PersistentVolumeSpec", "persistentVolumeReclaimPolicy"): ("Delete", "Recycle", "Retain"),
    ("PersistentVolumeSpec", "volumeMode"): ("Block", "Filesystem"),
    ("PersistentVolumeClaimSpec", "volumeMode"): ("Block", "Filesystem"),
    ("StorageClass", "reclaimPolicy"): ("Delete", "Retain"),
    ("StorageClass", "volumeBindingMode"): ("Immediate", "WaitForFirstConsumer"),
    ("PriorityClass", "preemptionPolicy"): ("Never", "PreemptLowerPriority"),
    ("PodDisruptionBudgetSpec", "unhealthyPodEvictionPolicy"): ("AlwaysAllow", "IfHealthyBudget"),
    ("Validation", "reason"): ("Forbidden", "Invalid", "RequestEntityTooLarge"),
    ("CustomResourceDefinitionSpec", "scope"): ("Cluster", "Namespaced"),
    ("CustomResourceConversion", "strategy"): ("None", "Webhook"),
}
for _webhook in ("MutatingWebhook", "ValidatingWebhook"):
    ENUMS[_webhook, "failurePolicy"] = ("Fail", "Ignore")
    ENUMS[_webhook, "matchPolicy"] = ("Equivalent", "Exact")
    ENUMS[_webhook, "sideEffects"] = ("None", "NoneOnDryRun")
    ENUMS[_webhook, "reinvocationPolicy"] = ("IfNeeded", "Never")
for _rule in ("RuleWithOperations", "NamedRuleWithOperations"):
    ENUMS[_rule, "scope"] = ("*", "Cluster", "Namespaced")
ENUMS["ValidatingAdmissionPolicySpec", "failurePolicy"] = ("Fail", "Ignore")
ENUMS["MatchResources", "matchPolicy"] = ("Equivalent", "Exact")
ENUMS["ParamRef", "parameterNotFoundAction"] = ("Allow", "Deny")
for _name in ("imagePullPolicy", "terminationMessagePolicy"):
    ENUMS["EphemeralContainer", _name] = ENUMS["Container", _name]

_INT32_MAX = (1 << 31) - 1
_NOT_NEGATIVE = (0, 1 << 63, "must be greater than or equal to 0")
_PORT = (1, 65535, "must be between 1 and 65535, inclusive")
_PORT_OR_NONE = (0, *_PORT[1:])
_POSITIVE = (1, 1 << 63, "must be greater than 0")

_NOT_NEGATIVE_FIELDS = {
    "DeploymentSpec": "replicas minReadySeconds revisionHistoryLimit progressDeadlineSeconds",
    "ReplicaSetSpec": "replicas minReadySeconds",
    "ReplicationControllerSpec": "replicas",
    "StatefulSetSpec": "replicas minReadySeconds revisionHistoryLimit",
    "RollingUpdateStatefulSetStrategy": "partition",
    "DaemonSetSpec": "minReadySeconds revisionHistoryLimit",
    "ScaleSpec": "replicas",
    "JobSpec": "parallelism completions backoffLimit backoffLimitPerIndex maxFailedIndexes activeDeadlineSeconds "
    "ttlSecondsAfterFinished",
    "SuccessPolicyRule": "succeededCount",
    "CronJobSpec": "startingDeadlineSeconds successfulJobsHistoryLimit failedJobsHistoryLimit",
    "Probe": "initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold",
    "LeaseSpec": "leaseTransitions",
}
"""Go struct → its fields that are never below 0."""
_IDENTITY = (0, _INT32_MAX, f"must be between 0 and {_INT32_MAX}, inclusive")
_TIMEOUT = (1, 30, "the timeout value must be between 1 and 30 seconds")
_WEIGHT = (1, 100, "must be in the range 1-100")
_FILE_MODE = (0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")

RANGES: dict[tuple[str, str], tuple[int, int, str]] = {
    **{
        (owner, name): _NOT_NEGATIVE
        for owner, fields in _NOT_NEGATIVE_FIELDS.items()
        for name in fields.split()
    },
    **{
        (owner, name): _IDENTITY
        for owner in ("PodSecurityContext", "SecurityContext")
        for name in ("runAsUser", "runAsGroup")
    },
    ("PodSecurityContext", "fsGroup"): _IDENTITY,
    ("Probe", "terminationGracePeriodSeconds"): _POSITIVE,
    ("PodSpec", "activeDeadlineSeconds"): (1, _INT32_MAX, f"must be between 1 and {_INT32_MAX}, inclusive"),
    ("ContainerPort", "containerPort"): _PORT,
    ("ContainerPort", "hostPort"): _PORT_OR_NONE,
    ("ServicePort", "port"): _PORT,
    ("TopologySpreadConstraint", "maxSkew"): (1, 1 << 31, "must be greater than zero"),
    ("TopologySpreadConstraint", "minDomains"): _POSITIVE,
    ("ResourcePool", "resourceSliceCount"): (1, 1 << 63, "must be greater than zero"),
    **{
        (f"{source}VolumeSource", "defaultMode"): _FILE_MODE
        for source in ("ConfigMap", "DownwardAPI", "Projected", "Secret")
    },
    ("KeyToPath", "mode"): _FILE_MODE,
    ("DownwardAPIVolumeFile", "mode"): _FILE_MODE,
    ("PreferredSchedulingTerm", "weight"): _WEIGHT,
    ("WeightedPodAffinityTerm", "weight"): _WEIGHT,
    ("LeaseSpec", "leaseDurationSeconds"): _POSITIVE,
    ("MutatingWebhook", "timeoutSeconds"): _TIMEOUT,
    ("ValidatingWebhook", "timeoutSeconds"): _TIMEOUT,
}

HELD_BY_VALUE = frozenset(
    {
        *("template", "jobTemplate", "metadata", "podSelector", "involvedObject", "spec", "backend"),
        *("preference", "podAffinityTerm", "roleRef", "scaleTargetRef", "pool", "devices", "source"),
    }
)
"""Structs that Go holds by value: missing means empty, and what they require is missing in turn."""
POINTERS = frozenset({("ReplicationControllerSpec", "template")})
"""Fields of these names that are held otherwise."""

ZEROS: dict[tuple[str, str], Any] = {
    ("PreferredSchedulingTerm", "weight"): 0,
    ("WeightedPodAffinityTerm", "weight"): 0,
    ("TopologySpreadConstraint", "maxSkew"): 0,
    ("TopologySpreadConstraint", "whenUnsatisfiable"): "",
    ("HTTPGetAction", "port"): 0,
    ("TCPSocketAction", "port"): 0,
    ("PodReadinessGate", "conditionType"): "",
    ("PodAffinityTerm", "topologyKey"): "",
    ("HostAlias", "ip"): "",
    ("RuntimeClass", "handler"): "",
    ("LimitRangeItem", "type"): "",
    ("ResourcePool", "resourceSliceCount"): 0,
    ("VolumeAttachmentSpec", "nodeName"): "",
}
"""Required fields of which a missing one is refused as what Go has in its place is, not as missing."""

MAY_BE_EMPTY = frozenset(
    {
        *ZEROS,
        ("DaemonSetSpec", "selector"),  # what is not selected is refused then
        ("RoleRef", "kind"),
        ("Subject", "kind"),
        ("LimitRangeSpec", "limits"),
        ("PodFailurePolicy", "rules"),
        ("PodFailurePolicyRule", "action"),
        *(("PodFailurePolicyOnExitCodesRequirement", name) for name in ("operator", "values")),
        *(("PodFailurePolicyOnPodConditionsPattern", name) for name in ("status", "type")),
        ("SuccessPolicy", "rules"),
        ("NodeSelector", "nodeSelectorTerms"),  # the checks have their own words
        ("ContainerResizePolicy", "resourceName"),
        ("ContainerResizePolicy", "restartPolicy"),
        *(("HPAScalingPolicy", name) for name in ("type", "value", "periodSeconds")),
        ("Endpoint", "addresses"),
        ("Taint", "key"),
        ("Taint", "effect"),
        ("VolumeAttachmentSpec", "source"),
        ("IPBlock", "cidr"),
        ("CrossVersionObjectReference", "kind"),
        ("CrossVersionObjectReference", "name"),
        ("MetricIdentifier", "name"),
        ("ResourcePool", "generation"),
        ("IngressServiceBackend", "name"),
        ("RoleRef", "name"),
        ("TopologySpreadConstraint", "topologyKey"),
        ("Sysctl", "value"),
        ("HTTPHeader", "name"),
        ("OpaqueDeviceConfiguration", "parameters"),
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
        # local.schema.names has its own words for these
        *(("OwnerReference", name) for name in ("apiVersion", "kind", "name", "uid")),
        ("LabelSelectorRequirement", "operator"),  # the pod checks have their own words
        ("NodeSelectorRequirement", "operator"),
        ("CustomResourceDefinitionSpec", "versions"),
        ("CustomResourceColumnDefinition", "jsonPath"),
        ("CustomResourceColumnDefinition", "name"),
        ("CustomResourceColumnDefinition", "type"),
        ("CustomResourceDefinitionNames", "kind"),
        ("CustomResourceDefinitionNames", "plural"),
        ("CustomResourceSubresourceScale", "specReplicasPath"),
        ("CustomResourceSubresourceScale", "statusReplicasPath"),
        ("SelectableField", "jsonPath"),
        ("MatchCondition", "expression"),
        ("MatchCondition", "name"),
        ("ValidatingAdmissionPolicyBindingSpec", "validationActions"),
        ("ValidationRule", "rule"),
        ("ScaleSpec", "replicas"),
        ("PolicyRule", "verbs"),  # their checks have their own words
        ("HTTPIngressPath", "pathType"),
        ("HorizontalPodAutoscalerSpec", "maxReplicas"),
        ("MetricTarget", "type"),
        ("MetricSpec", "type"),
    }
)
"""Fields that the OpenAPI document calls required and the server takes without."""
