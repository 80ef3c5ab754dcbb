"""Let plugins of a running scheduler ask for background work, events, and turning waiting pods down; and tell users in
a pod's status why it is not scheduled, without holding up the next cycle."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.api.meta import Object, find_condition
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder, EventSeverity
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.auditor.auditor import Auditor
from koordinator.scheduler.loop.binding import WaitingPods
from koordinator.scheduler.loop.event_handlers import EventHandlers
from koordinator.scheduler.plugin.events import SCHEDULING, QueueingEvent
from koordinator.scheduler.plugin.framework import Actions
from koordinator.scheduler.plugin.handle import RecordKind
from koordinator.scheduler.plugin.status import observed
from koordinator.scheduler.queue.scheduling_queue import SchedulingQueue
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

WRITERS = 8
"""Patches under way at a time."""
TRIES_MAX = 4
"""Tries when others change the pod at the same time."""

POD_SCHEDULED = "PodScheduled"


class PodStatusUpdate(msgspec.Struct, frozen=True):
    """The text for the pod's status; without a reason its condition stays. `nominated_node` None leaves the nomination,
    "" clears it."""

    reason: str
    message: str
    nominated_node: str | None


def unscheduled_patch(pod: Pod, verdict: PodStatusUpdate, now_s: float) -> dict[str, Any]:
    """Return the merge patch that sets the condition PodScheduled to False, and the nomination; empty when the pod says
    so already.

    A merge patch replaces the list of conditions, so it holds them all and is good for this version only.
    """
    conditions = pod.status.conditions
    old = find_condition(conditions, POD_SCHEDULED)
    status: dict[str, Any] = {}
    said = (old.status, old.reason, old.message) if old is not None else None
    if verdict.reason and said != ("False", verdict.reason, verdict.message):
        kept_s = old.last_transition_time if old is not None and old.status == "False" else None
        new = {
            "type": POD_SCHEDULED,
            "status": "False",
            "reason": verdict.reason,
            "message": verdict.message,
            "lastTransitionTime": kept_s or clock.rfc3339(now_s),
            **observed(pod),
        }
        others = [msgspec.to_builtins(condition) for condition in conditions if condition is not old]
        status["conditions"] = [*others, new]
    if verdict.nominated_node is not None and verdict.nominated_node != pod.status.nominated_node_name:
        status["nominatedNodeName"] = verdict.nominated_node or None
    if not status:
        return {}
    meta = pod.metadata
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}


class StatusWriter:
    """Writes verdicts in the background: the latest per pod, so the backlog is bounded by the pods.

    `live` gives the current state of a pod, None when it is gone or assigned.
    """

    def __init__(self, cluster: Cluster, clock: Clock, live: Callable[[Pod], Pod | None]) -> None:
        self.failure_count = 0
        self._cluster = cluster
        self._clock = clock
        self._live = live
        self._pending: dict[str, tuple[Pod, PodStatusUpdate]] = {}
        self._filled = asyncio.Event()

    def write(self, pod: Pod, verdict: PodStatusUpdate) -> None:
        """Write the verdict; what the one before said still holds where this one says nothing."""
        waiting = self._pending.get(pod.metadata.uid)
        if waiting is not None:
            before = waiting[1]
            if verdict.nominated_node is None:
                verdict = msgspec.structs.replace(verdict, nominated_node=before.nominated_node)
            if not verdict.reason:
                verdict = msgspec.structs.replace(before, nominated_node=verdict.nominated_node)
        self._pending[pod.metadata.uid] = (pod, verdict)
        self._filled.set()

    def discard(self, pod: Pod) -> None:
        """Note that the pod is bound or gone: an old refusal must not be written any more."""
        self._pending.pop(pod.metadata.uid, None)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._work(), name=f"pod status writer {number}")

    async def _work(self) -> None:
        while True:
            while not self._pending:
                self._filled.clear()
                await self._filled.wait()
            pod, verdict = self._pending.pop(next(iter(self._pending)))
            try:
                await self._write(pod, verdict)
            except errors.NotFound:
                continue  # nobody is left to tell
            except errors.ApiError as error:
                # The next failed attempt writes again; the event tells the user meanwhile.
                self.failure_count += 1
                log.warning("pod condition not written: %s", error, extra={"pod": pod.key})

    async def _write(self, pod: Pod, verdict: PodStatusUpdate) -> None:
        current = self._live(pod)
        for tries_left in reversed(range(TRIES_MAX)):
            if current is None or current.spec.node_name or current.metadata.uid != pod.metadata.uid:
                return
            patch = unscheduled_patch(current, verdict, self._clock.now())
            if not patch:
                return
            name, namespace = pod.metadata.name, pod.metadata.namespace
            try:
                await self._cluster.patch(Pod, name, patch, namespace, subresource="status")
            except errors.Conflict:
                if tries_left == 0:
                    raise
                current = await self._cluster.get(Pod, name, namespace)
            else:
                return


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
        """Note that the scheduler is built."""
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

    def sleeping(self) -> Sequence[PodInfo]:
        return self._parts.queue.sleeping()

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

    def report_unscheduled(self, pod: Pod, message: str, nominated_node: str | None = None) -> None:
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
            obj, EventSeverity(kind), reason, message, action=action, related=related
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
