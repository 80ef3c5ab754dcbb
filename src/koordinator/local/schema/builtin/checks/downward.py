"""Checks of what containers may be told about their pod: fields and resources, in variables and files.

Source: validateObjectFieldSelector and its neighbours in pkg/apis/core/validation of kubernetes/kubernetes.
"""

import re
from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names

Json = dict[str, Any]

_FILE_FIELDS = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
_ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_KNOWN_FIELDS = frozenset(
    (*_FILE_FIELDS, *_ENV_FIELDS, "spec.restartPolicy", "spec.schedulerName", "status.phase")
)
_RESOURCES = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)
_HUGE_PAGES = ("limits.hugepages-", "requests.hugepages-")
_SUBSCRIPT = re.compile(r"(.+)\['(.+)'\]")


def check_source(source: Json, field: str) -> list[StatusCause]:
    """Check where a variable gets its value."""
    causes: list[StatusCause] = []
    if source.get("fieldRef") is not None:
        causes += _check_field(source["fieldRef"], f"{field}.fieldRef", _ENV_FIELDS)
    if source.get("resourceFieldRef") is not None:
        causes += _check_resource(source["resourceFieldRef"], f"{field}.resourceFieldRef", is_file=False)
    for part in ("configMapKeyRef", "secretKeyRef"):
        reference = source.get(part)
        if reference is None:
            continue
        key = reference.get("key") or ""
        reason = names.config_key(key) if key else ""
        if not reference.get("name"):
            causes.append(errors.required(f"{field}.{part}.name"))
        if reason:
            causes.append(errors.invalid(f"{field}.{part}.key", key, reason))
    return causes


def check_volume(volume: Json, field: str) -> list[StatusCause]:
    """Files of a volume that tell about the pod, by themselves or among others."""
    causes: list[StatusCause] = []
    own = volume.get("downwardAPI")
    if own is not None:
        causes += _check_files(own, f"{field}.downwardAPI")
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
        if source.get("downwardAPI") is not None:
            causes += _check_files(source["downwardAPI"], f"{field}.projected.sources[{index}].downwardAPI")
    return causes


def _check_files(source: Json, field: str) -> list[StatusCause]:
    causes: list[StatusCause] = []
    for file in source.get("items") or ():  # the API server names no index here
        told, amount = file.get("fieldRef"), file.get("resourceFieldRef")
        if told is not None:
            causes += _check_field(told, f"{field}.fieldRef", _FILE_FIELDS)
            if amount is not None:
                why = "fieldRef and resourceFieldRef can not be specified simultaneously"
                causes.append(errors.invalid(field, "resource", why))
        elif amount is not None:
            causes += _check_resource(amount, f"{field}.resourceFieldRef", is_file=True)
        else:
            causes.append(errors.required(field, "one of fieldRef and resourceFieldRef is required"))
    return causes


def _check_field(reference: Json, field: str, known: tuple[str, ...]) -> list[StatusCause]:
    version, path = reference.get("apiVersion") or "", reference.get("fieldPath") or ""
    where = f"{field}.fieldPath"
    if not version:
        return [errors.required(f"{field}.apiVersion")]
    if not path:
        return []  # what is required is checked elsewhere
    subscript = _SUBSCRIPT.fullmatch(path)
    trouble = _trouble(version, path, subscript)
    if trouble:
        return [errors.invalid(where, path, f"error converting fieldPath: {trouble}")]
    if subscript is not None:
        key = subscript[2].lower() if subscript[1] == "metadata.annotations" else subscript[2]
        reason = names.qualified_name(key)
        return [errors.invalid(field, key, reason)] if reason else []
    path = "spec.nodeName" if path == "spec.host" else path
    return [] if path in known else [errors.not_supported(where, path, known)]


def _trouble(version: str, path: str, subscript: "re.Match[str] | None") -> str:
    if version != "v1":
        return f"unsupported pod version: {version}"
    if subscript is not None:
        has_keys = subscript[1] in ("metadata.annotations", "metadata.labels")
        return "" if has_keys else f"field label does not support subscript: {path}"
    return "" if path in _KNOWN_FIELDS or path == "spec.host" else f"field label not supported: {path}"


def _check_resource(reference: Json, field: str, *, is_file: bool) -> list[StatusCause]:
    name = reference.get("resource") or ""
    if is_file and not reference.get("containerName"):
        return [errors.required(f"{field}.containerName")]
    if not name or name in _RESOURCES or name.startswith(_HUGE_PAGES):
        return []
    return [errors.not_supported(f"{field}.resource", name, _RESOURCES)]


__all__ = ["check_source", "check_volume"]
