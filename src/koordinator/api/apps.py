"""Typed views of workloads that keep pods running or run to completion; their pod templates stay whole dicts.

`msgspec.convert(template, core.PodTemplateSpec)` gives the typed view of a template.
"""

from typing import Any, ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Condition, Object, ObjectReference, Resource, ViewPart
from koordinator.api.schema import IntOrString


class RollingUpdate(ViewPart, frozen=True, kw_only=True):
    """Bounds of a rolling update (Deployment, DaemonSet, StatefulSet); absent ones are the kind's default."""

    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None
    partition: int | None = None


class UpdateStrategy(ViewPart, frozen=True, kw_only=True):
    """`strategy` or `updateStrategy`; `type` is RollingUpdate, Recreate or OnDelete."""

    type: str = ""
    rolling_update: RollingUpdate | None = None


class ReplicationControllerSpec(ViewPart, frozen=True, kw_only=True):
    replicas: int = 1
    selector: dict[str, str] = {}
    template: dict[str, Any] = {}
    min_ready_seconds: int = 0


class ReplicaCounts(ViewPart, frozen=True, kw_only=True):
    """`status` of a ReplicaSet or ReplicationController."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    observed_generation: int = 0
    conditions: list[Condition] = []


class ReplicationController(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="",
        version="v1",
        kind="ReplicationController",
        plural="replicationcontrollers",
        short_names=("rc",),
        categories=("all",),
        subresources=("status", "scale"),
    )

    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicaCounts = ReplicaCounts()


class ReplicaSetSpec(ViewPart, frozen=True, kw_only=True):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: dict[str, Any] = {}
    min_ready_seconds: int = 0


class ReplicaSet(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apps",
        version="v1",
        kind="ReplicaSet",
        plural="replicasets",
        short_names=("rs",),
        categories=("all",),
        subresources=("status", "scale"),
    )

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaCounts = ReplicaCounts()


class DeploymentSpec(ViewPart, frozen=True, kw_only=True):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: dict[str, Any] = {}
    strategy: UpdateStrategy = UpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentStatus(ViewPart, frozen=True, kw_only=True):
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    collision_count: int | None = None
    observed_generation: int = 0
    conditions: list[Condition] = []


class Deployment(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apps",
        version="v1",
        kind="Deployment",
        plural="deployments",
        short_names=("deploy",),
        categories=("all",),
        subresources=("status", "scale"),
    )

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class Ordinals(ViewPart, frozen=True, kw_only=True):
    start: int = 0


class ClaimRetentionPolicy(ViewPart, frozen=True, kw_only=True):
    """The fate of a StatefulSet's claims: Retain or Delete; empty means Retain."""

    when_deleted: str = ""
    when_scaled: str = ""


class StatefulSetSpec(ViewPart, frozen=True, kw_only=True):
    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: dict[str, Any] = {}
    service_name: str = ""
    pod_management_policy: str = ""
    update_strategy: UpdateStrategy = UpdateStrategy()
    volume_claim_templates: list[dict[str, Any]] = []
    persistent_volume_claim_retention_policy: ClaimRetentionPolicy | None = None
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    ordinals: Ordinals | None = None


class StatefulSetStatus(ViewPart, frozen=True, kw_only=True):
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    observed_generation: int = 0
    conditions: list[Condition] = []


class StatefulSet(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apps",
        version="v1",
        kind="StatefulSet",
        plural="statefulsets",
        short_names=("sts",),
        categories=("all",),
        subresources=("status", "scale"),
    )

    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class DaemonSetSpec(ViewPart, frozen=True, kw_only=True):
    selector: LabelSelector = LabelSelector()
    template: dict[str, Any] = {}
    update_strategy: UpdateStrategy = UpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetStatus(ViewPart, frozen=True, kw_only=True):
    current_number_scheduled: int = 0
    desired_number_scheduled: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    collision_count: int | None = None
    observed_generation: int = 0
    conditions: list[Condition] = []


class DaemonSet(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apps",
        version="v1",
        kind="DaemonSet",
        plural="daemonsets",
        short_names=("ds",),
        categories=("all",),
        subresources=("status",),
    )

    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(Object, frozen=True, kw_only=True):
    """A numbered state of a StatefulSet or DaemonSet; `data` is a patch with its template."""

    resource: ClassVar[Resource] = Resource(
        group="apps", version="v1", kind="ControllerRevision", plural="controllerrevisions"
    )

    data: dict[str, Any] = {}
    revision: int = 0


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
