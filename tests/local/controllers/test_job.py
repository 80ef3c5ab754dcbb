"""A Job runs its pods to their end, and counts every one of them exactly once."""

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koordinator.api.apps import Job, JobSpec
from koordinator.api.core import ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus
from koordinator.api.meta import Condition, Object, ObjectMeta
from koordinator.cluster import errors
from koordinator.local.controllers import job_pods
from tests.local.controllers.fake_kubelet import Fate
from tests.local.controllers.workload_world import controllers, edit, events_of, fetch, pods, template
from tests.local.controllers.world import World, run

WORK = Fate(ready_s=1.0, run_s=10.0)
INDEX = "batch.kubernetes.io/job-completion-index"


async def make_job(world: World, name: str = "web", **spec: Any) -> Job:
    spec.setdefault("template", template(restartPolicy="Never", labels={}))
    return await world.cluster.create(Job, {"metadata": {"name": name}, "spec": spec}, "default")


def working(pod: Pod) -> Fate:
    return WORK


def failing(pod: Pod) -> Fate:
    return Fate(ready_s=1.0, run_s=5.0, exit_code=3)


def conditions(job: Job) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in job.status.conditions}


def play(fate_of: Callable[[Pod], Fate], scenario: Callable[[World], Awaitable[None]]) -> None:
    run(controllers(fate_of), scenario)


def test_it_runs_as_many_pods_at_once_as_allowed_until_all_are_complete() -> None:
    async def scenario(world: World) -> None:
        await make_job(world, completions=5, parallelism=2)
        await asyncio.sleep(5)
        status = (await fetch(world, Job)).status
        assert (status.active, status.ready, status.succeeded) == (2, 2, 0)
        assert status.start_time is not None
        assert job_pods.TRACKING in (await pods(world))[0].metadata.finalizers

        await asyncio.sleep(60)
        job = await fetch(world, Job)
        assert (job.status.active, job.status.succeeded, job.status.failed) == (0, 5, 0)
        assert conditions(job) == {
            "SuccessCriteriaMet": ("True", "CompletionsReached"),
            "Complete": ("True", "CompletionsReached"),
        }
        assert job.status.completion_time is not None
        assert len(await pods(world)) == 5
        assert not any(job_pods.is_tracked(pod) for pod in await pods(world))
        assert (await events_of(world, "Completed"))[0].message == "Job completed"

    play(working, scenario)


def test_without_completions_one_success_ends_it_once_all_pods_have_ended() -> None:
    def fate_of(pod: Pod) -> Fate:
        return Fate(ready_s=1.0, run_s=5.0 if next(order) == 0 else 60.0)

    order = iter(range(100))

    async def scenario(world: World) -> None:
        await make_job(world, parallelism=3)
        await asyncio.sleep(30)
        status = (await fetch(world, Job)).status
        assert (status.active, status.succeeded) == (2, 1)

        await asyncio.sleep(60)
        job = await fetch(world, Job)
        assert job.status.succeeded == 3 and conditions(job)["Complete"][0] == "True"

    play(fate_of, scenario)


def test_failed_pods_are_replaced_with_growing_pauses_up_to_the_limit() -> None:
    async def scenario(world: World) -> None:
        await make_job(world, backoffLimit=2)
        await asyncio.sleep(10)
        assert len(await pods(world)) == 1  # the second waits ten seconds

        await asyncio.sleep(15)
        assert len(await pods(world)) == 2
        await asyncio.sleep(300)
        job = await fetch(world, Job)
        assert len(await pods(world)) == 3
        assert (job.status.failed, job.status.active) == (3, 0)
        assert conditions(job) == {
            "FailureTarget": ("True", "BackoffLimitExceeded"),
            "Failed": ("True", "BackoffLimitExceeded"),
        }
        assert job.status.completion_time is None
        (event,) = await events_of(world, "BackoffLimitExceeded")
        assert event.message == "Job has reached the specified backoff limit"

    play(failing, scenario)


