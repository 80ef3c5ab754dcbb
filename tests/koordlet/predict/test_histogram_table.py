"""A row of the table is a histogram: whatever is added, both answer the same, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict.histogram import (
    CPU_BUCKETS,
    EPSILON,
    MEMORY_BUCKETS,
    Buckets,
    HistogramCheckpoint,
    HistogramTable,
)
from tests.koordlet.predict.scalar_histogram import Histogram

START_S = 1_700_000_000.0
SHARES = (0.0, 0.5, 0.6, 0.9, 0.95, 0.98, 1.0)
PODS = 3


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.array(numbers, np.intp)


# Minutes up to decades, so that reference times move, and now and then backwards.
STEPS_S = st.one_of(
    st.just(60.0), st.floats(0, 3e5), st.floats(0, 2e8), st.floats(-90_000, 0), st.just(43_200.0)
)
ROUNDS = st.lists(
    st.tuples(STEPS_S, st.lists(st.floats(0, 1), min_size=PODS, max_size=PODS), st.integers(1, PODS)),
    min_size=1,
    max_size=25,
)


def assert_same(table: HistogramTable, scalars: list[Histogram]) -> None:
    everyone = np.arange(len(scalars))
    for share in SHARES:
        assert table.percentile(everyone, share).tolist() == [each.percentile(share) for each in scalars]
    assert [table.checkpoint(row) for row in everyone] == [each.checkpoint() for each in scalars]


@pytest.mark.parametrize(("buckets", "largest"), [(CPU_BUCKETS, 2_000.0), (MEMORY_BUCKETS, 2.0**42)])
@settings(max_examples=50, deadline=None)
@given(rounds=ROUNDS)
def test_a_table_answers_as_its_histograms_would_one_by_one(
    buckets: Buckets, largest: float, rounds: list[tuple[float, list[float], int]]
) -> None:
    table = HistogramTable(buckets, 43_200.0)
    table.grow(PODS)
    scalars = [Histogram(buckets, half_life_s=43_200.0) for _ in range(PODS)]
    now_s = START_S

    for step_s, shares, count in rounds:
        now_s += step_s
        values = [share**4 * largest for share in shares[:count]]
        table.add(np.arange(count), values, now_s)
        for scalar, value in zip(scalars, values, strict=False):
            scalar.add(value, 1.0, now_s)

    assert_same(table, scalars)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 64), max_size=20), st.floats(0, 1e8))
def test_a_loaded_row_goes_on_as_a_loaded_histogram(samples: list[float], pause_s: float) -> None:
    seen = Histogram(CPU_BUCKETS, half_life_s=43_200.0)
    for cores in samples:
        seen.add(cores, 1.0, START_S)
    scalar = Histogram(CPU_BUCKETS, half_life_s=43_200.0)
    scalar.load(seen.checkpoint())
    table = HistogramTable(CPU_BUCKETS, 43_200.0)
    table.grow(1)
    table.load(0, seen.checkpoint())

    table.add(rows(0), [3.0], START_S + pause_s)
    scalar.add(3.0, 1.0, START_S + pause_s)

    assert_same(table, [scalar])


@pytest.mark.parametrize(("weight", "is_empty"), [(EPSILON, False), (EPSILON * 0.999, True)])
def test_a_row_is_empty_below_the_least_weight_that_counts_and_not_at_it(
    weight: float, is_empty: bool
) -> None:
    saved = HistogramCheckpoint(weight, {7: 1}, START_S)
    scalar = Histogram(CPU_BUCKETS, half_life_s=43_200.0)
    scalar.load(saved)
    table = HistogramTable(CPU_BUCKETS, 43_200.0)
    table.grow(1)
    table.load(0, saved)

    assert_same(table, [scalar])
    assert table.percentile(rows(0), 0.5)[0] == (0.0 if is_empty else CPU_BUCKETS.starts[8])


def test_rows_keep_what_they_know_when_the_table_grows() -> None:
    table = HistogramTable(CPU_BUCKETS, 43_200.0)
    table.grow(2)
    table.add(rows(1), [4.0], START_S)
    before = table.checkpoint(1)

    table.grow(100)

    assert table.checkpoint(1) == before
    assert table.percentile(rows(0, 99), 1.0).tolist() == [0.0, 0.0]


def test_a_cleared_row_is_empty_and_its_neighbours_are_not() -> None:
    table = HistogramTable(CPU_BUCKETS, 43_200.0)
    table.grow(2)
    table.add(rows(0, 1), [4.0, 5.0], START_S)

    table.clear(rows(0))

    assert table.checkpoint(0) == HistogramCheckpoint(0.0, {})
    assert table.percentile(rows(1), 1.0)[0] > 4.9


def test_a_checkpoint_that_does_not_fit_leaves_the_row_alone() -> None:
    table = HistogramTable(CPU_BUCKETS, 43_200.0)
    table.grow(1)
    table.add(rows(0), [4.0], START_S)
    before = table.checkpoint(0)

    with pytest.raises(ModelError, match="bucket 9999 does not exist"):
        table.load(0, HistogramCheckpoint(1.0, {9999: 1}))

    assert table.checkpoint(0) == before


def test_a_half_life_of_zero_is_refused() -> None:
    with pytest.raises(ModelError, match="half-life"):
        HistogramTable(CPU_BUCKETS, 0.0)
