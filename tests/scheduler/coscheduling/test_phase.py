"""The phases of PodGroups."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.decode import from_builtins
from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.scheduler.plugins.coscheduling.controller import (
    MemberCounts,
    PodGroupPhase,
    QueueReason,
    difference,
    next_of,
    next_status,
    queue_reason,
)

NOW = "2026-01-01T00:00:00Z"
OLD = {"phase": PodGroupPhase.SCHEDULED, "scheduled": 2, "scheduleStartTime": "2026-01-03T00:00:01Z"}
"""The status of a gang of two that waited for two days and of which nothing runs yet."""


@st.composite
def member_counts(draw: st.DrawFn) -> MemberCounts:
    running, succeeded, failed, waiting = (draw(st.integers(0, 3)) for _ in range(4))
    total = running + succeeded + failed + waiting
    scheduled = draw(st.integers(0, total))
    return MemberCounts(total=total, scheduled=scheduled, running=running, succeeded=succeeded, failed=failed)


def group(minimum: int = 2, **status: object) -> PodGroup:
    meta = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return from_builtins({"metadata": meta, "spec": {"minMember": minimum}, "status": status}, PodGroup)


@given(minimum=st.integers(0, 5), members=member_counts())
def test_phases_settle(minimum: int, members: MemberCounts) -> None:
    status = PodGroupStatus()
    for _ in range(4):
        status = next_status(status, minimum, members, NOW)

    assert next_status(status, minimum, members, NOW) == status


@given(
    minimum=st.integers(0, 5),
    members=member_counts(),
    old=st.builds(
        PodGroupStatus,
        phase=st.sampled_from(PodGroupPhase),
        running=st.integers(0, 3),
        failed=st.integers(0, 3),
    ),
)
def test_a_status_that_was_written_has_no_difference_to_itself_and_nothing_runs_twice(
    minimum: int, members: MemberCounts, old: PodGroupStatus
) -> None:
    found = group(minimum, **msgspec.to_builtins(old))
    for _ in range(5):
        found = msgspec.structs.replace(found, status=next_of(found, members, NOW))

    assert difference(found.status, next_of(found, members, "later")) == {}
    assert found.status.phase == PodGroupPhase.PENDING or found.status.running <= members.running


def test_a_gang_that_was_scheduled_after_two_days_and_does_not_run_is_left_alone() -> None:
    waiting = MemberCounts(total=2, scheduled=2)

    assert queue_reason(group(**OLD)) is QueueReason.STALE
    assert queue_reason(group(**OLD), waiting) is QueueReason.STALE
    assert next_of(group(**OLD), waiting, NOW) == group(**OLD).status


def test_a_gang_that_was_scheduled_after_two_days_is_told_to_run_when_it_does() -> None:
    assert (
        next_of(group(**OLD), MemberCounts(total=2, scheduled=2, running=2), NOW).phase
        == PodGroupPhase.RUNNING
    )


def test_a_gang_without_a_minimum_has_finished_when_all_its_members_have() -> None:
    status = PodGroupStatus(phase=PodGroupPhase.SCHEDULING)

    running = next_status(status, 0, MemberCounts(total=3, scheduled=3, running=1, succeeded=2), NOW)
    done = next_status(running, 0, MemberCounts(total=3, scheduled=3, succeeded=3), NOW)

    assert (running.phase, done.phase) == (PodGroupPhase.RUNNING, PodGroupPhase.FINISHED)


def test_a_job_that_is_started_again_under_its_old_pod_group_leaves_the_phase_that_it_ended_in() -> None:
    finished = group(phase="Finished", scheduled=2, succeeded=2)

    assert next_of(finished, MemberCounts(total=2, scheduled=0), NOW).phase == PodGroupPhase.SCHEDULING
    assert (
        next_of(finished, MemberCounts(total=2, scheduled=2, running=2), NOW).phase == PodGroupPhase.RUNNING
    )


def test_what_a_gang_achieved_stays_when_its_pods_are_cleared_away() -> None:
    finished = group(phase="Finished", scheduled=3, running=1, succeeded=2)

    assert difference(finished.status, next_of(finished, MemberCounts(), NOW)) == {"running": 0}
    assert difference(finished.status, next_of(finished, MemberCounts(total=2, succeeded=2), NOW)) == {
        "running": 0
    }


def test_members_that_still_run_when_enough_have_succeeded_are_counted_to_the_end() -> None:
    finished = group(phase="Finished", scheduled=3, running=1, succeeded=2)

    after = next_of(finished, MemberCounts(total=3, scheduled=3, succeeded=3), NOW)

    assert (after.phase, after.running, after.succeeded) == (PodGroupPhase.FINISHED, 0, 3)


def test_times_that_cannot_be_read_do_not_stop_anybody() -> None:
    assert queue_reason(group(**{**OLD, "scheduleStartTime": "yesterday"})) is QueueReason.OK


@pytest.mark.parametrize(
    ("minimum", "scheduled", "phase"),
    [
        (1, 1, PodGroupPhase.SCHEDULED),
        (1, 0, PodGroupPhase.SCHEDULING),
        (2, 1, PodGroupPhase.SCHEDULING),
        (0, 2, PodGroupPhase.SCHEDULING),
        (0, 3, PodGroupPhase.SCHEDULED),
        (-1, 3, PodGroupPhase.SCHEDULED),
    ],
)
def test_a_gang_is_scheduled_with_its_minimum_without_one_with_all(
    minimum: int, scheduled: int, phase: PodGroupPhase
) -> None:
    status = PodGroupStatus(phase=PodGroupPhase.PRE_SCHEDULING.value)
    found = next_status(status, minimum, MemberCounts(total=3, scheduled=scheduled), NOW)
    assert (found.phase, found.scheduled) == (phase, scheduled)


@pytest.mark.parametrize(
    ("minimum", "total", "phase"),
    [
        (0, 5, PodGroupPhase.PENDING),
        (1, 0, PodGroupPhase.PENDING),
        (1, 1, PodGroupPhase.PRE_SCHEDULING),
        (2, 1, PodGroupPhase.PENDING),
        (2, 2, PodGroupPhase.PRE_SCHEDULING),
    ],
)
def test_a_gang_is_looked_at_once_its_minimum_is_there(
    minimum: int, total: int, phase: PodGroupPhase
) -> None:
    status = PodGroupStatus(phase=PodGroupPhase.PENDING.value, occupied_by="default/first")
    for owner in ("", "default/second"):
        found = next_status(status, minimum, MemberCounts(total=total, occupied_by=owner), NOW)
        assert found.phase == phase
        is_taken = phase == PodGroupPhase.PRE_SCHEDULING and owner
        assert found.occupied_by == (owner if is_taken else "default/first")


@pytest.mark.parametrize(
    ("running", "succeeded", "failed", "phase"),
    [
        (0, 0, 0, PodGroupPhase.SCHEDULED),
        (1, 0, 0, PodGroupPhase.SCHEDULED),
        (1, 1, 0, PodGroupPhase.RUNNING),
        (0, 0, 1, PodGroupPhase.SCHEDULED),
        (1, 0, 1, PodGroupPhase.FAILED),
        (0, 1, 1, PodGroupPhase.FAILED),
        (0, 0, 2, PodGroupPhase.FAILED),
        (0, 2, 0, PodGroupPhase.FINISHED),
        (0, 2, 1, PodGroupPhase.FINISHED),
        (3, 0, 0, PodGroupPhase.RUNNING),
    ],
)
def test_a_scheduled_gang_is_as_far_as_enough_of_its_members(
    running: int, succeeded: int, failed: int, phase: PodGroupPhase
) -> None:
    members = MemberCounts(total=3, scheduled=3, running=running, succeeded=succeeded, failed=failed)
    status = PodGroupStatus(phase=PodGroupPhase.SCHEDULED.value)
    assert next_status(status, 2, members, NOW).phase == phase


@pytest.mark.parametrize(("since", "reported"), [("", NOW), ("2025-01-01T00:00:00Z", "2025-01-01T00:00:00Z")])
def test_the_time_when_scheduling_began_is_told_once(since: str, reported: str) -> None:
    status = PodGroupStatus(phase=PodGroupPhase.PRE_SCHEDULING.value, schedule_start_time=since or None)
    found = next_status(status, 2, MemberCounts(total=2, scheduled=1), NOW)
    assert (found.phase, found.schedule_start_time) == (PodGroupPhase.SCHEDULING, reported)


def test_a_gang_of_which_nothing_is_known_has_no_members() -> None:
    nobody = MemberCounts()
    assert (nobody.total, nobody.scheduled, nobody.alive, nobody.failed) == (0, 0, 0, 0)
