"""A controller: watch events put keys in a queue, workers bring each key's object to its wanted state."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from koordinator.api.meta import Object
from koordinator.cluster.backoff import retry_after_s
from koordinator.cluster.informer import Informer
from koordinator.cluster.supervise import Guard
from koordinator.cluster.workqueue import RETRIES, RetryPolicy, WorkQueue

K = TypeVar("K")
T = TypeVar("T", bound=Object)

Reconcile = Callable[[K], Awaitable[float | None]]
"""Brings one key to its wanted state; the seconds after which to look again, None for not before a change.
What it raises is logged and counted, and the key comes back with growing pauses."""


class Controller(Generic[K]):
    """Runs `reconcile` for every key of `queue`, at most `workers` at once, never one key twice at once."""

    def __init__(
        self, name: str, reconcile: Reconcile[K], *, workers: int = 1, retries: RetryPolicy = RETRIES
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name}: workers {workers} must be at least 1")
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(retries)
        self.guard = Guard(f"controller {name}")
        self._reconcile = reconcile
        self._workers = workers

    def watch(self, informer: Informer[T], keys: Callable[[T], Sequence[K]]) -> None:
        """Queue what `keys` gives for each object that appears, changes (both states) or vanishes."""
        queue = self.queue

        def changed(obj: T) -> None:
            for key in keys(obj):
                queue.add(key)

        def updated(old: T, new: T) -> None:
            changed(old)
            changed(new)

        informer.add_handler(changed, updated, changed)

    async def run(self, informers: Sequence[Informer[Any]] = ()) -> None:
        """Work until cancelled, from the moment when all `informers` have their first list."""
        for informer in informers:
            await informer.synced.wait()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.guard.name} worker {number}")
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._handle(key)
            finally:
                self.queue.done(key)
            # A reconcile that never waits (in-process cluster) must not starve the informers.
            await asyncio.sleep(0)

    async def _handle(self, key: K) -> None:
        error = await self.guard.call_async(self._reconcile_and_plan, key)
        if error is None:
            self.queue.forget(key)
        elif (pause_s := retry_after_s(error)) > 0.0:
            self.queue.add_after(key, pause_s)
        else:
            self.queue.add_rate_limited(key)

    async def _reconcile_and_plan(self, key: K) -> None:
        again_s = await self._reconcile(key)
        if again_s is not None:
            self.queue.add_after(key, again_s)