def test_a_job_that_takes_too_long_fails_and_its_pods_are_stopped() -> None:
    async def scenario(world: World) -> None:
        await make_job(world, completions=2, parallelism=2, activeDeadlineSeconds=20)
        await asyncio.sleep(40)

        job = await fetch(world, Job)
        assert conditions(job)["Failed"] == ("True", "DeadlineExceeded")
        assert (job.status.active, job.status.failed) == (0, 2)
        assert await pods(world) == []

    play(lambda _: Fate(ready_s=1.0), scenario)


def test_indexed_pods_know_their_index_and_each_index_succeeds_once() -> None:
    order = iter(range(100))

    def fate_of(pod: Pod) -> Fate:
        return Fate(ready_s=1.0, run_s=5.0, exit_code=1 if next(order) == 1 else 0)

    async def scenario(world: World) -> None:
        await make_job(world, completions=4, parallelism=2, completionMode="Indexed")
        await asyncio.sleep(2)
        first = (await pods(world))[0]
        index = first.metadata.annotations[INDEX]
        assert first.metadata.labels[INDEX] == index
        assert first.spec.hostname == f"web-{index}"
        assert first.metadata.name.startswith(f"web-{index}-")
        env = first.spec.containers[0].env[0]
        assert env.name == "JOB_COMPLETION_INDEX" and env.value_from is not None

        await asyncio.sleep(120)
        job = await fetch(world, Job)
        assert (job.status.succeeded, job.status.failed, job.status.completed_indexes) == (4, 1, "0-3")
        assert conditions(job)["Complete"][0] == "True"

    play(fate_of, scenario)


def test_a_suspended_job_stops_its_pods_without_counting_them_and_resumes() -> None:
    async def scenario(world: World) -> None:
        await make_job(world, completions=2, parallelism=2, backoffLimit=0)
        await asyncio.sleep(5)

        await edit(world, Job, suspend=True)
        await asyncio.sleep(5)
        job = await fetch(world, Job)
        assert await pods(world) == []
        assert (job.status.active, job.status.failed) == (0, 0)
        assert conditions(job)["Suspended"] == ("True", "JobSuspended")

        await edit(world, Job, suspend=False)
        await asyncio.sleep(60)
        job = await fetch(world, Job)
        assert conditions(job)["Suspended"] == ("False", "JobResumed")
        assert (job.status.succeeded, conditions(job)["Complete"][0]) == (2, "True")
        assert await events_of(world, "Suspended") and await events_of(world, "Resumed")

    play(working, scenario)


def test_a_finished_job_goes_with_its_pods_after_its_time_to_live() -> None:
    async def scenario(world: World) -> None:
        await make_job(world, ttlSecondsAfterFinished=60)
        await asyncio.sleep(50)
        await fetch(world, Job)

        await asyncio.sleep(40)
        # Foreground: the garbage collector, which does not run here, deletes the pods first.
        assert (await fetch(world, Job)).metadata.finalizers == ["foregroundDeletion"]

    play(working, scenario)


def test_pods_of_a_deleted_job_can_be_deleted() -> None:
    async def scenario(world: World) -> None:
        await make_job(world)
        await asyncio.sleep(5)

        await world.cluster.delete(Job, "web", "default", propagation="Background")
        await asyncio.sleep(5)

        (pod,) = await pods(world)
        assert not job_pods.is_tracked(pod)

    play(working, scenario)


def test_pods_of_a_job_that_is_being_deleted_are_let_go_though_the_api_refuses_at_first() -> None:
    async def scenario(world: World) -> None:
        await make_job(world)
        await asyncio.sleep(5)
        real, refusals = world.cluster.patch, [errors.TooManyRequests("try again")]

        async def busy(view: type[Object], name: str, patch: Any, *args: Any, **more: Any) -> Any:
            if refusals and "finalizers" in patch.get("metadata", {}):
                raise refusals.pop()
            return await real(view, name, patch, *args, **more)

        world.cluster.patch = busy  # type: ignore[method-assign]
        await world.cluster.delete(Job, "web", "default", propagation="Foreground")
        await asyncio.sleep(5)

        (pod,) = await pods(world)
        assert (refusals, job_pods.is_tracked(pod)) == ([], False)

    play(working, scenario)


