"""Carrying placements out: a bounded pipeline of concurrent bindings. Source: spec 03, B3 (10)."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from koordinator.api.core import Pod
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.cycle import Placed
from koordinator.scheduler.pod_patch import PodPatch
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.queue import QueuedPod
from koordinator.scheduler.status import Code, Status, error
from koordinator.scheduler.waiting import WaitingPods

log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """A placement to carry out."""

    profile: Profile
    entry: QueuedPod
    placed: Placed


class Binder:
    """Runs PreBind, Bind and PostBind. `live` gives the current pod (None when it is gone), `finished` takes
    the outcome; both belong to the scheduler."""

    def __init__(
        self,
        bindings_max: int,
        waiting: WaitingPods,
        live: Callable[[Pod], Pod | None],
        finished: Callable[[Job, Status], None],
    ) -> None:
        self._slots = asyncio.Semaphore(bindings_max)
        self._waiting = waiting
        self._live = live
        self._finished = finished
        self._guard = Guard("binding")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_progress_count(self) -> int:
        return len(self._tasks)

    async def start(self, job: Job) -> None:
        """Begin a binding; waits while too many are under way. Pods that wait for somebody hold no slot."""
        needs_slot = not job.placed.waits and not _is_slow(job)
        if needs_slot:
            await self._slots.acquire()
        name = f"bind {job.placed.pod.key}"
        task = asyncio.get_running_loop().create_task(self._run(job, needs_slot), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, has_slot: bool) -> None:
        placed = job.placed
        status = error("binding did not finish")
        try:
            if placed.waits:
                status = await self._waiting.wait(placed.pod, placed.node_name, placed.waits)
                if not status.is_success:
                    return
                if not _is_slow(job):
                    await self._slots.acquire()
                    has_slot = True
            outcome: list[Status] = []
            failure = await self._guard.call_async(self._bind_into, job, outcome)
            status = outcome[0] if failure is None else error(f"binding failed: {failure}")
        finally:
            if has_slot:
                self._slots.release()
            # Also when cancelled: nobody may count on a pod that was not bound.
            self._finished(job, status)

    async def _bind_into(self, job: Job, outcome: list[Status]) -> None:
        outcome.append(await self._bind(job))

    async def _bind(self, job: Job) -> Status:
        profile, placed = job.profile, job.placed
        refusal = _changed_since(placed.pod.pod, self._live(placed.pod.pod), profile.name)
        if refusal is not None:
            return refusal
        patch = PodPatch()
        for plugin in profile.pre_binds:
            state = placed.evaluation.state_of(plugin.name)
            status = await plugin.pre_bind(state, placed.pod, placed.node_name, patch)
            if not (status.is_success or status.is_skip):
                return status.by(plugin.name)
        for binder in profile.binds:
            status = await binder.bind(placed.pod, placed.node_name)
            if status.code is not Code.SKIP:
                return status.by(binder.name)
        return error("no Bind plugin took the pod")


def _is_slow(job: Job) -> bool:
    """Whether a plugin waits for others before the pod can be bound (a volume to be made)."""
    placed = job.placed
    return any(
        plugin.is_slow(placed.evaluation.state_of(plugin.name), placed.pod)
        for plugin in job.profile.pre_binds
    )


def _changed_since(placed: Pod, live: Pod | None, profile_name: str) -> Status | None:
    """Why a placed pod must not be bound any more."""
    if live is None or live.metadata.uid != placed.metadata.uid:
        return error(f"pod {placed.key} is gone")
    if live.spec.scheduler_name != profile_name:
        return error(f"pod {placed.key} now asks for scheduler {live.spec.scheduler_name!r}")
    if live.metadata.deletion_timestamp is not None:
        return error(f"pod {placed.key} is being deleted")
    return None
