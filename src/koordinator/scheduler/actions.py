"""What plugins of a running scheduler may ask for: background work, events, turning waiting pods down."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from koordinator.api.meta import Object
from koordinator.cluster.events import EventRecorder, Severity
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.framework import Actions
from koordinator.scheduler.waiting import WaitingPods


class RunningActions(Actions):
    """`recorders` are those of the profiles, by scheduler name; `activate` tells the queue."""

    def __init__(
        self,
        waiting: WaitingPods,
        recorders: Mapping[str, EventRecorder],
        activate: Callable[[Iterable[str]], None],
    ) -> None:
        self._activate = activate
        self._waiting = waiting
        self._recorders = recorders
        self._guard = Guard("scheduler plugins")
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> bool:
        task = asyncio.get_running_loop().create_task(self._run(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before it began
        return True

    def activate(self, uids: Iterable[str]) -> None:
        self._activate(uids)

    def reject_waiting(self, uid: str, plugin: str, message: str) -> bool:
        waiting = self._waiting.find(uid)
        if waiting is None:
            return False
        waiting.reject(plugin, message)
        return True

    def event(self, profile_name: str, obj: Object, kind: str, reason: str, message: str) -> None:
        self._recorders[profile_name].event(obj, Severity(kind), reason, message)

    async def stop(self) -> None:
        """Cancel what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        async def wait() -> None:
            await work

        await self._guard.call_async(wait)
