"""An in-process cluster that is as far away as a real one."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster


class Cluster(MemoryCluster):
    """A cluster at a distance: writes and news take their time, and writes may fail before or after they count."""

    def __init__(self, backend: Any, rng: random.Random, *, delay_s: float = 0.0, fault_ratio: float = 0.0):
        super().__init__(backend)
        self.rng = rng
        self.delay_s, self.fault_ratio = delay_s, fault_ratio
        self.news_s = 0.0
        self.offline = False
        self.patches: list[Any] = []

    async def patch(self, view: type[Any], name: str, patch: Any, *rest: Any, **more: Any) -> Any:
        self.patches.append(msgspec.json.decode(msgspec.json.encode(patch)))
        await self._delay()
        if self.rng.random() < self.fault_ratio:
            raise errors.ServiceUnavailable("not now")
        written = await super().patch(view, name, patch, *rest, **more)
        await self._delay()
        if self.rng.random() < self.fault_ratio:
            raise errors.ConnectionFailed("who knows")
        return written

    async def get(self, view: type[Any], *rest: Any, **more: Any) -> Any:
        if self.offline:
            raise errors.ServiceUnavailable("offline")
        return await super().get(view, *rest, **more)

    async def list(self, view: type[Any], *rest: Any, **more: Any) -> Any:
        if self.offline:
            raise errors.ServiceUnavailable("offline")
        return await super().list(view, *rest, **more)

    async def watch(self, view: type[Any], *rest: Any, **more: Any) -> AsyncIterator[Sequence[Any]]:
        async for batch in super().watch(view, *rest, **more):
            await self._delay()
            await asyncio.sleep(self.news_s)
            yield batch

    async def _delay(self) -> None:
        if self.delay_s:
            await asyncio.sleep(self.rng.random() * self.delay_s)
