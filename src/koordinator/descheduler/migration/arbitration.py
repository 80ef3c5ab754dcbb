"""Decide which migration jobs go first, and which go at all. Pure. Source: behaviour/descheduler 8.1 and 8.2."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api.core import Pod
from koordinator.api.meta import controller_of
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.descheduler import facts
from koordinator.descheduler.migration import jobs

Refusal = Callable[[Pod], str]
PodOf = Callable[[str], Pod | None]


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that waits for arbitration, and its pod if that still exists."""

    job: PodMigrationJob
    pod: Pod | None


class Rejected(msgspec.Struct, frozen=True):
    """A job that cannot go now, or ever, and why."""

    waiting: WaitingJob
    reason: str


class Round(msgspec.Struct, frozen=True):
    """The decisions of one round. Failed jobs are forbidden for good, refused ones wait for the next round."""

    passed: list[WaitingJob]
    failed: list[Rejected]
    refused: list[Rejected]


def order(
    waiting: Iterable[WaitingJob], all_jobs: Iterable[PodMigrationJob], pod_of: PodOf
) -> list[WaitingJob]:
    """Return the order in which jobs are judged.

    `all_jobs`: every job, waiting ones included; `pod_of`: by namespace/name. Four stable sorts:
    newest job, least important pod (missing ones first), members of a batch Job together, the batch Job
    with the most migrating pods.
    """
    ranked = sorted(waiting, key=lambda one: one.job.metadata.name)
    ranked.sort(key=lambda one: -facts.created_s(one.job))
    ranked.sort(key=_pod_rank)
    ranked = _together(ranked)
    migrating = _migrating_by_owner(all_jobs, pod_of)
    ranked.sort(key=lambda one: -migrating[_batch_uid(one.pod)])
    return ranked


def judge(
    ordered: Sequence[WaitingJob],
    non_retryable: Refusal,
    retryable: Refusal,
    passes: Callable[[WaitingJob], None] = lambda _: None,
) -> Round:
    """Judge jobs in their order. A job whose pod is gone passes: its own steps deal with that.

    `passes` is told of each job that passes before the next is judged, so that gates count it.
    """
    found = Round([], [], [])
    for one in ordered:
        if one.pod is not None:
            if reason := non_retryable(one.pod):
                found.failed.append(Rejected(one, reason))
                continue
            if reason := retryable(one.pod):
                found.refused.append(Rejected(one, reason))
                continue
        found.passed.append(one)
        passes(one)
    return found


def _pod_rank(one: WaitingJob) -> tuple[bool, tuple[facts.Importance, float] | tuple[()]]:
    return (one.pod is not None, facts.arbitration_key(one.pod) if one.pod is not None else ())


def _batch_uid(pod: Pod | None) -> str:
    """Uid of the batch Job that the pod belongs to, empty for all others."""
    owner = controller_of(pod) if pod is not None else None
    return owner.uid if owner is not None and owner.kind == "Job" else ""


def _together(ranked: list[WaitingJob]) -> list[WaitingJob]:
    """All members of a batch Job at the place of its first one."""
    first: dict[str, int] = {}
    places = []
    for index, one in enumerate(ranked):
        uid = _batch_uid(one.pod)
        places.append(first.setdefault(uid, index) if uid else index)
    return [ranked[index] for index in sorted(range(len(ranked)), key=places.__getitem__)]


def _migrating_by_owner(all_jobs: Iterable[PodMigrationJob], pod_of: PodOf) -> Counter[str]:
    """Migrating jobs by uid of their pods' owners, batch Jobs among them; the empty uid stays 0."""
    count: Counter[str] = Counter()
    for job in all_jobs:
        if jobs.has_passed(job) or job.status.phase == jobs.RUNNING:
            pod = pod_of(jobs.pod_key(job))
            # A namesake of a pod that is gone does not count.
            if pod is not None and pod.metadata.uid == job.spec.pod_ref.uid:
                count.update({owner.uid for owner in pod.metadata.owner_references})
    del count[""]
    return count
