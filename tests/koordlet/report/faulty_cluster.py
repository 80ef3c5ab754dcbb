"""A cluster whose next calls fail, and which counts what was written."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

from koordinator.api.meta import Object
from koordinator.cluster.backend import Backend
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import WatchEvent

T = TypeVar("T", bound=Object)


class FaultyCluster(MemoryCluster):
    """`faults` are raised by the next calls, one each; a call that fails changes nothing."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.faults: list[Exception] = []
        self.writes: list[str] = []
        """Verb and kind of the writes that succeeded."""
        self.tells = asyncio.Event()
        """Watches wait for this with their news."""
        self.tells.set()

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        self._fail()
        return await super().get(view, name, namespace)

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        self._fail()
        made = await super().create(view, obj, namespace)
        self.writes.append(f"create {view.resource.kind}")
        return made

    async def patch(self, view: type[T], name: str, patch: Any, namespace: str = "", **options: Any) -> T:
        self._fail()
        patched = await super().patch(view, name, patch, namespace, **options)
        self.writes.append(
            "/".join(filter(None, (f"patch {view.resource.kind}", options.get("subresource"))))
        )
        return patched

    async def watch(
        self, view: type[T], *rest: Any, **options: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        async for batch in super().watch(view, *rest, **options):
            await self.tells.wait()
            yield batch

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop(0)
