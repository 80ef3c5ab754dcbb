"""`Cluster` without HTTP: calls go straight to the in-process API, views are shared by all readers."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.meta import Object
from koordinator.cluster import memory_request, pods, views
from koordinator.cluster.backend import (
    Backend,
    DeleteRequest,
    ListOptions,
    ObjectRecord,
    RecordEvent,
    WriteOptions,
)
from koordinator.cluster.protocol import EventType, Page, PatchType, WatchEvent

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


class MemoryCluster:
    """The API of a `Backend` in this process. `user` is who asks (admission, audit)."""

    def __init__(self, backend: Backend, *, user: str = "system:admin") -> None:
        self.clock = backend.clock
        self._backend = backend
        self._user = user
        self._write = WriteOptions(user=user)

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        return _view(self._backend.get(view.resource, namespace, name), view)

    async def list(
        self,
        view: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        transform: Callable[[T], T] | None = None,
    ) -> Page[T]:
        options = ListOptions(label_selector=label_selector, field_selector=field_selector)
        found = self._backend.list(view.resource, namespace, options)
        version = str(found.version)
        try:
            page = Page([record.view(view) for record in found.records], version)
        except msgspec.ValidationError:
            page = _page_of_readable(found.records, version, view)
        return page if transform is None else page.with_items(map(transform, page.items))

    async def watch(
        self,
        view: type[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        options = ListOptions(
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            allow_bookmarks=True,
        )
        subscription = self._backend.watch(view.resource, namespace, options)
        try:
            async for batch in subscription:
                yield [_event(event, view) for event in batch]
        finally:
            subscription.close()

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        body = obj if isinstance(obj, dict) else dict(obj)
        body.setdefault("apiVersion", view.resource.api_version)
        body.setdefault("kind", view.resource.kind)
        return _view(await self._backend.create(view.resource, namespace, body, self._write), view)

    async def patch(
        self,
        view: type[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        field_manager: str = "",
    ) -> T:
        options = self._write
        if field_manager or patch_type is PatchType.APPLY:
            force = patch_type is PatchType.APPLY
            options = WriteOptions(user=self._user, field_manager=field_manager, force=force)
        record = await self._backend.patch(
            view.resource, namespace, name, patch, patch_type, options, subresource
        )
        return _view(record, view)

    async def delete(
        self,
        view: type[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_s: int | None = None,
        propagation: str = "",
    ) -> None:
        options = DeleteRequest(
            grace_period_s=grace_period_s, propagation=propagation, uid=uid, user=self._user
        )
        await self._backend.delete(view.resource, namespace, name, options)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        body = pods.binding(namespace, pod, node, uid)
        resource = self._backend.resolve("", "v1", "pods")
        await self._backend.connect(resource, namespace, pod, "binding", body, self._write)

    async def evict(
        self, namespace: str, pod: str, *, uid: str = "", grace_period_s: int | None = None
    ) -> None:
        body = pods.eviction(namespace, pod, uid, grace_period_s)
        resource = self._backend.resolve("", "v1", "pods")
        await self._backend.connect(resource, namespace, pod, "eviction", body, self._write)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return await memory_request.request(self._backend, method, path, body, params or {}, self._write)


def _view(record: ObjectRecord, view: type[T]) -> T:
    try:
        return record.view(view)
    except msgspec.ValidationError as error:
        raise views.unreadable(view, record.obj, error) from error


def _page_of_readable(records: Sequence[ObjectRecord], version: str, view: type[T]) -> Page[T]:
    items: list[T] = []
    unreadable: list[tuple[str, str]] = []
    for record in records:
        try:
            items.append(record.view(view))
        except msgspec.ValidationError as error:
            log.warning("object skipped: %s", views.unreadable(view, record.obj, error))
            unreadable.append(views.key(record.obj))
    return Page(items, version, tuple(unreadable))


def _event(event: RecordEvent, view: type[T]) -> WatchEvent[T]:
    record = event.record
    if record is None:
        return WatchEvent(EventType.BOOKMARK, None, str(event.version))
    try:
        return WatchEvent(event.type, record.view(view), str(event.version))
    except msgspec.ValidationError as error:
        log.warning("object skipped: %s", views.unreadable(view, record.obj, error))
    deleted = views.metadata_only(view, record.obj) if event.type is EventType.DELETED else None
    kind = EventType.BOOKMARK if deleted is None else EventType.DELETED
    return WatchEvent(kind, deleted, str(event.version))
