"""Create, replace and delete stored objects: the synchronous heart of every write, behind decoding of what clients
sent (kind and version, types, unknown fields, defaults).

Nothing here awaits, so between reading the stored object and storing its successor nobody else can write. Callers
(`registry`) decode, admit and retry around it.
"""

import itertools
import random
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.meta import Resource
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ObjectRecord, WriteOptions
from koordinator.cluster.errors import StatusCause
from koordinator.cluster.protocol import PatchType
from koordinator.local.admission.quota import QuotaAccounting
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches import ObjectPatcher
from koordinator.local.registry import kinds, metadata, refusals
from koordinator.local.registry.kinds import ServedKind
from koordinator.local.registry.strategies import StrategyContext
from koordinator.local.schema import Catalog
from koordinator.local.schema import errors as fields
from koordinator.local.schema.builtin.warnings import warnings_of
from koordinator.local.schema.errors import go_text, invalid_patch, shown
from koordinator.local.service_account_tokens import ServiceAccountTokens
from koordinator.local.store import ObjectStore


class Decoder:
    """Decodes by the schemas of a catalog; with `checks` False only kind and version are looked at."""

    def __init__(self, catalog: Catalog, *, checks: bool) -> None:
        self._catalog = catalog
        self._checks = checks

    def decoded(
        self,
        resource: Resource,
        obj: dict[str, Any],
        options: WriteOptions,
        patch_type: PatchType | None = None,
        patch: Any = None,
    ) -> dict[str, Any]:
        """Return the object with known fields only, and defaults. `patch_type` and `patch`: what made it, if a patch
        did.

        Raises: BadRequest (wrong kind or types, unknown fields in Strict mode); Invalid instead when a patch
        made the object of wrong types.
        """
        obj = _named(resource, obj)
        if not self._checks:
            return obj
        _check_encodable(resource, obj)
        schema = self._catalog.schema_of(resource)
        if patch_type in (None, PatchType.APPLY):
            decoded, warnings = schema.decode(obj, options.field_validation)
        else:
            try:
                decoded, warnings = schema.decode(obj, options.field_validation)
            except errors.BadRequest as error:
                # A strategic merge patch is shown itself, the others by what they made, as kube-apiserver does.
                value = go_text(patch) if patch_type is PatchType.STRATEGIC else shown(obj)
                raise invalid_patch(value, error.message.partition(": ")[2] or error.message) from error
        if options.warn is not None:
            for warning in warnings:
                options.warn(warning)
        return schema.default(decoded)

    def defaulted(self, resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
        """Return the object with the defaults of what webhooks added."""
        return self._catalog.schema_of(resource).default(obj) if self._checks else obj


def _check_encodable(resource: Resource, obj: dict[str, Any]) -> None:
    """Half of a surrogate pair (an escape in YAML) has no JSON text; nobody could read such an object back."""
    try:
        msgspec.json.encode(obj)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.BadRequest(f"{resource.kind}: the object cannot be written as JSON: {error}") from error


def _named(resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
    """Return an object that begins with its version and kind, put in where they were left out.

    Raises: BadRequest when they are others.
    """
    if obj.setdefault("apiVersion", resource.api_version) != resource.api_version:
        raise errors.BadRequest(
            f"the API version in the data ({obj['apiVersion']}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if obj.setdefault("kind", resource.kind) != resource.kind:
        raise errors.BadRequest(
            f'{obj["kind"]} in version "{resource.version}" cannot be handled as a {resource.kind}'
        )
    if tuple(itertools.islice(obj, 2)) == ("apiVersion", "kind"):
        return obj
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


PARTS = ("ephemeralcontainers", "resize")
"""Subresources that write a part of the spec."""

GENERATE_TRIES_MAX = 8
"""Names drawn for one generateName before giving up, as in the API server."""


class ObjectWriter:
    """Carries out writes that are decided but for the stored object itself.

    `checks` False skips schema validation and the bookkeeping of field owners, nothing else.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        catalog: Catalog,
        patcher: ObjectPatcher,
        *,
        checks: bool,
        tokens: ServiceAccountTokens,
    ) -> None:
        self.store = store
        self.tokens = tokens
        self.clock = clock
        self.quotas = QuotaAccounting(store, clock)
        self.around = StrategyContext(store, rng, checks=checks)
        self._rng = rng
        self._catalog = catalog
        self._patcher = patcher
        self._checks = checks
        self._stamped_s = -1
        self._stamp = ""

    def now_text(self) -> str:
        """Return the time in whole seconds, as it stands in objects."""
        now_s = int(self.clock.now())
        if now_s != self._stamped_s:
            self._stamped_s, self._stamp = now_s, clock.rfc3339(now_s)
        return self._stamp

    # Create

    def tracked_new(self, obj: dict[str, Any], resource: Resource, options: WriteOptions) -> dict[str, Any]:
        """Return a new object with its first field owner: of what the client sent and its defaults, not of what
        admission and the server add."""
        return self._tracked(None, obj, resource, options, "") if self._checks else obj

    def insert(
        self,
        kind: ServedKind,
        resource: Resource,
        namespace: str,
        obj: dict[str, Any],
        options: WriteOptions,
    ) -> ObjectRecord:
        """Store a new object. `obj` (of the version `resource`) becomes the store's.

        Raises: BadRequest, Invalid, AlreadyExists.
        """
        meta = metadata.place(metadata.of(obj), resource, namespace)
        obj = {**obj, "metadata": meta}
        has_version = meta.get("resourceVersion") not in (None, "", "0")
        name = self._name(kind, namespace, meta)
        if not name:
            raise fields.invalid_object(resource, "", self._nameless(resource, obj))
        now = self.now_text()
        metadata.begin(meta, metadata.new_uid(self._rng), now)
        kind.strategy.begin_status(obj)
        causes = kind.strategy.prepare_create(obj, self.around, now)
        if kind.facts.has_generation:
            meta["generation"] = 1
        if self._checks:
            causes += self._catalog.schema_of(resource).validate(obj, None)
            if kind.table.name == kinds.CRD_TABLE:
                causes += self._catalog.check_crd(obj)
        if causes:
            raise fields.invalid_object(resource, name, causes)
        self._warn(resource, obj, None, options)
        if has_version and not options.dry_run:
            # The API server answers this one with a bare 500; a mistake in a request is the client's.
            raise errors.BadRequest("resourceVersion should not be set on objects to be created")
        charges = self.quotas.charges(resource, obj, None)
        self._refuse_existing(kind, resource, namespace, name)
        metadata.drop_empty(obj["metadata"])
        obj = kind.stored(obj)
        if options.dry_run:
            return ObjectRecord(obj, 0)
        record = self._put(kind, meta.get("namespace", ""), name, obj)
        self.quotas.book(charges)
        return record

    def _put(self, kind: ServedKind, namespace: str, name: str, obj: dict[str, Any]) -> ObjectRecord:
        record = kind.table.put(namespace, name, obj)
        if kind.expiry is not None:
            kind.expiry.written(record, self.clock.now())
        return record

    def _nameless(self, resource: Resource, obj: dict[str, Any]) -> list[StatusCause]:
        """Everything that is wrong with an object without a name."""
        if self._checks:
            return self._catalog.schema_of(resource).validate(obj, None)
        return [fields.required("metadata.name", "name or generateName is required")]

    def _name(self, kind: ServedKind, namespace: str, meta: dict[str, Any]) -> str:
        name = metadata.name_of(meta)
        base = metadata.name_of(meta, "generateName")
        if not name and not base and kind.facts.named_by_uid:
            name = meta["name"] = metadata.new_uid(self._rng)
        if name or not base:
            return name
        for _ in range(GENERATE_TRIES_MAX):
            name = metadata.generated_name(base, self._rng)
            if kind.table.get(namespace, name) is None:
                break
        meta["name"] = name
        return name

    def _refuse_existing(self, kind: ServedKind, resource: Resource, namespace: str, name: str) -> None:
        existing = kind.table.get(namespace, name)
        if existing is not None:
            is_deleting = "deletionTimestamp" in existing.obj["metadata"]
            raise refusals.already_exists(resource, name, is_deleting=is_deleting)

    # Update

    def replace(
        self,
        kind: ServedKind,
        resource: Resource,
        old: ObjectRecord,
        obj: dict[str, Any],
        options: WriteOptions,
        subresource: str = "",
        *,
        is_tracked: bool = False,
    ) -> tuple[ObjectRecord, bool]:
        """Store the successor of `old`; says whether the object is gone by it (its last finalizer went).

        `obj` is in the version `resource`. A write that changes nothing returns `old`.
        Raises: BadRequest, Conflict, Invalid.
        """
        was = old.obj
        old_meta = was["metadata"]
        name = old_meta["name"]
        meta = metadata.place(metadata.of(obj), resource, old_meta.get("namespace", ""))
        obj = kind.stored({**obj, "metadata": meta})
        meta = obj["metadata"]  # what a translation made is another one, and ours as well
        self._check_identity(kind, resource, meta, old_meta)
        causes: list[StatusCause] = []
        if subresource == "status":
            obj = kind.strategy.only_status(obj, was, self.now_text())
        elif subresource == "finalize":
            obj = _only_finalizers(obj, was)
        elif subresource in PARTS:
            obj, causes = kind.strategy.only_part(subresource, obj, was)
        meta = obj["metadata"]
        causes += metadata.carry_over(meta, old_meta)
        if not subresource:
            kind.strategy.keep_status(obj, was)
            causes += kind.strategy.prepare_update(obj, was, self.around)
        is_specified = not subresource or subresource in PARTS
        if is_specified and kind.facts.has_generation and kind.strategy.counts_as_change(obj, was):
            meta["generation"] = old_meta.get("generation", 0) + 1
        meta["resourceVersion"] = old_meta["resourceVersion"]
        metadata.drop_empty(meta)
        if self._checks:
            obj = self._checked(kind, resource, old, obj, causes, options, subresource, is_tracked)
        elif causes:
            raise fields.invalid_object(resource, name, causes)
        if metadata.same_but_for_times(was, obj):
            return old, False
        charges = self.quotas.charges(resource, obj, was, subresource)
        stored = self._store(kind, old, obj, options)
        if not options.dry_run:
            self.quotas.book(charges)
        return stored

    def _checked(
        self,
        kind: ServedKind,
        resource: Resource,
        old: ObjectRecord,
        obj: dict[str, Any],
        causes: list[StatusCause],
        options: WriteOptions,
        subresource: str,
        is_tracked: bool,
    ) -> dict[str, Any]:
        """Return the object with its field owners, if the schema finds nothing wrong. Raises: Invalid."""
        was = kind.shown(old, resource).obj
        shown = kind.shown(ObjectRecord(obj, 0), resource).obj
        # A part has rules of its own for what may change; the whole must be as good as a new object.
        before = None if subresource in PARTS else was
        causes += self._catalog.schema_of(resource).validate(shown, before)
        if kind.table.name == kinds.CRD_TABLE and not subresource:
            causes += self._catalog.check_crd(obj)
        if causes:
            raise fields.invalid_object(resource, shown["metadata"]["name"], causes)
        if not subresource:
            self._warn(resource, shown, was, options)
        if not is_tracked:
            shown = self._tracked(was, shown, resource, options, subresource)
        stored = kind.stored(shown)
        if stored is not shown and not subresource:
            kind.strategy.keep_status(stored, old.obj)  # not by way of another version
        return stored

    def _warn(
        self, resource: Resource, obj: dict[str, Any], old: dict[str, Any] | None, options: WriteOptions
    ) -> None:
        if self._checks and options.warn is not None:
            for warning in warnings_of(resource.group, resource.kind, obj, old):
                options.warn(warning)

    def _tracked(
        self,
        old: dict[str, Any] | None,
        obj: dict[str, Any],
        resource: Resource,
        options: WriteOptions,
        subresource: str,
    ) -> dict[str, Any]:
        obj = self._patcher.track(old, obj, WriteContext(resource, options, self.clock.now(), subresource))
        return {**obj, "metadata": dict(obj["metadata"])}

    def _check_identity(
        self, kind: ServedKind, resource: Resource, meta: dict[str, Any], old_meta: dict[str, Any]
    ) -> None:
        """Is this update about that object, and about its newest version?"""
        name = old_meta["name"]
        metadata.check_named(meta, name)
        uid = metadata.name_of(meta, "uid")
        if uid and uid != old_meta["uid"]:
            raise refusals.another_uid(resource, meta.get("namespace", ""), name, uid, old_meta["uid"])
        version = metadata.name_of(meta, "resourceVersion")
        if version in ("", "0"):
            if not kind.facts.blind_update:
                why = "Invalid value: 0: must be specified for an update"
                cause = StatusCause(reason="FieldValueInvalid", field="metadata.resourceVersion", message=why)
                raise fields.invalid_kind(resource.group, resource.plural, name, [cause])
        elif version != old_meta["resourceVersion"]:
            _refuse_malformed(resource, name, version)
            raise refusals.conflict(resource, name)

    def _store(
        self, kind: ServedKind, old: ObjectRecord, obj: dict[str, Any], options: WriteOptions
    ) -> tuple[ObjectRecord, bool]:
        meta = obj["metadata"]
        is_gone = metadata.is_over(obj) and kind.strategy.is_over(obj)
        if options.dry_run:
            return ObjectRecord(obj, old.version), is_gone
        if is_gone:
            # The last change is never stored: watchers see the object go as it was before.
            kind.table.remove(meta.get("namespace", ""), meta["name"])
            return ObjectRecord(obj, self.store.version), True
        return self._put(kind, meta.get("namespace", ""), meta["name"], obj), False

    def overwrite(self, kind: ServedKind, old: ObjectRecord, obj: dict[str, Any]) -> ObjectRecord:
        """Store the successor of `old` that the server itself worked out: nothing is checked.

        `obj` and its metadata must be copies.
        """
        meta = old.obj["metadata"]
        return kind.table.put(meta.get("namespace", ""), meta["name"], obj)

    # Delete

    def check_preconditions(self, resource: Resource, record: ObjectRecord, options: DeleteRequest) -> None:
        """Raises: Conflict when the object is not the one (or the version) that was meant."""
        meta = record.obj["metadata"]
        if options.uid and options.uid != meta["uid"]:
            why = (
                f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
                "The object might have been deleted and then recreated"
            )
            raise refusals.conflict(resource, meta["name"], why, by_kind=True)
        version = options.resource_version
        if version and version != meta["resourceVersion"]:
            why = (
                f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in "
                f"record ({meta['resourceVersion']}). The object might have been modified"
            )
            raise refusals.conflict(resource, meta["name"], why, by_kind=True)

    def delete(
        self, kind: ServedKind, resource: Resource, record: ObjectRecord, options: DeleteRequest
    ) -> tuple[ObjectRecord, bool]:
        """Delete an object, or begin to; says whether it is gone. Raises: Conflict, Forbidden, Invalid."""
        meta = record.obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        self.check_preconditions(resource, record, options)
        if name in kind.facts.immortal:
            raise refusals.forbidden(resource, name, "this namespace may not be deleted")
        decided = self._decide(kind, record, options)
        if decided.fate is metadata.DeletionOutcome.WAITING:
            return record, False
        if decided.fate is metadata.DeletionOutcome.GONE:
            if options.dry_run:
                return ObjectRecord(decided.obj, record.version), True
            if decided.obj is not record.obj:  # watchers see both steps, as those of Kubernetes do
                kind.table.put(namespace, name, decided.obj)
            return kind.table.remove(namespace, name), True
        if options.dry_run:
            return ObjectRecord(decided.obj, record.version), False
        return kind.table.put(namespace, name, decided.obj), False

    def _decide(self, kind: ServedKind, record: ObjectRecord, options: DeleteRequest) -> metadata.Deletion:
        obj, now_s = record.obj, self.clock.now()
        if options.propagation and options.propagation not in metadata.DELETION_POLICIES:
            choice = (*metadata.DELETION_POLICIES, "nil")
            cause = fields.not_supported("propagationPolicy", options.propagation, choice)
            raise fields.invalid_options("DeleteOptions", cause)
        if not kind.strategy.is_over(obj):
            return self._decide_namespace(kind, obj, options, now_s)
        return metadata.decide_deletion(
            obj,
            grace_s=kind.strategy.grace_s(obj, options.grace_period_s),
            asked_s=options.grace_period_s,
            propagation=options.propagation,
            orphans_by_default=kind.facts.orphans_by_default,
            now_s=now_s,
        )

    def _decide_namespace(
        self, kind: ServedKind, obj: dict[str, Any], options: DeleteRequest, now_s: float
    ) -> metadata.Deletion:
        """A namespace with `spec.finalizers` becomes Terminating; its controller does the rest."""
        if "deletionTimestamp" in obj["metadata"]:
            return metadata.Deletion(metadata.DeletionOutcome.WAITING, obj)
        wanted = metadata.finalizers(obj["metadata"], options.propagation, kind.facts.orphans_by_default)
        marked = metadata.marked(obj, wanted, now_s, grace_s=None)
        marked["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        return metadata.Deletion(metadata.DeletionOutcome.MARKED, marked)


def _only_finalizers(obj: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return the stored namespace with the `spec.finalizers` that were sent."""
    spec = {key: value for key, value in (old.get("spec") or {}).items() if key != "finalizers"}
    kept = (obj.get("spec") or {}).get("finalizers")
    if kept:
        spec["finalizers"] = kept
    meta = {**old["metadata"]}
    if "resourceVersion" in obj["metadata"]:
        meta["resourceVersion"] = obj["metadata"]["resourceVersion"]
    return {**old, "metadata": meta, "spec": spec}


def _refuse_malformed(resource: Resource, name: str, version: str) -> None:
    try:
        refusals.version_number(version)
    except ValueError as error:
        cause = fields.invalid("metadata.resourceVersion", version, str(error))
        raise fields.invalid_object(resource, name, [cause]) from None
