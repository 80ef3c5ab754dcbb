"""A CronJob starts Jobs when its schedule says so, once each."""

import asyncio
import datetime
import zoneinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.apps import CronJob, Job
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
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


def at(text: str, zone: str = "UTC") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone)).timestamp()


def times(schedule: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    next_after = cronjob.parse(schedule, zone)
    found, time_s = [], at(after, zone)
    for _ in range(count):
        following = next_after(time_s)
        assert following is not None
        time_s = following
        found.append(f"{datetime.datetime.fromtimestamp(time_s, zoneinfo.ZoneInfo(zone)):%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        pytest.param(
            "*/20 * * * *", "2024-01-01T00:00", ["01-01 00:20", "01-01 00:40", "01-01 01:00"], id="steps"
        ),
        pytest.param(
            "5-7 3 * * *", "2024-01-01T00:00", ["01-01 03:05", "01-01 03:06", "01-01 03:07"], id="a range"
        ),
        pytest.param(
            "0 9 * * mon-fri", "2024-01-05T12:00", ["01-08 09:00", "01-09 09:00"], id="names of days"
        ),
        pytest.param("0 0 1 feb *", "2024-01-05T12:00", ["02-01 00:00", "02-01 00:00"], id="names of months"),
        pytest.param(
            "0 0 13 * 5", "2024-01-01T00:00", ["01-05 00:00", "01-12 00:00", "01-13 00:00"], id="either day"
        ),
        pytest.param(
            "0 0 */2 * 1", "2024-01-01T00:00", ["01-03 00:00", "01-05 00:00"], id="a step of days is no star"
        ),
        pytest.param("@hourly", "2024-01-01T00:30", ["01-01 01:00", "01-01 02:00"], id="a macro"),
        pytest.param("@every 90m", "2024-01-01T00:30", ["01-01 02:00", "01-01 03:30"], id="an interval"),
        pytest.param(
            "30/15 0 * * *", "2024-01-01T00:00", ["01-01 00:30", "01-01 00:45"], id="a step from a number"
        ),
        pytest.param("0 0 29 2 *", "2024-03-01T00:00", ["02-29 00:00"], id="a leap day"),
    ],
)
def test_times_of_a_schedule(schedule: str, after: str, expected: list[str]) -> None:
    assert times(schedule, after, len(expected)) == expected


def test_a_local_time_that_the_clock_skips_does_not_run_and_a_repeated_one_runs_twice() -> None:
    zone = "Europe/Berlin"
    assert times("30 2 * * *", "2024-03-30T12:00", 2, zone) == ["04-01 02:30", "04-02 02:30"]
    assert times("30 2 * * *", "2024-10-26T12:00", 3, zone) == ["10-27 02:30", "10-27 02:30", "10-28 02:30"]


def test_a_date_that_never_comes_has_no_next_time() -> None:
    assert cronjob.parse("0 0 30 2 *", None)(at("2024-01-01T00:00")) is None


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"spec.timeZone: unknown time zone Mars/Olympus"):
        cronjob.parse("* * * * *", "Mars/Olympus")


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 3 * * *", "15 2 1 * 1", "0 0 1 1 *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"]),
    st.integers(1_600_000_000, 1_800_000_000),
    st.integers(0, 10_000_000),
)
def test_the_latest_time_is_the_same_found_step_by_step_or_at_once(
    schedule: str, zone: str, now_s: int, back_s: int
) -> None:
    next_after = cronjob.parse(schedule, zone)
    found, count = cronjob.latest(next_after, now_s - back_s, now_s, 100)
    if found is None:
        following = next_after(now_s - back_s)
        assert count == 0 and following is not None and following > now_s
    else:
        following = next_after(found)
        assert found <= now_s and following is not None and following > now_s
