"""Count what is known of PodMigrationJobs at one moment, so that each question is O(1); and change one while it is
worked on: its conditions, events and how a step ends. Source: behaviour/descheduler 7.3 and 8.3."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import duration, labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectReference, find_condition, is_condition_true
from koordinator.api.pod_migration import PodMigrationCondition, PodMigrationJob, PodMigrationJobStatus
from koordinator.api.scalars import ScalarError

PENDING = "Pending"
RUNNING = "Running"
SUCCEEDED = "Succeeded"
FAILED = "Failed"

JobPredicate = Callable[[PodMigrationJob], bool]


def is_open(job: PodMigrationJob) -> bool:
    """Return whether the job is not finished."""
    return job.status.phase in ("", PENDING, RUNNING)


def has_passed(job: PodMigrationJob) -> bool:
    """Return whether arbitration let the job pass."""
    return job.metadata.annotations.get(labels.PASSED_ARBITRATION) == "true"


def counted_in_arbitration(passed_uids: Iterable[str]) -> JobPredicate:
    """During arbitration a job that does not run yet counts only if it passed in this process."""
    passed = frozenset(passed_uids)
    return lambda job: job.status.phase == RUNNING or (is_open(job) and job.metadata.uid in passed)


def ttl_s(job: PodMigrationJob) -> float:
    """Return how long the job may take, 0 where nothing is said. Raises: ProtocolError for what is no duration."""
    try:
        return duration.parse(job.spec.ttl) if job.spec.ttl else 0.0
    except ScalarError as error:
        raise ProtocolError(f"PodMigrationJob {job.metadata.name}", "spec.ttl", str(error)) from error


def pod_key(job: PodMigrationJob) -> str:
    """`namespace/name` of the job's pod."""
    return f"{job.spec.pod_ref.namespace}/{job.spec.pod_ref.name}"


class JobCounts:
    """The jobs that count against limits."""

    def __init__(self, jobs: Iterable[PodMigrationJob]) -> None:
        self.total = 0
        self._keys: set[str] = set()
        self._of_uid: Counter[str] = Counter()
        self._of_namespace: Counter[str] = Counter()
        self._of_both: Counter[tuple[str, str]] = Counter()
        self._pods: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for job in jobs:
            self.add(job)

    def add(self, job: PodMigrationJob) -> None:
        """Count one more job."""
        ref = job.spec.pod_ref
        self.total += 1
        self._keys.add(pod_key(job))
        self._of_uid[ref.uid] += 1
        self._of_namespace[ref.namespace] += 1
        self._of_both[ref.namespace, ref.uid] += 1
        self._pods[ref.namespace][pod_key(job)].add(ref.uid)

    def has(self, pod: Pod) -> bool:
        """Return whether a job refers to the pod, by uid or by name."""
        uid = pod.metadata.uid
        return (bool(uid) and uid in self._of_uid) or pod.key in self._keys

    def others(self, pod: Pod) -> int:
        """Jobs that are not the pod's own (by uid)."""
        return self.total - self._of_uid[pod.metadata.uid]

    def others_in_namespace(self, pod: Pod) -> int:
        namespace = pod.metadata.namespace
        return self._of_namespace[namespace] - self._of_both[namespace, pod.metadata.uid]

    def other_pods_in_namespace(self, pod: Pod) -> list[str]:
        """Keys of the pods of other jobs in the pod's namespace."""
        own = {pod.metadata.uid}
        return [key for key, uids in self._pods[pod.metadata.namespace].items() if uids != own]


RESERVATION_CREATED = "ReservationCreated"
RESERVATION_SCHEDULED = "ReservationScheduled"
EVICTION = "Eviction"
POD_SCHEDULED = "PodScheduled"
POD_BOUND_RESERVATION = "PodBoundReservation"
RESERVATION_BOUND = "ReservationBound"
BOUND_POD_READY = "BoundPodReady"
COMPLETE = "Complete"
SURGE = "Surge"  # ours

