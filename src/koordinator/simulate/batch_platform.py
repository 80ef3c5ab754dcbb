"""Run batch jobs on the cluster: queue tasks, submit pods, start evicted work anew."""

import asyncio
import logging
import math
import random
from collections import deque
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster
from koordinator.local.nodes import behaviour
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.simulate.batch_jobs import Task, TraceJob

log = logging.getLogger(__name__)

NAMESPACE = "batch"


class _Attempt:
    """A task on its way: `ready_s` since when it could run, `started_s` when its pod began."""

    __slots__ = ("attempt", "index", "is_placed", "job", "ready_s", "stage", "started_s", "task")

    def __init__(self, job: "_RunningJob", stage: int, index: int, task: Task, ready_s: float) -> None:
        self.job = job
        self.stage = stage
        self.index = index
        self.task = task
        self.ready_s = ready_s
        self.attempt = 0
        self.is_placed = False
        self.started_s: float | None = None

    @property
    def pod_name(self) -> str:
        return f"{self.job.job.name}-s{self.stage}-t{self.index}-a{self.attempt}"


class _RunningJob:
    __slots__ = ("job", "left", "stage")

    def __init__(self, job: TraceJob) -> None:
        self.job = job
        self.stage = -1
        self.left = 0


class Progress(msgspec.Struct):
    """The platform's counts since the beginning."""

    jobs_arrived: int = 0
    jobs_finished: int = 0
    tasks_finished: int = 0
    evictions: int = 0
    # Seconds between ready and started, per task start.
    waits_s: list[float] = []


class _Queue:
    """Tasks of one kind of job in the order of their turn; `pending` have a pod that waits for a node."""

    __slots__ = ("pending", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Attempt] = deque()
        self.pending = 0


