"""Schedules as CronJobs and tidal pools write them."""

import datetime
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import cron
from koordinator.api.errors import ProtocolError


def at(text: str, zone: str = "UTC") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone)).timestamp()


def times(schedule: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    next_after = cron.parse(schedule, zone)
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
    assert cron.parse("0 0 30 2 *", None)(at("2024-01-01T00:00")) is None


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"spec.timeZone: unknown time zone Mars/Olympus"):
        cron.parse("* * * * *", "Mars/Olympus")


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 3 * * *", "15 2 1 * 1", "0 0 1 1 *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"]),
    st.integers(1_600_000_000, 1_800_000_000),
    st.integers(0, 10_000_000),
)
def test_the_latest_time_is_the_same_found_step_by_step_or_at_once(
    schedule: str, zone: str, now_s: int, back_s: int
) -> None:
    next_after = cron.parse(schedule, zone)
    found, count = cron.latest(next_after, now_s - back_s, now_s, 100)
    if found is None:
        following = next_after(now_s - back_s)
        assert count == 0 and following is not None and following > now_s
    else:
        following = next_after(found)
        assert found <= now_s and following is not None and following > now_s
