"""Plan a Job, given its pods: counts, conditions, pods to create and to delete. Pure.

Every pod carries a finalizer until it is counted. Its uid is first written to
`status.uncountedTerminatedPods`, then the finalizer is taken off, then the uid moves into the counter: a
crash at any point neither loses a pod nor counts it twice. Indexed successes are counted by index instead.
Source: kube-controller-manager's job controller.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from koordinator import clock
from koordinator.api.apps import Job, JobStatus, UncountedTerminatedPods
from koordinator.api.core import Pod
from koordinator.api.meta import Condition, find_condition, is_condition_true
from koordinator.local.controllers import job_facts, job_pods, pod_health
from koordinator.local.controllers.job_facts import JobPods
from koordinator.local.controllers.job_pods import IndexFailures, PodFailureAction
from koordinator.local.controllers.pod_control import with_condition, without_condition

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
SUCCESS_CRITERIA_MET, FAILURE_TARGET = "SuccessCriteriaMet", "FailureTarget"

BACKOFF_LIMIT_DEFAULT = 6
# As upstream: pods created or deleted, and uids noted, in one go.
BURST_MAX = 500
UNCOUNTED_MAX = 500
BACKOFF_S, BACKOFF_S_MAX = 10.0, 600.0


class JobBackoff(msgspec.Struct, frozen=True):
    """Failures in a row, and when the last one was (seconds since 1970)."""

    failures: int = 0
    last_s: float = 0.0

    def until_s(self) -> float:
        """Return the time before which no pod replaces a failed one."""
        if not self.failures:
            return 0.0
        return self.last_s + min(BACKOFF_S * 2.0 ** min(self.failures - 1, 16), BACKOFF_S_MAX)


class JobResult(msgspec.Struct, frozen=True):
    """The end of a Job: `is_success`, and why."""

    is_success: bool
    reason: str
    message: str


class NewJobPod(NamedTuple):
    """A pod to create; both are None for jobs without indexes."""

    completion_index: int | None
    failures: IndexFailures | None


class BatchJobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for a Job now: write `status`, then take finalizers off `count`, then the rest.

    `count` are ended pods that `status` accounts for. `drop` are deleted without being counted, `kill` are
    deleted and counted as failures. `again_s` is when to look again (seconds from now).
    """

    status: JobStatus
    count: list[Pod] = []
    drop: list[Pod] = []
    kill: list[Pod] = []
    create: list[NewJobPod] = []
    backoff: JobBackoff = JobBackoff()
    again_s: float | None = None


def is_finished(job: Job) -> bool:
    return any(is_condition_true(job.status.conditions, kind) for kind in (COMPLETE, FAILED))


def finished_at_s(job: Job) -> float | None:
    """Return when the Job finished; None while it has not."""
    for kind in (COMPLETE, FAILED):
        condition = find_condition(job.status.conditions, kind)
        if condition is not None and condition.status == "True" and condition.last_transition_time:
            return clock.parse_rfc3339(condition.last_transition_time)
    return None


def parallelism(job: Job) -> int:
    """Most pods at a time; 1 when the Job does not say."""
    return 1 if job.spec.parallelism is None else job.spec.parallelism


def plan(
    job: Job,
    pods: Sequence[Pod],
    released: frozenset[str],
    backoff: JobBackoff,
    now_s: float,
    *,
    may_manage: bool,
) -> BatchJobPlan:
    """Return the next step of an unfinished Job.

    `released`: uids whose finalizer we took off, whatever the cache still shows. `may_manage` is False while
    the cache lacks pods that we created.
    Raises: ProtocolError (indexes in the status or the success policy).
    """
    facts = job_facts.look(job, pods, released)
    backoff = _backed_off(facts, backoff, now_s)
    suspended, start_time = bool(job.spec.suspend), job.status.start_time
    if start_time is None and not suspended:
        start_time = clock.rfc3339(now_s)
    deadline_s = _deadline_s(job, start_time)
    verdict = _verdict(job, deadline_s, facts, now_s)
    ended = _ended(job, facts, verdict)
    status = msgspec.structs.replace(_counted(job, facts, ended, verdict), start_time=start_time)
    drop: list[Pod] = []
    kill: list[Pod] = []
    create: list[NewJobPod] = []
    waits: list[float] = []
    if verdict is not None:
        (drop if verdict.is_success else kill).extend(facts.active)
    elif may_manage:
        drop, create, wait_s = _managed(job, facts, backoff, now_s)
        if wait_s is not None:
            waits.append(wait_s)
    if verdict is None and deadline_s is not None and not suspended:
        waits.append(max(deadline_s - now_s, 0.0))
    leaving = {pod.metadata.uid for pod in (*drop, *kill)}
    staying = [pod for pod in facts.active if pod.metadata.uid not in leaving]
    status = msgspec.structs.replace(
        status,
        active=len(staying),
        ready=sum(pod_health.is_ready(pod) for pod in staying),
        terminating=facts.terminating + len(drop) + len(kill),
    )
    status = _concluded(job, status, facts, verdict, now_s)
    return BatchJobPlan(
        status=status,
        count=[pod for pod in ended if _is_accounted(job, pod, status)],
        drop=drop,
        kill=kill,
        create=create,
        backoff=backoff,
        again_s=min(waits, default=None),
    )


