"""Start Jobs by schedule (`api.cron`), and keep only the last few that finished.

Source: kube-controller-manager's cronjob controller.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import cron
from koordinator.api.apps import CronJob, CronJobStatus, Job
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectReference, is_condition_true, is_controlled_by, reference
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, delete_if_same, get_if_there
from koordinator.local.controllers import job_plan, pod_control
from koordinator.local.controllers.ownership import Children, is_deleting, owner_reference

log = logging.getLogger(__name__)

WORKERS = 5
FORBID, REPLACE = "Forbid", "Replace"
SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"
SUCCESSFUL_LIMIT_DEFAULT, FAILED_LIMIT_DEFAULT = 3, 1
# As upstream: beyond that many missed times something is wrong with the clock or the deadline.
MISSED_MAX = 100
# As upstream: a little late, so that rounding never wakes us before the time.
MARGIN_S = 0.1


class Due(msgspec.Struct, frozen=True):
    """The time to start a Job for, None when there is none; `missed` is how many times have passed."""

    at_s: float | None
    missed: int


def due(obj: CronJob, next_after: cron.Next, now_s: float) -> Due:
    """Return the last time of the schedule that has passed since the last Job (or the creation)."""
    since = obj.status.last_schedule_time or obj.metadata.creation_timestamp
    since_s = clock.parse_rfc3339(since) if since else now_s
    deadline_s = obj.spec.starting_deadline_seconds
    if deadline_s is not None:
        since_s = max(since_s, now_s - deadline_s)
    at_s, missed = cron.latest(next_after, since_s, now_s, MISSED_MAX)
    return Due(at_s, missed)


def job_name(obj: CronJob, at_s: float) -> str:
    """Return one name per time, so that no time has two Jobs."""
    return f"{obj.metadata.name}-{int(at_s) // 60}"


def new_job(obj: CronJob, at_s: float) -> dict[str, Any]:
    """Return the Job to create for a time. Raises: ProtocolError when the template is none."""
    template = obj.spec.job_template
    spec, meta = template.get("spec"), template.get("metadata") or {}
    if not isinstance(spec, dict) or not isinstance(meta, dict):
        raise ProtocolError("", "spec.jobTemplate", "spec and metadata must be objects")
    annotations = {**(meta.get("annotations") or {}), SCHEDULED_AT: _scheduled_at(obj, at_s)}
    made = {
        "name": job_name(obj, at_s),
        "labels": dict(meta.get("labels") or {}),
        "annotations": annotations,
        "ownerReferences": [owner_reference(obj)],
    }
    return {"metadata": made, "spec": dict(spec)}


def _scheduled_at(obj: CronJob, at_s: float) -> str:
    """Return a time as the clocks of the CronJob's zone show it, of UTC without one."""
    shown = datetime.fromtimestamp(at_s, cron.time_zone(obj.spec.time_zone))
    return shown.isoformat(timespec="seconds").replace("+00:00", "Z")


def beyond_history(obj: CronJob, jobs: Sequence[Job]) -> list[Job]:
    """Finished Jobs that are more than the limits keep, the oldest first."""
    limits = {
        job_plan.COMPLETE: (obj.spec.successful_jobs_history_limit, SUCCESSFUL_LIMIT_DEFAULT),
        job_plan.FAILED: (obj.spec.failed_jobs_history_limit, FAILED_LIMIT_DEFAULT),
    }
    surplus: list[Job] = []
    for kind, (asked, default) in limits.items():
        finished = [job for job in jobs if is_condition_true(job.status.conditions, kind)]
        finished.sort(key=lambda job: (job.status.start_time or "", job.metadata.name))
        surplus += finished[: max(len(finished) - (default if asked is None else asked), 0)]
    return [job for job in surplus if not is_deleting(job)]