def policy(**rule: Any) -> dict[str, Any]:
    return {"rules": [rule]}


def test_an_exit_code_can_fail_the_whole_job_at_once() -> None:
    async def scenario(world: World) -> None:
        rule = policy(action="FailJob", onExitCodes={"operator": "In", "values": [3]})
        await make_job(world, completions=4, parallelism=2, podFailurePolicy=rule)
        await asyncio.sleep(60)

        job = await fetch(world, Job)
        assert conditions(job)["Failed"] == ("True", "PodFailurePolicy")
        assert "failed with exit code 3 matching FailJob rule at index 0" in job.status.conditions[-1].message
        assert len(await pods(world)) == 2

    play(failing, scenario)


def test_ignored_failures_do_not_count() -> None:
    order = iter(range(100))

    def fate_of(pod: Pod) -> Fate:
        return Fate(ready_s=1.0, run_s=5.0, exit_code=3 if next(order) < 3 else 0)

    async def scenario(world: World) -> None:
        rule = policy(action="Ignore", onExitCodes={"operator": "NotIn", "values": [1]})
        await make_job(world, backoffLimit=0, podFailurePolicy=rule)
        await asyncio.sleep(120)

        job = await fetch(world, Job)
        assert (job.status.failed, job.status.succeeded) == (0, 1)
        assert not any(job_pods.is_tracked(pod) for pod in await pods(world))

    play(fate_of, scenario)


def test_the_success_policy_ends_a_job_early_and_stops_the_rest() -> None:
    order = iter(range(100))

    def fate_of(pod: Pod) -> Fate:
        return Fate(ready_s=1.0, run_s=5.0 if next(order) == 0 else None)

    async def scenario(world: World) -> None:
        await make_job(
            world,
            completions=3,
            parallelism=3,
            completionMode="Indexed",
            successPolicy={"rules": [{"succeededIndexes": "0-2", "succeededCount": 1}]},
        )
        await asyncio.sleep(30)

        job = await fetch(world, Job)
        assert conditions(job)["Complete"] == ("True", "SuccessPolicy")
        assert (job.status.succeeded, job.status.active, len(await pods(world))) == (1, 0, 1)

    play(fate_of, scenario)


def test_each_index_has_its_own_limit_where_asked_for() -> None:
    def fate_of(pod: Pod) -> Fate:
        bad = pod.metadata.annotations[INDEX] == "1"
        return Fate(ready_s=1.0, run_s=5.0, exit_code=1 if bad else 0)

    async def scenario(world: World) -> None:
        await make_job(world, completions=3, parallelism=3, completionMode="Indexed", backoffLimitPerIndex=1)
        await asyncio.sleep(300)

        job = await fetch(world, Job)
        assert (job.status.completed_indexes, job.status.failed_indexes) == ("0,2", "1")
        assert (job.status.succeeded, job.status.failed) == (2, 2)
        assert conditions(job)["Failed"] == ("True", "FailedIndexes")

    play(fate_of, scenario)


def test_a_job_that_another_controller_manages_is_left_alone() -> None:
    async def scenario(world: World) -> None:
        await make_job(world, managedBy="example.com/queue")
        await asyncio.sleep(10)
        assert await pods(world) == []

    play(working, scenario)


