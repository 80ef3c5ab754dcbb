"""Read the shapes of the built-in kinds from the model classes of the `kubernetes_asyncio` package.

The package generates one class per schema of Kubernetes' OpenAPI document, each with two literal tables
(`openapi_types`, `attribute_map`), a required-field check in its setters and a docstring per property. They are read
as text: importing the package would cost every start half a second and 40 MB for some 750 classes and an HTTP stack of
its own, while reading the ~120 files below a Pod takes some 20 ms, once.

Tables by the Go name of the struct add what the classes lack: merge keys, list types, integer sizes. Sources: the
`patchStrategy`, `patchMergeKey`, `listType`, `listMapKey` and `mapType` markers that Kubernetes' API reference
documents for each field, and the integer sizes of its Go types.
"""

import functools
import importlib.util
import re
from pathlib import Path

import msgspec

from koordinator.local.schema import types
from koordinator.local.schema.types import Fields, ListType, SchemaField, SchemaType, WireKind


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
_RAW = SchemaType(WireKind.ANY, atomic=True)
_KEY_DEFAULTS: dict[str, str | int] = {"protocol": "TCP", "containerPort": 0, "port": 0}
"""Values of keys that an element of a list leaves out; of all others it is an empty text."""

FIELDS: dict[tuple[str, str], Fact] = {
    ("ObjectMeta", "ownerReferences"): _by("uid"),
    ("ObjectMeta", "finalizers"): _MERGED_SET,
    ("Scheduling", "nodeSelector"): _ATOMIC_MAP,
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
        ("HPAScalingRules", "tolerance"),
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


_IMPORT = re.compile(r"^from kubernetes_asyncio\.client\.models\.(\w+) import (\w+)", re.MULTILINE)
_PAIR = re.compile(r"'(\w+)': '([^']*)'")
_REQUIRED = re.compile(r"client_side_validation and (\w+) is None")
_DESCRIPTION = re.compile(
    r'"""Gets the (\w+) of this \w+\.  # noqa: E501\n\n        (\S.*?)(?:  # noqa: E501)?\n\n', re.DOTALL
)
_VERSION_PREFIX = re.compile(r"^(?:[A-Z][a-z]+)?V\d+(?:(?:alpha|beta)\d+)?(?=[A-Z])")
_MAP = re.compile(r"^dict\(str, (.+)\)$")
_LIST = re.compile(r"^list\[(.+)\]$")


class MissingModel(LookupError):
    """A kind that the installed `kubernetes_asyncio` does not describe."""


@functools.cache
def _folder() -> Path:
    spec = importlib.util.find_spec("kubernetes_asyncio")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the schemas of built-in kinds", name="kubernetes_asyncio")
    return Path(spec.submodule_search_locations[0]) / "client" / "models"


@functools.cache
def _modules() -> dict[str, str]:
    """Model class → module name."""
    text = (_folder() / "__init__.py").read_text(encoding="utf-8")
    return {cls: module for module, cls in _IMPORT.findall(text)}


def go_name(model: str) -> str:
    """`V1DeploymentSpec` → `DeploymentSpec`, the struct's name in error messages."""
    return _VERSION_PREFIX.sub("", model)


def model_of(group: str, version: str, kind: str) -> str:
    """Return the class that describes a kind. Raises: MissingModel."""
    plain = version.capitalize() + kind
    prefix = (group or "core").split(".")[0].capitalize()
    for name in (plain, prefix + plain):
        if name in _modules():
            return name
    raise MissingModel(f"{group}/{version} {kind}: no model class {plain} in kubernetes_asyncio")


@functools.cache
def struct_of(model: str) -> SchemaType:
    """Return the STRUCT type of a model class; its fields load on first use."""
    name = go_name(model)
    return SchemaType(
        WireKind.STRUCT,
        name=model,
        load=functools.partial(_load, model),
        atomic=name in ATOMIC_STRUCTS,
    )


@functools.cache
def _source(model: str) -> str:
    return (_folder() / f"{_modules()[model]}.py").read_text(encoding="utf-8")


def _table(source: str, name: str) -> dict[str, str]:
    start = source.index(f"    {name} = {{")
    return dict(_PAIR.findall(source[start : source.index("    }\n", start)]))


def _load(model: str) -> Fields:
    source = _source(model)
    kinds = _table(source, "openapi_types")
    wire_names = _table(source, "attribute_map")
    required = set(_REQUIRED.findall(source))
    owner = go_name(model)
    fields: Fields = {}
    for attr, text in kinds.items():
        name = wire_names[attr]
        fact = FIELDS.get((owner, name), PLAIN)
        text = TYPES.get((owner, name), text)
        fields[name] = SchemaField(
            name=name,
            type=_type(owner, name, text, fact),
            required=attr in required,
            strategies=fact.strategies,
            merge_key=fact.merge_key,
        )
    _source.cache_clear()
    return fields


def _type(owner: str, name: str, text: str, fact: Fact) -> SchemaType:
    """Return the type that `openapi_types` says in words, made exact by what `facts` knows of the field."""
    if match := _LIST.match(text):
        element = _type(owner, name, match[1], PLAIN)
        return SchemaType(
            WireKind.LIST,
            element=element,
            list_type=fact.list_type,
            list_keys=fact.list_keys,
            key_defaults={key: _KEY_DEFAULTS.get(key, "") for key in fact.list_keys},
        )
    if match := _MAP.match(text):
        is_amounts = name in RESOURCE_LISTS and match[1] == "str"
        element = types.QUANTITY if is_amounts else _type(owner, name, match[1], PLAIN)
        if (owner, name) in BYTE_MAPS:
            element = types.BYTES
        return SchemaType(WireKind.MAP, element=element, atomic=fact.atomic)
    if text == "int":
        return types.INT64 if name in INT64_FIELDS else types.INT32
    if text == "datetime":
        return types.MICRO_TIME if name in MICRO_TIMES else types.TIME
    if text == "object":
        if (owner, name) == ("ControllerRevision", "data"):
            return _RAW
        return types.INT_OR_STRING if name in INT_OR_STRINGS else types.ANY
    if text == "str":
        if (owner, name) in QUANTITIES:
            return types.QUANTITY
        return types.BYTES if (owner, name) in BYTE_FIELDS else types.STRING
    if text in {"bool", "float"}:
        return types.BOOL if text == "bool" else types.FLOAT
    return struct_of(text)


def descriptions(model: str) -> dict[str, str]:
    """Return what each field means, by JSON name, for `kubectl explain`."""
    source = _source(model)
    _source.cache_clear()
    wire_names = _table(source, "attribute_map")
    return {
        wire_names[attr]: text.strip().replace('\\"', '"')
        for attr, text in _DESCRIPTION.findall(source)
        if attr in wire_names and not text.startswith(":return:")
    }
