"""What records of a workload tell."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.scheduler.auditor.history import (
    RECORDS_MAX,
    AuditFinding,
    AuditLimits,
    AuditRecord,
    MeasuredFinding,
    WorkloadHistory,
    is_new,
    step,
)
from koordinator.scheduler.plugin.handle import RecordKind

LIMITS = AuditLimits()


def reported(
    *records: tuple[RecordKind, float, str] | tuple[RecordKind, float, str, str],
) -> tuple[WorkloadHistory, list[MeasuredFinding]]:
    """The history after all records, and what the last one told (without intervals)."""
    history, found = WorkloadHistory(), []
    for each in records:
        history, found = step(history, AuditRecord(*each), LIMITS)
    return history, [each for each in found if each.finding is not AuditFinding.EVENT_INTERVAL]


NOMINATED = (RecordKind.PREEMPT_NOMINATED, 10.0, "n")


@pytest.mark.parametrize(
    ("records", "measured"),
    [
        pytest.param(
            [NOMINATED, (RecordKind.PREEMPT_NOMINATED, 20.0, "n")],
            [MeasuredFinding(AuditFinding.REPEATED_PREEMPTION, 1, True)],
            id="room made twice",
        ),
        pytest.param(
            [NOMINATED, (RecordKind.SCHEDULED, 15.0, "n", "n"), NOMINATED],
            [],
            id="room made again after it was used",
        ),
        pytest.param(
            [NOMINATED, (RecordKind.PREEMPT_FAILED, 14.0, "")],
            [
                MeasuredFinding(AuditFinding.PREEMPTION_INVALIDATED, 1, True),
                MeasuredFinding(AuditFinding.CYCLE_INTERRUPTED, 4.0),
            ],
            id="room given up",
        ),
        pytest.param(
            [NOMINATED, (RecordKind.SCHEDULED, 14.0, "elsewhere", "n")],
            [
                MeasuredFinding(AuditFinding.EVENTS_BEFORE_OUTCOME, 1),
                MeasuredFinding(AuditFinding.PREEMPTION_INVALIDATED, 1, True),
                MeasuredFinding(AuditFinding.CYCLE_INTERRUPTED, 4.0),
            ],
            id="placed elsewhere",
        ),
        pytest.param(
            [NOMINATED, (RecordKind.SCHEDULED, 14.0, "n", "n")],
            [MeasuredFinding(AuditFinding.EVENTS_BEFORE_OUTCOME, 1)],
            id="placed where room was made",
        ),
        pytest.param(
            [NOMINATED, (RecordKind.VICTIM_DELETING, 11.0, "n"), (RecordKind.VICTIMS_DELETED, 12.0, "n")],
            [
                MeasuredFinding(AuditFinding.VICTIMS_DELETED, 2.0),
                MeasuredFinding(AuditFinding.DELETING_RETRIES, 1),
            ],
            id="victims gone in time",
        ),
        pytest.param(
            [
                NOMINATED,
                *[(RecordKind.VICTIM_DELETING, 11.0, "n")] * 3,
                (RecordKind.VICTIMS_DELETED, 41.0, "n"),
            ],
            [
                MeasuredFinding(AuditFinding.VICTIMS_DELETED, 31.0, True),
                MeasuredFinding(AuditFinding.DELETING_RETRIES, 3, True),
            ],
            id="victims that are slow to go",
        ),
        pytest.param(
            [(RecordKind.EVICTED, 1.0, "n"), (RecordKind.SCHEDULED, 5.0, "m")],
            [
                MeasuredFinding(AuditFinding.EVENTS_BEFORE_OUTCOME, 1),
                MeasuredFinding(AuditFinding.VICTIM_RESCHEDULED, 4.0, True),
            ],
            id="a victim that has a node again at once",
        ),
        pytest.param(
            [(RecordKind.EVICTED, 1.0, "n"), (RecordKind.SCHEDULED, 61.0, "m")],
            [
                MeasuredFinding(AuditFinding.EVENTS_BEFORE_OUTCOME, 1),
                MeasuredFinding(AuditFinding.VICTIM_RESCHEDULED, 60.0),
            ],
            id="a victim that waits",
        ),
        pytest.param(
            [NOMINATED, (RecordKind.GONE, 12.0, "")],
            [
                MeasuredFinding(AuditFinding.EVENTS_BEFORE_OUTCOME, 1),
                MeasuredFinding(AuditFinding.CYCLE_INTERRUPTED, 2.0),
            ],
            id="gone although room was made",
        ),
    ],
)
def test_a_record_tells_what_follows_from_those_before(
    records: list[tuple[RecordKind, float, str] | tuple[RecordKind, float, str, str]],
    measured: list[MeasuredFinding],
) -> None:
    assert reported(*records)[1] == measured


def test_a_long_silence_is_odd() -> None:
    history, _ = step(WorkloadHistory(), AuditRecord(RecordKind.CREATED, 0.0), LIMITS)
    _, found = step(history, AuditRecord(RecordKind.SCHEDULE_FAILED, 301.0), LIMITS)

    assert found == [MeasuredFinding(AuditFinding.EVENT_INTERVAL, 301.0, True)]


@given(kinds=st.lists(st.sampled_from(RecordKind), max_size=60))
def test_a_history_stays_small_and_counts_since_the_last_outcome(kinds: list[RecordKind]) -> None:
    history, since = WorkloadHistory(), 0
    for at_s, kind in enumerate(kinds):
        history, _ = step(history, AuditRecord(kind, float(at_s), "n"), LIMITS)
        since = 0 if kind in (RecordKind.SCHEDULED, RecordKind.GONE) else since + 1

    assert len(history.records) <= RECORDS_MAX
    assert history.event_count == since


def test_what_all_members_of_a_gang_go_through_is_reported_once_until_the_gang_takes_a_turn() -> None:
    history, _ = reported((RecordKind.CREATED, 0.0, ""), (RecordKind.GATED, 0.0, ""))
    assert not is_new(history, RecordKind.CREATED)
    assert is_new(history, RecordKind.ADMITTED)

    history, _ = reported((RecordKind.SCHEDULE_FAILED, 0.0, ""), (RecordKind.ALL_TRIED, 0.0, ""))
    assert is_new(history, RecordKind.SCHEDULE_FAILED)
    assert not is_new(history, RecordKind.ALL_TRIED)


@given(kinds=st.lists(st.sampled_from(RecordKind), max_size=60))
def test_a_gang_takes_no_turn_twice_in_a_row(kinds: list[RecordKind]) -> None:
    history = WorkloadHistory()
    for kind in kinds:
        if is_new(history, kind):
            history, _ = step(history, AuditRecord(kind, 0.0), LIMITS)

    said = [record.kind for record in history.records]
    assert all(one is not other for one, other in itertools.pairwise(said))
