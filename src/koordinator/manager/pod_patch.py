"""Strategic merge patches on pods, for clients that hold no schema (ClusterColocationProfile `patch`)."""

from typing import Any

from koordinator.local.patches import strategic
from koordinator.local.schema.types import ANY, Field, Kind, Type

# Lists of a pod whose elements merge by a key, as Kubernetes' API reference states them; others are replaced.
_KEYED: dict[str, dict[str, str]] = {
    "metadata": {"ownerReferences": "uid"},
    "spec": {
        "containers": "name",
        "ephemeralContainers": "name",
        "hostAliases": "ip",
        "imagePullSecrets": "name",
        "initContainers": "name",
        "resourceClaims": "name",
        "schedulingGates": "name",
        "topologySpreadConstraints": "topologyKey",
        "volumes": "name",
    },
    "container": {
        "env": "name",
        "ports": "containerPort",
        "volumeDevices": "devicePath",
        "volumeMounts": "mountPath",
    },
}
_CONTAINERS = ("containers", "ephemeralContainers", "initContainers")
_RETAIN_KEYS = ("volumes", "resourceClaims")


def _struct(fields: dict[str, Field]) -> Type:
    return Type(Kind.STRUCT, load=lambda: fields, open=True)


def _keyed(name: str, key: str, element: Type) -> Field:
    strategies = ("merge", "retainKeys") if name in _RETAIN_KEYS else ("merge",)
    return Field(name=name, type=Type(Kind.LIST, element=element), strategies=strategies, merge_key=key)


def _fields(owner: str, elements: dict[str, Type]) -> dict[str, Field]:
    return {name: _keyed(name, key, elements.get(name, _struct({}))) for name, key in _KEYED[owner].items()}


_CONTAINER = _struct(_fields("container", {}))
_METADATA = _struct(
    _fields("metadata", {})
    | {"finalizers": Field(name="finalizers", type=Type(Kind.LIST, element=ANY), strategies=("merge",))}
)
POD = _struct(
    {
        "metadata": Field(name="metadata", type=_METADATA),
        "spec": Field(name="spec", type=_struct(_fields("spec", dict.fromkeys(_CONTAINERS, _CONTAINER)))),
    }
)


def merge(pod: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The pod changed as `patch` says; neither argument is changed. Raises: ApiError."""
    return strategic.merge(pod, patch, POD)
