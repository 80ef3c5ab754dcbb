"""Add what the model classes do not say about built-in kinds, by the Go name of the struct.

Sources: the `patchStrategy`, `patchMergeKey`, `listType`, `listMapKey` and `mapType` markers that Kubernetes'
API reference documents for each field, and the integer sizes of its Go types.
"""

import msgspec

from koordinator.local.schema.types import ListType


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """The rule for merging a field: by strategic merge patches and by server-side apply."""

    strategies: tuple[str, ...] = ()
    merge_key: str = ""
    list_type: ListType = ListType.ATOMIC
    list_keys: tuple[str, ...] = ()
    atomic: bool = False


PLAIN = Fact()


def _by(key: str, *more_keys: str, retain: bool = False) -> Fact:
    """Return a list of objects known by their keys; strategic merge goes by the first one alone."""
    strategies = ("merge", "retainKeys") if retain else ("merge",)
    return Fact(strategies=strategies, merge_key=key, list_type=ListType.MAP, list_keys=(key, *more_keys))


def _apply_by(*keys: str) -> Fact:
    """Return a list map for server-side apply that strategic merge replaces as a whole."""
    return Fact(list_type=ListType.MAP, list_keys=keys)


_SET = Fact(list_type=ListType.SET)
_MERGED_SET = Fact(strategies=("merge",), list_type=ListType.SET)
_ATOMIC_MAP = Fact(atomic=True)
_CONDITIONS = _by("type")

FIELDS: dict[tuple[str, str], Fact] = {
    ("ObjectMeta", "ownerReferences"): _by("uid"),
    ("ObjectMeta", "finalizers"): _MERGED_SET,
    # pods
    ("PodSpec", "volumes"): _by("name", retain=True),
    ("PodSpec", "containers"): _by("name"),
    ("PodSpec", "initContainers"): _by("name"),
    ("PodSpec", "ephemeralContainers"): _by("name"),
    ("PodSpec", "imagePullSecrets"): _by("name"),
    ("PodSpec", "hostAliases"): _by("ip"),
    ("PodSpec", "topologySpreadConstraints"): _by("topologyKey", "whenUnsatisfiable"),
    ("PodSpec", "resourceClaims"): _by("name", retain=True),
    ("PodSpec", "schedulingGates"): _by("name"),
    ("PodSpec", "nodeSelector"): _ATOMIC_MAP,
    ("PodStatus", "conditions"): _CONDITIONS,
    ("PodStatus", "podIPs"): _by("ip"),
    ("PodStatus", "hostIPs"): Fact(strategies=("merge",), merge_key="ip"),
    ("PodStatus", "resourceClaimStatuses"): _by("name", retain=True),
    ("ContainerStatus", "volumeMounts"): _by("mountPath"),
    ("ContainerStatus", "allocatedResourcesStatus"): _by("name"),
    ("ResourceRequirements", "claims"): _apply_by("name"),
    # services and endpoints
    ("ServiceSpec", "ports"): _by("port", "protocol"),
    ("ServiceSpec", "selector"): _ATOMIC_MAP,
    ("ServiceStatus", "conditions"): _CONDITIONS,
    ("ServiceAccount", "secrets"): _by("name"),
    ("ReplicationControllerSpec", "selector"): _ATOMIC_MAP,
    ("Endpoint", "addresses"): _SET,
    # nodes
    ("NodeSpec", "podCIDRs"): _MERGED_SET,
    ("NodeStatus", "conditions"): _CONDITIONS,
    ("NodeStatus", "addresses"): _by("type"),
    ("NamespaceStatus", "conditions"): _CONDITIONS,
    ("CSINodeSpec", "drivers"): _by("name"),
    ("CSINodeDriver", "topologyKeys"): PLAIN,
    # workloads
    ("DeploymentSpec", "strategy"): Fact(strategies=("retainKeys",)),
    ("DeploymentStatus", "conditions"): _CONDITIONS,
    ("ReplicaSetStatus", "conditions"): _CONDITIONS,
    ("ReplicationControllerStatus", "conditions"): _CONDITIONS,
    ("StatefulSetStatus", "conditions"): _CONDITIONS,
    ("DaemonSetStatus", "conditions"): _CONDITIONS,
    ("JobStatus", "conditions"): Fact(strategies=("merge",), merge_key="type"),
    ("UncountedTerminatedPods", "failed"): _SET,
    ("UncountedTerminatedPods", "succeeded"): _SET,
    ("PersistentVolumeClaimStatus", "conditions"): _CONDITIONS,
    # policy, autoscaling, admission
    ("PodDisruptionBudgetSpec", "selector"): Fact(strategies=("replace",)),
    ("PodDisruptionBudgetStatus", "conditions"): _CONDITIONS,
    ("HorizontalPodAutoscalerStatus", "conditions"): _CONDITIONS,
    ("MutatingWebhookConfiguration", "webhooks"): _by("name"),
    ("ValidatingWebhookConfiguration", "webhooks"): _by("name"),
    ("MutatingWebhook", "matchConditions"): _by("name"),
    ("ValidatingWebhook", "matchConditions"): _by("name"),
    ("ValidatingAdmissionPolicySpec", "matchConditions"): _by("name"),
    ("ValidatingAdmissionPolicySpec", "variables"): _by("name"),
    ("ValidatingAdmissionPolicyStatus", "conditions"): _apply_by("type"),
    ("ValidatingAdmissionPolicyBindingSpec", "validationActions"): _SET,
    ("CustomResourceDefinitionStatus", "conditions"): _apply_by("type"),
    ("APIServiceStatus", "conditions"): _by("type"),
    # devices
    ("ResourceClaimStatus", "reservedFor"): _by("uid"),
    ("ResourceClaimStatus", "devices"): _apply_by("driver", "device", "pool"),
    ("AllocatedDeviceStatus", "conditions"): _apply_by("type"),
    ("JSONSchemaProps", "x-kubernetes-validations"): _apply_by("rule"),
}

