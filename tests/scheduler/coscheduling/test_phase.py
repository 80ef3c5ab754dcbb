"""The phases of PodGroups."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.decode import from_builtins
from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.scheduler.plugins.coscheduling.phase import (
    Member,
    Phase,
    QueueReason,
    next_status,
    worth_a_look,
)

NOW = "2026-01-01T00:00:00Z"
MEMBERS = st.lists(
    st.builds(
        Member, st.just("d"), st.sampled_from(("Pending", "Running", "Succeeded", "Failed")), st.booleans()
    ),
    max_size=5,
)


@given(minimum=st.integers(1, 5), members=MEMBERS)
def test_phases_settle(minimum: int, members: list[Member]) -> None:
    status = PodGroupStatus()
    for _ in range(4):
        status = next_status(status, minimum, members, NOW)

    assert next_status(status, minimum, members, NOW) == status


@given(minimum=st.integers(1, 5), members=MEMBERS)
def test_counters_never_exceed_the_members(minimum: int, members: list[Member]) -> None:
    status = next_status(PodGroupStatus(phase="Scheduling"), minimum, members, NOW)

    assert status.running + status.succeeded + status.failed <= len(members)
    assert status.scheduled <= len(members)


def test_a_gang_that_was_scheduled_after_two_days_and_does_not_run_is_left_alone() -> None:
    body = {
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"minMember": 2},
        "status": {
            "phase": Phase.SCHEDULED,
            "scheduled": 2,
            "scheduleStartTime": "2026-01-03T00:00:01Z",
        },
    }

    assert worth_a_look(from_builtins(body, PodGroup)) is QueueReason.STALE
