"""Checks of `metadata` that all kinds share."""

from collections.abc import Callable
from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors, names

NameRule = Callable[[str], str]
"""Why a text cannot be the name of an object; empty when it can."""

_CORE_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_OWNER_FIELDS = ("apiVersion", "kind", "name", "uid")


def check(meta: dict[str, Any], namespaced: bool, rule: NameRule, *, is_core: bool) -> list[StatusCause]:
    """Return what is wrong with the metadata of an object about to be stored.

    `is_core`: a kind of Kubernetes proper, whose finalizers need a domain and a path; those of CRDs and custom
    resources may be any qualified name.
    """
    causes: list[StatusCause] = []
    prefix = meta.get("generateName", "")
    if prefix:
        reason = rule(prefix.rstrip("-.") or prefix)  # the random end makes a trailing dash fine
        if reason:
            causes.append(errors.invalid("metadata.generateName", prefix, reason))
    name = meta.get("name", "")
    if not name:
        causes.append(errors.required("metadata.name", "name or generateName is required"))
    else:
        reason = rule(name)
        if reason:
            causes.append(errors.invalid("metadata.name", name, reason))
    causes += _check_namespace(meta.get("namespace", ""), namespaced)
    if "labels" in meta:
        causes += names.check_labels(meta["labels"], "metadata.labels")
    if "annotations" in meta:
        causes += names.check_annotations(meta["annotations"], "metadata.annotations")
    if meta.get("ownerReferences"):
        causes += _check_owners(meta["ownerReferences"])
    for index, finalizer in enumerate(meta.get("finalizers") or ()):
        causes += _check_finalizer(finalizer, f"metadata.finalizers[{index}]", is_core)
    return causes


def _check_namespace(namespace: str, namespaced: bool) -> list[StatusCause]:
    if not namespaced:
        return [errors.forbidden("metadata.namespace", "not allowed on this type")] if namespace else []
    if not namespace:
        return [errors.required("metadata.namespace")]
    reason = names.label_1123(namespace)
    return [errors.invalid("metadata.namespace", namespace, reason)] if reason else []


def _check_owners(owners: list[dict[str, Any]]) -> list[StatusCause]:
    causes: list[StatusCause] = []
    controller: dict[str, Any] | None = None
    for index, owner in enumerate(owners):
        field = f"metadata.ownerReferences[{index}]"
        for part in _OWNER_FIELDS:
            if not owner.get(part):
                causes.append(
                    errors.invalid(f"{field}.{part}", owner.get(part, ""), f"{part} must not be empty")
                )
        if owner.get("apiVersion") == "v1" and owner.get("kind") == "Event":
            causes.append(errors.invalid(field, owner, "Event is disallowed from being an owner"))
        if owner.get("controller"):
            if controller is not None:
                detail = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller.get('kind')}/{controller.get('name')} and {owner.get('kind')}/{owner.get('name')}"
                )
                causes.append(errors.invalid("metadata.ownerReferences", owners, detail))
            controller = owner
    return causes


def _check_finalizer(finalizer: str, field: str, is_core: bool) -> list[StatusCause]:
    reason = names.qualified_name(finalizer)
    if reason:
        return [errors.invalid(field, finalizer, reason)]
    if is_core and "/" not in finalizer and finalizer not in _CORE_FINALIZERS:
        detail = "name is neither a standard finalizer name nor is it fully qualified"
        return [errors.invalid(field, finalizer, detail)]
    return []


_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp")


def check_update(meta: dict[str, Any], old: dict[str, Any]) -> list[StatusCause]:
    """Return what an update may not change. Finalizers may go but not come once an object is being deleted."""
    causes = [
        errors.invalid(f"metadata.{field}", meta.get(field, ""), "field is immutable")
        for field in _IMMUTABLE
        if meta.get(field) is not None and old.get(field) is not None and meta[field] != old[field]
    ]
    if old.get("deletionTimestamp"):
        before = set(old.get("finalizers") or ())
        more = [name for name in meta.get("finalizers") or () if name not in before]
        if more:
            detail = (
                "no new finalizers can be added if the object is being deleted, found new finalizers "
                f"[]string{{{', '.join(errors.shown(name) for name in more)}}}"
            )
            causes.append(errors.forbidden("metadata.finalizers", detail))
    return causes
