"""The API of the in-process cluster, without HTTP: `cluster.backend.Backend` on a store.

A write goes decode → defaults → admission → strategy → validation → store, as in the API server. Only
admission (webhooks) and the journal await; a write that finds its object changed after admission starts over.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.backend import (
    DeleteRequest,
    ListOptions,
    ObjectRecord,
    RecordList,
    Subscription,
    WriteOptions,
)
from koordinator.cluster.errors import StatusCause
from koordinator.cluster.protocol import PatchType
from koordinator.local.authorization.rbac import Rbac
from koordinator.local.interfaces import Admission, AdmissionAttributes, WriteContext
from koordinator.local.patches import ObjectPatcher
from koordinator.local.registry import actions, kinds, metadata, reading, refusals, scale
from koordinator.local.registry.definitions import CustomDefinitions
from koordinator.local.registry.kinds import Kinds, ServedKind
from koordinator.local.registry.plain import PlainPatcher
from koordinator.local.registry.writing import Decoder, ObjectWriter
from koordinator.local.schema import Catalog
from koordinator.local.service_account_tokens import ServiceAccountTokens
from koordinator.local.store import ObjectStore

PATCH_TRIES_MAX = 5
"""Attempts of a write whose object keeps changing while admission is asked, as in the API server."""

DELETE_TOGETHER = 256
"""Objects of a collection that are deleted at once: they share webhook round trips and commits."""

YIELD_EVERY = 128
"""Writes after which a writer that never waits lets others run; far fewer than a watch may lag behind."""


Change = Callable[[dict[str, Any]], dict[str, Any]]
"""The object that follows from the current one."""


class ObjectRegistry:
    """Everything that the API server does with objects. Build one with `local.registry.in_memory`."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        catalog: Catalog,
        *,
        checks: bool = True,
        token_key: Path | None = None,
    ) -> None:
        self.clock = clock
        self.store = store
        self.tokens = ServiceAccountTokens(store, clock, rng, token_key)
        self.kinds = Kinds(store)
        self.admission: Admission | None = None
        self.authorizer = Rbac(store)
        self._patcher = ObjectPatcher(catalog) if checks else PlainPatcher(catalog)
        self._decoder = Decoder(catalog, checks=checks)
        self.writer = ObjectWriter(
            store, clock, rng, catalog, self._patcher, checks=checks, tokens=self.tokens
        )
        self.definitions = CustomDefinitions(self.kinds, self.writer, catalog)
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        self._writes = 0

    # Discovery

    def resources(self) -> Iterable[Resource]:
        return self.kinds.resources()

    def other_versions_of(self, resource: Resource) -> list[Resource]:
        """Return the other versions in which a resource is served."""
        kind = self.kinds.of_group(resource.group, resource.plural)
        versions = () if kind is None else kind.versions.values()
        return [other for other in versions if other.version != resource.version]

    def resolve(self, group: str, version: str, plural: str) -> Resource:
        return self.kinds.find(group, version, plural)[1]

    # Reading

    def get(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> ObjectRecord:
        kind, resource = self._find(resource)
        self._check_subresource(kind, resource, name, subresource)
        record = self._stored(kind, resource, namespace, name)
        if subresource == "scale":
            assert kind.scale_paths is not None, resource
            scale_of = scale.of_custom if kind.is_custom else scale.of
            return ObjectRecord(scale_of(record.obj, kind.scale_paths), record.version)
        return kind.shown(record, resource)

    def list(self, resource: Resource, namespace: str, options: ListOptions) -> RecordList:
        kind, resource = self._find(resource)
        chosen = self._select(kind, namespace, options)
        found = reading.list_page(kind.table, namespace, chosen, options, self.store.version)
        if not kind.is_converted:
            return found
        return msgspec.structs.replace(found, records=[kind.shown(each, resource) for each in found.records])

    def watch(self, resource: Resource, namespace: str, options: ListOptions) -> Subscription:
        kind, resource = self._find(resource)
        chosen = self._select(kind, namespace, options)
        watch = reading.open_watch(kind.table, namespace, chosen, options, self.store.version)
        return reading.ShownWatch(watch, kind.shown, resource) if kind.is_converted else watch

    def _find(self, resource: Resource) -> tuple[ServedKind, Resource]:
        return self.kinds.find(resource.group, resource.version, resource.plural)

    def _select(self, kind: ServedKind, namespace: str, options: ListOptions) -> reading.CompiledSelector:
        return reading.select(
            namespace, options.label_selector, options.field_selector, kind.selectable, kind.indexes
        )

    def _stored(self, kind: ServedKind, resource: Resource, namespace: str, name: str) -> ObjectRecord:
        record = kind.table.get(namespace, name)
        if record is None:
            raise refusals.not_found(resource, name)
        return record

    # Create

    def seed(self, resource: Resource, namespace: str, obj: dict[str, Any]) -> ObjectRecord:
        """Create an object before anybody else is there: no admission, no wait for the journal."""
        kind, resource = self._find(resource)
        obj = self._decoder.decoded(resource, obj, WriteOptions())
        obj = {**obj, "metadata": metadata.place(metadata.of(obj), resource, namespace)}
        kind.strategy.admit_create(obj, self.writer.around)
        return self.writer.insert(kind, resource, namespace, obj, WriteOptions())

    async def create(
        self, resource: Resource, namespace: str, obj: dict[str, Any], options: WriteOptions = WriteOptions()
    ) -> ObjectRecord:
        kind, resource = self._find(resource)
        return await self._create(kind, resource, namespace, obj, options)

    async def _create(
        self,
        kind: ServedKind,
        resource: Resource,
        namespace: str,
        obj: dict[str, Any],
        options: WriteOptions,
        *,
        is_tracked: bool = False,
    ) -> ObjectRecord:
        obj = self._decoder.decoded(resource, obj, options)
        obj = {**obj, "metadata": metadata.place(metadata.of(obj), resource, namespace)}
        self._check_namespace(kind, resource, namespace, obj["metadata"])
        if not is_tracked:
            obj = self.writer.tracked_new(obj, resource, options)
        kind.strategy.admit_create(obj, self.writer.around)
        admission = self.admission
        if admission is not None and admission.wants(resource, "CREATE", "", namespace):
            key = namespace, metadata.name_of(obj["metadata"])
            admitted = await self._admitted("CREATE", resource, key, obj, None, options)
            obj = self._decoder.defaulted(resource, admitted)
            obj = {**obj, "metadata": dict(metadata.of(obj))}
            kind.strategy.admit_create(obj, self.writer.around)
            self._check_namespace(kind, resource, namespace, obj["metadata"])
        record = self.writer.insert(kind, resource, namespace, obj, options)
        if not options.dry_run:
            if kind.table.name == kinds.CRD_TABLE:
                self.definitions.written(record.obj)
            await self._acknowledge()
        return kind.shown(record, resource)

    def _check_namespace(
        self, kind: ServedKind, resource: Resource, namespace: str, meta: dict[str, Any]
    ) -> None:
        """New objects need a namespace that is there to stay."""
        if kind.is_terminating:
            raise errors.MethodNotSupported(
                "create not allowed while custom resource definition is terminating",
            )
        if not resource.namespaced:
            return
        if not namespace:
            raise errors.BadRequest("an empty namespace may not be set during creation")
        found = self._namespaces.table.get("", namespace)
        if found is None:
            raise refusals.not_found(self._namespaces.resource, namespace)
        if "deletionTimestamp" in found.obj["metadata"]:
            cause = StatusCause(
                reason="NamespaceTerminating",
                message=f"namespace {namespace} is being terminated",
                field="metadata.namespace",
            )
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            name = meta.get("name") or meta.get("generateName") or ""
            raise refusals.forbidden(resource, name, why, [cause])

    @property
    def _namespaces(self) -> ServedKind:
        kind = self.kinds.of_group("", "namespaces")
        assert kind is not None
        return kind

    # Update and patch

    async def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: dict[str, Any],
        options: WriteOptions = WriteOptions(),
        subresource: str = "",
    ) -> ObjectRecord:
        kind, resource = self._find(resource)
        self._check_subresource(kind, resource, name, subresource)
        if subresource == "scale":
            metadata.check_named(metadata.of(obj), name)
            return await self._scale(kind, resource, namespace, name, lambda _: obj, options)
        obj = self._decoder.decoded(resource, obj, options)
        metadata.check_named(metadata.place(metadata.of(obj), resource, namespace), name)
        for _ in range(PATCH_TRIES_MAX):
            if kind.facts.creates_on_update and not subresource and kind.table.get(namespace, name) is None:
                refusals.check_new(resource, namespace, metadata.of(obj), name)
                return await self._create(kind, resource, namespace, obj, options)
            old = self._stored(kind, resource, namespace, name)
            admitted = await self._admit_update(kind, resource, old, obj, options, subresource)
            if kind.table.get(namespace, name) is old:
                return await self._replace(kind, resource, old, admitted, options, subresource)
        raise refusals.conflict(resource, name)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Any,
        patch_type: PatchType,
        options: WriteOptions = WriteOptions(),
        subresource: str = "",
    ) -> ObjectRecord:
        kind, resource = self._find(resource)
        self._check_subresource(kind, resource, name, subresource)
        if subresource == "scale":
            change = self._patch_function(resource, patch, patch_type, options, subresource)
            return await self._scale(kind, resource, namespace, name, change, options)
        is_apply = patch_type is PatchType.APPLY
        for _ in range(PATCH_TRIES_MAX):
            old = kind.table.get(namespace, name)
            if old is None and not (is_apply and not subresource):
                raise refusals.not_found(resource, name)
            current = {} if old is None else kind.shown(old, resource).obj
            obj = self._patch_function(resource, patch, patch_type, options, subresource)(current)
            if obj is current and old is not None:
                return kind.shown(old, resource)
            if old is None:
                metadata.check_named(metadata.of(obj), name)
                return await self._create(kind, resource, namespace, obj, options, is_tracked=True)
            obj = self._decoder.decoded(resource, dict(obj), options, patch_type, patch)
            admitted = await self._admit_update(kind, resource, old, obj, options, subresource)
            if kind.table.get(namespace, name) is old:
                return await self._replace(
                    kind, resource, old, admitted, options, subresource, is_tracked=is_apply
                )
        raise refusals.conflict(resource, name)

    def _patch_function(
        self, resource: Resource, patch: Any, patch_type: PatchType, options: WriteOptions, subresource: str
    ) -> Change:
        def change(current: dict[str, Any]) -> dict[str, Any]:
            context = WriteContext(resource, options, self.clock.now(), subresource)
            return self._patcher.apply(patch_type, current, patch, context)

        return change

    async def _scale(
        self,
        kind: ServedKind,
        resource: Resource,
        namespace: str,
        name: str,
        change: Change,
        options: WriteOptions,
    ) -> ObjectRecord:
        """Change the replicas of an object by way of its Scale."""
        paths = kind.scale_paths
        assert paths is not None, resource
        for _ in range(PATCH_TRIES_MAX):
            old = self._stored(kind, resource, namespace, name)
            current = scale.of(old.obj, paths)
            wanted = change(current)
            admission = self.admission
            if admission is not None and admission.wants(resource, "UPDATE", "scale", namespace):
                wanted = await self._admitted(
                    "UPDATE", resource, (namespace, name), wanted, current, options, "scale"
                )
            if kind.table.get(namespace, name) is old:
                obj = scale.scaled(old.obj, wanted, paths, is_custom=kind.is_custom)
                obj = kind.shown(ObjectRecord(obj, 0), resource).obj
                record = await self._replace(kind, resource, old, obj, options, "")
                return ObjectRecord(scale.of(record.obj, paths), record.version)
        raise refusals.conflict(resource, name)

    async def _admit_update(
        self,
        kind: ServedKind,
        resource: Resource,
        old: ObjectRecord,
        obj: dict[str, Any],
        options: WriteOptions,
        subresource: str,
    ) -> dict[str, Any]:
        admission, meta = self.admission, old.obj["metadata"]
        key = meta.get("namespace", ""), meta["name"]
        if admission is None or not admission.wants(resource, "UPDATE", subresource, key[0]):
            return obj
        shown = kind.shown(old, resource).obj
        admitted = await self._admitted("UPDATE", resource, key, obj, shown, options, subresource)
        return self._decoder.defaulted(resource, admitted)

    async def _admitted(
        self,
        operation: str,
        resource: Resource,
        key: tuple[str, str],
        obj: dict[str, Any] | None,
        old: dict[str, Any] | None,
        options: WriteOptions,
        subresource: str = "",
    ) -> Any:
        """Return what admission makes of a write to the object of that namespace and name, or to one of its
        subresources: an object, None for a deletion. Raises: ApiError."""
        assert self.admission is not None, key
        asked = AdmissionAttributes(
            operation=operation,
            resource=resource,
            namespace=key[0],
            name=key[1],
            old=old,
            options=options,
            subresource=subresource,
        )
        admitted = await self.admission.admit(asked, obj)
        assert (admitted is None) == (obj is None), key
        return admitted

    async def _replace(
        self,
        kind: ServedKind,
        resource: Resource,
        old: ObjectRecord,
        obj: dict[str, Any],
        options: WriteOptions,
        subresource: str,
        *,
        is_tracked: bool = False,
    ) -> ObjectRecord:
        record, is_gone = self.writer.replace(
            kind, resource, old, obj, options, subresource, is_tracked=is_tracked
        )
        if not options.dry_run and record is not old:
            self._follow_up(kind, record, is_gone=is_gone)
            await self._acknowledge()
        return kind.shown(record, resource)

    def _follow_up(self, kind: ServedKind, record: ObjectRecord, *, is_gone: bool) -> None:
        """Carry out what a change means for the resources that are served."""
        if kind.table.name == kinds.CRD_TABLE:
            if is_gone:
                self.definitions.removed(record.obj)
            else:
                self.definitions.written(record.obj)
        elif is_gone and kind.is_terminating:
            self.definitions.thinned(kind.resource.group, kind.resource.plural)

    def _check_subresource(self, kind: ServedKind, resource: Resource, name: str, subresource: str) -> None:
        if subresource and subresource not in resource.subresources:
            raise refusals.not_found(resource, name) if kind.is_custom else refusals.not_served()

    # Delete

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteRequest = DeleteRequest()
    ) -> tuple[ObjectRecord, bool]:
        kind, resource = self._find(resource)
        record = self._stored(kind, resource, namespace, name)
        admission = self.admission
        if admission is not None and admission.wants(resource, "DELETE", "", namespace):
            write = WriteOptions(dry_run=options.dry_run, user=options.user, groups=options.groups)
            shown = kind.shown(record, resource).obj
            await self._admitted("DELETE", resource, (namespace, name), None, shown, write)
            record = self._stored(kind, resource, namespace, name)
        deleted, is_gone = self.writer.delete(kind, resource, record, options)
        if not options.dry_run and deleted is not record:
            self._follow_up(kind, deleted, is_gone=is_gone)
            await self._acknowledge()
        return kind.shown(deleted, resource), is_gone

    async def delete_collection(
        self, resource: Resource, namespace: str, selection: ListOptions, options: DeleteRequest
    ) -> Sequence[ObjectRecord]:
        records = self.list(resource, namespace, selection).records
        deleted: list[ObjectRecord | None] = []
        for start in range(0, len(records), DELETE_TOGETHER):
            some = records[start : start + DELETE_TOGETHER]
            deleted += await asyncio.gather(*(self._delete_one(resource, one, options) for one in some))
        return [record for record in deleted if record is not None]

    async def _delete_one(
        self, resource: Resource, record: ObjectRecord, options: DeleteRequest
    ) -> ObjectRecord | None:
        """Delete one of a collection and return it as it was; None when somebody else was faster."""
        meta = record.obj["metadata"]
        try:
            await self.delete(resource, meta.get("namespace", ""), meta["name"], options)
        except errors.NotFound:
            return None
        return record

    # Subresources that act

    async def connect(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        obj: dict[str, Any],
        options: WriteOptions = WriteOptions(),
    ) -> dict[str, Any]:
        kind, resource = self._find(resource)
        action = actions.find(resource, subresource)
        obj = self._decoder.decoded(actions.body_of(subresource), obj, options)
        actions.check_name(subresource, obj, name)
        pod = self._stored(kind, resource, namespace, name)
        admission = self.admission
        if admission is not None and admission.wants(resource, "CREATE", subresource, namespace):
            obj = await self._admitted("CREATE", resource, (namespace, name), obj, None, options, subresource)
            pod = self._stored(kind, resource, namespace, name)
        answer: dict[str, Any] = action(self.writer, kind, resource, pod, obj, options)
        if not options.dry_run:
            await self._acknowledge()
        return answer

    async def recount_quota(self, namespace: str, name: str) -> None:
        """Bring a ResourceQuota's `status.used` up to date with what is stored now."""
        if self.writer.quotas.recount(namespace, name):
            await self._acknowledge()

    async def close(self) -> None:
        """End connections and save what is left; nothing may be written afterwards."""
        for close in self.on_close:
            await close()
        if self.store.journal is not None:
            await self.store.journal.close()

    async def _acknowledge(self) -> None:
        """Return when the write cannot be lost any more."""
        journal = self.store.journal
        if journal is not None:
            await journal.committed()
            return
        self._writes += 1
        if self._writes % YIELD_EVERY == 0:
            await asyncio.sleep(0)
