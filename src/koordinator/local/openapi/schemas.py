"""Schema definitions of an OpenAPI document, from the types of the catalog, with one sentence for each kind; fields
have their descriptions from the model classes."""

import functools
from typing import Any

from koordinator.api.meta import Resource
from koordinator.local.schema.builtin import models
from koordinator.local.schema.decode import struct_name
from koordinator.local.schema.types import ListType, SchemaField, SchemaType, WireKind

Json = dict[str, Any]

META_PREFIX = "io.k8s.apimachinery.pkg.apis.meta.v1"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_TIME, _MICRO_TIME = f"{META_PREFIX}.Time", f"{META_PREFIX}.MicroTime"

_META_NAMES = """ObjectMeta ListMeta OwnerReference ManagedFieldsEntry LabelSelector LabelSelectorRequirement
    Condition DeleteOptions Preconditions Status StatusDetails StatusCause"""
_META_MODELS = frozenset(f"V1{name}" for name in _META_NAMES.split())
_SHARED_CORE_ROOTS = (
    "V1PodTemplateSpec",
    "V1PersistentVolumeClaim",
    "V1PersistentVolume",
    "V1ObjectReference",
)

_FIXED: dict[str, Json] = {
    _QUANTITY: {
        "description": "A number with an optional suffix: 500m, 2, 16Gi.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
    _INT_OR_STRING: {
        "description": "A number, or text such as a percentage or the name of a port.",
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    _TIME: {"description": "A time in RFC 3339, in seconds.", "format": "date-time", "type": "string"},
    _MICRO_TIME: {
        "description": "A time in RFC 3339, in microseconds.",
        "format": "date-time",
        "type": "string",
    },
}

_SCALARS: dict[WireKind, Json] = {
    WireKind.STRING: {"type": "string"},
    WireKind.BOOL: {"type": "boolean"},
    WireKind.INT32: {"type": "integer", "format": "int32"},
    WireKind.INT64: {"type": "integer", "format": "int64"},
    WireKind.FLOAT: {"type": "number", "format": "double"},
    WireKind.BYTES: {"type": "string", "format": "byte"},
}
_NAMED = {
    WireKind.QUANTITY: _QUANTITY,
    WireKind.INT_OR_STRING: _INT_OR_STRING,
    WireKind.TIME: _TIME,
    WireKind.MICRO_TIME: _MICRO_TIME,
}
_V2_UNKNOWN = frozenset({"oneOf", "anyOf", "allOf", "not", "nullable"})


@functools.cache
def _core_models() -> frozenset[str]:
    """Models of the core group that other groups use too."""
    found: set[str] = set()

    def walk(shape: SchemaType) -> None:
        if shape.kind is WireKind.STRUCT and shape.name not in found:
            found.add(shape.name)
            for field in shape.fields.values():
                walk(field.type)
        elif shape.element is not None:
            walk(shape.element)

    for root in _SHARED_CORE_ROOTS:
        walk(models.struct_of(root))
    return frozenset(found)


def group_prefix(group: str) -> str:
    """Return the package of a group's definitions: `io.k8s.api.apps`, `com.example` for `example.com`."""
    if not group:
        return "io.k8s.api.core"
    if group == "apiextensions.k8s.io":
        return "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions"
    if group == "apiregistration.k8s.io":
        return "io.k8s.kube-aggregator.pkg.apis.apiregistration"
    if "." not in group or group.endswith(("authorization.k8s.io", "authentication.k8s.io", ".k8s.io")):
        return f"io.k8s.api.{group.split('.')[0]}"
    return ".".join(reversed(group.split(".")))


class SchemaDefinitions:
    """Collects the definitions of one document (`v3` or Swagger `v2`)."""

    def __init__(self, *, v3: bool) -> None:
        self.schemas: dict[str, Json] = {}
        self._v3 = v3
        self._prefix = "#/components/schemas/" if v3 else "#/definitions/"

    def ref(self, name: str) -> Json:
        """Return a reference to a definition."""
        return {"$ref": f"{self._prefix}{name}"}

    def add_kind(self, resource: Resource, shape: SchemaType) -> str:
        """Return the definition of a built-in kind, with its group, version and kind; returns its name."""
        package = f"{group_prefix(resource.group)}.{resource.version}"
        name = f"{package}.{resource.kind}"
        self._add_struct(name, shape, package)
        text = of_struct(resource.kind)
        said = {"description": text} if text else {}
        self.schemas[name] |= said | {"x-kubernetes-group-version-kind": [gvk(resource)]}
        return name

    def add_custom(self, resource: Resource, schema: Json) -> str:
        """Return the definition of a custom resource: its own schema and the fields that all objects have."""
        name = f"{group_prefix(resource.group)}.{resource.version}.{resource.kind}"
        body = schema if self._v3 else _without_v3(schema)
        properties = {
            **(body.get("properties") or {}),
            "apiVersion": {"type": "string", "description": "Group and version of this object."},
            "kind": {"type": "string", "description": "Kind of this object."},
            "metadata": self._referring(self.add_model("V1ObjectMeta"), "Standard object metadata."),
        }
        self.schemas[name] = {
            **body,
            "properties": properties,
            "x-kubernetes-group-version-kind": [gvk(resource)],
        }
        return name

    def add_list(self, resource: Resource, item: str) -> str:
        """Return the definition of a kind's list."""
        name = f"{item}List"
        list_gvk = gvk(resource) | {"kind": f"{resource.kind}List"}
        self.schemas[name] = {
            "description": f"A list of {resource.kind} objects.",
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string", "description": "Group and version of this list."},
                "kind": {"type": "string", "description": "Kind of this list."},
                "metadata": self._referring(self.add_model("V1ListMeta"), "Standard list metadata."),
                "items": {"type": "array", "items": self.ref(item), "description": "The objects."},
            },
            "x-kubernetes-group-version-kind": [list_gvk],
        }
        return name

    def add_model(self, model: str, package: str = "io.k8s.api.core.v1") -> str:
        """Return the definition of a model class; returns its name."""
        return self._struct(models.struct_of(model), package)

    def _struct(self, shape: SchemaType, package: str) -> str:
        bare = struct_name(shape)
        if shape.name in _META_MODELS:
            name = f"{META_PREFIX}.{bare}"
        elif shape.name in _core_models():
            name = f"io.k8s.api.core.v1.{bare}"
        else:
            name = f"{package}.{bare}"
        self._add_struct(name, shape, package)
        return name

    def _add_struct(self, name: str, shape: SchemaType, package: str) -> None:
        if name in self.schemas:
            return
        body: Json = {"type": "object"}
        self.schemas[name] = body  # before its fields: a type may contain itself
        said = models.descriptions(shape.name)
        properties = {
            key: self._field(field, said.get(key, ""), package) for key, field in shape.fields.items()
        }
        if properties:
            body["properties"] = properties
        required = sorted(key for key, field in shape.fields.items() if field.required)
        if required:
            body["required"] = required
        if shape.atomic:
            body["x-kubernetes-map-type"] = "atomic"

    def _field(self, field: SchemaField, text: str, package: str) -> Json:
        body = self._type(field.type, package)
        if (
            not text and field.type.kind is WireKind.STRUCT
        ):  # models say nothing about fields of a struct type
            text = of_struct(struct_name(field.type))
        if "$ref" in body:
            body = self._referring(body["$ref"].removeprefix(self._prefix), text)
        elif text:
            body = {"description": text, **body}
        if field.strategies:
            body["x-kubernetes-patch-strategy"] = ",".join(field.strategies)
        if field.merge_key:
            body["x-kubernetes-patch-merge-key"] = field.merge_key
        return body

    def _referring(self, name: str, text: str) -> Json:
        """Return a field of a defined type: OpenAPI v3 allows nothing beside `$ref`, hence `allOf`."""
        body = {"allOf": [self.ref(name)]} if self._v3 else self.ref(name)
        return {"description": text, **body} if text else body

    def _type(self, shape: SchemaType, package: str) -> Json:
        if shape.kind in _SCALARS:
            return dict(_SCALARS[shape.kind])
        if shape.kind in _NAMED:
            name = _NAMED[shape.kind]
            self.schemas.setdefault(name, _FIXED[name] if self._v3 else _fixed_v2(name))
            return self.ref(name)
        match shape.kind:
            case WireKind.STRUCT:
                return self.ref(self._struct(shape, package))
            case WireKind.LIST:
                assert shape.element is not None
                return {"type": "array", "items": self._type(shape.element, package)} | _list_markers(shape)
            case WireKind.MAP:
                assert shape.element is not None
                body: Json = {"type": "object", "additionalProperties": self._type(shape.element, package)}
                if shape.atomic:
                    body["x-kubernetes-map-type"] = "atomic"
                return body
        return {"type": "object"}


def _list_markers(shape: SchemaType) -> Json:
    markers: Json = {"x-kubernetes-list-type": shape.list_type.value}
    if shape.list_type is ListType.MAP:
        markers["x-kubernetes-list-map-keys"] = list(shape.list_keys)
    return markers


def _fixed_v2(name: str) -> Json:
    body = {key: value for key, value in _FIXED[name].items() if key not in _V2_UNKNOWN}
    return {"type": "string", **body}


def _without_v3(schema: Any) -> Any:
    """Return a schema in Swagger 2.0: without what that lacks."""
    if not isinstance(schema, dict):
        return schema
    body: Json = {}
    for key, value in schema.items():
        if key in _V2_UNKNOWN:
            continue
        if key == "properties" and isinstance(value, dict):
            body[key] = {name: _without_v3(inner) for name, inner in value.items()}
        elif key in {"items", "additionalProperties"}:
            body[key] = _without_v3(value)
        else:
            body[key] = value
    return body


def gvk(resource: Resource) -> dict[str, str]:
    """Group, version and kind, as documents name them."""
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


KINDS: dict[str, str] = {
    "Pod": "A group of containers that run together on one node.",
    "PodTemplate": "A template for pods, kept as an object of its own.",
    "Node": "A machine of the cluster that runs pods.",
    "Namespace": "A scope for names; most objects live in one.",
    "Service": "A stable name and address for the pods that its selector finds.",
    "Endpoints": "The addresses behind a Service (superseded by EndpointSlice).",
    "EndpointSlice": "Some of the addresses behind a Service.",
    "ConfigMap": "Configuration as keys and values, for pods to consume.",
    "Secret": "Confidential data as keys and base64 values, for pods to consume.",
    "ServiceAccount": "An identity for the processes that run in pods.",
    "Event": "A report that something happened to an object; kept for a limited time.",
    "PersistentVolume": "A piece of storage of the cluster.",
    "PersistentVolumeClaim": "A user's request for storage.",
    "ReplicationController": "Keeps a number of equal pods running (superseded by Deployment).",
    "ResourceQuota": "Limits what a namespace may use in total.",
    "LimitRange": "Limits and defaults for single objects in a namespace.",
    "Binding": "Ties one object to another, such as a pod to a node.",
    "Deployment": "Keeps a number of equal pods running and rolls out changes of their template.",
    "ReplicaSet": "Keeps a number of equal pods running.",
    "StatefulSet": "Keeps pods with stable names and storage running.",
    "DaemonSet": "Keeps one pod running on each selected node.",
    "ControllerRevision": "A snapshot of the state of a StatefulSet or DaemonSet.",
    "Job": "Runs pods until enough of them have succeeded.",
    "CronJob": "Creates a Job on a schedule.",
    "HorizontalPodAutoscaler": "Changes the number of replicas of a workload by its metrics.",
    "Scale": "The number of replicas of a workload.",
    "PodDisruptionBudget": "How many pods of a set may be evicted at a time.",
    "Eviction": "A request to remove a pod, subject to its disruption budget.",
    "PriorityClass": "A name for a priority of pods.",
    "StorageClass": "How volumes of a class are provisioned.",
    "CSINode": "The storage drivers on a node.",
    "CSIDriver": "A storage driver of the cluster.",
    "CSIStorageCapacity": "How much storage a driver has left where.",
    "VolumeAttachment": "The intent to attach a volume to a node.",
    "ResourceClaim": "A wish for devices, and the devices once it is granted.",
    "ResourceClaimTemplate": "What claims look like that are made for pods.",
    "DeviceClass": "Devices that users ask for by one name.",
    "ResourceSlice": "Devices that a driver offers, on a node or for several.",
    "DeviceTaintRule": "A taint that keeps claims from some devices.",
    "Lease": "A lock that its holder renews: heartbeats and leader election.",
    "RuntimeClass": "A container runtime that pods can ask for.",
    "Ingress": "Rules that let traffic from outside reach Services.",
    "IngressClass": "Which controller serves an Ingress.",
    "NetworkPolicy": "Which traffic pods may receive and send.",
    "Role": "Permissions in a namespace.",
    "RoleBinding": "Gives the permissions of a role to subjects in a namespace.",
    "ClusterRole": "Permissions in the whole cluster.",
    "ClusterRoleBinding": "Gives the permissions of a cluster role to subjects.",
    "CustomResourceDefinition": "A kind of object that users add to the API.",
    "MutatingWebhookConfiguration": "Webhooks that may change objects before they are stored.",
    "ValidatingAdmissionPolicy": "Expressions that may refuse objects before they are stored.",
    "ValidatingAdmissionPolicyBinding": "Where a ValidatingAdmissionPolicy counts, and with which parameters.",
    "ValidatingWebhookConfiguration": "Webhooks that may refuse objects before they are stored.",
    "APIService": "A server for a group and version of the API.",
    "ObjectMeta": "Metadata that every stored object has.",
    "PodTemplateSpec": "The pod that a workload creates: its labels, annotations and spec.",
    "Container": "One application container of a pod.",
    "LabelSelector": "A query over labels: all of matchLabels and matchExpressions must hold.",
    "ListMeta": "Metadata of a list.",
    "DeploymentStrategy": "How old pods are replaced by new ones.",
    "RollingUpdateDeployment": "How fast a rolling update may go.",
    "StatefulSetUpdateStrategy": "How pods of a StatefulSet are updated.",
    "DaemonSetUpdateStrategy": "How pods of a DaemonSet are updated.",
    "ResourceRequirements": "What a container asks for and may use at most.",
    "Affinity": "Which nodes, and which neighbours, a pod wants or avoids.",
    "Probe": "A check that the kubelet repeats on a container.",
    "Lifecycle": "What to do when a container has started and before it is stopped.",
    "SecurityContext": "Security settings of a container.",
    "PodSecurityContext": "Security settings of a pod.",
}


def of_struct(name: str) -> str:
    """Return what an object of a Go struct is; empty when there is nothing worth saying."""
    if name in KINDS:
        return KINDS[name]
    for ending, sentence in (
        ("Spec", "The desired state of a {}."),
        ("Status", "The observed state of a {}, as last reported."),
        ("List", "A list of {} objects."),
        ("Condition", "One aspect of the state of a {} at a certain point."),
        ("Source", "Where a {} takes its contents from."),
    ):
        if name.endswith(ending) and len(name) > len(ending):
            return sentence.format(name[: -len(ending)])
    return ""
