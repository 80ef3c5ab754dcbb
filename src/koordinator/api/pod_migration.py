"""Typed view of PodMigrationJob: moving one pod to another node. Source: behaviour/crds 5."""

from typing import Annotated, Any, ClassVar

import msgspec

from koordinator.api.meta import Object, ObjectReference, Resource, ViewPart
from koordinator.api.schema import ATOMIC, DATE_TIME, NULLABLE, REQUIRED, always


class PreemptionOptions(ViewPart, frozen=True, kw_only=True):
    """Nothing can be set yet."""


class MigrateReservationOptions(ViewPart, frozen=True, kw_only=True):
    """The options for reserving room for the new pod."""

    reservation_ref: Annotated[ObjectReference | None, ATOMIC, "An existing Reservation to use."] = None
    template: Annotated[
        dict[str, Any] | None,
        "The Reservation to make (metadata and spec) when none is named; made from the pod when absent.",
    ] = None
    preemption_options: Annotated[PreemptionOptions | None, "Reserved."] = None


class Preconditions(ViewPart, frozen=True, kw_only=True):
    """The deletion happens only to the object that is meant."""

    uid: Annotated[str | None, "UID that the object must have."] = None
    resource_version: Annotated[str | None, "Version that the object must have."] = None


class DeleteOptions(ViewPart, frozen=True, kw_only=True):
    """The options for deleting the old pod."""

    api_version: Annotated[str, "API version of the options."] = ""
    kind: Annotated[str, "Kind of the options: DeleteOptions."] = ""
    grace_period_seconds: Annotated[int | None, "Time to end; the pod's own when absent, 0 is at once."] = (
        None
    )
    preconditions: Annotated[Preconditions | None, "What must hold of the object."] = None
    orphan_dependents: Annotated[bool | None, "Old form of the propagation policy."] = None
    propagation_policy: Annotated[str | None, "Orphan, Background or Foreground."] = None
    dry_run: Annotated[list[str], "All: check only, delete nothing."] = []
    ignore_store_read_error_with_cluster_breaking_potential: Annotated[
        bool | None, "Deletes the object even if it cannot be read from the store."
    ] = None


class PodMigrationJobSpec(ViewPart, frozen=True, kw_only=True):
    """The pod that is moved, and the way to move it."""

    pod_ref: Annotated[ObjectReference, REQUIRED, ATOMIC, "The pod to move."] = always(ObjectReference())
    paused: Annotated[bool, "Whether the job stands still."] = False
    ttl: Annotated[str | None, "Time after which the job fails, such as 5m; it has no limit when absent."] = (
        None
    )
    mode: Annotated[
        str, "ReservationFirst (reserve room, then evict) or EvictDirectly; the controller's when absent."
    ] = ""
    reservation_options: Annotated[
        MigrateReservationOptions | None, "How room for the new pod is reserved."
    ] = None
    delete_options: Annotated[DeleteOptions | None, "How the old pod is deleted."] = None


class PreemptedReservation(ViewPart, frozen=True, kw_only=True):
    """Room that is reserved for a pod that was preempted."""

    namespace: Annotated[str, "Namespace of the Reservation."] = ""
    name: Annotated[str, "Name of the Reservation."] = ""
    node_name: Annotated[str, "Node on which the room is."] = ""
    phase: Annotated[str, "Phase of the Reservation."] = ""
    preempted_pod_ref: Annotated[ObjectReference | None, ATOMIC, "The pod that was preempted."] = None
    pods_ref: Annotated[list[Annotated[ObjectReference, ATOMIC]], "Pods that use the room now."] = []


class PodMigrationCondition(ViewPart, frozen=True, kw_only=True):
    """One step of the job."""

    type: Annotated[str, REQUIRED, "The step, such as ReservationScheduled or Eviction."] = always("")
    status: Annotated[str, REQUIRED, "True, False or Unknown."] = always("")
    reason: Annotated[str, "Why, one CamelCase word for programs."] = ""
    message: Annotated[str, "The same for people."] = ""
    last_probe_time: Annotated[str | None, DATE_TIME, NULLABLE, "When it was last looked at."] = None
    last_transition_time: Annotated[str | None, DATE_TIME, NULLABLE, "When the status last changed."] = None


class PodMigrationJobStatus(ViewPart, frozen=True, kw_only=True):
    """The progress of the job."""

    phase: Annotated[str, "Pending (when absent), Running, Succeeded, Failed or Aborted."] = ""
    status: Annotated[str, "The step that the job is at."] = ""
    reason: Annotated[str, "Why the job is in its phase, one CamelCase word for programs."] = ""
    message: Annotated[str, "The same for people."] = ""
    node_name: Annotated[str, "Node of the new pod."] = ""
    pod_ref: Annotated[ObjectReference | None, ATOMIC, "The new pod."] = None
    preempted_pods_ref: Annotated[
        list[Annotated[ObjectReference, ATOMIC]], "Pods that were preempted for the new pod."
    ] = []
    preempted_pods_reservations: Annotated[
        list[PreemptedReservation], "Room that is reserved for preempted pods."
    ] = msgspec.field(name="preemptedPodsReservation", default_factory=list)
    conditions: Annotated[list[PodMigrationCondition], "Steps of the job."] = []


class PodMigrationJob(Object, frozen=True, kw_only=True):
    """Moves one pod: room is reserved for its successor, then it is evicted."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        kind="PodMigrationJob",
        plural="podmigrationjobs",
        namespaced=False,
        short_names=("pmj",),
        subresources=("status",),
    )

    spec: PodMigrationJobSpec = PodMigrationJobSpec()
    status: PodMigrationJobStatus = PodMigrationJobStatus()
