"""Migrate pods by jobs: admit them, let them pass one by one, and carry each through its steps.

One serves all profiles. The decisions are in `gates`, `arbitration` and `state`; here they are carried out. Source:
behaviour/descheduler 7 and 8.
"""

import asyncio
import contextlib
import logging
import random
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from koordinator.api import duration, labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectReference, controller_of
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy, new_rng
from koordinator.cluster.controller import Controller
from koordinator.cluster.events import EventRecorder, EventSeverity
from koordinator.cluster.protocol import Cluster, delete_if_same, get_if_there
from koordinator.cluster.supervise import Guard, supervise
from koordinator.descheduler.caches import BY_POD, BY_RESERVATION, Caches
from koordinator.descheduler.config import migration
from koordinator.descheduler.config.migration import MigrationControllerArgs
from koordinator.descheduler.metrics import DeschedulerMetrics
from koordinator.descheduler.migration import arbitration, jobs, reservation_template, state, surge
from koordinator.descheduler.migration.arbitration import Rejected, WaitingJob
from koordinator.descheduler.migration.evictor import ACTION, JobEvictor
from koordinator.descheduler.migration.gates import Gates, GateState
from koordinator.descheduler.migration.jobs import JobCounts, JobStep
from koordinator.descheduler.migration.object_limiter import ObjectLimiter, Subject
from koordinator.descheduler.migration.state import Reply
from koordinator.descheduler.migration.surge import Surge
from koordinator.descheduler.migration.workloads import Workloads

log = logging.getLogger(__name__)

SCAVENGE_PERIOD_S = 60.0
RETRY_S, RETRY_S_MAX = 0.5, 60.0
"""A refused eviction (a disruption budget, evictQPS) is tried again after pauses that double, until the job's ttl."""


