"""A backend just big enough to test the HTTP side alone: objects in a dictionary, no rules of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from koordinator.api.meta import Resource
from koordinator.clock import FixedClock, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.backend import (
    DeleteRequest,
    ListOptions,
    ObjectRecord,
    RecordEvent,
    RecordList,
    WriteOptions,
)
from koordinator.cluster.protocol import EventType, PatchType
from koordinator.local.registry import metadata

PODS = Resource(
    group="", version="v1", kind="Pod", plural="pods", short_names=("po",), categories=("all",),
    subresources=("status", "binding", "eviction"),
)  # fmt: skip
NODES = Resource(
    group="", version="v1", kind="Node", plural="nodes", namespaced=False, subresources=("status",)
)
NAMESPACES = Resource(
    group="", version="v1", kind="Namespace", plural="namespaces", namespaced=False,
    subresources=("status", "finalize"),
)  # fmt: skip
CRDS = Resource(
    group="apiextensions.k8s.io", version="v1", kind="CustomResourceDefinition",
    plural="customresourcedefinitions", namespaced=False,
)  # fmt: skip
WIDGETS = Resource(group="example.com", version="v1", kind="Widget", plural="widgets")


class FakeSubscription:
    """Events pushed by the test or the backend."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Sequence[RecordEvent] | errors.ApiError | None] = asyncio.Queue()
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[Sequence[RecordEvent]]:
        while (batch := await self.queue.get()) is not None:
            if isinstance(batch, errors.ApiError):
                raise batch
            yield batch

    def close(self) -> None:
        self.closed = True
        self.queue.put_nowait(None)


class FakeBackend:
    """Keeps what it is given and counts versions."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.served = [PODS, NODES, NAMESPACES, CRDS, WIDGETS]
        self.records: dict[tuple[str, str, str], ObjectRecord] = {}
        self.version = 10
        self.subscriptions: list[FakeSubscription] = []
        self.calls: list[tuple[Any, ...]] = []
        self.fail: Exception | None = None

    def resources(self) -> Iterable[Resource]:
        return self.served

    def resolve(self, group: str, version: str, plural: str) -> Resource:
        for resource in self.served:
            if (resource.group, resource.version, resource.plural) == (group, version, plural):
                return resource
        raise errors.NotFound("the server could not find the requested resource")

    def get(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> ObjectRecord:
        if self.fail is not None:
            raise self.fail
        record = self.records.get((resource.qualified, namespace, name))
        if record is None:
            raise errors.not_found(resource.qualified, name, group=resource.group, kind=resource.plural)
        return record

    def list(self, resource: Resource, namespace: str, options: ListOptions) -> RecordList:
        self.calls.append(("list", resource.plural, namespace, options))
        found = [
            record
            for (qualified, space, _), record in sorted(self.records.items())
            if qualified == resource.qualified and namespace in ("", space)
        ]
        if options.limit and len(found) > options.limit:
            return RecordList(
                records=found[: options.limit], version=self.version, continue_token="next", remaining_count=1
            )
        return RecordList(records=found, version=self.version)

    def watch(self, resource: Resource, namespace: str, options: ListOptions) -> FakeSubscription:
        self.calls.append(("watch", resource.plural, namespace, options))
        if options.resource_version == "1":
            raise errors.Gone("too old resource version: 1 (10)")
        subscription = FakeSubscription()
        self.subscriptions.append(subscription)
        return subscription

    async def create(
        self, resource: Resource, namespace: str, obj: dict[str, Any], options: WriteOptions = WriteOptions()
    ) -> ObjectRecord:
        self.calls.append(("create", resource.plural, namespace, options))
        obj["metadata"] = metadata.place(metadata.of(obj), resource, namespace)
        obj["metadata"].setdefault("creationTimestamp", rfc3339(self.clock.now()))
        return self._store(resource, namespace, obj["metadata"].get("name", "generated"), obj)

    async def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: dict[str, Any],
        options: WriteOptions = WriteOptions(),
        subresource: str = "",
    ) -> ObjectRecord:
        self.calls.append(("update", resource.plural, namespace, name, subresource, options))
        return self._store(resource, namespace, name, obj)

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
        self.calls.append(
            ("patch", resource.plural, namespace, name, patch, patch_type, subresource, options)
        )
        if patch_type is PatchType.APPLY:
            return self._store(resource, namespace, name, {**patch, "metadata": {"name": name}})
        current = self.get(resource, namespace, name).obj
        merged = {**current, **patch} if isinstance(patch, dict) else dict(current)
        return self._store(resource, namespace, name, merged)

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteRequest = DeleteRequest()
    ) -> tuple[ObjectRecord, bool]:
        self.calls.append(("delete", resource.plural, namespace, name, options))
        record = self.get(resource, namespace, name)
        del self.records[resource.qualified, namespace, name]
        return record, options.grace_period_s != 30

    async def delete_collection(
        self, resource: Resource, namespace: str, selection: ListOptions, options: DeleteRequest
    ) -> Sequence[ObjectRecord]:
        self.calls.append(("delete_collection", resource.plural, namespace, selection, options))
        return self.list(resource, namespace, ListOptions()).records

    async def connect(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        obj: dict[str, Any],
        options: WriteOptions = WriteOptions(),
    ) -> dict[str, Any]:
        self.calls.append(("connect", resource.plural, namespace, name, subresource, obj))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _store(self, resource: Resource, namespace: str, name: str, obj: dict[str, Any]) -> ObjectRecord:
        self.version += 1
        kind = (
            EventType.MODIFIED if (resource.qualified, namespace, name) in self.records else EventType.ADDED
        )
        meta = {**obj.get("metadata", {}), "name": name, "resourceVersion": str(self.version)}
        record = ObjectRecord({**obj, "metadata": meta}, self.version)
        self.records[resource.qualified, namespace, name] = record
        for subscription in self.subscriptions:
            subscription.queue.put_nowait([RecordEvent(kind, record, self.version)])
        return record
