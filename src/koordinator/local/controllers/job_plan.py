"""Plan a Job, given its pods: counts, conditions, pods to create and to delete. Pure.

Every pod carries a finalizer until it is counted. Its uid is first written to
`status.uncountedTerminatedPods`, then the finalizer is taken off, then the uid moves into the counter: a
crash at any point neither loses a pod nor counts it twice. Indexed successes are counted by index instead.
Source: kube-controller-manager's job controller.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from koordinator import clock
from koordinator.api.apps import Job, JobStatus, UncountedTerminatedPods
from koordinator.api.core import Pod
from koordinator.api.meta import Condition, find_condition, is_condition_true
from koordinator.api.pod_labels import is_terminated
from koordinator.local.controllers import job_pods, pod_health
from koordinator.local.controllers.job_pods import PodFailureAction
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
    failures: int | None


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


class JobPods(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the pods. `succeeded` and `failed` include those that no counter has yet."""

    active: list[Pod]
    terminating: int
    tracked: dict[str, Pod]
    new_succeeded: list[Pod]
    new_failed: list[Pod]
    succeeded: int
    failed: int
    done_indexes: set[int]
    failed_indexes: set[int]
    index_failures: dict[int, int]


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


def completions(job: Job) -> int | None:
    """Successes that complete the Job; None when any success does."""
    if job.spec.completions is None and job.spec.parallelism is None:
        return 1
    return job.spec.completions


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
    facts = look(job, pods, released)
    backoff = _backed_off(job, facts, backoff, now_s)
    status = _counted(job, facts)
    suspended = bool(job.spec.suspend)
    if status.start_time is None and not suspended:
        status = msgspec.structs.replace(status, start_time=clock.rfc3339(now_s))
    verdict = _verdict(job, status, facts, now_s)
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
    deadline_s = _deadline_s(job, status)
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
        count=[pod for pod in facts.tracked.values() if _is_accounted(job, pod, status)],
        drop=drop,
        kill=kill,
        create=create,
        backoff=backoff,
        again_s=min(waits, default=None),
    )


def look(job: Job, pods: Sequence[Pod], released: frozenset[str]) -> JobPods:
    """Sort the pods. Raises: ProtocolError."""
    indexed, total = job_pods.is_indexed(job), completions(job)
    noted = job.status.uncounted_terminated_pods or UncountedTerminatedPods()
    known = {*noted.succeeded, *noted.failed}
    tracked = {
        pod.metadata.uid: pod for pod in pods if job_pods.is_tracked(pod) and pod.metadata.uid not in released
    }
    fresh = [pod for uid, pod in tracked.items() if uid not in known]
    new_succeeded = [pod for pod in fresh if pod.status.phase == pod_health.SUCCEEDED]
    new_failed = [pod for pod in fresh if job_pods.has_failed(pod, job)]
    counted = [pod for pod in new_failed if not job_pods.is_ignored(job, pod)]
    done, broken = _index_sets(job)
    failures: dict[int, int] = {}
    if indexed:
        done |= {i for pod in new_succeeded if (i := job_pods.index_of(pod)) is not None}
        done = {index for index in done if total is None or index < total}
        failures = _index_failures(job, pods)
        broken = (broken | _broken_indexes(job, counted, failures)) - done
        succeeded = len(done)
    else:
        succeeded = job.status.succeeded + len(noted.succeeded) + len(new_succeeded)
    return JobPods(
        active=[pod for pod in pods if pod_health.is_active(pod) and pod.metadata.uid not in released],
        terminating=sum(_is_terminating(pod) for pod in pods),
        tracked=tracked,
        new_succeeded=new_succeeded,
        new_failed=new_failed,
        succeeded=succeeded,
        failed=job.status.failed + len(noted.failed) + len(counted),
        done_indexes=done,
        failed_indexes=broken,
        index_failures=failures,
    )


def _is_terminating(pod: Pod) -> bool:
    stopped = is_terminated(pod) or pod.metadata.deletion_grace_period_seconds == 0
    return pod.metadata.deletion_timestamp is not None and not stopped


def _index_sets(job: Job) -> tuple[set[int], set[int]]:
    if not job_pods.is_indexed(job):
        return set(), set()
    done = job_pods.parse(job.status.completed_indexes, "status.completedIndexes")
    return done, job_pods.parse(job.status.failed_indexes or "", "status.failedIndexes")


def _index_failures(job: Job, pods: Sequence[Pod]) -> dict[int, int]:
    """Counted failures per index, as its pods remember them."""
    found: dict[int, int] = {}
    if job.spec.backoff_limit_per_index is None:
        return found
    for pod in pods:
        index = job_pods.index_of(pod)
        if index is not None:
            own = job_pods.has_failed(pod, job) and not job_pods.is_ignored(job, pod)
            found[index] = max(found.get(index, 0), job_pods.index_failures(pod) + own)
    return found


def _broken_indexes(job: Job, failed: Sequence[Pod], failures: dict[int, int]) -> set[int]:
    limit = job.spec.backoff_limit_per_index
    broken = {index for index, count in failures.items() if limit is not None and count > limit}
    for pod in failed:
        index = job_pods.index_of(pod)
        if index is not None and job_pods.judge(job, pod).action is PodFailureAction.FAIL_INDEX:
            broken.add(index)
    return broken


# Counting


