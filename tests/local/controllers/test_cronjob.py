"""A CronJob starts Jobs when its schedule says so, once each."""

import asyncio
import datetime
from typing import Any

import pytest

from koordinator.api.apps import CronJob, CronJobSpec, Job
from koordinator.api.core import Pod
from koordinator.api.meta import ObjectMeta
from koordinator.local.controllers import cronjob
from koordinator.local.controllers.garbage_collector import GarbageCollector
from tests.local.controllers.fake_kubelet import Fate
from tests.local.controllers.workload_world import controllers, edit, events_of, fetch, template
from tests.local.controllers.world import Build, Runs, World, run

MINUTE_S = 60


def lasting(run_s: float, exit_code: int = 0) -> Build:
    """Controllers, and pods that run so long."""

    def build(world: World) -> list[Runs]:
        def fate_of(_: Pod) -> Fate:
            return Fate(ready_s=1.0, run_s=run_s, exit_code=exit_code)

        collector = GarbageCollector(world.cluster, world.factory, world.backend.resources)
        return [*controllers(fate_of)(world), collector]

    return build


async def make_cron(world: World, schedule: str = "*/5 * * * *", **spec: Any) -> CronJob:
    job = {"template": template(restartPolicy="Never", labels={}), "backoffLimit": 0}
    spec = {"schedule": schedule, "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": job}, **spec}
    return await world.cluster.create(CronJob, {"metadata": {"name": "web"}, "spec": spec}, "default")


async def jobs(world: World) -> list[Job]:
    return (await world.cluster.list(Job, "default")).items


def test_a_job_starts_at_each_time_of_the_schedule() -> None:
    async def scenario(world: World) -> None:
        await make_cron(world)
        await asyncio.sleep(4 * MINUTE_S)
        assert await jobs(world) == []

        await asyncio.sleep(1 * MINUTE_S + 5)
        (job,) = await jobs(world)
        at_s = datetime.datetime(2023, 11, 15, 0, 5, tzinfo=datetime.UTC).timestamp()
        assert job.metadata.name == f"web-{int(at_s) // 60}"
        assert job.metadata.labels["a"] == "b"
        annotations = job.metadata.annotations
        assert annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"] == "2023-11-15T00:05:00Z"
        assert job.metadata.owner_references[0].kind == "CronJob"
        status = (await fetch(world, CronJob)).status
        assert [one.name for one in status.active] == [job.metadata.name]
        assert status.last_schedule_time == "2023-11-15T00:05:00Z"

        await asyncio.sleep(30)
        status = (await fetch(world, CronJob)).status
        assert status.active == [] and status.last_successful_time is not None
        (event,) = await events_of(world, "SawCompletedJob")
        assert event.message == f"Saw completed job: {job.metadata.name}, condition: Complete"

        await asyncio.sleep(10 * MINUTE_S)
        assert len(await jobs(world)) == 3

    run(lasting(10), scenario)


def test_only_the_last_few_finished_jobs_are_kept() -> None:
    async def scenario(world: World) -> None:
        await make_cron(world, successfulJobsHistoryLimit=2)
        await asyncio.sleep(26 * MINUTE_S)
        assert len(await jobs(world)) == 2

    run(lasting(10), scenario)


def test_of_failed_jobs_one_is_kept() -> None:
    async def scenario(world: World) -> None:
        await make_cron(world)
        await asyncio.sleep(26 * MINUTE_S)
        (job,) = await jobs(world)
        assert job.status.failed == 1
        assert (await fetch(world, CronJob)).status.last_successful_time is None

    run(lasting(10, exit_code=1), scenario)


@pytest.mark.parametrize(
    ("policy", "running"),
    [
        pytest.param("Allow", 3, id="side by side"),
        pytest.param("Forbid", 1, id="the next waits for the last"),
        pytest.param("Replace", 1, id="the next replaces the last"),
    ],
)
def test_jobs_that_last_longer_than_the_interval(policy: str, running: int) -> None:
    async def scenario(world: World) -> None:
        await make_cron(world, concurrencyPolicy=policy)
        await asyncio.sleep(5 * MINUTE_S + 30)
        first = (await jobs(world))[0].metadata.name
        await asyncio.sleep(10 * MINUTE_S + 30)

        found = await jobs(world)
        assert len(found) == running
        assert (first in {job.metadata.name for job in found}) == (policy != "Replace")
        assert len((await fetch(world, CronJob)).status.active) == running
        assert bool(await events_of(world, "JobAlreadyActive")) == (policy == "Forbid")

    run(lasting(3600), scenario)


def test_a_suspended_one_starts_nothing_and_catches_up_with_one_job() -> None:
    async def scenario(world: World) -> None:
        await make_cron(world, suspend=True)
        await asyncio.sleep(23 * MINUTE_S)
        assert await jobs(world) == []

        await edit(world, CronJob, suspend=False)
        await asyncio.sleep(30)
        (job,) = await jobs(world)
        assert job.metadata.annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"].startswith(
            "2023-11-15T00:20"
        )

    run(lasting(10), scenario)


def test_a_time_that_is_over_for_longer_than_the_deadline_is_skipped() -> None:
    async def scenario(world: World) -> None:
        await make_cron(world, suspend=True, startingDeadlineSeconds=60)
        await asyncio.sleep(23 * MINUTE_S)
        await edit(world, CronJob, suspend=False)
        await asyncio.sleep(30)
        assert await jobs(world) == []

    run(lasting(10), scenario)


def test_a_schedule_that_makes_no_sense_is_reported() -> None:
    async def scenario(world: World) -> None:
        await make_cron(world, schedule="61 * * * *")
        await asyncio.sleep(10)
        assert "end of range (61) above maximum (59)" in (await events_of(world, "InvalidSpec"))[0].message

    run(lasting(10), scenario)


def test_a_job_tells_its_time_as_clocks_in_the_zone_of_its_schedule_show_it() -> None:
    def told(zone: str | None) -> str:
        spec = CronJobSpec(schedule="0 0 * * *", time_zone=zone, job_template={"spec": {}})
        made = cronjob.new_job(CronJob(metadata=ObjectMeta(name="c"), spec=spec), 1_700_000_040.0)
        return str(made["metadata"]["annotations"][cronjob.SCHEDULED_AT])

    assert told("Asia/Tokyo") == "2023-11-15T07:14:00+09:00"
    assert told("Etc/UTC") == told(None) == "2023-11-14T22:14:00Z"