TIMEOUT = "Timeout"
FAILED_CREATE_RESERVATION = "FailedCreateReservation"
RESERVATION_EXPIRED = "ReservationExpired"
UNSCHEDULABLE = "Unschedulable"
FORBIDDEN_MIGRATE_POD = "ForbiddenMigratePod"
MISSING_POD = "MissingPod"
MISSING_RESERVATION = "MissingReservation"
INVALID_POD_REF = "InvalidPodRef"
EVICTING = "Evicting"
EVICT_COMPLETE = "EvictComplete"
WAIT_FOR_POD_BIND_RESERVATION = "WaitForPodBindReservation"
WAIT_FOR_BOUND_POD_READY = "WaitForBoundPodReady"
ADDING_REPLICA = "AddingReplica"
WAIT_FOR_SUCCESSOR = "WaitForSuccessor"
SURGE_COMPLETE = "SurgeComplete"

NORMAL = "Normal"
WARNING = "Warning"

WAIT_S = 3.0


class JobEvent(msgspec.Struct, frozen=True):
    """An event about the job."""

    type: str
    reason: str
    message: str


class JobStep(msgspec.Struct, frozen=True):
    """The result of one look at a job: the job as it should be, events, and when to look again.

    `requeue_after_s` None: the next change wakes the job. `error`: retry with back-off.
    """

    job: PodMigrationJob
    events: list[JobEvent]
    requeue_after_s: float | None = None
    error: str = ""


class JobUpdate:
    """A job being changed in the course of one step."""

    def __init__(self, job: PodMigrationJob, now_s: float) -> None:
        self.job = job
        self.events: list[JobEvent] = []
        self._now = clock.rfc3339(now_s)

    @property
    def status(self) -> PodMigrationJobStatus:
        return self.job.status

    def condition(self, kind: str) -> PodMigrationCondition | None:
        return find_condition(self.status.conditions, kind)

    def is_true(self, kind: str) -> bool:
        return is_condition_true(self.status.conditions, kind)

    def update(self, **members: Any) -> None:
        """Set members of the status."""
        self.job = msgspec.structs.replace(self.job, status=msgspec.structs.replace(self.status, **members))

    def refer(self, pod_uid: str) -> None:
        """Remember which pod is meant."""
        ref = msgspec.structs.replace(self.job.spec.pod_ref, uid=pod_uid)
        spec = msgspec.structs.replace(self.job.spec, pod_ref=ref)
        self.job = msgspec.structs.replace(self.job, spec=spec)

    def write(self, kind: str, holds: bool, reason: str = "", message: str = "") -> bool:
        """Write a condition; whether it changed. Unchanged ones keep their times."""
        text = "True" if holds else "False"
        old = self.condition(kind)
        if old is not None and (old.status, old.reason, old.message) == (text, reason, message):
            return False
        moved = self._now if old is None or old.status != text else old.last_transition_time
        new = PodMigrationCondition(
            type=kind,
            status=text,
            reason=reason,
            message=message,
            last_transition_time=moved,
        )
        others = [new if one.type == kind else one for one in self.status.conditions]
        self.update(conditions=others if old is not None else [*others, new])
        return True

    def set(self, kind: str, holds: bool, reason: str = "", message: str = "") -> None:
        """Write a condition; if it changed, it is also what the job is at."""
        if self.write(kind, holds, reason, message):
            self.update(status=kind, reason=reason, message=message)

    def event(self, type_: str, reason: str, message: str) -> None:
        self.events.append(JobEvent(type_, reason, message))

    # How a step ends

    def stop(self, error: str = "") -> JobStep:
        return JobStep(self.job, self.events, None, error)

    def wait(self) -> JobStep:
        return JobStep(self.job, self.events, WAIT_S)

    def fail(self, reason: str, message: str, has_event: bool = True, error: bool = False) -> JobStep:
        """The job failed for good; `error` as the reference returns one, too."""
        self.update(phase=FAILED, reason=reason, message=message)
        if has_event:
            self.event(WARNING, reason, message)
        return self.stop(message if error else "")

    def succeed(self, message: str) -> JobStep:
        self.update(phase=SUCCEEDED, status=COMPLETE, reason="", message=message)
        return self.stop()


def quoted(text: str) -> str:
    """Return the text in double quotes, special characters behind backslashes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'


def quoted_ref(ref: ObjectReference) -> str:
    return quoted(f"{ref.namespace}/{ref.name}")
