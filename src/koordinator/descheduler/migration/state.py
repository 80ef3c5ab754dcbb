"""The steps of a migration job: reserve room, evict, wait for the successor; and how a pod is evicted, and which jobs
are swept away. Pure.

Source: behaviour/descheduler 7.4 and 7.6; the numbers in comments are the rows of 7.4. `reconcile` is a generator: it
yields what to do in the cluster, is sent how that went, and returns the job as it should be.
"""

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectReference, find_condition
from koordinator.api.pod_migration import DeleteOptions, MigrateReservationOptions, PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.descheduler import facts
from koordinator.descheduler.config.migration import EVICT_DIRECTLY, EVICTION_POLICIES
from koordinator.descheduler.migration import jobs, surge
from koordinator.descheduler.migration.jobs import JobStep, JobUpdate, quoted, quoted_ref
from koordinator.descheduler.migration.surge import RemoveReplica, Surge, SurgeAction


class CreateReservation(msgspec.Struct, frozen=True):
    """Create the Reservation for the pod; the reply says how it is called."""

    pod: Pod


class DeleteReservation(msgspec.Struct, frozen=True):
    """Delete it; that it is gone already is no error."""

    name: str


class SetReservationOrder(msgspec.Struct, frozen=True):
    """Label it with the present time as its order."""

    name: str


class EvictPod(msgspec.Struct, frozen=True):
    """Evict the pod, and charge the object limiter if that succeeds."""

    pod: Pod
    reason: str


class Reply(msgspec.Struct, frozen=True):
    """The result of an action; `error` is empty when it succeeded, `created` names a new Reservation, `is_done` says
    that a number of replicas was changed."""

    error: str = ""
    created: ObjectReference | None = None
    is_done: bool = False


Action = CreateReservation | DeleteReservation | SetReservationOrder | EvictPod | SurgeAction
Actions = Generator[Action, Reply, JobStep]
Part = Generator[Action, Reply, JobStep | None]
"""A part of a step; None: go on."""


class JobState(msgspec.Struct, frozen=True):
    """The state that a job sees. `reservation`: the one that the job refers to; `pod_of`: by namespace and name;
    `surge`: the pod's workload as it is, of jobs for which the successor comes first."""

    pod_of: Callable[[str, str], Pod | None]
    reservation: Reservation | None
    is_limited: bool
    surge: Surge | None = None


def reconcile(job: PodMigrationJob, world: JobState, uid: str, default_mode: str, now_s: float) -> Actions:
    """One look at the job by the controller `uid`, which leaves jobs of others alone. Raises: ProtocolError for a ttl
    that is no duration."""
    step = yield from _reconcile(job, world, uid, default_mode, now_s)
    left = surge.open_surge(step.job)
    # It ends before the pod went: nobody else takes the replica back.
    if left is not None and not jobs.is_open(step.job):
        reply = yield RemoveReplica(left, None)
        if reply.error:
            return JobUpdate(job, now_s).stop(reply.error)
    return step


def _reconcile(job: PodMigrationJob, world: JobState, uid: str, default_mode: str, now_s: float) -> Actions:
    draft = JobUpdate(job, now_s)
    if job.metadata.annotations.get(labels.JOB_CREATED_BY, uid) != uid:
        return draft.stop()
    if job.spec.paused or not jobs.is_open(job):  # 1, 2, 3
        return draft.stop()
    if is_timed_out(job, now_s):  # 4
        return (yield from _time_out(draft))
    ref = job.spec.pod_ref
    pod = world.pod_of(ref.namespace, ref.name) if ref.namespace and ref.name else None
    if (end := _start(draft, pod)) is not None:  # 5
        return end
    has_priority = labels.DESCHEDULER_EVICT in job.metadata.annotations
    if pod is not None and world.is_limited and not has_priority and not _has_begun(draft):  # 6
        return draft.wait()
    if (job.spec.mode or default_mode) == EVICT_DIRECTLY:  # 7
        end = yield from _evict(draft, pod, world)
        return end or draft.succeed(f"Pod {quoted_ref(ref)} has been evicted")
    if reservation_ref(job) is None:  # 8
        return (yield from _create_reservation(draft, pod))
    return (yield from _with_reservation(draft, pod, world))


def reservation_ref(job: PodMigrationJob) -> ObjectReference | None:
    """Return the Reservation that the job uses."""
    options = job.spec.reservation_options
    return options.reservation_ref if options is not None else None


