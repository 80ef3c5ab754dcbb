"""`Cluster` without HTTP: calls go straight to the in-process API, views are shared by all readers."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.meta import Object, Resource
from koordinator.cluster import errors, wire
from koordinator.cluster.backend import (
    Backend,
    DeleteRequest,
    ListOptions,
    ObjectRecord,
    RecordEvent,
    WriteOptions,
)
from koordinator.cluster.protocol import EventType, Page, PatchType, WatchEvent
from koordinator.cluster.resource_path import ResourcePath, parse

log = logging.getLogger(__name__)

# Subresources whose body is of another group than the resource, which clients have to look up.
_SUBRESOURCE_KINDS = {"eviction": ("policy", "v1", "Eviction")}


async def request(
    backend: Backend,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    params: Mapping[str, str],
    options: WriteOptions,
) -> dict[str, Any]:
    """Return the answer to one request. A PATCH is a JSON merge patch. Raises: ApiError, such as MethodNotSupported."""
    target = parse(path)
    if not target.plural:
        if method != "GET":
            raise errors.MethodNotSupported(f"{method} is not supported on {path}")
        return _discovery(backend, target)
    resource = backend.resolve(target.group, target.version, target.plural)
    options = msgspec.structs.replace(
        options,
        dry_run=params.get("dryRun", "") == "All",
        field_manager=params.get("fieldManager", ""),
        field_validation=params.get("fieldValidation", ""),
    )
    if method == "GET":
        return _read(backend, resource, target, params)
    return await _write(backend, resource, method, target, dict(body or {}), options)


def _read(
    backend: Backend, resource: Resource, target: ResourcePath, params: Mapping[str, str]
) -> dict[str, Any]:
    if target.name:
        return backend.get(resource, target.namespace, target.name, target.subresource).obj
    found = backend.list(resource, target.namespace, _list_options(params))
    meta: dict[str, Any] = {"resourceVersion": str(found.version)}
    if found.continue_token:
        meta["continue"] = found.continue_token
    if found.remaining_count is not None:
        meta["remainingItemCount"] = found.remaining_count
    return {
        "kind": f"{resource.kind}List",
        "apiVersion": resource.api_version,
        "metadata": meta,
        "items": [record.obj for record in found.records],
    }


def _list_options(params: Mapping[str, str]) -> ListOptions:
    try:
        limit = int(params.get("limit", "0"))
    except ValueError as error:
        raise errors.BadRequest(f"limit: {params['limit']!r} is not a number") from error
    return ListOptions(
        label_selector=params.get("labelSelector", ""),
        field_selector=params.get("fieldSelector", ""),
        limit=limit,
        continue_token=params.get("continue", ""),
        resource_version=params.get("resourceVersion", ""),
        resource_version_match=params.get("resourceVersionMatch", ""),
    )


async def _write(
    backend: Backend,
    resource: Resource,
    method: str,
    target: ResourcePath,
    body: dict[str, Any],
    options: WriteOptions,
) -> dict[str, Any]:
    namespace, name, sub = target.namespace, target.name, target.subresource
    match method:
        case "POST" if sub:
            return await backend.connect(resource, namespace, name, sub, body, options)
        case "POST" if not name:
            return (await backend.create(resource, namespace, body, options)).obj
        case "PUT" if name:
            return (await backend.update(resource, namespace, name, body, options, sub)).obj
        case "PATCH" if name:
            record = await backend.patch(resource, namespace, name, body, PatchType.MERGE, options, sub)
            return record.obj
        case "DELETE" if name and not sub:
            record, _ = await backend.delete(resource, namespace, name, _delete_options(body, options))
            return record.obj
    raise errors.MethodNotSupported(f"{method} is not supported on {resource.qualified} {name!r} {sub!r}")


def _delete_options(body: Mapping[str, Any], options: WriteOptions) -> DeleteRequest:
    preconditions = body.get("preconditions") or {}
    return DeleteRequest(
        grace_period_s=body.get("gracePeriodSeconds"),
        propagation=body.get("propagationPolicy", ""),
        uid=preconditions.get("uid", ""),
        resource_version=preconditions.get("resourceVersion", ""),
        dry_run=options.dry_run or bool(body.get("dryRun")),
        user=options.user,
        groups=options.groups,
    )


def _discovery(backend: Backend, target: ResourcePath) -> dict[str, Any]:
    """`APIResourceList` of one group version, as a client asks whether a kind is served.

    Raises: NotFound when nothing of that group version is served.
    """
    served = [r for r in backend.resources() if (r.group, r.version) == (target.group, target.version)]
    if not served:
        raise errors.NotFound("the server could not find the requested resource")
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [
            {
                "name": r.plural,
                "singularName": r.singular,
                "namespaced": r.namespaced,
                "kind": r.kind,
                "shortNames": list(r.short_names),
                "categories": list(r.categories),
            }
            for r in served
        ]
        + [
            {
                "name": f"{r.plural}/{name}",
                "namespaced": r.namespaced,
                "kind": kind,
                "group": group,
                "version": version,
            }
            for r in served
            for name, (group, version, kind) in _SUBRESOURCE_KINDS.items()
            if name in r.subresources
        ],
    }


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
        options: Mapping[str, Any] | None = None,
    ) -> None:
        asked = wire.delete_options(uid, grace_period_s, options, propagation)
        await self._backend.delete(view.resource, namespace, name, _delete_options(asked, self._write))

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        body = wire.binding(namespace, pod, node, uid)
        resource = self._backend.resolve("", "v1", "pods")
        await self._backend.connect(resource, namespace, pod, "binding", body, self._write)

    async def evict(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str = "",
        grace_period_s: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        body = wire.eviction(namespace, pod, uid, grace_period_s, options)
        resource = self._backend.resolve("", "v1", "pods")
        await self._backend.connect(resource, namespace, pod, "eviction", body, self._write)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return await request(self._backend, method, path, body, params or {}, self._write)


def _view(record: ObjectRecord, view: type[T]) -> T:
    try:
        return record.view(view)
    except msgspec.ValidationError as error:
        raise wire.unreadable(view, record.obj, error) from error


def _page_of_readable(records: Sequence[ObjectRecord], version: str, view: type[T]) -> Page[T]:
    items: list[T] = []
    unreadable: list[tuple[str, str]] = []
    for record in records:
        try:
            items.append(record.view(view))
        except msgspec.ValidationError as error:
            log.warning("object skipped: %s", wire.unreadable(view, record.obj, error))
            unreadable.append(wire.key(record.obj))
    return Page(items, version, tuple(unreadable))


def _event(event: RecordEvent, view: type[T]) -> WatchEvent[T]:
    record, at = event.record, str(event.version)
    if record is None:
        return WatchEvent(EventType.BOOKMARK, None, at)
    try:
        return WatchEvent(event.type, record.view(view), at)
    except msgspec.ValidationError as error:
        return wire.skipped(view, event.type, record.obj, at, wire.unreadable(view, record.obj, error))
