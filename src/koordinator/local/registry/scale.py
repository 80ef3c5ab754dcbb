"""The `scale` subresource: an `autoscaling/v1` Scale seen through the paths of each kind. Pure."""

from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.errors import StatusCause, StatusDetails
from koordinator.local.registry import metadata
from koordinator.local.schema import errors as fields

SCALE = Resource(group="autoscaling", version="v1", kind="Scale", plural="scales", subresources=("status",))


class Paths(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The paths of a kind's replicas; `label_selector_path` leads to text, or to a LabelSelector."""

    spec_replicas_path: str = ".spec.replicas"
    status_replicas_path: str = ".status.replicas"
    label_selector_path: str = ""


BUILTIN_PATHS = Paths(label_selector_path=".spec.selector")


def of(obj: dict[str, Any], paths: Paths) -> dict[str, Any]:
    """Return the Scale of an object."""
    own = obj["metadata"]
    meta = {
        key: own[key]
        for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if key in own
    }
    status: dict[str, Any] = {"replicas": _number(_at(obj, paths.status_replicas_path))}
    selector = selector_text(_at(obj, paths.label_selector_path))
    if selector:
        status["selector"] = selector
    replicas = _number(_at(obj, paths.spec_replicas_path))
    return {
        "apiVersion": SCALE.api_version,
        "kind": SCALE.kind,
        "metadata": meta,
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def of_custom(obj: dict[str, Any], paths: Paths) -> dict[str, Any]:
    """Return the Scale of a custom object. Raises: InternalError when nobody has set its replicas."""
    if _at(obj, paths.spec_replicas_path) is None:
        why = f'the spec replicas field "{paths.spec_replicas_path}" does not exist'
        details = StatusDetails(causes=[StatusCause(message=why)])
        raise errors.InternalError(f"Internal error occurred: {why}", details=details)
    return of(obj, paths)


def scaled(
    obj: dict[str, Any], scale: dict[str, Any], paths: Paths, *, is_custom: bool = False
) -> dict[str, Any]:
    """Return the object with the replicas (and preconditions) that a Scale asks for; what it shares is not changed.

    Raises: BadRequest (wrong types), Invalid (negative replicas, but of custom objects: their checks refuse them).
    """
    sent = metadata.of(scale)
    spec = scale.get("spec") or {}
    replicas = spec.get("replicas", 0) if isinstance(spec, dict) else None
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise errors.BadRequest(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal spec.replicas into '
            "Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if replicas < 0 and not is_custom:
        cause = fields.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise fields.invalid_object(SCALE, metadata.name_of(sent), [cause])
    meta = dict(obj["metadata"])
    for field in ("name", "namespace", "uid", "resourceVersion"):
        value = metadata.name_of(sent, field)
        if value:
            meta[field] = value
    return _with({**obj, "metadata": meta}, paths.spec_replicas_path.strip(".").split("."), replicas)


def selector_text(selector: Any) -> str:
    """Return a selector as the text of a query: from text, a map of labels, or a LabelSelector."""
    if not selector:
        return ""
    if isinstance(selector, str):
        return selector
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for one in selector.get("matchExpressions") or ():
        key, values = one["key"], ",".join(sorted(one.get("values") or ()))
        match one["operator"]:
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
            case operator:
                parts.append(f"{key} {operator.lower()} ({values})")
    return ",".join(parts)


def _at(obj: dict[str, Any], path: str) -> Any:
    value: Any = obj
    for key in filter(None, path.split(".")):
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is obj else value


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _with(obj: dict[str, Any], keys: list[str], value: int) -> dict[str, Any]:
    head, *rest = keys
    below = obj.get(head)
    return {**obj, head: _with(below if isinstance(below, dict) else {}, rest, value) if rest else value}