class CronJobController(ControllerLoop):
    """The loop."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._cron_jobs = factory.informer(CronJob)
        reconcile = pod_control.reporting_bad_input(events, self._cron_jobs, self._reconcile)
        self._controller: Controller[Key] = Controller("cronjobs", reconcile, workers=WORKERS)
        self._jobs: Children[CronJob, Job] = Children(
            cluster, factory, self._cron_jobs, Job, self._controller, lambda _: None
        )
        self._controller.watch(self._cron_jobs, lambda obj: [key_of(obj)])
        self._informers = [self._cron_jobs, self._jobs.informer]

    async def _reconcile(self, key: Key) -> float | None:
        obj = self._cron_jobs.get(key[1], key[0])
        if obj is None:
            return None
        jobs = self._jobs.of(obj)
        status = await self._with_ended(obj, jobs)
        again_s = None
        if not is_deleting(obj) and not obj.spec.suspend:
            try:
                status, again_s = await self._start(obj, jobs, status)
            except (errors.ApiError, ProtocolError):
                await self._write(obj, status)  # that Jobs have ended is true whatever keeps new ones back
                raise
        await self._write(obj, status)
        for job in beyond_history(obj, jobs):
            await self._delete(obj, job)
        return again_s

    # Jobs that ended

    async def _with_ended(self, obj: CronJob, jobs: Sequence[Job]) -> CronJobStatus:
        """Return the status without the active Jobs that have ended or are gone."""
        by_uid = {job.metadata.uid: job for job in jobs}
        active = []
        for started in obj.status.active:
            job = by_uid.get(started.uid)
            if job is None and not await self._exists(started):
                message = f"Active job went missing: {started.name}"
                self._events.normal(obj, "MissingJob", message)
            elif job is not None and job_plan.is_finished(job):
                kind = "Complete" if is_condition_true(job.status.conditions, "Complete") else "Failed"
                message = f"Saw completed job: {started.name}, condition: {kind}"
                self._events.normal(obj, "SawCompletedJob", message)
            else:
                active.append(started)
        ends = [job.status.completion_time for job in jobs if job.status.completion_time]
        last = max([*ends, obj.status.last_successful_time or ""])
        return msgspec.structs.replace(obj.status, active=active, last_successful_time=last or None)

    async def _exists(self, reference: ObjectReference) -> bool:
        found = await get_if_there(self._cluster, Job, reference.name, reference.namespace)
        return found is not None and found.metadata.uid == reference.uid

    # Jobs to start

    async def _start(
        self, obj: CronJob, jobs: Sequence[Job], status: CronJobStatus
    ) -> tuple[CronJobStatus, float | None]:
        """Start the Job that is due; the status after it, and the seconds until the next time."""
        now_s = self._cluster.clock.now()
        next_after = cron.parse(obj.spec.schedule, obj.spec.time_zone)
        next_s = next_after(now_s)
        again_s = None if next_s is None else next_s - now_s + MARGIN_S
        found = due(obj, next_after, now_s)
        if found.missed > MISSED_MAX:
            message = (
                "too many missed start times. Set or decrease .spec.startingDeadlineSeconds "
                "or check clock skew"
            )
            self._events.warning(obj, "TooManyMissedTimes", message)
        if found.at_s is None or job_name(obj, found.at_s) in {one.name for one in status.active}:
            return status, again_s
        if obj.spec.concurrency_policy == FORBID and status.active:
            message = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self._events.normal(obj, "JobAlreadyActive", message)
            return status, again_s
        if obj.spec.concurrency_policy == REPLACE and status.active:
            for started in status.active:
                job = next((one for one in jobs if one.metadata.uid == started.uid), None)
                if job is not None:
                    await self._delete(obj, job)
            status = msgspec.structs.replace(status, active=[])
        job = await self._create(obj, found.at_s)
        if job is None:
            return status, again_s
        active = status.active
        if not job_plan.is_finished(job):
            active = [*active, reference(job)]
        at = clock.rfc3339(found.at_s)
        return msgspec.structs.replace(status, active=active, last_schedule_time=at), again_s

    async def _create(self, obj: CronJob, at_s: float) -> Job | None:
        """Return the Job of a time, made now or before; None when nothing is to be made."""
        namespace, name = obj.metadata.namespace, job_name(obj, at_s)
        try:
            job = await self._cluster.create(Job, new_job(obj, at_s), namespace)
        except errors.AlreadyExists:
            job = await self._cluster.get(Job, name, namespace)
            return job if is_controlled_by(job, obj) else None
        except errors.ApiError as error:
            if pod_control.is_namespace_ending(error):
                return None
            self._events.warning(obj, "FailedCreate", f"Error creating job: {error}")
            raise
        self._events.normal(obj, "SuccessfulCreate", f"Created job {name}")
        return job

    async def _delete(self, obj: CronJob, job: Job) -> None:
        try:
            if not await delete_if_same(self._cluster, job, propagation="Background"):
                return
        except errors.ApiError as error:
            self._events.warning(obj, "FailedDelete", f"Deleted job: {error}")
            raise
        self._events.normal(obj, "SuccessfulDelete", f"Deleted job {job.metadata.name}")

    async def _write(self, obj: CronJob, status: CronJobStatus) -> None:
        # Only the version that was read: the list of active Jobs is written whole.
        await pod_control.write(self._cluster, obj, obj.status, status, guarded=True)