def test_with_caches_that_are_seconds_behind_nothing_is_written_that_would_be_refused() -> None:
    refused: list[str] = []

    async def scenario(world: World) -> None:
        loop, real = asyncio.get_running_loop(), world.cluster.patch
        for view, late_s in ((Job, 1.0), (Pod, 5.0)):
            informer = world.factory.informer(view)
            informer._apply = functools.partial(loop.call_later, late_s, informer._apply)  # type: ignore[method-assign]

        async def watched(view: type[Object], name: str, *args: Any, **more: Any) -> Any:
            try:
                return await real(view, name, *args, **more)
            except errors.Conflict:
                refused.append(name)
                raise

        world.cluster.patch = watched  # type: ignore[method-assign]
        await make_job(world, completions=4, parallelism=2)
        await asyncio.sleep(150)

        job = await fetch(world, Job)
        assert (job.status.succeeded, job.status.failed) == (4, 0)
        assert len([pod for pod in await pods(world) if pod.status.phase == "Succeeded"]) == 4
        assert refused == []

    play(working, scenario)


@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
@pytest.mark.parametrize("seed", range(6))
def test_every_pod_counts_exactly_once_whatever_fails_on_the_way(seed: int, indexed: bool) -> None:
    rng = random.Random(seed)
    ended: dict[str, bool] = {}  # what the kubelet says, by uid: did the pod succeed?

    def fate_of(pod: Pod) -> Fate:
        return Fate(ready_s=0.5, run_s=rng.uniform(1, 20), exit_code=int(rng.random() < 0.3))

    def note(pod: Pod) -> None:
        if pod.status.phase in ("Succeeded", "Failed"):
            ended[pod.metadata.uid] = pod.status.phase == "Succeeded"

    async def scenario(world: World) -> None:
        watched = world.factory.informer(Pod)
        watched.add_handler(note, lambda _, pod: note(pod))
        real = world.cluster.patch

        async def flaky(view: type[Object], name: str, patch: Any, *args: Any, **more: Any) -> Any:
            is_ours = view is Job or "finalizers" in patch.get("metadata", {})
            if is_ours and rng.random() < 0.2:
                raise errors.Conflict("the object has been modified")
            result = await real(view, name, patch, *args, **more)
            if is_ours and rng.random() < 0.1:
                raise errors.ConnectionFailed("the answer was lost")  # but the write has happened
            return result

        world.cluster.patch = flaky  # type: ignore[method-assign]
        mode = "Indexed" if indexed else "NonIndexed"
        await make_job(world, completions=12, parallelism=5, backoffLimit=100, completionMode=mode)
        for _ in range(120):
            await asyncio.sleep(30)
            job = await fetch(world, Job)
            if "Complete" in conditions(job):
                break
        await asyncio.sleep(60)

        job = await fetch(world, Job)
        assert conditions(job)["Complete"][0] == "True"
        assert job.status.succeeded == 12
        assert job.status.succeeded == sum(ended.values())
        assert job.status.failed == len(ended) - sum(ended.values())
        assert not any(job_pods.is_tracked(pod) for pod in await pods(world))

    play(fate_of, scenario)


@pytest.mark.parametrize(
    ("indexes", "text"),
    [
        pytest.param([], "", id="none"),
        pytest.param([3], "3", id="one"),
        pytest.param([0, 1], "0,1", id="two neighbours stay apart"),
        pytest.param([5, 1, 2, 3], "1-3,5", id="three neighbours are a range"),
    ],
)
def test_index_sets_as_text(indexes: list[int], text: str) -> None:
    assert job_pods.to_text(indexes) == text
    assert job_pods.parse(text, "") == set(indexes)


def limited(**spec: Any) -> dict[str, Any]:
    return {"completionMode": "Indexed", "backoffLimitPerIndex": 3, "backoffLimit": 100, **spec}


def test_each_index_pauses_for_itself_and_its_failed_pod_stays_until_the_next_one_is_made() -> None:
    def fate_of(pod: Pod) -> Fate:
        bad = pod.metadata.annotations[INDEX] == "0"
        return Fate(ready_s=1.0, run_s=1.0 if bad else 200.0, exit_code=int(bad))

    async def scenario(world: World) -> None:
        await make_job(world, **limited(completions=3, parallelism=3))
        await asyncio.sleep(8)
        job = await fetch(world, Job)
        assert (job.status.active, job.status.failed) == (2, 0)
        (failed,) = [pod for pod in await pods(world) if pod.status.phase == "Failed"]
        assert failed.metadata.finalizers == [job_pods.TRACKING]

        await asyncio.sleep(10)
        assert (await fetch(world, Job)).status.failed == 1
        counts = sorted(
            pod.metadata.annotations["batch.kubernetes.io/job-index-failure-count"]
            for pod in await pods(world)
        )
        assert counts == ["0", "0", "0", "1"]
        await asyncio.sleep(12)  # the next pause is of 20 s
        assert (await fetch(world, Job)).status.active == 2

    play(fate_of, scenario)


