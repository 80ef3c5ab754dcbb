"""Server-side apply and the tracking of all other writes. Source: Kubernetes, "Server-Side Apply"."""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, Conflict, StatusCause, StatusDetails
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches.apply import managed, typed
from koordinator.local.patches.apply.managed import APPLY, UPDATE, FieldManager, ManagedFields, Node, Owners
from koordinator.local.schema import errors as fields
from koordinator.local.schema.types import SchemaType

BEFORE_FIRST_APPLY = "before-first-apply"


def apply(
    shape: SchemaType,
    current: dict[str, Any],
    patch: Any,
    context: WriteContext,
) -> dict[str, Any]:
    """Return the object after an apply; `current` itself when neither values nor owners change.

    Raises: BadRequest, Invalid (no field manager), Conflict (fields that others own, unless `options.force`).
    """
    config = _checked_config(patch, shape, context)
    resource, subresource = context.resource, context.subresource
    mine = _owner(context, APPLY)
    before = _owners_before_apply(shape, current, resource, context.now_s)
    previous = before.get(mine)
    try:
        applied = managed.ownable(typed.field_set(shape, config), resource, subresource)
    except typed.Mismatch as mismatch:
        raise _untyped(patch, resource, str(mismatch)) from mismatch
    owners = dict(before)
    owners.pop(mine, None)
    if applied is not None:
        owners[mine] = ManagedFields(applied, previous.time if previous else "")
    merged = typed.merge(shape, current, config)
    if previous is not None:
        merged = typed.remove(shape, merged, _abandoned(previous.fields, owners))
    difference = typed.compare(shape, _without_managed(current), _without_managed(merged))
    owners = _yield_fields(owners, mine, difference, context.options.force)
    if difference.is_empty and owners == before and current:
        return current
    if mine in owners and not difference.is_empty:
        owners[mine] = ManagedFields(owners[mine].fields, managed.stamp(context.now_s))
    return managed.encode(merged, managed.cap(owners), current)


def track(
    shape: SchemaType,
    old: dict[str, Any] | None,
    new: dict[str, Any],
    context: WriteContext,
) -> dict[str, Any]:
    """`new` with the owners that follow from a create, update or non-apply patch.

    Without a field manager nothing is computed: the owners of the old object are carried over.
    """
    subresource = context.subresource
    if managed.is_reset(new) and not subresource:
        return managed.encode(new, {})
    given = "managedFields" in managed.metadata(new)
    theirs, ours = (managed.metadata(obj).get("managedFields") for obj in (new, old))
    owners = managed.decode(new, stored=theirs is ours) if given and not subresource else {}
    if not owners:
        owners = managed.decode(old, stored=True)
    if not context.options.field_manager:
        unchanged = given and (theirs is ours or theirs == ours)
        return new if unchanged or (not given and not owners) else managed.encode(new, owners, old)
    if old is not None and not owners and "managedFields" not in managed.metadata(old):
        # Nobody tracked this object so far: the first apply will find `before-first-apply`.
        return new
    difference = typed.compare(shape, _without_managed(old or {}), _without_managed(new))
    taken = managed.ownable(difference.changed, context.resource, subresource)
    mine = _owner(context, UPDATE)
    changed = difference.changed
    kept: Owners = {}
    for owner, share in owners.items():
        fields = managed.difference(share.fields or None, difference.removed)
        if owner != mine:
            fields = managed.difference(fields, changed)
        if fields is not None:
            kept[owner] = ManagedFields(fields, share.time)
    if taken is not None:
        held = kept.get(mine)
        fields = managed.union(held.fields if held else None, taken)
        assert fields is not None
        kept[mine] = ManagedFields(fields, managed.stamp(context.now_s))
    return managed.encode(new, managed.cap(kept), old)


def _owner(context: WriteContext, operation: str) -> FieldManager:
    """Return the owner who writes."""
    version = context.resource.api_version
    return FieldManager(context.options.field_manager, operation, version, context.subresource)


