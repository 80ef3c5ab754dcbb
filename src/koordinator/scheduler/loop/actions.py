"""Let plugins of a running scheduler ask for background work, events, and turning waiting pods down."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.meta import Object
from koordinator.cluster.events import EventRecorder, Severity
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.auditor.auditor import Auditor
from koordinator.scheduler.loop.event_handlers import EventHandlers
from koordinator.scheduler.loop.pod_status import PodStatusUpdate, StatusWriter
from koordinator.scheduler.loop.waiting import WaitingPods
from koordinator.scheduler.plugin.events import SCHEDULING, QueueingEvent
from koordinator.scheduler.plugin.framework import Actions
from koordinator.scheduler.plugin.handle import RecordKind
from koordinator.scheduler.queue.scheduling_queue import SchedulingQueue
from koordinator.scheduler.table.pod_info import PodInfo


class RunningParts(msgspec.Struct, frozen=True):
    """The parts of a running scheduler that plugins reach. `recorders` are those of the profiles, by scheduler name."""

    waiting: WaitingPods
    recorders: Mapping[str, EventRecorder]
    queue: SchedulingQueue
    handlers: EventHandlers
    statuses: StatusWriter
    auditor: Auditor | None


class RunningActions(Actions):
    """They exist before the parts, since plugins are built with them, and act once those are attached."""

    def __init__(self) -> None:
        self._guard = Guard("scheduler plugins")
        self._tasks: set[asyncio.Task[None]] = set()
        self._attached: RunningParts | None = None

    def attach(self, parts: RunningParts) -> None:
        """The scheduler is built."""
        self._attached = parts

    @property
    def _parts(self) -> RunningParts:
        assert self._attached is not None, "the scheduler is not built yet"
        return self._attached

    def happened(self, event: QueueingEvent) -> None:
        """Wake pods whose refusals this may lift."""
        self._parts.handlers.happened(event)

    def spawn(
        self, work: Coroutine[Any, Any, None], name: str, on_end: Callable[[], None] = lambda: None
    ) -> bool:
        task = asyncio.get_running_loop().create_task(self._run(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before it began
        task.add_done_callback(lambda _: on_end())
        return True

    def activate(self, uids: Iterable[str], *, at_once: bool = True) -> None:
        self._parts.handlers.activate(uids, at_once=at_once)

    def queued(self, uid: str) -> PodInfo | None:
        entry = self._parts.queue.find(uid)
        return entry.pod if entry is not None else None

    def is_in_line(self, uid: str) -> bool:
        return self._parts.queue.is_in_line(uid)

    def reject_waiting(self, uid: str, plugin: str, message: str) -> bool:
        waiting = self._parts.waiting.find(uid)
        if waiting is None:
            return False
        waiting.reject(plugin, message)
        return True

    def allow_waiting(self, uid: str, plugin: str) -> bool:
        waiting = self._parts.waiting.find(uid)
        if waiting is None:
            return False
        waiting.allow(plugin)
        return True

    def tell_unscheduled(self, pod: Pod, message: str, nominated_node: str | None = None) -> None:
        self._parts.statuses.write(pod, PodStatusUpdate("Unschedulable", message, nominated_node))

    def evicting(self, preemptor: PodInfo, node_name: str, victims: Sequence[PodInfo]) -> None:
        if (auditor := self._parts.auditor) is not None:
            auditor.evicting(preemptor, node_name, victims)

    def gang_record(self, pod: Pod, kind: RecordKind) -> None:
        if (auditor := self._parts.auditor) is not None:
            auditor.gang(pod, kind)

    def event(
        self,
        profile_name: str,
        obj: Object,
        kind: str,
        reason: str,
        message: str,
        *,
        action: str = SCHEDULING,
        related: Object | None = None,
    ) -> None:
        recorders = self._parts.recorders
        recorders[profile_name or next(iter(recorders))].event(
            obj, Severity(kind), reason, message, action=action, related=related
        )

    def enter_pod(self, old: Pod | None, pod: Pod) -> None:
        self._parts.handlers.pod_set(old, pod)

    def remove_pod(self, pod: Pod) -> None:
        self._parts.handlers.pod_deleted(pod)

    async def stop(self) -> None:
        """Cancel what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        async def wait() -> None:
            await work

        await self._guard.call_async(wait)
