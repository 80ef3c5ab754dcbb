"""`metadata` of objects that are written: what the server fills in, what may not change, what a delete
does. Pure.

Source: `rest.BeforeCreate`, `rest.BeforeUpdate`, `validation.ValidateObjectMetaAccessorUpdate`, `rest.BeforeDelete` and
`Store.Delete` of the API server. The schema checks that names and labels are well-formed.
"""

import enum
import random
from typing import Any

import msgspec

from koordinator import clock
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


def check_named(meta: dict[str, Any], name: str) -> None:
    """Raise BadRequest when an object sent to the URL of `name` has no name, or another one."""
    sent = name_of(meta)
    if not sent:
        raise errors.BadRequest(
            f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )
    if sent != name:
        raise errors.BadRequest(
            f"the name of the object ({sent}) does not match the name on the URL ({name})"
        )


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


FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
DELETION_POLICIES = ("Foreground", "Background", "Orphan")


class DeletionOutcome(enum.Enum):
    """GONE: remove it. MARKED: store the changed object. WAITING: nothing changes, it is being deleted."""

    GONE = "gone"
    MARKED = "marked"
    WAITING = "waiting"


class Deletion(msgspec.Struct, frozen=True):
    """The fate of the object, and the object to store for MARKED; for GONE its last state."""

    fate: DeletionOutcome
    obj: dict[str, Any]


def decide_deletion(
    obj: dict[str, Any],
    *,
    grace_s: int | None,
    asked_s: int | None,
    propagation: str,
    orphans_by_default: bool,
    now_s: float,
) -> Deletion:
    """Return the next state of an object that somebody deletes.

    grace_s: how long an object that is not being deleted yet may take; None for kinds that go at once.
    asked_s: the grace period in the request, which may shorten one that is running.
    """
    meta = obj["metadata"]
    wanted = finalizers(meta, propagation, orphans_by_default)
    if grace_s is None:
        return _without_grace(obj, wanted, now_s)
    was_s = meta.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" in meta:
        if not was_s:
            return _without_grace(obj, wanted, now_s)
        if asked_s is not None and asked_s < 0:
            asked_s = 1
        if asked_s is None or asked_s >= was_s:
            return Deletion(DeletionOutcome.WAITING, obj)
        since_s = clock.parse_rfc3339(meta["deletionTimestamp"]) - was_s
        if since_s + asked_s < now_s:  # what is past is over now; who stops it still has a second
            asked_s = min(asked_s, 1)
            since_s = now_s - asked_s
        return _graceful(obj, wanted, since_s, asked_s, is_first=False)
    return _graceful(obj, wanted, now_s, grace_s, is_first=True)


def finalizers(meta: dict[str, Any], propagation: str, orphans_by_default: bool) -> list[str]:
    """Return the finalizers after the policy's own mark was put in or taken out.

    A policy in the request wins over the marks that the object has; those win over the kind's default.
    """
    present = meta.get("finalizers") or []
    orphan = propagation == "Orphan"
    foreground = propagation == "Foreground"
    if not propagation:
        orphan = ORPHAN in present
        foreground = FOREGROUND in present and not orphan
        if not orphan and not foreground:
            orphan = orphans_by_default
    kept = [name for name in present if name not in (ORPHAN, FOREGROUND)]
    return kept + [ORPHAN] * orphan + [FOREGROUND] * foreground


def _without_grace(obj: dict[str, Any], wanted: list[str], now_s: float) -> Deletion:
    meta = obj["metadata"]
    if not wanted:
        return Deletion(DeletionOutcome.GONE, obj)
    if "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0:
        return _waiting(obj, wanted)
    return Deletion(DeletionOutcome.MARKED, marked(obj, wanted, now_s, grace_s=0))


def marked(obj: dict[str, Any], wanted: list[str], now_s: float, grace_s: int | None) -> dict[str, Any]:
    """Return the object with its deletion begun; an earlier deletionTimestamp stays."""
    meta = dict(obj["metadata"])
    if meta.get("generation"):
        meta["generation"] += 1
    meta.setdefault("deletionTimestamp", clock.rfc3339(now_s))
    if grace_s is not None:
        meta["deletionGracePeriodSeconds"] = grace_s
    return {**obj, "metadata": _with_finalizers(meta, wanted)}


def _graceful(
    obj: dict[str, Any], wanted: list[str], since_s: float, grace_s: int, *, is_first: bool
) -> Deletion:
    meta = dict(obj["metadata"])
    if is_first and meta.get("generation"):
        meta["generation"] += 1
    meta["deletionTimestamp"] = clock.rfc3339(since_s + grace_s)
    meta["deletionGracePeriodSeconds"] = grace_s
    fate = DeletionOutcome.MARKED if grace_s or wanted else DeletionOutcome.GONE
    return Deletion(fate, {**obj, "metadata": _with_finalizers(meta, wanted)})


def _waiting(obj: dict[str, Any], wanted: list[str]) -> Deletion:
    """Handle a repeated delete, which only changes the policy's mark."""
    meta = obj["metadata"]
    if wanted == (meta.get("finalizers") or []):
        return Deletion(DeletionOutcome.WAITING, obj)
    return Deletion(DeletionOutcome.MARKED, {**obj, "metadata": _with_finalizers(dict(meta), wanted)})


def _with_finalizers(meta: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    if wanted:
        meta["finalizers"] = wanted
    else:
        meta.pop("finalizers", None)
    return meta


def is_over(obj: dict[str, Any]) -> bool:
    """Return whether an object that is being deleted waits for nothing any more."""
    meta = obj["metadata"]
    return (
        "deletionTimestamp" in meta
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
    )