def _checked_config(patch: Any, shape: SchemaType, context: WriteContext) -> dict[str, Any]:
    """Return the configuration without what it may not set."""
    resource, subresource = context.resource, context.subresource
    if not isinstance(patch, dict):
        raise BadRequest("error decoding YAML: the apply patch must be an object")
    if not context.options.field_manager:
        cause = fields.required("fieldManager", "is required for apply patch")
        raise fields.invalid_options("PatchOptions", cause)
    meta = patch.get("metadata")
    if isinstance(meta, dict) and meta.get("managedFields"):
        raise BadRequest("metadata.managedFields must be nil")
    version, kind = patch.get("apiVersion"), patch.get("kind")
    if not kind:
        raise BadRequest("Object 'Kind' is missing in the apply patch")
    if not version:
        raise BadRequest("Object 'apiVersion' is missing in the apply patch")
    scale = subresource == "scale"
    if not scale and version != resource.api_version:
        raise BadRequest(
            f"Incorrect version specified in apply patch. Specified patch version: {version}, "
            f"expected: {resource.api_version}"
        )
    if not scale and kind != resource.kind:
        raise BadRequest(
            f"the kind in the apply patch ({kind}) does not match the expected kind ({resource.kind})"
        )
    try:
        typed.check(shape, patch)
    except typed.Mismatch as mismatch:
        raise _untyped(patch, resource, str(mismatch)) from mismatch
    config = dict(patch)
    if subresource == "status":
        config.pop("spec", None)
    elif not subresource and "status" in resource.subresources:
        config.pop("status", None)
    return config


def _untyped(patch: dict[str, Any], resource: Resource, reason: str) -> BadRequest:
    meta = managed.metadata(patch)
    where = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    gvk = f"{resource.api_version}, Kind={resource.kind}"
    return BadRequest(f"failed to create typed patch object ({where}; {gvk}): {reason}")


def _owners_before_apply(
    shape: SchemaType, current: dict[str, Any], resource: Resource, now_s: float
) -> Owners:
    """Return who owns the live object; `before-first-apply` owns all of one that nobody tracked."""
    owners = managed.decode(current, stored=True)
    if owners or not current:
        return owners
    everything = managed.ownable(typed.compare(shape, {}, _without_managed(current)).added, resource, "")
    if everything is None:
        return {}
    first = FieldManager(BEFORE_FIRST_APPLY, UPDATE, resource.api_version)
    return {first: ManagedFields(everything, managed.stamp(now_s))}


def _abandoned(previous: Node, owners: Owners) -> Node | None:
    """Return what this manager applied before and nobody owns any more."""
    owned: Node | None = None
    for share in owners.values():
        owned = managed.union(owned, share.fields or None)
    return _outside(previous, owned)


def _outside(previous: Node, owned: Node | None) -> Node | None:
    """Like a difference, but a struct's field stays as long as anything below it is owned."""
    if owned is None:
        return previous
    below: Node = {}
    for key, node in previous.items():
        if key == managed.SELF:
            continue
        rest = _outside(node, owned[key]) if key in owned else node
        if rest is not None:
            below[key] = rest
    return below or None


def _yield_fields(owners: Owners, mine: FieldManager, difference: typed.Difference, force: bool) -> Owners:
    """Return the owners after the write: others lose what was changed or removed.

    Raises: Conflict when they would and `force` is off.
    """
    changed, removed = difference.changed, difference.removed
    conflicts: list[tuple[FieldManager, str]] = []
    after: Owners = {}
    for owner, share in owners.items():
        fields: Node | None = share.fields
        if owner != mine:
            lost = managed.intersection(share.fields or None, changed)
            conflicts += [(owner, path) for path in managed.paths(lost)]
            fields = managed.difference(fields, changed)
        fields = managed.difference(fields, removed)
        if fields is not None:
            after[owner] = ManagedFields(fields, share.time)
    if conflicts and not force:
        raise _conflict(conflicts)
    return after


def _conflict(conflicts: list[tuple[FieldManager, str]]) -> Conflict:
    """In the API server's words, which `kubectl apply --server-side` shows."""
    by_owner: dict[str, list[str]] = {}
    for owner, path in conflicts:
        by_owner.setdefault(owner.describe(), []).append(path)
    if len(conflicts) == 1:
        owner, path = conflicts[0]
        text = f"Apply failed with 1 conflict: conflict with {owner.describe()}: {path}"
    else:
        lines = []
        for name in sorted(by_owner):
            lines += [f"conflicts with {name}:", *(f"- {path}" for path in by_owner[name])]
        text = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    causes = [
        StatusCause(reason="FieldManagerConflict", message=f"conflict with {name}", field=path)
        for name in sorted(by_owner)
        for path in by_owner[name]
    ]
    return Conflict(text, details=StatusDetails(causes=causes))


def _without_managed(obj: dict[str, Any]) -> dict[str, Any]:
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or "managedFields" not in meta:
        return obj
    return {**obj, "metadata": {key: value for key, value in meta.items() if key != "managedFields"}}
