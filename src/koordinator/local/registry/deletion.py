"""Decide what a delete does to an object: gone at once, marked, or already on its way. Pure.

Source: `rest.BeforeDelete` and `Store.Delete` of the API server's generic registry.
"""

import enum
from typing import Any

import msgspec

from koordinator import clock

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
POLICIES = ("Foreground", "Background", "Orphan")


class DeletionFate(enum.Enum):
    """GONE: remove it. MARKED: store the changed object. WAITING: nothing changes, it is being deleted."""

    GONE = "gone"
    MARKED = "marked"
    WAITING = "waiting"


class Deletion(msgspec.Struct, frozen=True):
    """The fate of the object, and the object to store for MARKED."""

    fate: DeletionFate
    obj: dict[str, Any]


def decide(
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
        if was_s is None:
            return _without_grace(obj, wanted, now_s)
        if asked_s is None or asked_s >= was_s:
            return Deletion(DeletionFate.WAITING, obj)
        since_s = clock.parse_rfc3339(meta["deletionTimestamp"]) - was_s
        return _graceful(obj, wanted, since_s, asked_s, is_first=False)
    return _graceful(obj, wanted, now_s, grace_s, is_first=True)


def finalizers(meta: dict[str, Any], propagation: str, orphans_by_default: bool) -> list[str]:
    """The finalizers after the policy's own mark was put in or taken out.

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
        return Deletion(DeletionFate.GONE, obj)
    if "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0:
        return _waiting(obj, wanted)
    return Deletion(DeletionFate.MARKED, marked(obj, wanted, now_s, grace_s=0))


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
    if grace_s == 0 and not wanted:
        return Deletion(DeletionFate.GONE, obj)
    meta = dict(obj["metadata"])
    if is_first and meta.get("generation"):
        meta["generation"] += 1
    meta["deletionTimestamp"] = clock.rfc3339(since_s + grace_s)
    meta["deletionGracePeriodSeconds"] = grace_s
    return Deletion(DeletionFate.MARKED, {**obj, "metadata": _with_finalizers(meta, wanted)})


def _waiting(obj: dict[str, Any], wanted: list[str]) -> Deletion:
    """A repeated delete only changes the policy's mark."""
    meta = obj["metadata"]
    if wanted == (meta.get("finalizers") or []):
        return Deletion(DeletionFate.WAITING, obj)
    return Deletion(DeletionFate.MARKED, {**obj, "metadata": _with_finalizers(dict(meta), wanted)})


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
