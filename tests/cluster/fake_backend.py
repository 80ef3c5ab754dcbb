"""A tiny API in memory with faults on demand: enough of `Backend` for the tests of this room."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import msgspec

from koordinator.api.meta import Object, Resource
from koordinator.clock import Clock, FixedClock
from koordinator.cluster import errors
from koordinator.cluster.backend import (
    DeleteRequest,
    ListOptions,
    ObjectRecord,
    RecordEvent,
    RecordList,
    WriteOptions,
)
from koordinator.cluster.protocol import EventType

POD = Resource(group="", version="v1", kind="Pod", plural="pods")


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    node_name: str = ""
    priority: int = 0


class PodView(Object, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    resource = POD

    spec: PodSpec = PodSpec()


def pod(name: str, namespace: str = "shop", node: str = "", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, **meta}, "spec": {"nodeName": node}}


class FakeSubscription:
    def __init__(self, backend: "FakeBackend", after: int) -> None:
        self._backend = backend
        self._position = after
        self._ended = False
        self.wake = asyncio.Event()

    def close(self) -> None:
        self._ended = True
        self.wake.set()
        self._backend.subscriptions.discard(self)

    async def __aiter__(self) -> AsyncIterator[Sequence[RecordEvent]]:
        while not self._ended:
            self.wake.clear()
            batch = [e for e in self._backend.history if e.version > self._position]
            if batch:
                self._position = batch[-1].version
                yield batch
            else:
                await self.wake.wait()


class FakeBackend:
    """Pods only; `history` is what watches see, `forget_history` makes old versions Gone."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or FixedClock()
        self.version = 100
        self.records: dict[tuple[str, str], ObjectRecord] = {}
        self.history: list[RecordEvent] = []
        self.oldest = 100
        self.subscriptions: set[FakeSubscription] = set()
        self.failures: list[errors.ApiError] = []
        self.calls: list[str] = []
        self.watched_after: list[int] = []
        self.posted: list[tuple[str, str, dict[str, Any]]] = []

    # Faults

    def drop_watches(self) -> None:
        for subscription in list(self.subscriptions):
            subscription.close()

    def forget_history(self) -> None:
        self.oldest = self.version
        self.history.clear()

    # Writes without ceremony

    def put(self, obj: dict[str, Any]) -> ObjectRecord:
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        self.version += 1
        old = self.records.get(key)
        uid = old.obj["metadata"]["uid"] if old else f"uid-{self.version}"
        meta = {"uid": uid} | obj["metadata"] | {"resourceVersion": str(self.version)}
        record = ObjectRecord(obj | {"metadata": meta}, self.version)
        self.records[key] = record
        self._publish(EventType.MODIFIED if old else EventType.ADDED, record)
        return record

    def remove(self, name: str, namespace: str = "shop") -> ObjectRecord:
        self.version += 1
        old = self.records.pop((namespace, name)).obj
        meta = old["metadata"] | {"resourceVersion": str(self.version)}
        record = ObjectRecord(old | {"metadata": meta}, self.version)
        self._publish(EventType.DELETED, record)
        return record

    def _publish(self, kind: EventType, record: ObjectRecord | None) -> None:
        self.history.append(RecordEvent(kind, record, self.version))
        for subscription in self.subscriptions:
            subscription.wake.set()

    # Backend

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.failures:
            raise self.failures.pop(0)

    def resources(self) -> Iterable[Resource]:
        return [POD]

    def resolve(self, group: str, version: str, plural: str) -> Resource:
        if (group, version, plural) != ("", "v1", "pods"):
            raise errors.NotFound("the server could not find the requested resource")
        return POD

    def get(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> ObjectRecord:
        self._called("get")
        found = self.records.get((namespace, name))
        if found is None:
            raise errors.not_found(resource.qualified, name, kind=resource.plural)
        return found

    def list(self, resource: Resource, namespace: str, options: ListOptions) -> RecordList:
        self._called("list")
        records = [r for (found, _), r in self.records.items() if namespace in ("", found)]
        return RecordList(records=records, version=self.version)

    def watch(self, resource: Resource, namespace: str, options: ListOptions) -> FakeSubscription:
        self._called("watch")
        after = int(options.resource_version)
        self.watched_after.append(after)
        if after < self.oldest:
            raise errors.Gone(f"too old resource version: {after} ({self.oldest})")
        subscription = FakeSubscription(self, after)
        self.subscriptions.add(subscription)
        return subscription

    async def create(
        self, resource: Resource, namespace: str, obj: dict[str, Any], options: WriteOptions = WriteOptions()
    ) -> ObjectRecord:
        self._called("create")
        if (namespace, obj["metadata"]["name"]) in self.records:
            raise errors.AlreadyExists(f'{resource.qualified} "{obj["metadata"]["name"]}" already exists')
        return self.put(obj | {"metadata": {"namespace": namespace, **obj["metadata"]}})

    async def update(
        self, resource: Resource, namespace: str, name: str, obj: dict[str, Any], *_: Any
    ) -> ObjectRecord:
        self._called("update")
        return self.put(obj)

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Any, *_: Any) -> ObjectRecord:
        self._called("patch")
        old = self.get(resource, namespace, name).obj
        merged = {k: v | patch.get(k, {}) if isinstance(v, dict) else v for k, v in old.items()}
        return self.put(merged)

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteRequest = DeleteRequest()
    ) -> tuple[ObjectRecord, bool]:
        self._called("delete")
        self.get(resource, namespace, name)
        return self.remove(name, namespace), True

    async def delete_collection(
        self, resource: Resource, namespace: str, selection: ListOptions, options: DeleteRequest
    ) -> Sequence[ObjectRecord]:
        raise errors.MethodNotSupported("not in this fake")

    async def connect(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        obj: dict[str, Any],
        options: WriteOptions = WriteOptions(),
    ) -> dict[str, Any]:
        self._called(subresource)
        self.posted.append((name, subresource, obj))
        return {"kind": "Status", "status": "Success"}
