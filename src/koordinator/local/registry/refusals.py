"""The API server's words for refusals that concern any kind."""

import re
from collections.abc import Sequence

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.errors import StatusCause, StatusDetails

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def _details(
    resource: Resource, name: str, causes: Sequence[StatusCause] = (), uid: str = ""
) -> StatusDetails:
    return StatusDetails(name=name, group=resource.group, kind=resource.plural, causes=list(causes), uid=uid)


def not_found(resource: Resource, name: str) -> errors.NotFound:
    return errors.not_found(resource.qualified, name, group=resource.group, kind=resource.plural)


def not_served() -> errors.NotFound:
    """Nobody serves that group, version and plural."""
    return errors.NotFound("the server could not find the requested resource", details=StatusDetails())


def already_exists(resource: Resource, name: str, *, is_deleting: bool = False) -> errors.AlreadyExists:
    prefix = "object is being deleted: " if is_deleting else ""
    return errors.AlreadyExists(
        f'{prefix}{resource.qualified} "{name}" already exists', details=_details(resource, name)
    )


def conflict(resource: Resource, name: str, why: str = MODIFIED, subresource: str = "") -> errors.Conflict:
    what = f"{resource.qualified}/{subresource}" if subresource else resource.qualified
    return errors.Conflict(
        f'Operation cannot be fulfilled on {what} "{name}": {why}', details=_details(resource, name)
    )


def forbidden(
    resource: Resource, name: str, why: str, causes: Sequence[StatusCause] = ()
) -> errors.Forbidden:
    return errors.Forbidden(
        f'{resource.qualified} "{name}" is forbidden: {why}', details=_details(resource, name, causes)
    )


def not_allowed(resource: Resource, verb: str) -> errors.MethodNotSupported:
    return errors.MethodNotSupported(
        f'{verb} is not supported on resources of kind "{resource.qualified}"',
        details=StatusDetails(group=resource.group, kind=resource.plural),
    )


def invalid(
    resource: Resource, name: str, causes: Sequence[StatusCause], qualified_kind: str = ""
) -> errors.Invalid:
    """`Pod "web-0" is invalid: ...`; a cause's field goes before its message, several stand in brackets."""
    kind = qualified_kind or (f"{resource.kind}.{resource.group}" if resource.group else resource.kind)
    lines = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details = StatusDetails(name=name, group=resource.group, kind=resource.kind, causes=list(causes))
    return errors.Invalid(f'{kind} "{name}" is invalid: {text}', details=details)


def bad_options(kind: str, field: str, message: str, reason: str = "FieldValueForbidden") -> errors.Invalid:
    """Query parameters that contradict each other, e.g. of `ListOptions`."""
    resource = Resource(group="meta.k8s.io", version="v1", kind=kind, plural="")
    return invalid(resource, "", [StatusCause(reason=reason, message=message, field=field)])


def required(field: str, why: str) -> StatusCause:
    return StatusCause(reason="FieldValueRequired", message=f"Required value: {why}", field=field)


def wrong(field: str, value: object, why: str) -> StatusCause:
    return StatusCause(
        reason="FieldValueInvalid", message=f"Invalid value: {shown(value)}: {why}", field=field
    )


def unwanted(field: str, why: str) -> StatusCause:
    return StatusCause(reason="FieldValueForbidden", message=f"Forbidden: {why}", field=field)


def unsupported(field: str, value: object, supported: Sequence[str]) -> StatusCause:
    choice = ", ".join(f'"{one}"' for one in supported)
    return StatusCause(
        reason="FieldValueNotSupported",
        message=f"Unsupported value: {shown(value)}: supported values: {choice}",
        field=field,
    )


def shown(value: object) -> str:
    """A value as Go prints it in field errors: text is quoted."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


_UINT64 = re.compile(r"[0-9]{1,20}", re.ASCII)


def version_number(text: str) -> int:
    """A resourceVersion as a number. Raises: ValueError with Go's words."""
    if not _UINT64.fullmatch(text):
        raise ValueError(f"strconv.ParseUint: parsing {shown(text)}: invalid syntax")
    return int(text)
