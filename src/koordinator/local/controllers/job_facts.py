"""Sort the pods of a Job: which work, which ended since the last count, which indexes are done or broken. Pure.

Source: kube-controller-manager's job controller.
"""

from collections.abc import Iterable, Sequence

import msgspec

from koordinator.api.apps import Job, UncountedTerminatedPods
from koordinator.api.core import Pod
from koordinator.local.controllers import job_pods, pod_health
from koordinator.local.controllers.job_pods import PodFailureAction


class JobPods(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the pods. `succeeded` and `failed` include those that no counter has yet.

    `to_replace` are failed pods by index, where failures are limited per index: they are kept, and not counted, until
    the next pod of the index knows how often it has failed.
    """

    active: list[Pod]
    terminating: int
    tracked: dict[str, Pod]
    new_succeeded: list[Pod]
    new_failed: list[Pod]
    succeeded: int
    failed: int
    done_indexes: set[int]
    failed_indexes: set[int]
    to_replace: dict[int, Pod]


def completions(job: Job) -> int | None:
    """Successes that complete the Job; None when any success does."""
    if job.spec.completions is None and job.spec.parallelism is None:
        return 1
    return job.spec.completions


def look(job: Job, pods: Sequence[Pod], released: frozenset[str]) -> JobPods:
    """Sort the pods. Raises: ProtocolError."""
    indexed, total = job_pods.is_indexed(job), completions(job)
    noted = job.status.uncounted_terminated_pods or UncountedTerminatedPods()
    known = {*noted.succeeded, *noted.failed}
    tracked = {
        pod.metadata.uid: pod for pod in pods if job_pods.is_tracked(pod) and pod.metadata.uid not in released
    }
    fresh = [
        pod for uid, pod in tracked.items() if uid not in known and (not indexed or has_place(pod, total))
    ]
    new_succeeded = [pod for pod in fresh if pod.status.phase == pod_health.SUCCEEDED]
    new_failed = [pod for pod in fresh if job_pods.has_failed(pod, job)]
    counted = [pod for pod in new_failed if not job_pods.is_ignored(job, pod)]
    done, broken = _index_sets(job)
    active = [pod for pod in pods if pod_health.is_active(pod) and pod.metadata.uid not in released]
    to_replace: dict[int, Pod] = {}
    if indexed:
        done |= {i for pod in new_succeeded if (i := job_pods.index_of(pod)) is not None}
        done = {index for index in done if total is None or index < total}
        succeeded = len(done)
        if job.spec.backoff_limit_per_index is not None:
            broken |= _broken_indexes(job, counted, job.spec.backoff_limit_per_index)
            settled = done | broken | {job_pods.index_of(pod) for pod in active}
            to_replace = _last_of_each(pod for pod in new_failed if job_pods.index_of(pod) not in settled)
    else:
        succeeded = job.status.succeeded + len(noted.succeeded) + len(new_succeeded)
    return JobPods(
        active=active,
        terminating=sum(pod_health.is_terminating(pod) for pod in pods),
        tracked=tracked,
        new_succeeded=new_succeeded,
        new_failed=new_failed,
        succeeded=succeeded,
        failed=job.status.failed + len(noted.failed) + len(counted),
        done_indexes=done,
        failed_indexes=broken,
        to_replace=to_replace,
    )


def has_place(pod: Pod, total: int | None) -> bool:
    """Return whether the pod has an index that the Job has."""
    index = job_pods.index_of(pod)
    return index is not None and (total is None or index < total)


def _index_sets(job: Job) -> tuple[set[int], set[int]]:
    if not job_pods.is_indexed(job):
        return set(), set()
    done = job_pods.parse(job.status.completed_indexes, "status.completedIndexes")
    return done, job_pods.parse(job.status.failed_indexes or "", "status.failedIndexes")


def _broken_indexes(job: Job, failed: Sequence[Pod], limit: int) -> set[int]:
    """Return the indexes that may not be tried again, by the failures that count."""
    return {
        index
        for pod in failed
        if (index := job_pods.index_of(pod)) is not None
        and (
            job_pods.index_failures(pod).counted >= limit
            or job_pods.judge(job, pod).action is PodFailureAction.FAIL_INDEX
        )
    }


def _last_of_each(failed: Iterable[Pod]) -> dict[int, Pod]:
    """Return the last of the failed pods by index."""
    ordered = sorted(
        failed, key=lambda pod: (sum(job_pods.index_failures(pod)), job_pods.finished_s(pod, 0.0))
    )
    return {index: pod for pod in ordered if (index := job_pods.index_of(pod)) is not None}