# Counting


def _ended(job: Job, facts: JobPods, verdict: JobResult | None) -> list[Pod]:
    """Return the pods that may go as soon as they are counted: all of them once the Job ends."""
    kept = {pod.metadata.uid for pod in facts.to_replace.values()}
    return [
        pod
        for uid, pod in facts.tracked.items()
        if verdict is not None
        or pod.status.phase == pod_health.SUCCEEDED
        or (job_pods.has_failed(pod, job) and uid not in kept)
    ]


def _counted(job: Job, facts: JobPods, ended: Sequence[Pod], verdict: JobResult | None) -> JobStatus:
    """Move uids whose finalizer is off into the counters, and note the pods that ended since.

    A Job that fails counts all its pods as failed that have not succeeded.
    """
    fails = verdict is not None and not verdict.is_success
    status, indexed = job.status, job_pods.is_indexed(job)
    noted = status.uncounted_terminated_pods or UncountedTerminatedPods()
    succeeded = [uid for uid in noted.succeeded if uid in facts.tracked]
    failed = [uid for uid in noted.failed if uid in facts.tracked]
    more_succeeded = 0 if indexed else len(noted.succeeded) - len(succeeded)
    more_failed = len(noted.failed) - len(failed)
    if not indexed:
        succeeded += [pod.metadata.uid for pod in facts.new_succeeded]
    failed += [
        pod.metadata.uid
        for pod in ended
        if pod.metadata.uid not in failed
        and pod.status.phase != pod_health.SUCCEEDED
        and (fails or job_pods.has_failed(pod, job))
        and (not indexed or job_facts.has_place(pod, job_facts.completions(job)))
        and not job_pods.is_ignored(job, pod)
    ]
    uncounted = UncountedTerminatedPods(
        succeeded=succeeded[:UNCOUNTED_MAX], failed=failed[: max(UNCOUNTED_MAX - len(succeeded), 0)]
    )
    return msgspec.structs.replace(
        status,
        succeeded=facts.succeeded if indexed else status.succeeded + more_succeeded,
        failed=status.failed + more_failed,
        completed_indexes=job_pods.to_text(facts.done_indexes) if indexed else "",
        failed_indexes=_failed_text(job, facts),
        uncounted_terminated_pods=uncounted,
    )


def _failed_text(job: Job, facts: JobPods) -> str | None:
    if job.spec.backoff_limit_per_index is None:
        return job.status.failed_indexes
    return job_pods.to_text(facts.failed_indexes)


def _is_accounted(job: Job, pod: Pod, status: JobStatus) -> bool:
    """Return whether the status to be written has all that will ever be counted of a pod that may go."""
    noted = status.uncounted_terminated_pods or UncountedTerminatedPods()
    if pod.metadata.uid in noted.succeeded or pod.metadata.uid in noted.failed:
        return True
    # Many at once are noted one part after the other.
    return len(noted.succeeded) + len(noted.failed) < UNCOUNTED_MAX


def _backed_off(facts: JobPods, backoff: JobBackoff, now_s: float) -> JobBackoff:
    """Failures in a row after the pods that ended since, in the order of their ends."""
    ends = [(job_pods.finished_s(pod, now_s), True) for pod in facts.new_failed]
    ends += [(job_pods.finished_s(pod, now_s), False) for pod in facts.new_succeeded]
    for at_s, is_failure in sorted(ends):
        if not is_failure:
            backoff = JobBackoff()
        else:  # also where the failure policy does not count it
            backoff = JobBackoff(backoff.failures + 1, max(at_s, backoff.last_s))
    return backoff