def is_timed_out(job: PodMigrationJob, now_s: float) -> bool:
    """Return whether the job is as old as its ttl allows; without ttl it never is. Raises: ProtocolError."""
    created = job.metadata.creation_timestamp
    if created is None:
        return False
    ttl_s = jobs.ttl_s(job)
    return ttl_s > 0 and now_s - clock.parse_rfc3339(created) >= ttl_s


def eviction_reason(job: PodMigrationJob) -> str:
    """Return why the pod is evicted: the reason given, else who asked."""
    annotations = job.metadata.annotations
    return annotations.get(labels.EVICT_REASON) or annotations.get(labels.EVICT_TRIGGER) or "NotSet"


# Parts of a step


def _time_out(draft: JobUpdate) -> Actions:
    if (ref := reservation_ref(draft.job)) is not None:
        reply = yield DeleteReservation(ref.name)
        if reply.error:
            return draft.stop(reply.error)
    return draft.fail(jobs.TIMEOUT, "Abort job caused by timeout")


def _start(draft: JobUpdate, pod: Pod | None) -> JobStep | None:
    if draft.status.phase == jobs.RUNNING:
        return None
    ref = draft.job.spec.pod_ref
    if not ref.namespace or not ref.name:
        return draft.fail(jobs.INVALID_POD_REF, "Abort job caused by invalid PodRef", error=True)
    if pod is None:
        return _missing_pod(draft, error=True)
    draft.refer(pod.metadata.uid)
    draft.update(phase=jobs.RUNNING)
    return None


def _has_begun(draft: JobUpdate) -> bool:
    """Return whether the job has evicted its pod: that eviction must not hold it back."""
    return draft.condition(jobs.EVICTION) is not None


def _missing_pod(draft: JobUpdate, error: bool = False) -> JobStep:
    message = f"Abort job caused by missing Pod {quoted_ref(draft.job.spec.pod_ref)}"
    return draft.fail(jobs.MISSING_POD, message, error=error)


def _missing_reservation(draft: JobUpdate, name: str, error: bool = False) -> JobStep:
    message = f"Abort job caused by missing Reservation {quoted('/' + name)}"
    return draft.fail(jobs.MISSING_RESERVATION, message, error=error)


def _create_reservation(draft: JobUpdate, pod: Pod | None) -> Actions:
    if pod is None:
        return _missing_pod(draft, error=True)
    reply = yield CreateReservation(pod)
    if reply.error or reply.created is None:
        message = f"Failed to create Reservation caused by {reply.error}"
        draft.set(jobs.RESERVATION_CREATED, False, jobs.FAILED_CREATE_RESERVATION, message)
        draft.event(jobs.WARNING, jobs.FAILED_CREATE_RESERVATION, message)
        return draft.stop(message)
    options = draft.job.spec.reservation_options or MigrateReservationOptions()
    options = msgspec.structs.replace(options, reservation_ref=reply.created)
    spec = msgspec.structs.replace(draft.job.spec, reservation_options=options)
    draft.job = msgspec.structs.replace(draft.job, spec=spec)
    message = f"Successfully create Reservation {quoted(reply.created.name)}"
    draft.event(jobs.NORMAL, jobs.RESERVATION_CREATED, message)
    return draft.stop()  # the change of the spec wakes the job


def _with_reservation(draft: JobUpdate, pod: Pod | None, world: JobState) -> Actions:
    reservation = world.reservation
    if reservation is not None and labels.RESERVATION_ORDER not in reservation.metadata.labels:  # 9
        reply = yield SetReservationOrder(reservation.metadata.name)
        if reply.error:
            return draft.stop(reply.error)
    draft.set(jobs.RESERVATION_CREATED, True)  # 10
    if reservation is None:  # 11
        ref = reservation_ref(draft.job)
        return _missing_reservation(draft, ref.name if ref is not None else "")
    if (end := _await_schedule(draft, pod, reservation)) is not None:  # 12 to 16
        return end
    if _is_for_pod_itself(reservation):  # 17
        return _await_own_schedule(draft, pod, reservation)
    if surge.is_asked(draft.job):
        is_ready = _is_successor_ready(reservation, world)
        same = pod if pod is not None and pod.metadata.uid == draft.job.spec.pod_ref.uid else None
        end = yield from surge.steps(draft, same, world.surge, is_ready)
        if end is not None:
            return end
    end = yield from _evict(draft, pod, world)  # 18
    return end or _await_successor(draft, reservation, world)


def _is_successor_ready(reservation: Reservation, world: JobState) -> bool:
    owners = reservation.status.current_owners
    successor = world.pod_of(owners[0].namespace, owners[0].name) if owners else None
    return successor is not None and facts.is_ready(successor)


