"""The numbers that a scale subresource reads: `.spec.replicas` must be one wherever it is written."""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors

Json = dict[str, Any]

_MAX = 2**31 - 1
_TYPES = {
    type(None): "<nil>",
    bool: "bool",
    str: "string",
    int: "int64",
    float: "float64",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


def check(obj: Json, scale: Json) -> list[StatusCause]:
    """Return what is wrong with the fields of an object that its `scale` subresource names."""
    causes = []
    for part in ("specReplicasPath", "statusReplicasPath"):
        path = scale.get(part) or ""
        value, problem = _at(obj, path, int)
        if problem:
            causes.append(errors.invalid(path, 0, problem))
        elif value is not None and value < 0:
            causes.append(errors.invalid(path, value, "should be a non-negative integer"))
        elif value is not None and value > _MAX:
            causes.append(errors.invalid(path, value, f"should be less than or equal to {_MAX}"))
    path = scale.get("labelSelectorPath") or ""
    _, problem = _at(obj, path, str) if path else (None, "")
    return [*causes, errors.invalid(path, "", problem)] if problem else causes


def _at(obj: Json, path: str, wanted: type) -> tuple[Any, str]:
    """Return what stands at a path, None for nothing, and why it is not what is wanted."""
    value: Any = obj
    names = path.removeprefix(".").split(".")
    for index, name in enumerate(names):
        if value is None and index:
            return None, ""
        if not isinstance(value, dict):
            return None, _mismatch(names[: index + 1], value, "map[string]interface{}")
        if name not in value:
            return None, ""
        value = value[name]
    if type(value) is float and wanted is int and value.is_integer():
        value = int(value)
    if type(value) is not wanted:
        return None, _mismatch(names, value, "int64" if wanted is int else "string")
    return value, ""


def _mismatch(names: list[str], value: Any, wanted: str) -> str:
    shown = errors.go_text(value)
    return (
        f".{'.'.join(names)} accessor error: {shown} is of the type {_TYPES[type(value)]}, expected {wanted}"
    )