class BatchPlatform:
    """Runs a stream of jobs: one queue per kind, first come first served, few pods waiting for a node.

    A queue per kind, so that large tasks that find no node do not hold up small ones.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: list[TraceJob],
        *,
        starts_s: float,
        pending_max: int,
        quota_milli: float,
        rng: random.Random,
        says_duration: bool = False,
    ) -> None:
        """`quota_milli` bounds what all submitted pods request together; with `says_duration` pods say how long they
        run."""
        self._says_duration = says_duration
        self.progress = Progress()
        self._cluster = cluster
        self._jobs = jobs
        self._starts_s = starts_s
        self._pending_max = pending_max
        self._quota_left_milli = quota_milli
        self._queues: dict[str, _Queue] = {}
        self._submitted: dict[str, _Attempt] = {}
        self._over: list[tuple[str, str]] = []
        self._wake = asyncio.Event()
        self._pods: Informer[Pod] = Informer(cluster, Pod, NAMESPACE, rng=rng)
        self._pods.add_handler(self._on_pod, lambda old, new: self._on_pod(new), self._on_pod_gone)

    @property
    def queue_length(self) -> int:
        """Tasks that could run but have not started."""
        waiting = sum(len(queue.waiting) for queue in self._queues.values())
        return waiting + sum(a.started_s is None for a in self._submitted.values())

    def waits_so_far_s(self, now_s: float) -> list[float]:
        """Return how long the tasks that have not started have been waiting."""
        queued = [attempt.ready_s for queue in self._queues.values() for attempt in queue.waiting]
        queued += [a.ready_s for a in self._submitted.values() if a.started_s is None]
        return [now_s - ready_s for ready_s in queued]

    async def run(self) -> None:
        """Submit jobs as they arrive; until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run(), name="batch pods")
            group.create_task(self._arrive(), name="batch arrivals")
            await self._pods.synced.wait()
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._clean_up()
                await self._submit()

    async def _arrive(self) -> None:
        clock = self._cluster.clock
        for job in self._jobs:
            await asyncio.sleep(max(self._starts_s + job.arrives_s - clock.now(), 0))
            self.progress.jobs_arrived += 1
            self._next_stage(_RunningJob(job))

    def _next_stage(self, running: _RunningJob) -> None:
        running.stage += 1
        if running.stage == len(running.job.stages):
            self.progress.jobs_finished += 1
            return
        tasks = running.job.stages[running.stage]
        running.left = len(tasks)
        now_s = self._cluster.clock.now()
        queue = self._queues.setdefault(running.job.kind, _Queue())
        queue.waiting.extend(_Attempt(running, running.stage, i, task, now_s) for i, task in enumerate(tasks))
        self._wake.set()

    async def _submit(self) -> None:
        """One task of each kind in turn, so that none takes the whole quota."""
        submitted = True
        while submitted:
            submitted = False
            for queue in self._queues.values():
                if (not queue.waiting) or (queue.pending >= self._pending_max):
                    continue
                if queue.waiting[0].task.cpu_milli > self._quota_left_milli:
                    continue
                submitted = True
                attempt = queue.waiting.popleft()
                self._submitted[attempt.pod_name] = attempt
                self._quota_left_milli -= attempt.task.cpu_milli
                queue.pending += 1
                body = _pod(attempt, says_duration=self._says_duration)
                await self._cluster.create(Pod, body, NAMESPACE)

    async def _clean_up(self) -> None:
        over, self._over = self._over, []
        for name, uid in over:
            try:
                await self._cluster.delete(Pod, name, NAMESPACE, uid=uid, grace_period_s=0)
            except errors.NotFound:
                log.debug("finished pod was deleted by somebody else", extra={"pod": name})

    # What the cluster says

    def _on_pod(self, pod: Pod) -> None:
        attempt = self._submitted.get(pod.metadata.name)
        if attempt is None:
            return
        phase = pod.status.phase
        if pod.spec.node_name and not attempt.is_placed:
            attempt.is_placed = True
            self._queue_of(attempt).pending -= 1
            self._wake.set()
        if attempt.started_s is None and phase == "Running":
            attempt.started_s = self._cluster.clock.now()
            self.progress.waits_s.append(attempt.started_s - attempt.ready_s)
        if phase in ("Succeeded", "Failed"):
            self._leave(pod.metadata.name, attempt)
            self._over.append((pod.metadata.name, pod.metadata.uid))
            if phase == "Succeeded":
                self._task_done(attempt)
            else:
                self._again(attempt)

    def _on_pod_gone(self, pod: Pod) -> None:
        attempt = self._submitted.get(pod.metadata.name)
        if attempt is not None:
            self._leave(pod.metadata.name, attempt)
            self.progress.evictions += 1
            self._again(attempt)

    def _leave(self, name: str, attempt: _Attempt) -> None:
        del self._submitted[name]
        self._quota_left_milli += attempt.task.cpu_milli
        if not attempt.is_placed:
            self._queue_of(attempt).pending -= 1
        self._wake.set()

    def _task_done(self, attempt: _Attempt) -> None:
        self.progress.tasks_finished += 1
        attempt.job.left -= 1
        if attempt.job.left == 0:
            self._next_stage(attempt.job)

    def _again(self, attempt: _Attempt) -> None:
        """The work starts over, ahead of what came later."""
        attempt.attempt += 1
        attempt.is_placed = False
        attempt.started_s = None
        attempt.ready_s = self._cluster.clock.now()
        self._queue_of(attempt).waiting.appendleft(attempt)

    def _queue_of(self, attempt: _Attempt) -> _Queue:
        return self._queues[attempt.job.job.kind]


def _duration(task: Task) -> str:
    """Return how long a task takes where it gets all the CPU that it uses, to the hour, as people would guess."""
    return f"{math.ceil(task.work_core_s / task.used_milli * 1000 / 3_600)}h"


def _pod(attempt: _Attempt, *, says_duration: bool) -> dict[str, Any]:
    """An ordinary pod: that it becomes a best-effort one is the colocation profile's business."""
    task, job = attempt.task, attempt.job.job
    said = {labels.EXPECTED_DURATION: _duration(task)} if says_duration else {}
    amounts = {"cpu": f"{task.cpu_milli}m", "memory": f"{task.memory_bytes // 2**20}Mi"}
    does = Behaviour(
        cpu_milli=task.used_milli, memory_bytes=task.used_bytes, cpu_work_core_seconds=task.work_core_s
    )
    return {
        "metadata": {
            "name": attempt.pod_name,
            "namespace": NAMESPACE,
            "labels": {"batch.simulation.koordinator.sh/kind": job.kind},
            "annotations": behaviour.annotations(does) | said,
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {
                    "name": "main",
                    "image": job.kind,
                    "resources": {"requests": amounts, "limits": dict(amounts)},
                }
            ],
        },
    }
