"""Parts of objects left out, changed or added at random, by the types of their fields."""

import copy
import random
from collections.abc import Iterator
from typing import Any

from koordinator.local.schema.builtin.fields import ENUMS
from koordinator.local.schema.decode import struct_name
from koordinator.local.schema.types import SchemaType, WireKind

Path = tuple[Any, ...]
UNCHECKED = {
    *("restartPolicyRules", "projected", "dnsConfig", "ephemeral"),
    *("allowedTopologies", "matchExpressions", "podResourceClaims", "nodeAllocatableResourceClaimStatuses"),
    *(
        "mountPropagation",
        "ipFamilies",
        "clusterIPs",
        "finalizers",
        "uid",
        "generation",
        "generateName",
        "config",
    ),
    *(
        "ownerReferences",
        "resourceVersion",
        "deletionGracePeriodSeconds",
        "creationTimestamp",
        "deletionTimestamp",
    ),
    *(
        "capacity",
        "allocatable",
        "managedFields",
        "declaredFeatures",
        "ipFamilyPolicy",
        "appProtocol",
        "nodePort",
    ),
    *(
        "appArmorProfile",
        "policies",
        "divisor",
        "matchLabelKeys",
        "mismatchLabelKeys",
        "grpc",
        "windowsOptions",
    ),
    *(
        "supplementalGroupsPolicy",
        "items",
        "volumeDevices",
        "startupProbe",
        "seccompProfile",
        "data",
        "parameters",
    ),
    *("strategy", "updateStrategy", "sysctls", "ephemeralContainers", "podCIDR", "podCIDRs"),
    *("volumeClaimTemplates", "secrets", "conditions", "csi"),
    *("fileKeyRef", "volumeAttributesClassName", "local", "targetPort"),
    *(
        "binaryData",
        "fsGroupChangePolicy",
        "seLinuxChangePolicy",
        "selfLink",
        "secretKeyRef",
        "configMapKeyRef",
    ),
}
"""Fields that are not damaged: what our server checks of them is not all (docs/local-api.md)."""
WORDS: dict[str, list[str]] = {}
for (_, _field), _values in ENUMS.items():
    WORDS.setdefault(_field, []).extend(_values)

_TEXTS = [
    "",
    "x",
    "web",
    "other",
    "Upper",
    "a_b",
    "a.b",
    "a/b",
    "example.com/a",
    "-a",
    "a-",
    "1",
    "0",
    "a" * 64,
]
_TEXTS += ["a" * 254, "10.0.0.1", "/a", "..", "a b", "50%", "kubernetes.io/x", "None", "*", "8.8.8.8/33"]
_AMOUNTS: list[Any] = [
    "0",
    "1",
    "-1",
    "100m",
    "1.5",
    "2Gi",
    "1e3",
    "0.0001",
    3,
    "x",
    "",
    "1Ki",
    "9999999999999999999",
]
VALUES: dict[WireKind, list[Any]] = {
    WireKind.STRING: _TEXTS,
    WireKind.BOOL: [True, False],
    WireKind.INT32: [0, 1, 2, 3, 5, -1, 100, 101, 65535, 65536, 2**31 - 1],
    WireKind.INT64: [0, 1, 2, 5, -1, 1000, 2**31, 2**40],
    WireKind.FLOAT: [0, 1.5, -1],
    WireKind.BYTES: ["", "AAE=", "x"],
    WireKind.TIME: ["2020-01-01T00:00:00Z", "x", ""],
    WireKind.MICRO_TIME: ["2020-01-01T00:00:00.000001Z", "2020-01-01T00:00:00Z"],
    WireKind.QUANTITY: _AMOUNTS,
    WireKind.INT_OR_STRING: [0, 1, 80, -1, 70000, "50%", "http", "150%", "x y"],
    WireKind.ANY: [None, 1, "a", {"a": 1}, [1]],
}
_ODD: list[Any] = [None, 1, "1", True, [], {}, 1.5, ["a"], {"a": "b"}]
"""Values of whatever type: of the wrong one mostly."""
_DEPTH_MAX = 4
_FULL = ("Volume", "PodSpec", "PersistentVolumeSpec")
"""Structs that have all that is checked of them in `objects.yaml`."""
_IDENTITY = (("metadata",), ("apiVersion",), ("kind",), ("metadata", "name"))
_WHOLE = ("name", "key", "operator", "values", "policies", "storage")
"""Members that only a change leaves out or takes apart."""


