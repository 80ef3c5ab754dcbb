"""Define how components reach a cluster: read a typed view, write a patch.

Two implementations: `kube.KubeCluster` (an API server over HTTP) and `memory.MemoryCluster` (in-process).
Every method raises a `cluster.errors.ApiError`; retries of transient failures happen inside.
"""

import enum
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koordinator.api.meta import Object
from koordinator.clock import Clock
from koordinator.cluster import errors

T = TypeVar("T", bound=Object)


class PatchType(enum.Enum):
    """Media types of a patch."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class EventType(enum.Enum):
    """The change of a watched object. BOOKMARK only tells how far the watch is."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change; `obj` is None for a bookmark."""

    type: EventType
    obj: T | None
    resource_version: str


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Objects of a list with the version from which to watch.

    `unreadable` names (namespace, name) of objects that exist but do not fit the view; they were logged.
    """

    items: list[T]
    resource_version: str
    unreadable: tuple[tuple[str, str], ...] = ()

    def with_items(self, items: Iterable[T]) -> "Page[T]":
        """Return the same with these objects."""
        return Page(list(items), self.resource_version, self.unreadable)


class Cluster(Protocol):
    """A Kubernetes API, as components see it.

    `namespace=""` means a cluster-scoped object, or all namespaces for `list` and `watch`.
    """

    clock: Clock

    async def get(self, view: type[T], name: str, namespace: str = "") -> T: ...

    async def list(
        self,
        view: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        transform: Callable[[T], T] | None = None,
    ) -> Page[T]:
        """Return all objects (chunked below the surface).

        `transform` is applied to each as it arrives, so that what it drops of a large list is never in memory all
        at once.
        """
        ...

    def watch(
        self,
        view: type[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        """Batches of changes after `resource_version`; ends when the server ends the watch.

        A change to an object that does not fit the view is logged and comes as a BOOKMARK; its deletion comes
        with the metadata only.

        Raises: Gone when the version is too old (list again).
        """
        ...

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        """Create from a JSON object (`meta.to_wire` of a view, or a mapping); the caller gives `obj` away.

        `apiVersion` and `kind` are filled in when absent.
        """
        ...

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
        """Change exactly the fields in `patch`; `metadata.uid` or `metadata.resourceVersion` in it guard.

        The caller gives `patch` away. APPLY needs a `field_manager` and takes over fields of others (force), as
        controllers should.
        """
        ...

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
        """`options`: members of DeleteOptions by wire name, for what the others do not say."""
        ...

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        """POST `pods/binding`."""
        ...

    async def evict(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str = "",
        grace_period_s: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """POST `pods/eviction` (policy/v1); raises TooManyRequests when a budget forbids it.

        `options`: members of DeleteOptions by wire name, as for `delete`.
        """
        ...

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a raw request for what has no typed view (discovery, reviews)."""
        ...


async def get_if_there(cluster: Cluster, view: type[T], name: str, namespace: str = "") -> T | None:
    """Return the object; None when there is none."""
    try:
        return await cluster.get(view, name, namespace)
    except errors.NotFound:
        return None


async def delete_if_same(cluster: Cluster, obj: Object, **options: Any) -> bool:
    """Delete this very object, by its uid; False when it is gone, or another one of that name: its own events tell.

    `options` are those of `Cluster.delete`.
    """
    meta = obj.metadata
    try:
        await cluster.delete(type(obj), meta.name, meta.namespace, uid=meta.uid, **options)
    except (errors.NotFound, errors.Conflict):
        return False
    return True


async def patch_same(
    cluster: Cluster, obj: T, patch: Mapping[str, Any], subresource: str = "", *, any_version: bool = False
) -> T:
    """Merge a patch into this very object, by its uid and as it was read: lists are replaced whole, and what was
    computed from the object holds for that version only. `any_version` lets it have changed since.

    Raises: NotFound when it is gone, Conflict when it is another one.
    """
    meta = obj.metadata
    guard = {"uid": meta.uid} if any_version else {"uid": meta.uid, "resourceVersion": meta.resource_version}
    body = {**patch, "metadata": {**patch.get("metadata", {}), **guard}}
    return await cluster.patch(type(obj), meta.name, body, meta.namespace, subresource=subresource)


async def patch_if_there(cluster: Cluster, obj: T, patch: Mapping[str, Any], **options: Any) -> T | None:
    """`patch_same`; None when the object is gone."""
    try:
        return await patch_same(cluster, obj, patch, **options)
    except errors.NotFound:
        return None
