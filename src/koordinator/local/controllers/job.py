"""Runs Jobs to completion: creates their pods, counts how they ended, and cleans up.

`job_plan` decides what to do; this module carries it out, in the order that makes every pod count once.
Source: kube-controller-manager's job and ttl-after-finished controllers.
"""

import asyncio
import functools
import logging
from collections.abc import Sequence

from koordinator.api.apps import Job, JobStatus
from koordinator.api.core import Pod
from koordinator.api.meta import controller_of
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, RetryPolicy
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, delete_if_same, get_if_there, patch_if_there
from koordinator.local.controllers import job_plan, job_pods, pod_control
from koordinator.local.controllers.job_plan import BatchJobPlan, JobBackoff
from koordinator.local.controllers.ownership import Children, is_deleting
from koordinator.local.controllers.pod_control import PodControl

log = logging.getLogger(__name__)

WORKERS = 5
# As upstream: pods that end together are counted together.
BATCH_S = 1.0
RETRIES = RetryPolicy(initial_s=1.0, max_s=60.0)
CONTROLLER_NAME = "kubernetes.io/job-controller"
_ALWAYS_WRITTEN = ("ready", "terminating", "uncountedTerminatedPods")


class JobController:
    """The loop over Jobs, and one over pods whose Job is gone."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._jobs = factory.informer(Job)
        reconcile = pod_control.reporting_bad_input(events, self._jobs, self._reconcile)
        self._controller: Controller[Key] = Controller("jobs", reconcile, workers=WORKERS, retries=RETRIES)
        self._strays: Controller[Key] = Controller("pods of deleted jobs", self._free_stray, retries=RETRIES)
        self._pods: Children[Job, Pod] = Children(
            cluster, factory, self._jobs, Pod, self._controller, batch_s=BATCH_S
        )
        self._control = PodControl(cluster, events, self._pods.expectations)
        # By uid of the Job: pods whose finalizer we took off, the version of our last write, failures in a row.
        self._released: dict[str, set[str]] = {}
        self._written: dict[str, str] = {}
        self._backoffs: dict[str, JobBackoff] = {}
        self._controller.watch(self._jobs, lambda job: [key_of(job)])
        self._jobs.add_handler(on_delete=self._job_gone)
        self._pods.informer.add_handler(self._pod_seen, lambda _, pod: self._pod_seen(pod), self._pod_gone)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._jobs.synced.wait()
        await self._pods.informer.synced.wait()
        for pod in list(self._pods.informer.objects.values()):
            self._pod_seen(pod)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._controller.run())
            group.create_task(self._strays.run())

    # What the informers say

    def _job_gone(self, job: Job) -> None:
        uid = job.metadata.uid
        for pod in self._pods.of(job):
            self._strays.queue.add(key_of(pod))
        self._pods.expectations.forget(uid)
        self._released.pop(uid, None)
        self._written.pop(uid, None)
        self._backoffs.pop(uid, None)

    def _pod_seen(self, pod: Pod) -> None:
        if self._jobs.synced.is_set() and self._is_stray(pod):
            self._strays.queue.add(key_of(pod))

    def _pod_gone(self, pod: Pod) -> None:
        owner = controller_of(pod)
        if owner is not None and owner.uid in self._released:
            self._released[owner.uid].discard(pod.metadata.uid)

    # Pods whose Job is gone

    def _is_stray(self, pod: Pod) -> bool:
        """Return whether a pod waits to be counted by a Job that does not exist."""
        if not job_pods.is_tracked(pod):
            return False
        owner = controller_of(pod)
        if owner is None:
            return True
        job = self._jobs.get(owner.name, pod.metadata.namespace)
        return owner.kind == "Job" and (job is None or job.metadata.uid != owner.uid)

    async def _free_stray(self, key: Key) -> None:
        pod = self._pods.informer.get(key[1], key[0])
        if pod is None or not self._is_stray(pod):
            return
        owner = controller_of(pod)
        if owner is not None:
            job = await get_if_there(self._cluster, Job, owner.name, key[0])
            if job is not None and job.metadata.uid == owner.uid:
                return  # it is there: our cache is behind
        await self._take_finalizer_off(pod)

    async def _take_finalizer_off(self, pod: Pod) -> None:
        kept = [name for name in pod.metadata.finalizers if name != job_pods.TRACKING]
        await patch_if_there(self._cluster, pod, {"metadata": {"finalizers": kept or None}})

    # One Job

    async def _reconcile(self, key: Key) -> float | None:
        job = self._jobs.get(key[1], key[0])
        if job is None or job.spec.managed_by not in (None, CONTROLLER_NAME) or self._is_behind(job):
            return None
        tracked = [pod for pod in self._pods.of(job) if job_pods.is_tracked(pod)]
        if is_deleting(job) or job_plan.is_finished(job):
            failure = await self._release(job, tracked)
            if failure is not None:
                raise failure
            return None if is_deleting(job) else await self._expire(job)
        uid, now_s = job.metadata.uid, self._cluster.clock.now()
        waits_s = self._pods.expectations.left_s(uid, now_s)
        pods = await self._pods.claim(job)
        released = self._released.setdefault(uid, set())
        released &= {pod.metadata.uid for pod in tracked}
        plan = job_plan.plan(
            job,
            pods,
            frozenset(released),
            self._backoffs.get(uid, JobBackoff()),
            now_s,
            may_manage=waits_s is None,
        )
        await self._write(job, plan.status)
        self._backoffs[uid] = plan.backoff
        await self._act(job, plan, may_manage=waits_s is None)
        return min((s for s in (waits_s, plan.again_s) if s is not None), default=None)

    def _is_behind(self, job: Job) -> bool:
        """Return whether the cache shows a state from before our last write; its event will wake us.

        Versions of one kind are numbers that grow, as Kubernetes promises for its own servers.
        """
        written, seen = self._written.get(job.metadata.uid, ""), job.metadata.resource_version
        return written.isdecimal() and seen.isdecimal() and int(seen) < int(written)

    async def _write(self, job: Job, status: JobStatus) -> None:
        patch = pod_control.difference(job.status, status, _ALWAYS_WRITTEN)
        if not patch:
            return
        # `null` would be merged into the old lists of uids: they are written whole.
        noted = status.uncounted_terminated_pods
        if noted is not None:
            patch["uncountedTerminatedPods"] = {
                "succeeded": noted.succeeded or None,
                "failed": noted.failed or None,
            }
        written = await patch_if_there(self._cluster, job, {"status": patch}, subresource="status")
        if written is None:
            return
        self._written[job.metadata.uid] = written.metadata.resource_version
        self._record_event(job, status)

    async def _act(self, job: Job, plan: BatchJobPlan, *, may_manage: bool) -> None:
        # Pods that are stopped are counted already: without their finalizer they would be forgotten.
        refused = await self._control.delete_all(job, plan.kill)
        if refused is not None:
            raise refused
        failures = [await self._release(job, plan.count), await self._drop(job, plan.drop)]
        if may_manage:
            failures.append(await self._create(job, plan.create))
        error = next((failure for failure in failures if failure is not None), None)
        if error is not None:
            raise error

    async def _release(self, job: Job, pods: Sequence[Pod]) -> errors.ApiError | None:
        """Take the finalizer off pods, and remember it until the cache shows it; the first failure."""
        released = self._released.setdefault(job.metadata.uid, set())

        async def release(pod: Pod) -> None:
            if pod.metadata.uid not in released:
                await self._take_finalizer_off(pod)
                released.add(pod.metadata.uid)

        return await pod_control.all_of([functools.partial(release, pod) for pod in pods])

    async def _drop(self, job: Job, pods: Sequence[Pod]) -> errors.ApiError | None:
        """Delete pods that must not be counted: their finalizer goes first."""
        if not pods:
            return None
        error = await self._release(job, pods)
        released = self._released[job.metadata.uid]
        free = [pod for pod in pods if pod.metadata.uid in released or not job_pods.is_tracked(pod)]
        return await self._control.delete_all(job, free) or error

    async def _create(self, job: Job, new: Sequence[job_plan.NewJobPod]) -> errors.ApiError | None:
        async def create(one: job_plan.NewJobPod) -> None:
            await self._control.create(job, job_pods.new_pod(job, one.completion_index, one.failures))

        return await pod_control.slow_start([functools.partial(create, one) for one in new])

    async def _expire(self, job: Job) -> float | None:
        """Delete a finished Job when its time to live is over; the seconds left."""
        ttl_s, finished_s = job.spec.ttl_seconds_after_finished, job_plan.finished_at_s(job)
        if ttl_s is None or finished_s is None:
            return None
        left_s = finished_s + ttl_s - self._cluster.clock.now()
        if left_s > 0:
            return left_s
        if await delete_if_same(self._cluster, job, propagation="Foreground"):
            log.info("finished job deleted", extra={"job": job.key, "ttl_s": ttl_s})
        return None

    def _record_event(self, job: Job, status: JobStatus) -> None:
        """Events about conditions that the write brought."""
        before = {(c.type, c.status) for c in job.status.conditions}
        for condition in status.conditions:
            if (condition.type, condition.status) in before:
                continue
            match condition.type, condition.status:
                case job_plan.COMPLETE, "True":
                    self._events.normal(job, "Completed", "Job completed")
                case job_plan.FAILED, "True":
                    self._events.warning(job, condition.reason, condition.message)
                case job_plan.SUSPENDED, "True":
                    self._events.normal(job, "Suspended", "Job suspended")
                case job_plan.SUSPENDED, "False":
                    self._events.normal(job, "Resumed", "Job resumed")
