"""A cluster that only a leader may change.

A process that was stopped for a while (a suspended machine, a starved container) wakes up with decisions that it made
as leader, and another leads by now. The lease's renewal notices that too, but work that was waiting comes first.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.cluster.read_through import ReadThrough
from koordinator.cluster.transport import BEFORE_SENDING

T = TypeVar("T", bound=Object)


class NotLeading(errors.Withheld):
    """The lease was not renewed in time, so nothing may be changed."""


class FencedCluster(ReadThrough):
    """`inner`, whose objects can be changed only while `may_write` says so, which is asked before each write, and again
    when the request leaves: it may have waited for its turn while the process was stopped.

    Raises: NotLeading, from every method that changes something.
    """

    def __init__(self, inner: Cluster, may_write: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._may_write = may_write

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        with self._while_leading(f"create {view.resource.kind}"):
            return await self._inner.create(view, obj, namespace)

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
        with self._while_leading(f"patch {view.resource.kind} {name}"):
            return await self._inner.patch(
                view,
                name,
                patch,
                namespace,
                patch_type=patch_type,
                subresource=subresource,
                field_manager=field_manager,
            )

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
        with self._while_leading(f"delete {view.resource.kind} {name}"):
            await self._inner.delete(
                view, name, namespace, uid=uid, grace_period_s=grace_period_s, propagation=propagation
            )

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        with self._while_leading(f"bind {namespace}/{pod}"):
            await self._inner.bind(namespace, pod, node, uid=uid)

    async def evict(
        self, namespace: str, pod: str, *, uid: str = "", grace_period_s: int | None = None
    ) -> None:
        with self._while_leading(f"evict {namespace}/{pod}"):
            await self._inner.evict(namespace, pod, uid=uid, grace_period_s=grace_period_s)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if method == "GET":
            return await self._inner.request(method, path, body, params)
        with self._while_leading(f"{method} {path}"):
            return await self._inner.request(method, path, body, params)

    @contextlib.contextmanager
    def _while_leading(self, what: str) -> Iterator[None]:
        def check() -> None:
            self._check(what)

        check()
        token = BEFORE_SENDING.set(check)
        try:
            yield
        finally:
            BEFORE_SENDING.reset(token)

    def _check(self, what: str) -> None:
        if not self._may_write():
            raise NotLeading(f"{what}: the lease was not renewed in time; another instance may lead")