def _await_schedule(draft: JobUpdate, pod: Pod | None, reservation: Reservation) -> JobStep | None:
    scheduled = find_condition(reservation.status.conditions, "Scheduled")
    if (
        not draft.is_true(jobs.RESERVATION_SCHEDULED)
        and scheduled is not None
        and scheduled.reason == jobs.UNSCHEDULABLE
    ):  # 12
        draft.set(jobs.RESERVATION_SCHEDULED, False, jobs.UNSCHEDULABLE, scheduled.message)
        draft.event(jobs.WARNING, jobs.UNSCHEDULABLE, scheduled.message)
    phase, node = reservation.status.phase, reservation.status.node_name
    if phase in ("", jobs.PENDING):  # 13
        return draft.wait()
    ready = find_condition(reservation.status.conditions, "Ready")
    if phase == jobs.FAILED and ready is not None and ready.reason == "Expired":  # 14
        return draft.fail(jobs.RESERVATION_EXPIRED, "Reservation expired", has_event=False)
    has_node = node and scheduled is not None and scheduled.status == "True"
    if not has_node or scheduled is None or scheduled.reason != "Scheduled":  # 15
        # Only that reason's words say why; "Scheduled" of a node that is gone would say the opposite.
        is_told = scheduled is not None and scheduled.reason == jobs.UNSCHEDULABLE
        message = scheduled.message if scheduled is not None and is_told else ""
        return draft.fail(jobs.UNSCHEDULABLE, message, has_event=False)
    if draft.is_true(jobs.RESERVATION_SCHEDULED) or draft.status.node_name:
        return None
    name = reservation.metadata.name
    if pod is not None and pod.spec.node_name == node:  # 16
        message = f"Scheduler assignes the Reservation {quoted(name)} on the same node as the Pod"
        return draft.fail(jobs.FORBIDDEN_MIGRATE_POD, message, error=True)
    draft.update(node_name=node)
    draft.set(jobs.RESERVATION_SCHEDULED, True)
    message = f"Assigned Reservation {quoted(name)} to node {quoted(node)}"
    draft.event(jobs.NORMAL, jobs.RESERVATION_SCHEDULED, message)
    return None


def _await_own_schedule(draft: JobUpdate, pod: Pod | None, reservation: Reservation) -> JobStep:
    """Step P: the pod itself waits for the room, so nothing is evicted."""
    if pod is None:
        return _missing_pod(draft)
    scheduled = find_condition(pod.status.conditions, jobs.POD_SCHEDULED)
    if scheduled is None or scheduled.status == "False":
        owners = reservation.status.current_owners
        is_own = bool(owners) and owners[0].uid == pod.metadata.uid
        if reservation.status.phase == jobs.SUCCEEDED and not is_own:
            return _already_bound(draft)
        message = scheduled.message if scheduled is not None else ""
        draft.set(jobs.POD_SCHEDULED, False, jobs.UNSCHEDULABLE, message)
        return draft.wait()
    draft.set(jobs.POD_SCHEDULED, True)
    ref, node = draft.job.spec.pod_ref, pod.spec.node_name
    message = f"Assign Pod {quoted_ref(ref)} to node {quoted(node)}"
    draft.event(jobs.NORMAL, jobs.COMPLETE, message)
    return draft.succeed(message)


def _evict(draft: JobUpdate, pod: Pod | None, world: JobState) -> Part:
    """Step E; None once the pod is gone."""
    if draft.is_true(jobs.EVICTION):
        return None
    ref, eviction = draft.job.spec.pod_ref, draft.condition(jobs.EVICTION)
    if pod is None or (eviction is not None and ref.uid != pod.metadata.uid):
        if draft.status.status != jobs.EVICTION:
            return _missing_pod(draft)
        message = f"Pod {quoted_ref(ref)} has been evicted"
        draft.set(jobs.EVICTION, True, jobs.EVICT_COMPLETE)
        draft.event(jobs.NORMAL, jobs.EVICT_COMPLETE, message)
        return None
    if eviction is not None and eviction.reason == jobs.EVICTING:
        return draft.wait()
    if (room := reservation_ref(draft.job)) is not None:
        if world.reservation is None:
            return _missing_reservation(draft, room.name, error=True)
        if world.reservation.status.phase == jobs.SUCCEEDED and not surge.has_begun(draft.job):
            return _already_bound(draft)
    reason = eviction_reason(draft.job)
    reply = yield EvictPod(pod, reason)
    if reply.error:
        message = f"Failed evict Pod {quoted_ref(ref)} caused by {reply.error}"
        draft.event(jobs.WARNING, jobs.EVICTING, message)
        return draft.stop(message)
    node = pod.spec.node_name
    message = f"Pod {quoted_ref(ref)} evicted from node {quoted(node)} by the reason {quoted(reason)}"
    draft.set(jobs.EVICTION, False, jobs.EVICTING, message)
    draft.event(jobs.NORMAL, jobs.EVICTING, message)
    return draft.wait()


