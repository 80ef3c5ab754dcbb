"""The half of a wrapped cluster that is the same for all wrappers: reads go through as they are."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from koordinator.api.meta import Object
from koordinator.clock import Clock
from koordinator.cluster.protocol import Cluster, Page, WatchEvent

T = TypeVar("T", bound=Object)


class ReadThrough:
    """Base of clusters that have a say in writes only. Subclasses have the writing methods of `Cluster`."""

    def __init__(self, inner: Cluster) -> None:
        self.clock: Clock = inner.clock
        self._inner = inner

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        return await self._inner.get(view, name, namespace)

    async def list(
        self,
        view: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        transform: Callable[[T], T] | None = None,
    ) -> Page[T]:
        return await self._inner.list(
            view,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            transform=transform,
        )

    def watch(
        self,
        view: type[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        return self._inner.watch(
            view,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
        )
