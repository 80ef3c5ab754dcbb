"""Typed views of workloads that run to completion; their templates stay whole dicts."""

from typing import Any, ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Condition, Object, ObjectReference, Resource, ViewPart


class OnExitCodes(ViewPart, frozen=True, kw_only=True):
    """`operator` is In or NotIn; empty `container_name` means any container."""

    container_name: str | None = None
    operator: str = ""
    values: list[int] = []


class OnPodCondition(ViewPart, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class PodFailureRule(ViewPart, frozen=True, kw_only=True):
    """`action` is FailJob, FailIndex, Ignore or Count."""

    action: str = ""
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: list[OnPodCondition] = []


class PodFailurePolicy(ViewPart, frozen=True, kw_only=True):
    rules: list[PodFailureRule] = []


class SuccessRule(ViewPart, frozen=True, kw_only=True):
    """`succeeded_indexes` is text such as 0,2-4; at least `succeeded_count` of them must have succeeded."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(ViewPart, frozen=True, kw_only=True):
    rules: list[SuccessRule] = []


class JobSpec(ViewPart, frozen=True, kw_only=True):
    """`completions` None: any success completes the job."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    suspend: bool | None = None
    manual_selector: bool | None = None
    selector: LabelSelector | None = None
    template: dict[str, Any] = {}
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    managed_by: str | None = None
    pod_replacement_policy: str | None = None


class UncountedTerminatedPods(ViewPart, frozen=True, kw_only=True):
    """UIDs of pods that ended and are not yet in the counters."""

    succeeded: list[str] = []
    failed: list[str] = []


class JobStatus(ViewPart, frozen=True, kw_only=True):
    active: int = 0
    ready: int | None = None
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    start_time: str | None = None
    completion_time: str | None = None
    uncounted_terminated_pods: UncountedTerminatedPods | None = None
    conditions: list[Condition] = []


class Job(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="batch",
        version="v1",
        kind="Job",
        plural="jobs",
        categories=("all",),
        subresources=("status",),
    )

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class CronJobSpec(ViewPart, frozen=True, kw_only=True):
    """`concurrency_policy` is Allow, Forbid or Replace; empty means Allow."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    suspend: bool | None = None
    job_template: dict[str, Any] = {}
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(ViewPart, frozen=True, kw_only=True):
    active: list[ObjectReference] = []
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="batch",
        version="v1",
        kind="CronJob",
        plural="cronjobs",
        short_names=("cj",),
        categories=("all",),
        subresources=("status",),
    )

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()
