"""Histograms forget slowly, survive a restart, and never answer below what they saw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict import histogram
from koordinator.koordlet.predict.histogram import (
    CPU_BUCKETS,
    EPSILON,
    HistogramCheckpoint,
)
from tests.koordlet.predict.scalar_histogram import Histogram, linear_buckets

HALF_LIFE_S = 43_200.0
START_S = 1_700_000_000.0
CORES = st.floats(0, 1000)


def cpu() -> Histogram:
    return Histogram(CPU_BUCKETS, half_life_s=HALF_LIFE_S)


@given(CORES)
def test_a_value_lies_in_its_bucket(cores: float) -> None:
    index = CPU_BUCKETS.index_of(cores)

    assert CPU_BUCKETS.starts[index] <= cores * (1 + 1e-9) + 1e-12
    assert index + 1 == CPU_BUCKETS.count or cores <= CPU_BUCKETS.starts[index + 1] * (1 + 1e-9)


@given(st.lists(CORES, min_size=1, max_size=50))
def test_the_peak_is_not_below_any_sample(samples: list[float]) -> None:
    seen = cpu()
    for minute, cores in enumerate(samples):
        seen.add(cores, 1.0, START_S + 60 * minute)

    assert seen.percentile(1.0) >= max(samples) * (1 - 1e-9)
    shares = [seen.percentile(share) for share in (0.0, 0.5, 0.95, 1.0)]
    assert shares == sorted(shares)


@given(st.lists(CORES, min_size=1, max_size=30))
def test_a_checkpoint_gives_back_the_same_peaks(samples: list[float]) -> None:
    seen = cpu()
    for minute, cores in enumerate(samples):
        seen.add(cores, 1.0, START_S + 60 * minute)
    restored = cpu()
    restored.load(seen.checkpoint())

    assert restored.percentile(1.0) == seen.percentile(1.0)
    assert restored.total_weight == pytest.approx(seen.total_weight)


@given(st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=20))
def test_checkpoints_hold_the_numbers_that_the_reference_writes(weights: list[float]) -> None:
    """One factor for all, then rounding: 10000 times a weight, divided by the largest, can end one higher or lower."""
    seen = Histogram(linear_buckets(100.0, 1.0))
    for index, weight in enumerate(weights):
        seen.add(index + 0.5, weight, START_S)
    factor = 10_000 / max(weights)

    expected = {index: int(weight * factor + 0.5) for index, weight in enumerate(weights)}

    assert seen.checkpoint().bucket_weights == {index: found for index, found in expected.items() if found}


def test_a_histogram_that_holds_next_to_nothing_keeps_no_bucket() -> None:
    seen = Histogram(linear_buckets(100.0, 1.0))
    seen.add(5.0, EPSILON / 2, START_S)

    assert seen.is_empty
    assert seen.checkpoint().bucket_weights == {}


def test_an_old_peak_fades_behind_many_newer_samples() -> None:
    seen = cpu()
    seen.add(64.0, 1.0, START_S)
    for minute in range(100):
        seen.add(1.0, 1.0, START_S + 4 * HALF_LIFE_S + 60 * minute)

    assert seen.percentile(0.95) < 2.0


def test_years_later_nothing_overflows() -> None:
    seen = cpu()
    for year in range(30):
        seen.add(4.0, 1.0, START_S + year * 365 * 86_400)

    assert seen.percentile(0.95) == pytest.approx(4.0, rel=0.06)


def test_what_is_subtracted_is_gone() -> None:
    seen = cpu()
    seen.add(4.0, 1.0, START_S)
    seen.subtract(4.0, 1.0, START_S)

    assert seen.is_empty
    assert seen.percentile(0.95) == 0.0


def test_merging_leaves_the_other_histogram_alone() -> None:
    ours, theirs = cpu(), cpu()
    ours.add(1.0, 1.0, START_S + 50 * HALF_LIFE_S)
    theirs.add(8.0, 1.0, START_S)
    before = theirs.checkpoint()
    ours.merge(theirs)

    assert theirs.checkpoint() == before
    assert ours.percentile(1.0) < 2.0


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param(HistogramCheckpoint(-1.0, {}), id="negative total"),
        pytest.param(HistogramCheckpoint(float("inf"), {0: 1}), id="infinite total"),
        pytest.param(HistogramCheckpoint(1.0, {CPU_BUCKETS.count: 1}), id="bucket past the end"),
        pytest.param(HistogramCheckpoint(1.0, {-1: 1}), id="bucket before the start"),
        pytest.param(HistogramCheckpoint(1.0, {0: -1}), id="negative weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(saved: HistogramCheckpoint) -> None:
    seen = cpu()
    with pytest.raises(ModelError):
        seen.load(saved)

    assert seen.is_empty


def test_schemes_without_sense_are_refused() -> None:
    for make in (
        lambda: linear_buckets(10, 0),
        lambda: histogram.exponential_buckets(10, 1, 1),
        lambda: Histogram(CPU_BUCKETS, epsilon=0),
        lambda: Histogram(CPU_BUCKETS, half_life_s=0),
    ):
        with pytest.raises(ModelError):
            make()
