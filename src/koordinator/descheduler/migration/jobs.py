"""Count what is known of PodMigrationJobs at one moment, so that each question is O(1).

Source: behaviour/descheduler 8.3.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.pod_migration import PodMigrationJob

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


def counted_at_admission(job: PodMigrationJob) -> bool:
    return is_open(job)


def counted_in_arbitration(passed_uids: Iterable[str]) -> JobPredicate:
    """During arbitration a job that does not run yet counts only if it passed in this process."""
    passed = frozenset(passed_uids)
    return lambda job: job.status.phase == RUNNING or (is_open(job) and job.metadata.uid in passed)


def pod_key(job: PodMigrationJob) -> str:
    """`namespace/name` of the job's pod."""
    return f"{job.spec.pod_ref.namespace}/{job.spec.pod_ref.name}"


class JobCounts:
    """The jobs that count against limits."""

    def __init__(self, jobs: Iterable[PodMigrationJob]) -> None:
        self.total = 0
        self._uids: set[str] = set()
        self._keys: set[str] = set()
        self._of_uid: Counter[str] = Counter()
        self._of_namespace: Counter[str] = Counter()
        self._of_both: Counter[tuple[str, str]] = Counter()
        self._pods: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for job in jobs:
            self.add(job)

    def add(self, job: PodMigrationJob) -> None:
        """Count one more job."""
        ref = job.spec.pod_ref
        self.total += 1
        if ref.uid:
            self._uids.add(ref.uid)
        self._keys.add(pod_key(job))
        self._of_uid[ref.uid] += 1
        self._of_namespace[ref.namespace] += 1
        self._of_both[ref.namespace, ref.uid] += 1
        self._pods[ref.namespace][pod_key(job)] = ref.uid

    def has(self, pod: Pod) -> bool:
        """Return whether a job refers to the pod, by uid or by name."""
        return pod.metadata.uid in self._uids or pod.key in self._keys

    def others(self, pod: Pod) -> int:
        """Jobs that are not the pod's own (by uid)."""
        return self.total - self._of_uid[pod.metadata.uid]

    def others_in_namespace(self, pod: Pod) -> int:
        namespace = pod.metadata.namespace
        return self._of_namespace[namespace] - self._of_both[namespace, pod.metadata.uid]

    def other_pods_in_namespace(self, pod: Pod) -> list[str]:
        """Keys of the pods of other jobs in the pod's namespace."""
        own = pod.metadata.uid
        return [key for key, uid in self._pods[pod.metadata.namespace].items() if uid != own]