def _counted(job: Job, facts: JobPods) -> JobStatus:
    """Move uids whose finalizer is off into the counters, and note the pods that ended since."""
    status, indexed = job.status, job_pods.is_indexed(job)
    noted = status.uncounted_terminated_pods or UncountedTerminatedPods()
    succeeded = [uid for uid in noted.succeeded if uid in facts.tracked]
    failed = [uid for uid in noted.failed if uid in facts.tracked]
    more_succeeded = 0 if indexed else len(noted.succeeded) - len(succeeded)
    more_failed = len(noted.failed) - len(failed)
    if not indexed:
        succeeded += [pod.metadata.uid for pod in facts.new_succeeded]
    failed += [pod.metadata.uid for pod in facts.new_failed if not job_pods.is_ignored(job, pod)]
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
    """Return whether the status to be written says all about an ended pod, so that its finalizer may go."""
    noted = status.uncounted_terminated_pods or UncountedTerminatedPods()
    if pod.metadata.uid in noted.succeeded or pod.metadata.uid in noted.failed:
        return True
    if pod.status.phase == pod_health.SUCCEEDED:
        return job_pods.is_indexed(job)  # by its index
    return job_pods.has_failed(pod, job) and job_pods.is_ignored(job, pod)


def _backed_off(job: Job, facts: JobPods, backoff: JobBackoff, now_s: float) -> JobBackoff:
    """Failures in a row after the pods that ended since, in the order of their ends."""
    ends = [(job_pods.finished_s(pod, now_s), True, pod) for pod in facts.new_failed]
    ends += [(job_pods.finished_s(pod, now_s), False, pod) for pod in facts.new_succeeded]
    for at_s, is_failure, pod in sorted(ends, key=lambda end: (end[0], end[2].metadata.uid)):
        if not is_failure:
            backoff = JobBackoff()
        elif not job_pods.is_ignored(job, pod):
            backoff = JobBackoff(backoff.failures + 1, max(at_s, backoff.last_s))
    return backoff


# The end


def _verdict(job: Job, status: JobStatus, facts: JobPods, now_s: float) -> JobResult | None:
    """Return whether the Job ends now, or is ending already."""
    for kind, is_success in ((FAILURE_TARGET, False), (SUCCESS_CRITERIA_MET, True)):
        known = find_condition(status.conditions, kind)
        if known is not None and known.status == "True":
            return JobResult(is_success, known.reason, known.message)
    for pod in facts.new_failed:
        judgement = job_pods.judge(job, pod)
        if judgement.action is PodFailureAction.FAIL_JOB:
            return JobResult(False, "PodFailurePolicy", judgement.message)
    if _is_past_backoff(job, facts):
        return JobResult(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    deadline_s = _deadline_s(job, status)
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
    total = completions(job)
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
    # Only a new failure can exceed it: lowering the limit does not end a Job.
    if facts.failed > limit and facts.failed > job.status.failed:
        return True
    if (job.spec.template.get("spec") or {}).get("restartPolicy") != "OnFailure":
        return False
    restarts = sum(
        status.restart_count
        for pod in facts.active
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    )
    return restarts > 0 if limit == 0 else restarts >= limit


def _deadline_s(job: Job, status: JobStatus) -> float | None:
    limit_s = job.spec.active_deadline_seconds
    if limit_s is None or status.start_time is None:
        return None
    return clock.parse_rfc3339(status.start_time) + limit_s


def _failed_by_index(job: Job, facts: JobPods) -> JobResult | None:
    total, most = completions(job), job.spec.max_failed_indexes
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
        return msgspec.structs.replace(status, conditions=[*others, new], start_time=None)
    new = condition(SUSPENDED, "JobResumed", "Job resumed", "False")
    return msgspec.structs.replace(status, conditions=[*others, new], start_time=now)


# Pods


def _managed(
    job: Job, facts: JobPods, backoff: JobBackoff, now_s: float
) -> tuple[list[Pod], list[NewJobPod], float | None]:
    """Return pods to drop, pods to create, and the seconds until more may be created."""
    if job.spec.suspend:
        return facts.active, [], None
    indexed, total = job_pods.is_indexed(job), completions(job)
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
    wait_s = backoff.until_s() - now_s
    if wait_s > 0:
        return [], [], wait_s
    if not indexed:
        return [], [NewJobPod(None, None)] * missing, None
    return [], _next_indexes(job, facts, missing), None


def _wanted_active(job: Job, facts: JobPods, active: int) -> int:
    """Return how many pods should run now."""
    total, limit = completions(job), parallelism(job)
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


def _next_indexes(job: Job, facts: JobPods, count: int) -> list[NewJobPod]:
    """Return the lowest indexes that no pod works on."""
    taken = facts.done_indexes | facts.failed_indexes
    taken |= {index for pod in facts.active if (index := job_pods.index_of(pod)) is not None}
    if job_pods.replaces_only_failed(job):
        stopping = [pod for pod in facts.tracked.values() if _is_terminating(pod)]
        taken |= {index for pod in stopping if (index := job_pods.index_of(pod)) is not None}
    limited = job.spec.backoff_limit_per_index is not None
    new: list[NewJobPod] = []
    for index in range(completions(job) or 0):
        if len(new) == count:
            break
        if index not in taken:
            new.append(NewJobPod(index, facts.index_failures.get(index, 0) if limited else None))
    return new