for _container in ("Container", "EphemeralContainer"):
    FIELDS[_container, "ports"] = _by("containerPort", "protocol")
    FIELDS[_container, "env"] = _by("name")
    FIELDS[_container, "volumeMounts"] = _by("mountPath")
    FIELDS[_container, "volumeDevices"] = _by("devicePath")

TYPES: dict[tuple[str, str], str] = {("JSONSchemaProps", "items"): "V1JSONSchemaProps"}
"""Fields whose model says less than Kubernetes' own type (Go struct, JSON name → openapi type)."""

_ATOMIC_STRUCTS_NAMES = """
    ObjectReference LocalObjectReference TypedLocalObjectReference SecretReference OwnerReference
    LabelSelector NodeSelector NodeSelectorTerm SecretKeySelector ConfigMapKeySelector
    ObjectFieldSelector ResourceFieldSelector ScopeSelector TopologySelectorTerm EndpointAddress
    EndpointPort FileKeySelector IngressServiceBackend RoleRef Subject ServiceBackendPort ForNode
"""
ATOMIC_STRUCTS = frozenset(_ATOMIC_STRUCTS_NAMES.split())

_INT64_FIELDS_NAMES = """
    observedGeneration generation deletionGracePeriodSeconds gracePeriodSeconds activeDeadlineSeconds
    terminationGracePeriodSeconds tolerationSeconds runAsUser runAsGroup fsGroup supplementalGroups
    startingDeadlineSeconds expirationSeconds remainingItemCount sizeBytes revision uid gid maxLength
    minLength maxItems minItems maxProperties minProperties resourceSliceCount maxExpirationSeconds
    nodeAllocatableUpdatePeriodSeconds int ints
"""
INT64_FIELDS = frozenset(_INT64_FIELDS_NAMES.split())
MICRO_TIMES = frozenset({"acquireTime", "renewTime", "eventTime", "lastObservedTime"})

INT_OR_STRINGS = frozenset({"maxSurge", "maxUnavailable", "minAvailable", "port", "targetPort"})

_RESOURCE_LISTS_NAMES = """
    requests limits capacity allocatable hard used overhead default defaultRequest max min
    maxLimitRequestRatio allocatedResources podFixed consumedCapacity usage
"""
RESOURCE_LISTS = frozenset(_RESOURCE_LISTS_NAMES.split())

QUANTITIES = frozenset(
    {
        ("EmptyDirVolumeSource", "sizeLimit"),
        ("ResourceFieldSelector", "divisor"),
        ("CSIStorageCapacity", "capacity"),
        ("CSIStorageCapacity", "maximumVolumeSize"),
        ("DeviceCapacity", "value"),
        ("Counter", "value"),
        ("MetricTarget", "averageValue"),
        ("MetricTarget", "value"),
        ("MetricValueStatus", "averageValue"),
        ("MetricValueStatus", "value"),
    }
)

BYTE_MAPS = frozenset({("ConfigMap", "binaryData"), ("Secret", "data")})
BYTE_FIELDS = frozenset(
    {
        ("WebhookClientConfig", "caBundle"),
        ("APIServiceSpec", "caBundle"),
        ("CertificateSigningRequestSpec", "request"),
        ("CertificateSigningRequestStatus", "certificate"),
    }
)
