"""What plugins of a running scheduler may ask for: background work, events, turning waiting pods down."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from koordinator.api.core import Pod
from koordinator.api.meta import Object
from koordinator.cluster.events import EventRecorder, Severity
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.auditor.auditor import Auditor
from koordinator.scheduler.loop.pod_status import StatusWriter, Verdict
from koordinator.scheduler.loop.waiting import WaitingPods
from koordinator.scheduler.plugin.event_actions import SCHEDULING
from koordinator.scheduler.plugin.framework import Actions
from koordinator.scheduler.plugin.handle import RecordKind
from koordinator.scheduler.table.pod_info import PodInfo


class PodHandlers(Protocol):
    """What takes pods in, those of the API and those that plugins bring."""

    def pod_set(self, old: Pod | None, pod: Pod) -> None: ...

    def pod_deleted(self, pod: Pod) -> None: ...


class RunningActions(Actions):
    """`recorders` are those of the profiles, by scheduler name; `activate` tells the queue, `is_in_line` and `queued`
    ask it."""

    def __init__(
        self,
        waiting: WaitingPods,
        recorders: Mapping[str, EventRecorder],
        activate: Callable[[Iterable[str], bool], None],
        is_in_line: Callable[[str], bool],
        queued: Callable[[str], PodInfo | None],
    ) -> None:
        self._activate = activate
        self._is_in_line = is_in_line
        self._queued = queued
        self._waiting = waiting
        self._recorders = recorders
        self._guard = Guard("scheduler plugins")
        self._tasks: set[asyncio.Task[None]] = set()
        self._pods: PodHandlers | None = None
        self._statuses: StatusWriter | None = None
        self.auditor: Auditor | None = None

    def attach(self, pods: "PodHandlers") -> None:
        """Where pods go that plugins bring."""
        self._pods = pods

    def attach_statuses(self, statuses: StatusWriter) -> None:
        """Who writes what plugins say about pods."""
        self._statuses = statuses

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
        self._activate(uids, at_once)

    def queued(self, uid: str) -> PodInfo | None:
        return self._queued(uid)

    def is_in_line(self, uid: str) -> bool:
        return self._is_in_line(uid)

    def reject_waiting(self, uid: str, plugin: str, message: str) -> bool:
        waiting = self._waiting.find(uid)
        if waiting is None:
            return False
        waiting.reject(plugin, message)
        return True

    def allow_waiting(self, uid: str, plugin: str) -> bool:
        waiting = self._waiting.find(uid)
        if waiting is None:
            return False
        waiting.allow(plugin)
        return True

    def tell_unscheduled(self, pod: Pod, message: str, nominated_node: str | None = None) -> None:
        assert self._statuses is not None, "the scheduler is not built yet"
        self._statuses.write(pod, Verdict("Unschedulable", message, nominated_node))

    def evicting(self, preemptor: PodInfo, node_name: str, victims: Sequence[PodInfo]) -> None:
        if self.auditor is not None:
            self.auditor.evicting(preemptor, node_name, victims)

    def gang_record(self, pod: Pod, kind: RecordKind) -> None:
        if self.auditor is not None:
            self.auditor.gang(pod, kind)

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
        name = profile_name or next(iter(self._recorders))
        self._recorders[name].event(obj, Severity(kind), reason, message, action=action, related=related)

    def enter_pod(self, old: Pod | None, pod: Pod) -> None:
        assert self._pods is not None, "the scheduler is not built yet"
        self._pods.pod_set(old, pod)

    def remove_pod(self, pod: Pod) -> None:
        assert self._pods is not None, "the scheduler is not built yet"
        self._pods.pod_deleted(pod)

    async def stop(self) -> None:
        """Cancel what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        async def wait() -> None:
            await work

        await self._guard.call_async(wait)