def _already_bound(draft: JobUpdate) -> JobStep:
    return draft.fail(jobs.FORBIDDEN_MIGRATE_POD, "Reservation is already bound by another Pod")


def _await_successor(draft: JobUpdate, reservation: Reservation, world: JobState) -> JobStep:
    owners = reservation.status.current_owners
    if not owners and not draft.is_true(jobs.POD_BOUND_RESERVATION):  # 19
        draft.set(jobs.POD_BOUND_RESERVATION, False, jobs.WAIT_FOR_POD_BIND_RESERVATION)
        draft.event(jobs.NORMAL, jobs.WAIT_FOR_POD_BIND_RESERVATION, "Waiting for Pod bind Reservation")
        return draft.wait()
    is_new = draft.write(jobs.RESERVATION_BOUND, True)
    if owners and (is_new or draft.status.pod_ref is None):  # 20
        draft.update(pod_ref=owners[0])
        message = f"Reservation bound by pod {quoted_ref(owners[0])}"
        draft.event(jobs.NORMAL, jobs.POD_BOUND_RESERVATION, message)
    bound = draft.status.pod_ref or ObjectReference()
    successor = world.pod_of(bound.namespace, bound.name)
    if not draft.is_true(jobs.BOUND_POD_READY) and successor is not None and not facts.is_ready(successor):
        draft.set(jobs.BOUND_POD_READY, False, jobs.WAIT_FOR_BOUND_POD_READY)  # 21
        message = f"Waiting for Bound Pod {bound.namespace}/{bound.name} Ready"
        draft.event(jobs.NORMAL, jobs.WAIT_FOR_BOUND_POD_READY, message)
        return draft.wait()
    draft.event(jobs.NORMAL, jobs.BOUND_POD_READY, f"Bind pod {quoted_ref(bound)} is ready")  # 22
    draft.set(jobs.BOUND_POD_READY, True)
    message = f"Bind Pod {quoted_ref(bound)} in Reservation {quoted(reservation.metadata.name)}"
    draft.write(jobs.POD_BOUND_RESERVATION, True, "", message)
    draft.event(jobs.NORMAL, jobs.COMPLETE, message)
    return draft.succeed(message)


def _is_for_pod_itself(reservation: Reservation) -> bool:
    return any(
        one.object is not None and one.controller is None and one.label_selector is None
        for one in reservation.spec.owners
    )


SCAVENGE_AFTER_TTL_S = 300.0
SCAVENGE_WITHOUT_TTL_S = 1800.0


def policy(pod: Pod, job: PodMigrationJob, default: str) -> str:
    """Eviction, Delete or SoftEviction: the pod's label, else the job's, else the default.

    An unknown name is the default, it does not fall through to the job's label.
    """
    key = labels.EVICT_POLICY
    named = pod.metadata.labels.get(key) or job.metadata.labels.get(key) or default
    return named if named in EVICTION_POLICIES else default


def soft_eviction(job: PodMigrationJob, options: DeleteOptions | None, now_s: float) -> str:
    """JSON of the annotation that asks another component to remove the pod."""
    body: dict[str, Any] = {"timestamp": clock.rfc3339(now_s)}
    if options is not None:
        body["deleteOptions"] = msgspec.to_builtins(options)
    if trigger := job.metadata.annotations.get(labels.EVICT_TRIGGER):
        body["initiator"] = trigger
    body["reason"] = eviction_reason(job)
    return msgspec.json.encode(body).decode()


def is_scavenged(job: PodMigrationJob, now_s: float) -> bool:
    """Return whether the job, in whatever phase, is so old that it is deleted. An unreadable ttl counts as none."""
    created = job.metadata.creation_timestamp
    if created is None:
        return False
    try:
        ttl_s = jobs.ttl_s(job)
    except ProtocolError:  # such a job can never end by itself, so it must be swept
        ttl_s = 0.0
    limit_s = ttl_s + SCAVENGE_AFTER_TTL_S if ttl_s > 0 else SCAVENGE_WITHOUT_TTL_S
    return now_s - clock.parse_rfc3339(created) >= limit_s
