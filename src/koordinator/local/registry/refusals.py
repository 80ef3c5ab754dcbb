"""The API server's words for refusals that concern any kind."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.errors import StatusCause, StatusDetails
from koordinator.local.schema import errors as fields

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def _details(resource: Resource, name: str, causes: Sequence[StatusCause] = ()) -> StatusDetails:
    return StatusDetails(name=name, group=resource.group, kind=resource.plural, causes=list(causes))


def not_found(resource: Resource, name: str) -> errors.NotFound:
    """404: there is no object of that name."""
    return errors.not_found(resource.qualified, name, group=resource.group, kind=resource.plural)


def not_served() -> errors.NotFound:
    """Nobody serves that group, version and plural."""
    return errors.NotFound("the server could not find the requested resource", details=StatusDetails())


def already_exists(resource: Resource, name: str, *, is_deleting: bool) -> errors.AlreadyExists:
    """409: the name is taken, perhaps by an object that waits for its finalizers."""
    prefix = "object is being deleted: " if is_deleting else ""
    return errors.AlreadyExists(
        f'{prefix}{resource.qualified} "{name}" already exists', details=_details(resource, name)
    )


def conflict(
    resource: Resource, name: str, why: str = MODIFIED, subresource: str = "", *, by_kind: bool = False
) -> errors.Conflict:
    """409: the object changed since it was read, or is another one by now; `by_kind`: the kind stands for the plural,
    as where a delete is refused."""
    if by_kind:
        resource = msgspec.structs.replace(resource, plural=resource.kind)
    what = f"{resource.qualified}/{subresource}" if subresource else resource.qualified
    return errors.Conflict(
        f'Operation cannot be fulfilled on {what} "{name}": {why}', details=_details(resource, name)
    )


def another_uid(resource: Resource, namespace: str, name: str, uid: str, stored: str) -> errors.Conflict:
    """409: an update is about an object of that name, but not about the one that is stored (none: no uid)."""
    plural = f"services/{resource.plural}" if resource.plural == "endpoints" else resource.plural
    key = "/".join(filter(None, ("/registry", plural, namespace, name)))
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}"
    )
    return conflict(resource, name, why)


def check_new(resource: Resource, namespace: str, meta: dict[str, Any], name: str) -> None:
    """Raises: Conflict when an update of what is not there is about an object that was."""
    uid = meta.get("uid")
    if isinstance(uid, str) and uid:
        raise another_uid(resource, namespace, name, uid, "")


def forbidden(
    resource: Resource, name: str, why: str, causes: Sequence[StatusCause] = ()
) -> errors.Forbidden:
    """403: an admission rule says no."""
    return errors.Forbidden(
        f'{resource.qualified} "{name}" is forbidden: {why}', details=_details(resource, name, causes)
    )


def not_allowed(resource: Resource, verb: str) -> errors.MethodNotSupported:
    """405: the kind has no such verb."""
    return errors.MethodNotSupported(
        f'{verb} is not supported on resources of kind "{resource.qualified}"',
        details=StatusDetails(group=resource.group, kind=resource.plural),
    )


_UINT64 = re.compile(r"[0-9]{1,20}", re.ASCII)


def version_number(text: str) -> int:
    """Return a resourceVersion as a number. Raises: ValueError with Go's words."""
    if not _UINT64.fullmatch(text):
        raise ValueError(f"strconv.ParseUint: parsing {fields.shown(text)}: invalid syntax")
    return int(text)
