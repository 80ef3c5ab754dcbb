"""Peaks by hour of the day: services with a rhythm are foreseen, those without are met with the peak of their day."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict import hours
from koordinator.koordlet.predict.hours import HourlyCheckpoint, HourlyPeaks

CONFIG = PredictConfig()
GIB = 2.0**30
BUCKET_RATIO = 1.06
"""Buckets are 5 % wide and answer their end."""
MARGIN = 1.1


def taught(days: float, *cores_of: object, start_s: float = 0.0) -> HourlyPeaks:
    """Models of nodes whose cores are functions of the hour (a float), after so many days of minutes."""
    peaks = HourlyPeaks(len(cores_of), CONFIG)
    for minute in range(int(days * 1440)):
        at_s = start_s + minute * 60
        cores = np.array([of(at_s / 3600) for of in cores_of])  # type: ignore[operator]
        peaks.learn(cores, np.full(cores.size, GIB), np.ones(cores.size, np.bool_), at_s)
    return peaks


def cores_by_hour(peaks: HourlyPeaks, row: int = 0) -> list[float]:
    return [milli / 1000 for milli in peaks.peaks(np.array([row]))[0, :, 0].tolist()]


def day_and_night(hour: float) -> float:
    return 20.0 if 8 <= hour % 24 < 18 else 2.0


def test_hours_of_a_service_with_a_rhythm_are_told_apart() -> None:
    found = cores_by_hour(taught(3, day_and_night))

    assert all(20 <= found[hour] <= 20 * MARGIN * BUCKET_RATIO for hour in range(8, 18))
    assert all(2 <= found[hour] <= 2 * MARGIN * BUCKET_RATIO for hour in (*range(8), *range(18, 24)))


def test_on_the_first_day_the_peak_of_the_day_counts_for_every_hour() -> None:
    found = cores_by_hour(taught(0.5, day_and_night))

    assert min(found) >= 20


def test_bursts_at_random_hours_are_met_with_the_peak_of_the_day() -> None:
    generator = np.random.default_rng(5)
    bursts = {hour for hour in range(24 * 6) if generator.random() < 0.2}

    found = cores_by_hour(taught(6, lambda hour: 16.0 if int(hour) in bursts else 2.0))

    assert sum(peak >= 16 for peak in found) >= 20


def test_each_node_is_learnt_as_if_it_were_alone() -> None:
    def other(hour: float) -> float:
        return 5.0 + 3.0 * math.sin(hour)

    both = taught(2, day_and_night, other)

    for row, alone in enumerate((taught(2, day_and_night), taught(2, other))):
        assert cores_by_hour(both, row) == cores_by_hour(alone)


def test_nothing_is_said_before_half_an_hour_was_seen() -> None:
    peaks = taught(29 / 1440, day_and_night, day_and_night)
    assert peaks.knows(np.arange(2)).tolist() == [False, False]

    peaks.learn(np.array([1.0, 1.0]), np.array([GIB, GIB]), np.array([True, False]), 30 * 60.0)
    assert peaks.knows(np.arange(2)).tolist() == [True, False]


def test_what_was_learnt_outlives_a_restart() -> None:
    peaks = taught(2, day_and_night)
    text = msgspec.json.encode(peaks.checkpoint(0, 2 * 86_400.0))

    after = HourlyPeaks(1, CONFIG)
    after.load(0, msgspec.json.decode(text, type=HourlyCheckpoint))

    before, now = (np.array(cores_by_hour(each)) for each in (peaks, after))
    assert np.allclose(before, now, rtol=0.06)


@pytest.mark.parametrize(
    "change", [{"cpu": []}, {"samples": [1]}, {"losses": [[0.0]]}, {"samples": [-1] * 24}]
)
def test_a_checkpoint_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    saved = msgspec.structs.replace(taught(0.1, day_and_night).checkpoint(0, 0.0), **change)
    peaks = HourlyPeaks(1, CONFIG)

    with pytest.raises(ModelError):
        peaks.load(0, saved)
    assert not peaks.knows(np.zeros(1, np.int64))[0]


AMOUNTS = st.integers(0, 10**6)


@settings(max_examples=50)
@given(
    by_hour=arrays.arrays(np.int64, (1, 24, 2), elements=AMOUNTS),
    day=arrays.arrays(np.int64, (1, 2), elements=AMOUNTS),
    is_known=arrays.arrays(np.bool_, (1, 24)),
    losses=arrays.arrays(np.float64, (2, 1, 2), elements=st.floats(0, 1e9)),
)
def test_each_hour_is_what_one_of_both_predictors_says(
    by_hour: hours.I64, day: hours.I64, is_known: hours.Mask, losses: hours.F64
) -> None:
    found = hours.chosen(by_hour, day, is_known, losses)

    of_day = np.broadcast_to(day[:, None], by_hour.shape)
    assert ((found == by_hour) | (found == of_day)).all()
    assert (found[~is_known] == of_day[~is_known]).all()


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_prediction_that_is_too_low_costs_nineteen_times_as_much(error: float, seen: float) -> None:
    low = hours.pinball_loss(np.array([seen]), np.array([seen + error]))[0]
    high = hours.pinball_loss(np.array([seen + error]), np.array([seen]))[0]

    assert low == pytest.approx(19 * high, abs=1e-9)