def test_failures_that_do_not_count_are_counted_apart() -> None:
    async def scenario(world: World) -> None:
        rule = policy(action="Ignore", onExitCodes={"operator": "In", "values": [3]})
        spec = limited(completions=1, parallelism=1, backoffLimitPerIndex=0)
        await make_job(world, **spec, podFailurePolicy=rule)
        await asyncio.sleep(25)

        annotations = [pod.metadata.annotations for pod in await pods(world)]
        assert "1" in [
            found.get("batch.kubernetes.io/job-index-ignored-failure-count") for found in annotations
        ]
        assert {found["batch.kubernetes.io/job-index-failure-count"] for found in annotations} == {"0"}

    play(failing, scenario)


def test_a_job_that_fails_counts_the_pods_that_it_stops_at_once() -> None:
    async def scenario(world: World) -> None:
        rule = policy(action="Count", onExitCodes={"operator": "In", "values": [77]})
        limits = {"parallelism": 2, "completions": 2, "activeDeadlineSeconds": 5}
        await make_job(world, **limits, podFailurePolicy=rule)
        await asyncio.sleep(8)

        job = await fetch(world, Job)
        assert (job.status.failed, job.status.terminating) == (2, 2)
        assert "Failed" not in conditions(job)
        await asyncio.sleep(30)
        assert conditions(await fetch(world, Job))["Failed"] == ("True", "DeadlineExceeded")

    play(lambda _: Fate(ready_s=1.0, stop_s=20.0), scenario)


def test_the_index_stays_whole_in_long_names() -> None:
    job = Job(metadata=ObjectMeta(name="j" * 63), spec=JobSpec(template={"spec": {}}))

    made = job_pods.new_pod(job, 1234, None)

    assert made["metadata"]["generateName"].endswith("j-1234-")
    assert len(made["metadata"]["generateName"]) == 58


@pytest.mark.parametrize(
    ("status", "ended_s"),
    [
        pytest.param({"containers": ["00:05", "00:09"], "ready": "00:20"}, 9, id="the last container"),
        pytest.param({"containers": ["00:05", None], "ready": "00:20"}, 20, id="one container has not ended"),
        pytest.param({"containers": []}, 40, id="its deletion, without the grace"),
    ],
)
def test_when_a_pod_ended(status: dict[str, Any], ended_s: float) -> None:
    def at(text: str | None) -> str | None:
        return f"1970-01-01T00:{text}Z" if text else None

    states = [
        ContainerState(terminated=ContainerStateTerminated(finished_at=at(end))) if end else ContainerState()
        for end in status["containers"]
    ]
    containers = [ContainerStatus(state=state) for state in states]
    since = at(status.get("ready"))
    ready = [Condition(type="Ready", status="False", last_transition_time=since)] if since else []
    meta = ObjectMeta(deletion_timestamp=at("01:10"), deletion_grace_period_seconds=30)
    pod = Pod(metadata=meta, status=PodStatus(container_statuses=containers, conditions=ready))

    assert job_pods.finished_s(pod, 500.0) == ended_s


def test_pods_whose_failures_do_not_count_are_replaced_with_growing_pauses_too() -> None:
    async def scenario(world: World) -> None:
        rule = policy(action="Ignore", onExitCodes={"operator": "In", "values": [3]})
        await make_job(world, podFailurePolicy=rule)
        await asyncio.sleep(60)

        assert len(await pods(world)) == 3  # after 10 and 20 s

    play(failing, scenario)
