"""Wrapped clusters: reads go through as they are (`ReadThrough`), writes through one place (`WriteThrough`), which for
`FencedCluster` is open to a leader only.
"""

import abc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.meta import Object
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, Page, WatchEvent
from koordinator.cluster.transport import BEFORE_SENDING

T = TypeVar("T", bound=Object)
R = TypeVar("R")


class ReadThrough:
    """Base of clusters that have a say in writes only. Subclasses have the writing methods of `Cluster`; `options` are
    its keyword arguments, handed on as they come.
    """

    def __init__(self, inner: Cluster) -> None:
        self.clock: Clock = inner.clock
        self._inner = inner

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        return await self._inner.get(view, name, namespace)

    async def list(self, view: type[T], namespace: str = "", **options: Any) -> Page[T]:
        return await self._inner.list(view, namespace, **options)

    def watch(
        self, view: type[T], namespace: str = "", *, resource_version: str, **options: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        return self._inner.watch(view, namespace, resource_version=resource_version, **options)


class ClusterWrite(msgspec.Struct, frozen=True):
    """A change that is about to happen; `verb` is a method of `Cluster`, or that of a raw request, named by its
    path.
    """

    verb: str
    kind: str
    namespace: str
    name: str
    subresource: str = ""
    body: Any = None

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {'/'.join(filter(None, (self.namespace, self.name)))}"


class WriteThrough(ReadThrough, abc.ABC):
    """Base of clusters that treat all writes alike: a subclass says in `_send` how. Reads go through as they are."""

    @abc.abstractmethod
    async def _send(self, write: ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        """Return the answer of `effect`, which makes the write in the inner cluster, or an error instead of it."""

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        name = obj.get("metadata", {}).get("name", "")
        write = ClusterWrite("create", view.resource.kind, namespace, name, body=obj)
        return await self._send(write, lambda: self._inner.create(view, obj, namespace))

    async def patch(
        self,
        view: type[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        subresource: str = "",
        **options: Any,
    ) -> T:
        return await self._send(
            ClusterWrite("patch", view.resource.kind, namespace, name, subresource, patch),
            lambda: self._inner.patch(view, name, patch, namespace, subresource=subresource, **options),
        )

    async def delete(self, view: type[T], name: str, namespace: str = "", **options: Any) -> None:
        write = ClusterWrite("delete", view.resource.kind, namespace, name)
        await self._send(write, lambda: self._inner.delete(view, name, namespace, **options))

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        write = ClusterWrite("bind", "Pod", namespace, pod, "binding")
        await self._send(write, lambda: self._inner.bind(namespace, pod, node, uid=uid))

    async def evict(self, namespace: str, pod: str, **options: Any) -> None:
        write = ClusterWrite("evict", "Pod", namespace, pod, "eviction")
        await self._send(write, lambda: self._inner.evict(namespace, pod, **options))

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if method == "GET":
            return await self._inner.request(method, path, body, params)
        write = ClusterWrite(method, "request", "", path, body=body)
        return await self._send(write, lambda: self._inner.request(method, path, body, params))


class NotLeading(errors.RequestFenced):
    """The lease was not renewed in time, so nothing may be changed."""


class FencedCluster(WriteThrough):
    """`inner`, whose objects can be changed only while `may_write` says so, which is asked before each write, and again
    when the request leaves: it may have waited for its turn while the process was stopped.

    Raises: NotLeading, from every method that changes something.
    """

    def __init__(self, inner: Cluster, may_write: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._may_write = may_write

    async def _send(self, write: ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        def check() -> None:
            if not self._may_write():
                raise NotLeading(f"{write}: the lease was not renewed in time; another instance may lead")

        check()
        token = BEFORE_SENDING.set(check)
        try:
            return await effect()
        finally:
            BEFORE_SENDING.reset(token)
