"""What a loop tells of its failures: enough, and not one line per try."""

import logging

import pytest

from koordinator.cluster import errors
from koordinator.cluster.supervise import Guard, attempt, strictly


@pytest.mark.parametrize(
    "away",
    [errors.ConnectionFailed("refused"), errors.ServiceUnavailable("starts"), errors.TooManyRequests("busy")],
)
def test_a_server_that_is_away_is_told_less_and_less_often_until_it_is_back(
    away: errors.ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    guard = Guard("informer of pods")

    for _ in range(150):
        guard.failed(away)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3  # the 1st, 10th, 100th
    assert guard.failure_count == 150

    guard.succeeded()
    guard.failed(away)
    assert [record.message for record in caplog.records[3:]] == [
        "informer of pods recovered",
        f"informer of pods failed: {away}",
    ]


def test_refusals_are_told_each_time_and_lost_races_never(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    guard = Guard("controller of NodeSLOs")

    for name in ("a", "b"):
        guard.failed(errors.Forbidden(f"nodeslos {name} is forbidden"))
    for error in (errors.AlreadyExists("nodeslos a already exists"), errors.Conflict("changed")):
        guard.failed(error)

    assert [record.message[-21:] for record in caplog.records] == [
        "nodeslos a is forbidden"[-21:],
        "nodeslos b is forbidden"[-21:],
    ]


def test_a_callback_that_raises_is_reported_and_answered_for(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("handlers")

    assert guard.answer(int, "12", otherwise=lambda _: 0) == 12
    assert guard.failure_count == 0
    assert guard.answer(int, "twelve", otherwise=lambda error: len(str(error))) == len(str(guard.last_error))
    assert [record.levelname for record in caplog.records] == ["ERROR"]

    with strictly(), pytest.raises(ValueError, match="twelve"):
        guard.answer(int, "twelve", otherwise=lambda _: 0)


def test_what_strangers_raise_is_left_to_the_caller() -> None:
    assert attempt(int, "12") == 12
    assert isinstance(attempt(int, "twelve"), ValueError)