def thinned(rng: random.Random, obj: Any, share: float, kept: tuple[str, ...] = ()) -> Any:
    """A copy without some of its parts."""
    if isinstance(obj, dict):
        parts = {
            key: value if key in _WHOLE else thinned(rng, value, share, kept)
            for key, value in obj.items()
            if key in (*kept, "metadata") or key in _WHOLE or rng.random() >= share
        }
        return {key: part for key, part in parts.items() if part != {} or obj[key] == {} or key == "metadata"}
    if isinstance(obj, list):
        return [thinned(rng, item, share / 2, kept) for item in obj if rng.random() >= share / 4]
    return obj


def change(rng: random.Random, shape: SchemaType, obj: Any) -> dict[str, Any]:
    """One change to an object: its path, and the value to be set there, none to remove what stands there."""
    found = [place for place in places(shape, obj) if place[0] and place[0] not in _IDENTITY]
    found = [place for place in found if not UNCHECKED.intersection(place[0])]
    in_metadata = rng.random() < 0.1
    chosen = [place for place in found if (place[0][0] == "metadata") == in_metadata and len(place[0]) > 1]
    chosen = chosen or found
    structs = [
        (path, at) for path, at in chosen if at.kind is WireKind.STRUCT and struct_name(at) not in _FULL
    ]
    roll = rng.random()
    if roll < 0.25 and structs:
        path, at = rng.choice(structs)
        name = rng.choice([name for name in at.fields if name not in UNCHECKED] or ["x"])
        return {"path": [*path, name], "value": made(rng, at.child(name), name)}
    if not chosen:
        return {"path": ["metadata", "labels", "x"], "value": "y"}
    path, at = rng.choice(chosen)
    if roll < 0.35:
        return {"path": list(path)}
    if roll < 0.48:
        return {"path": list(path), "value": rng.choice(_ODD)}
    if roll < 0.5:
        return {"path": [*path[:-1], "unknown"], "value": 1}
    return {"path": list(path), "value": made(rng, at, str(path[-1]))}


def made(rng: random.Random, shape: SchemaType, name: str, depth: int = 0) -> Any:
    """A value of a type, of those that a field of that name may have where they are few."""
    if shape.kind is WireKind.STRUCT and struct_name(shape) == "Volume":
        return {"name": rng.choice(("data", "settings", "new"))}
    if shape.kind is WireKind.STRUCT:
        if depth > _DEPTH_MAX:
            return {}
        known = [field for field in shape.fields.values() if field.name not in UNCHECKED]
        fields = {field for field in known if field.required or rng.random() < 0.15}
        ordered = sorted(fields, key=lambda field: field.name)
        return {field.name: made(rng, field.type, field.name, depth + 1) for field in ordered}
    if shape.kind is WireKind.LIST and shape.element is not None:
        return [made(rng, shape.element, name, depth + 1) for _ in range(rng.choice((0, 1, 1, 2)))]
    if shape.kind is WireKind.MAP and shape.element is not None:
        keys = rng.sample(
            ["app", "a/b", "example.com/x", "cpu", "memory", "-x", "storage"], rng.choice((1, 1, 2))
        )
        return {key: made(rng, shape.element, name, depth + 1) for key in keys}
    if shape.kind is WireKind.STRING and name in WORDS and rng.random() < 0.8:
        return rng.choice(WORDS[name])
    return copy.deepcopy(rng.choice(VALUES.get(shape.kind, _ODD)))


def places(shape: SchemaType, value: Any, path: Path = ()) -> Iterator[tuple[Path, SchemaType]]:
    """Everything below a value, with its type."""
    yield path, shape
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(shape.child(key), item, (*path, key))
    elif isinstance(value, list) and shape.element is not None:
        for index, item in enumerate(value):
            yield from places(shape.element, item, (*path, index))
