"""`metadata` of objects that are written: what the server fills in, what may not change.

Source: `rest.BeforeCreate`, `rest.BeforeUpdate` and `validation.ValidateObjectMetaAccessorUpdate` of the API
server. The schema checks that names and labels are well-formed.
"""

import random
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors as fields

GENERATED_CHARS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words by accident
GENERATED_SUFFIX_LENGTH = 5
GENERATED_BASE_LENGTH_MAX = 63 - GENERATED_SUFFIX_LENGTH


def of(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object's metadata. Raises: BadRequest when it is no JSON object."""
    meta = obj.get("metadata")
    if isinstance(meta, dict):
        return meta
    if meta is None:
        return {}
    raise errors.BadRequest(
        f"metadata: expected an object, got {type(meta).__name__}: the object is unrecognized"
    )


def name_of(meta: dict[str, Any], field: str = "name") -> str:
    """Return a text of the metadata, empty when it is not there. Raises: BadRequest when it is no text."""
    value = meta.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise errors.BadRequest(f"metadata.{field}: expected text, got {type(value).__name__}")
    return value


def generated_name(base: str, rng: random.Random) -> str:
    """`base` (shortened to fit a DNS label) with five random characters."""
    suffix = "".join(rng.choices(GENERATED_CHARS, k=GENERATED_SUFFIX_LENGTH))
    return base[:GENERATED_BASE_LENGTH_MAX] + suffix


def new_uid(rng: random.Random) -> str:
    """Return a version 4 UUID."""
    bits = f"{rng.getrandbits(128):032x}"
    variant = "89ab"[int(bits[16], 16) & 3]
    return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-{variant}{bits[17:20]}-{bits[20:]}"


def place(meta: dict[str, Any], resource: Resource, namespace: str) -> dict[str, Any]:
    """Return a copy with the namespace of the request (none for cluster-scoped kinds).

    Raises: BadRequest when it names another one.
    """
    own = name_of(meta, "namespace")
    placed = dict(meta)
    if not resource.namespaced:
        placed.pop("namespace", None)
        return placed
    if own and own != namespace:
        raise errors.BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    placed["namespace"] = namespace
    return placed


def begin(meta: dict[str, Any], uid: str, created: str) -> None:
    """Fill in what a new object gets from the server, and drop what only the server may set."""
    for field in (
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
        "resourceVersion",
    ):
        meta.pop(field, None)
    meta["uid"] = uid
    meta["creationTimestamp"] = created


def carry_over(meta: dict[str, Any], old: dict[str, Any]) -> list[StatusCause]:
    """Bring an updated metadata in line with the stored one; what it may not change comes back as causes.

    Left out means unchanged for what the server set; nobody can take back a deletion.
    """
    causes = []
    meta.pop("selfLink", None)
    for field in ("uid", "creationTimestamp"):
        if meta.get(field) in (None, ""):
            meta[field] = old[field]
        elif meta[field] != old[field]:
            causes.append(fields.invalid(f"metadata.{field}", meta[field], "field is immutable"))
    if "deletionTimestamp" in old:
        meta["deletionTimestamp"] = old["deletionTimestamp"]
        _keep(meta, old, "deletionGracePeriodSeconds")
        added = [name for name in meta.get("finalizers") or [] if name not in (old.get("finalizers") or [])]
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            why = (
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{listed}}}"
            )
            causes.append(fields.forbidden("metadata.finalizers", why))
    else:
        meta.pop("deletionTimestamp", None)
        meta.pop("deletionGracePeriodSeconds", None)
    _keep(meta, old, "generateName")
    _keep(meta, old, "generation")
    return causes


def _keep(meta: dict[str, Any], old: dict[str, Any], field: str) -> None:
    if field in old:
        meta[field] = old[field]
    else:
        meta.pop(field, None)


def drop_empty(meta: dict[str, Any]) -> None:
    """Leave out empty maps and lists, as the API server's `omitempty` does."""
    for field in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields"):
        if field in meta and not meta[field]:
            del meta[field]


def same_but_for_times(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether two objects differ in nothing but the times in their managedFields: then nothing is written."""
    for key in {*old, *new}:
        if key != "metadata" and old.get(key) != new.get(key):
            return False
    was, now = old["metadata"], new["metadata"]
    if was.keys() - {"managedFields", "resourceVersion"} != now.keys() - {"managedFields", "resourceVersion"}:
        return False
    for key in was:
        if key not in ("managedFields", "resourceVersion") and was[key] != now[key]:
            return False
    if was.get("managedFields") is now.get("managedFields"):
        return True
    return bool(_without_times(was.get("managedFields")) == _without_times(now.get("managedFields")))


def _without_times(managed: Any) -> Any:
    if not managed:
        return []
    return [{key: value for key, value in entry.items() if key != "time"} for entry in managed]
