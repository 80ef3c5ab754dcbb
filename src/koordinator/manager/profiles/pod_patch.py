"""Strategic merge patches on pods and Reservations, for clients without a schema (profiles' `patch`)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.cluster import strategic_merge

_MERGE = ("merge",)
_MERGE_AND_RETAIN = ("merge", "retainKeys")


class MergeShape(msgspec.Struct, frozen=True):
    """The merge rules below one object of a pod; a list has the shape of its elements in `element`."""

    members: Mapping[str, "PodMember"] = {}
    element: "MergeShape | None" = None

    def member(self, key: str) -> "PodMember":
        """Members that the table does not have are replaced (lists) or merged (objects)."""
        return self.members.get(key, _UNKNOWN)


class PodMember(msgspec.Struct, frozen=True):
    """The merge rules of one member."""

    type: MergeShape = MergeShape(element=MergeShape())
    strategies: tuple[str, ...] = ()
    merge_key: str = ""


_UNKNOWN = PodMember()


def _keyed(key: str, element: MergeShape | None = None, *, retain: bool = False) -> PodMember:
    """Return a list of objects that merge by `key`."""
    strategies = _MERGE_AND_RETAIN if retain else _MERGE
    return PodMember(MergeShape(element=element or MergeShape()), strategies, key)


# Lists that merge by a key, as Kubernetes' API reference states them (patchMergeKey).
_CONTAINER = MergeShape(
    {
        "env": _keyed("name"),
        "ports": _keyed("containerPort"),
        "volumeDevices": _keyed("devicePath"),
        "volumeMounts": _keyed("mountPath"),
    }
)
_METADATA = MergeShape(
    {
        "finalizers": PodMember(strategies=_MERGE),
        "ownerReferences": _keyed("uid"),
    }
)
_SPEC = MergeShape(
    {
        "containers": _keyed("name", _CONTAINER),
        "ephemeralContainers": _keyed("name", _CONTAINER),
        "hostAliases": _keyed("ip"),
        "imagePullSecrets": _keyed("name"),
        "initContainers": _keyed("name", _CONTAINER),
        "resourceClaims": _keyed("name", retain=True),
        "schedulingGates": _keyed("name"),
        "topologySpreadConstraints": _keyed("topologyKey"),
        "volumes": _keyed("name", retain=True),
    }
)
POD = MergeShape({"metadata": PodMember(_METADATA), "spec": PodMember(_SPEC)})
RESERVATION = MergeShape(
    {"metadata": PodMember(_METADATA), "spec": PodMember(MergeShape({"template": PodMember(POD)}))}
)


def merge(obj: dict[str, Any], patch: dict[str, Any], shape: MergeShape = POD) -> dict[str, Any]:
    """Return the object changed as `patch` says; neither argument is changed. Raises: ApiError when malformed."""
    return strategic_merge.merge(obj, patch, shape)


def is_plain(patch: Any) -> bool:
    """Return whether a patch has members and values only: no lists, no nulls, no directives."""
    if isinstance(patch, dict):
        return all(not key.startswith("$") and is_plain(value) for key, value in patch.items())
    return patch is not None and not isinstance(patch, list)


def merge_plain(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return what `merge` makes with a plain patch, whatever the shape, in a fifth of the time: most patches are
    plain.
    """
    result = dict(obj)
    for key, value in patch.items():
        if isinstance(value, dict):
            old = result.get(key)
            result[key] = merge_plain(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result