class Migration:
    """Jobs from admission to their end. `owner` (namespace/lease) marks jobs as ours, also after a restart."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        events: EventRecorder,
        metrics: DeschedulerMetrics,
        args: MigrationControllerArgs,
        *,
        owner: str,
        rng: random.Random,
        without_claims: bool,
    ) -> None:
        self.args = args
        self.uid = str(uuid.uuid5(uuid.NAMESPACE_URL, owner))
        self.gates = Gates(args)
        self.workloads = Workloads(cluster, caches)
        self.limiter = ObjectLimiter(migration.allowances(args), args.max_migrating_per_workload)
        self.refused: dict[str, str] = {}
        """Reasons for which jobs that wait were refused in the last round, by name."""
        self._cluster = cluster
        self._caches = caches
        self._events = events
        self._metrics = metrics
        self._rng = rng
        self._without_claims = without_claims
        self._evictor = JobEvictor(cluster, events, metrics, args, rng)
        self._created: dict[str, PodMigrationJob] = {}
        self._passed: set[str] = set()
        self._unwritten: dict[str, JobStep] = {}
        self._stale: dict[str, set[str]] = {}
        """Versions of jobs that our own writes have replaced, while the cache may still have them."""
        self._failures: dict[str, int] = {}
        self._orphans: dict[str, PodMigrationJob] = {}
        """Deleted jobs that left something."""
        self._is_running = False
        self._world: GateState | None = None
        self._admitted = JobCounts(())
        self._controller: Controller[str] = Controller(
            "migration", self._reconcile, workers=args.max_concurrent_reconciles
        )
        metrics.queues.watch("migration", self._controller.queue)
        metrics.show_jobs(self._by_phase)
        caches.jobs.add_handler(self._seen, lambda _, job: self._seen(job), self._job_gone)
        caches.pods.add_handler(None, lambda _, pod: self._wake_of_pod(pod), self._wake_of_pod)
        wake = partial(self._wake, BY_RESERVATION)
        caches.reservations.add_handler(
            lambda one: wake(one.metadata.name),
            lambda _, one: wake(one.metadata.name),
            lambda one: wake(one.metadata.name),
        )

    # Admission: what plugins ask and have done

    async def prepare(self) -> None:
        """A cycle begins: count jobs and look workloads up afresh."""
        await self.workloads.refresh()
        self._admitted = JobCounts(filter(jobs.is_open, self._open_jobs()))
        self._world = self._state(self._admitted, self._admitted)

    def refusal(self, pod: Pod) -> str:
        """Return why no job may be created for the pod now."""
        world = self._world
        if world is None:
            return "no cycle has begun yet"
        return self.gates.admission(pod, world)

    async def create(self, pod: Pod, trigger: str, reason: str, target: str = "") -> str:
        """Create a job for the pod, its successor on `target` (empty: anywhere); why not, empty when it was created."""
        if why := self.refusal(pod):
            return why
        if blocking := self.limited(pod):
            return f"evictions of {blocking} must wait (objectLimiters)"
        body = self._new_job(pod, trigger, reason)
        try:
            if target:
                whole = await self._cluster.request(
                    "GET", Pod.resource.path(pod.metadata.namespace, pod.metadata.name)
                )
                body["spec"]["reservationOptions"] = {
                    "template": reservation_template.bound_for(whole, target)
                }
            job = await self._cluster.create(PodMigrationJob, body)
        except errors.ApiError as error:
            return f"job not created: {error}"
        if self._caches.jobs.get(job.metadata.name) is None:
            self._created[job.metadata.name] = job
        self._admitted.add(job)
        return ""

    def limited(self, pod: Pod) -> str:
        """Return the workload or namespace whose evictions must wait before the pod's turn comes."""
        return self.limiter.blocking(self._subject(pod), self._cluster.clock.now())

    def _new_job(self, pod: Pod, trigger: str, reason: str) -> dict[str, Any]:
        args, meta = self.args, pod.metadata
        has_controller = controller_of(pod) is not None
        spec: dict[str, Any] = {
            "podRef": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
            # Nobody makes a successor of a bare pod, so there is nobody to reserve for.
            "mode": args.default_job_mode if has_controller else migration.EVICT_DIRECTLY,
            "ttl": args.default_job_ttl,
        }
        if args.default_delete_options is not None:
            spec["deleteOptions"] = msgspec.to_builtins(args.default_delete_options)
        annotations = {
            labels.EVICT_REASON: reason,
            labels.EVICT_TRIGGER: trigger,
            labels.JOB_CREATED_BY: self.uid,
            labels.JOB_SOURCE_NODE: pod.spec.node_name,
        }
        name = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}

    def _open_jobs(self) -> Iterable[PodMigrationJob]:
        """All that are not finished, those included that we created and that the cache does not show yet."""
        return [*self._caches.open_jobs(), *self._created.values()]

    def _state(self, open_jobs: JobCounts, counted: JobCounts) -> GateState:
        caches = self._caches
        return GateState(open_jobs, counted, caches.pod_of_key, caches.pods_of_node, self.workloads.of)

    def _subject(self, pod: Pod) -> Subject:
        owner = controller_of(pod)
        namespace = pod.metadata.namespace
        if owner is None:
            return Subject("", 0, namespace)
        workload = self.workloads.of(namespace, owner)
        return Subject(owner.uid, workload.replicas if workload is not None else 0, namespace)

    # Loops

    async def run(self) -> None:
        """Arbitrate, carry out and sweep until cancelled."""
        self._is_running = True
        for job in self._caches.open_jobs():
            self._controller.queue.add(job.metadata.name)
        async with asyncio.TaskGroup() as group:
            for name, step in (("arbitration", self._arbitrate), ("sweep of jobs", self._scavenge)):
                rng = new_rng(self._rng)
                backoff = Backoff(BackoffPolicy(initial_s=0.5, max_s=10.0), rng)
                group.create_task(supervise(step, backoff, Guard(name)), name=name)
            group.create_task(self._controller.run(), name="migration")

    async def _arbitrate(self) -> float:
        """One round; seconds until the next."""
        interval_s = duration.parse(self.args.arbitration_args.interval)
        waiting = [job for job in self._caches.open_jobs() if self._waits(job)]
        self.refused = {}
        if not waiting:
            return interval_s
        await self.workloads.refresh()
        open_jobs = list(self._caches.open_jobs())
        passed = {*self._passed, *(job.metadata.uid for job in open_jobs if jobs.has_passed(job))}
        counted = JobCounts(filter(jobs.counted_in_arbitration(passed), open_jobs))
        world = self._state(counted, counted)
        pod_of = world.pod_of
        found = arbitration.judge(
            arbitration.order(
                [WaitingJob(job, pod_of(jobs.pod_key(job))) for job in waiting], open_jobs, pod_of
            ),
            lambda pod: self.gates.non_retryable(pod, world),
            lambda pod: self.gates.retryable(pod, world),
            lambda one: counted.add(_with_uid(one)),
        )
        self.refused = {one.waiting.job.metadata.name: one.reason for one in found.refused}
        for decision, some in (
            ("passed", found.passed),
            ("failed", found.failed),
            ("refused", found.refused),
        ):
            self._metrics.arbitrations.inc(decision, by=len(some))
        for each in found.failed:
            self._forbid(each)
        hindered = [error for one in found.passed if (error := await self._let_pass(one.job)) is not None]
        if hindered:
            raise hindered[0]
        return interval_s

    def _waits(self, job: PodMigrationJob) -> bool:
        """Return whether a job is ours and waits for arbitration. One that is paused does not."""
        created_by = job.metadata.annotations.get(labels.JOB_CREATED_BY, self.uid)
        is_new = job.status.phase in ("", jobs.PENDING) and not job.spec.paused
        has_passed = jobs.has_passed(job) or job.metadata.uid in self._passed
        name = job.metadata.name
        is_judged = (
            has_passed
            or name in self._unwritten
            or job.metadata.resource_version in self._stale.get(name, ())
        )
        return is_new and created_by == self.uid and not is_judged

    async def _let_pass(self, job: PodMigrationJob) -> errors.ApiError | None:
        """Return the refusal of a write that is about this job only: the others need not wait for it."""
        meta = job.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": {labels.PASSED_ARBITRATION: "true"}}}
        try:
            await self._cluster.patch(PodMigrationJob, meta.name, patch)
        except (errors.NotFound, errors.Conflict):
            return None  # gone, or another of its name: the next round sees
        except (errors.ServiceUnavailable, errors.TooManyRequests):
            raise
        except errors.ApiError as error:
            return error
        self._passed.add(meta.uid)
        return None

    def _forbid(self, rejected: Rejected) -> None:
        """Leave the verdict to the job's own worker: two that write one job would tell everything twice."""
        job = rejected.waiting.job
        draft = jobs.JobUpdate(job, self._cluster.clock.now())
        message = (
            f"Pod {jobs.quoted_ref(job.spec.pod_ref)} is forbidden to migrate because it does not meet the "
            f"requirements: {rejected.reason}"
        )
        self._unwritten[job.metadata.name] = draft.fail(jobs.FORBIDDEN_MIGRATE_POD, message)
        self._controller.queue.add(job.metadata.name)

    async def _scavenge(self) -> float:
        """Delete what is far past its time, with its Reservation."""
        now_s = self._cluster.clock.now()
        for job in [*self._caches.jobs.objects.values(), *self._created.values()]:
            if state.is_scavenged(job, now_s):
                self._created.pop(job.metadata.name, None)  # it went before the cache ever showed it
                if (ref := state.reservation_ref(job)) is not None:
                    await self._delete_reservation(ref.name)
                await delete_if_same(self._cluster, job)
        return SCAVENGE_PERIOD_S

    # One job

    async def _reconcile(self, name: str) -> float | None:
        job = self._caches.jobs.get(name)
        if job is None:
            if (orphan := self._orphans.get(name)) is not None:
                if (more := surge.open_surge(orphan)) is not None:
                    await self._remove_replica(more, None)
                if (ref := state.reservation_ref(orphan)) is not None:
                    await self._delete_reservation(ref.name)
                del self._orphans[name]
            return None
        if job.metadata.resource_version in self._stale.get(name, ()):
            return None  # our own last write has not come back yet; it will wake the job
        left = self._unwritten.pop(name, None)
        if left is not None and left.job.metadata.uid == job.metadata.uid:
            await self._write(job, left)
            return left.requeue_after_s or RETRY_S
        is_new = job.status.phase in ("", jobs.PENDING)
        if is_new and not (jobs.has_passed(job) or job.metadata.uid in self._passed):
            return None  # arbitration decides first, whoever changed the job
        now_s = self._cluster.clock.now()
        seen = await self._look(job)
        ref = job.spec.pod_ref
        pod = seen.pod_of(ref.namespace, ref.name)
        steps = state.reconcile(job, seen, self.uid, self.args.default_job_mode, now_s)
        reply: Reply | None = None
        while True:
            try:
                action = next(steps) if reply is None else steps.send(reply)
            except StopIteration as end:
                step: JobStep = end.value
                break
            reply = await self._perform(action, job, pod)
        await self._write(job, step)
        if not step.error or not jobs.is_open(step.job):
            self._failures.pop(name, None)
            return step.requeue_after_s
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        log.info("step of a job failed: %s", step.error, extra={"job": name, "failures": failures})
        return min(RETRY_S * 2.0 ** min(failures - 1, 16), RETRY_S_MAX)

    async def _look(self, job: PodMigrationJob) -> state.JobState:
        """Return the job's surroundings. The API is asked for objects that may only be too young for a cache."""
        reservation: Reservation | None = None
        if (ref := state.reservation_ref(job)) is not None:
            reservation = self._caches.reservations.get(ref.name)
            if reservation is None:
                reservation = await get_if_there(self._cluster, Reservation, ref.name)
        owners = reservation.status.current_owners if reservation is not None else []
        pods: dict[tuple[str, str], Pod | None] = {}
        for one in (job.spec.pod_ref, job.status.pod_ref, *owners[:1]):
            if one is not None and one.name and one.namespace:
                cached = self._caches.pod(one.namespace, one.name)
                pods[one.namespace, one.name] = cached or await get_if_there(
                    self._cluster, Pod, one.name, one.namespace
                )
        own = pods.get((job.spec.pod_ref.namespace, job.spec.pod_ref.name))
        is_limited = own is not None and bool(self.limited(own))
        workload = self.workloads.surge_of(own) if own is not None and surge.is_asked(job) else None
        return state.JobState(
            lambda namespace, name: pods.get((namespace, name)), reservation, is_limited, workload
        )

    async def _perform(self, action: state.Action, job: PodMigrationJob, pod: Pod | None) -> Reply:
        try:
            match action:
                case state.CreateReservation():
                    return Reply(created=await self._create_reservation(job, action.pod))
                case state.DeleteReservation():
                    await self._delete_reservation(action.name)
                case state.SetReservationOrder():
                    order = str(round(self._cluster.clock.now() * 1000))
                    patch = {"metadata": {"labels": {labels.RESERVATION_ORDER: order}}}
                    await self._cluster.patch(Reservation, action.name, patch)
                case state.EvictPod():
                    error = await self._evictor.evict(job, action.pod, action.reason)
                    if not error:
                        self.limiter.evicted(self._subject(action.pod), self._cluster.clock.now())
                    return Reply(error)
                case surge.AddReplica():
                    more = action.surge.replicas
                    is_done = await self.workloads.change(action.surge, now=more, replicas=more + 1)
                    return Reply(
                        "" if is_done else "its number of replicas has just changed", is_done=is_done
                    )
                case surge.RemoveReplica():
                    return Reply(is_done=await self._remove_replica(action.surge, action.first))
        except (errors.ApiError, ProtocolError) as error:
            return Reply(str(error))
        return Reply()

    async def _remove_replica(self, left: Surge, first: Pod | None) -> bool:
        """Give the workload its number of replicas again, `first` goes then. Raises: ApiError."""
        if first is not None:
            meta = first.metadata
            patch = {"metadata": {"uid": meta.uid, "annotations": {labels.POD_DELETION_COST: surge.COST_MIN}}}
            await self._cluster.patch(Pod, meta.name, patch, meta.namespace)
        try:
            is_done = await self.workloads.change(left, now=left.replicas + 1, replicas=left.replicas)
        except errors.NotFound:
            return False
        if is_done and first is not None:
            self.limiter.evicted(self._subject(first), self._cluster.clock.now())
        return is_done

    async def _create_reservation(self, job: PodMigrationJob, pod: Pod) -> ObjectReference:
        """Create the Reservation, or take the one that an earlier try left. Raises: ApiError."""
        path = Pod.resource.path(pod.metadata.namespace, pod.metadata.name)
        whole = await self._cluster.request("GET", path)
        now_s = self._cluster.clock.now()
        body = reservation_template.reservation(job, whole, now_s, self._without_claims)
        name = body["metadata"]["name"]
        try:
            made = await self._cluster.create(Reservation, body)
        except errors.AlreadyExists:
            made = await self._cluster.get(Reservation, name)
        resource = Reservation.resource
        return ObjectReference(
            kind=resource.kind, api_version=resource.version, name=name, uid=made.metadata.uid
        )

    async def _delete_reservation(self, name: str) -> None:
        with contextlib.suppress(errors.NotFound):
            await self._cluster.delete(Reservation, name)

    async def _write(self, job: PodMigrationJob, step: JobStep) -> None:
        """Write the changes of the job, then tell. A step that cannot be written now is written before all else."""
        name, uid = job.metadata.name, job.metadata.uid
        self._unwritten[name] = step
        replaced = {job.metadata.resource_version}
        written = job
        try:
            if step.job.spec != job.spec:
                patch = {"metadata": {"uid": uid}, "spec": _difference(job.spec, step.job.spec)}
                written = await self._cluster.patch(PodMigrationJob, name, patch)
                replaced.add(written.metadata.resource_version)
            if step.job.status != job.status:
                patch = {"metadata": {"uid": uid}, "status": _difference(job.status, step.job.status)}
                written = await self._cluster.patch(PodMigrationJob, name, patch, subresource="status")
        except errors.NotFound:
            self._unwritten.pop(name, None)  # its deletion may have been seen already
            return
        self._unwritten.pop(name, None)
        self._stale[name] = replaced - {written.metadata.resource_version}
        for event in step.events:
            severity = EventSeverity.WARNING if event.type == jobs.WARNING else EventSeverity.NORMAL
            self._events.event(job, severity, event.reason, event.message, action=ACTION)

    # Waking

    def _seen(self, job: PodMigrationJob) -> None:
        name = job.metadata.name
        self._created.pop(name, None)
        if not jobs.is_open(job):
            self._passed.discard(job.metadata.uid)
        if job.metadata.resource_version not in self._stale.get(name, ()):
            self._stale.pop(name, None)
        if self._is_running:
            self._controller.queue.add(name)

    def _job_gone(self, job: PodMigrationJob) -> None:
        """Forget a deleted job; its Reservation goes with it."""
        name = job.metadata.name
        self._passed.discard(job.metadata.uid)
        for known in (self._created, self._unwritten, self._stale, self._failures):
            known.pop(name, None)
        has_left = state.reservation_ref(job) is not None or surge.open_surge(job) is not None
        if self._is_running and has_left:
            self._orphans[name] = job
            self._controller.queue.add(name)

    def _wake_of_pod(self, pod: Pod) -> None:
        self._wake(BY_POD, pod.key)

    def _wake(self, index: str, value: str) -> None:
        for job in self._caches.jobs.by_index(index, value):
            if self._is_running and jobs.is_open(job):
                self._controller.queue.add(job.metadata.name)

    def _by_phase(self) -> Mapping[tuple[str, ...], float]:
        count: Counter[str] = Counter()
        for job in self._caches.jobs.objects.values():
            count["Waiting" if self._waits(job) else job.status.phase or jobs.PENDING] += 1
        return {(phase,): float(number) for phase, number in count.items()}


def _with_uid(one: WaitingJob) -> PodMigrationJob:
    """Return the job with the uid of its pod, which hand-made ones lack until they run."""
    ref = one.job.spec.pod_ref
    if one.pod is None or ref.uid:
        return one.job
    ref = msgspec.structs.replace(ref, uid=one.pod.metadata.uid)
    return msgspec.structs.replace(one.job, spec=msgspec.structs.replace(one.job.spec, pod_ref=ref))


def _difference(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    """Return a merge patch from one to the other; members at their default are taken out."""
    wire = msgspec.to_builtins(new)
    return {
        field.encode_name: wire.get(field.encode_name)
        for field in msgspec.structs.fields(new)
        if getattr(old, field.name) != getattr(new, field.name)
    }