# The end


def _verdict(job: Job, deadline_s: float | None, facts: JobPods, now_s: float) -> JobResult | None:
    """Return whether the Job ends now, or is ending already."""
    for kind, is_success in ((SUCCESS_CRITERIA_MET, True), (FAILURE_TARGET, False)):
        known = find_condition(job.status.conditions, kind)
        if known is not None and known.status == "True":
            return JobResult(is_success, known.reason, known.message)
    for pod in facts.new_failed:
        judgement = job_pods.judge(job, pod)
        if judgement.action is PodFailureAction.FAIL_JOB:
            return JobResult(False, "PodFailurePolicy", judgement.message)
    if _is_past_backoff(job, facts):
        return JobResult(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if deadline_s is not None and deadline_s <= now_s and not job.spec.suspend:
        return JobResult(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    return _failed_by_index(job, facts) or _succeeded(job, facts)


def _succeeded(job: Job, facts: JobPods) -> JobResult | None:
    policy = job.spec.success_policy
    for number, rule in enumerate(policy.rules if policy is not None else []):
        field = f"spec.successPolicy.rules[{number}].succeededIndexes"
        wanted = None if rule.succeeded_indexes is None else job_pods.parse(rule.succeeded_indexes, field)
        have = facts.done_indexes if wanted is None else facts.done_indexes & wanted
        need = rule.succeeded_count if rule.succeeded_count is not None else len(wanted or ())
        if need and len(have) >= need:
            return JobResult(True, "SuccessPolicy", f"Matched rules at index {number}")
    total = job_facts.completions(job)
    if total is None:
        is_done = facts.succeeded > 0 and not facts.active
    else:
        is_done = facts.succeeded >= total
    return (
        JobResult(True, "CompletionsReached", "Reached expected number of succeeded pods")
        if is_done
        else None
    )


def _is_past_backoff(job: Job, facts: JobPods) -> bool:
    limit = job.spec.backoff_limit
    if limit is None:
        limit = BACKOFF_LIMIT_DEFAULT if job.spec.backoff_limit_per_index is None else 2**31 - 1
    if facts.failed > limit:
        return True
    if (job.spec.template.get("spec") or {}).get("restartPolicy") != "OnFailure":
        return False
    restarts = sum(
        status.restart_count
        for pod in facts.active
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    )
    return restarts > 0 if limit == 0 else restarts >= limit


def _deadline_s(job: Job, start_time: str | None) -> float | None:
    limit_s = job.spec.active_deadline_seconds
    return None if limit_s is None or start_time is None else clock.parse_rfc3339(start_time) + limit_s


def _failed_by_index(job: Job, facts: JobPods) -> JobResult | None:
    total, most = job_facts.completions(job), job.spec.max_failed_indexes
    if most is not None and len(facts.failed_indexes) > most:
        return JobResult(
            False,
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        )
    is_over = total is not None and len(facts.failed_indexes) + len(facts.done_indexes) >= total
    if facts.failed_indexes and is_over:
        return JobResult(False, "FailedIndexes", "Job has failed indexes")
    return None


def _concluded(
    job: Job, status: JobStatus, facts: JobPods, verdict: JobResult | None, now_s: float
) -> JobStatus:
    """Return the conditions; the final one only when no pod is left to stop or to count."""
    now = clock.rfc3339(now_s)

    def condition(kind: str, reason: str, message: str, state: str = "True") -> Condition:
        return Condition(
            type=kind,
            status=state,
            reason=reason,
            message=message,
            last_probe_time=now,
            last_transition_time=now,
        )

    if verdict is None:
        return _suspended(job, status, condition, now)
    ending, final = (SUCCESS_CRITERIA_MET, COMPLETE) if verdict.is_success else (FAILURE_TARGET, FAILED)
    conditions = status.conditions
    if not is_condition_true(conditions, ending):
        conditions = with_condition(conditions, condition(ending, verdict.reason, verdict.message))
    noted = status.uncounted_terminated_pods or UncountedTerminatedPods()
    is_settled = not (facts.active or facts.terminating or noted.succeeded or noted.failed)
    if not is_settled:
        return msgspec.structs.replace(status, conditions=conditions)
    conditions = with_condition(conditions, condition(final, verdict.reason, verdict.message))
    completed = now if verdict.is_success else status.completion_time
    return msgspec.structs.replace(status, conditions=conditions, completion_time=completed)


def _suspended(job: Job, status: JobStatus, condition: Callable[..., Condition], now: str) -> JobStatus:
    if bool(job.spec.suspend) == is_condition_true(status.conditions, SUSPENDED):
        return status
    others = without_condition(status.conditions, SUSPENDED)
    if job.spec.suspend:
        new = condition(SUSPENDED, "JobSuspended", "Job suspended")
        return msgspec.structs.replace(status, conditions=[*others, new])
    new = condition(SUSPENDED, "JobResumed", "Job resumed", "False")
    return msgspec.structs.replace(status, conditions=[*others, new], start_time=now)


# Pods


def _managed(
    job: Job, facts: JobPods, backoff: JobBackoff, now_s: float
) -> tuple[list[Pod], list[NewJobPod], float | None]:
    """Return pods to drop, pods to create, and the seconds until more may be created."""
    if job.spec.suspend:
        return facts.active, [], None
    indexed, total = job_pods.is_indexed(job), job_facts.completions(job)
    unwanted = _unwanted(facts, total) if indexed else []
    leaving = {pod.metadata.uid for pod in unwanted}
    active = [pod for pod in facts.active if pod.metadata.uid not in leaving]
    wanted = _wanted_active(job, facts, len(active))
    surplus = len(active) - wanted
    if surplus > 0:
        unwanted += pod_health.first_to_go(active, surplus, active, now_s)
    occupied = len(active) + (facts.terminating if job_pods.replaces_only_failed(job) else 0)
    missing = min(wanted - occupied, BURST_MAX)
    if unwanted or missing <= 0:
        return unwanted[:BURST_MAX], [], None
    if job.spec.backoff_limit_per_index is None:
        wait_s = backoff.until_s() - now_s
        if wait_s > 0:
            return [], [], wait_s
    if not indexed:
        return [], [NewJobPod(None, None)] * missing, None
    return [], *_next_indexes(job, facts, missing, now_s)


def _wanted_active(job: Job, facts: JobPods, active: int) -> int:
    """Return how many pods should run now."""
    total, limit = job_facts.completions(job), parallelism(job)
    if total is None:
        return min(active, limit) if facts.succeeded > 0 else limit
    return max(min(total - facts.succeeded - len(facts.failed_indexes), limit), 0)


def _unwanted(facts: JobPods, total: int | None) -> list[Pod]:
    """Active pods whose index is done, failed, out of range or taken by an earlier pod."""
    taken = facts.done_indexes | facts.failed_indexes
    unwanted = []
    for pod in facts.active:
        index = job_pods.index_of(pod)
        if index is None or index in taken or (total is not None and index >= total):
            unwanted.append(pod)
        else:
            taken.add(index)
    return unwanted


def _next_indexes(job: Job, facts: JobPods, count: int, now_s: float) -> tuple[list[NewJobPod], float | None]:
    """Return the lowest indexes that no pod works on, and the seconds to wait when all of them failed just now."""
    taken = facts.done_indexes | facts.failed_indexes
    taken |= {index for pod in facts.active if (index := job_pods.index_of(pod)) is not None}
    if job_pods.replaces_only_failed(job):
        stopping = [pod for pod in facts.tracked.values() if pod_health.is_terminating(pod)]
        taken |= {index for pod in stopping if (index := job_pods.index_of(pod)) is not None}
    pending = (index for index in range(job_facts.completions(job) or 0) if index not in taken)
    limited = job.spec.backoff_limit_per_index is not None
    new: list[NewJobPod] = []
    waits: list[float] = []
    for index in itertools.islice(pending, count):
        before = facts.to_replace.get(index)
        failures = IndexFailures() if before is None else job_pods.failures_with(job, before)
        ended_s = 0.0 if before is None else job_pods.finished_s(before, now_s)
        wait_s = JobBackoff(sum(failures), ended_s).until_s() - now_s
        if wait_s > 0:
            waits.append(wait_s)
        else:
            new.append(NewJobPod(index, failures if limited else None))
    return new, None if new else min(waits, default=None)
