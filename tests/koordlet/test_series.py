"""What is stored can be asked for: windows, percentiles, late points, bounded memory."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.errors import SampleError
from koordinator.koordlet.series import LATE_MS_MAX, Aggregation, SeriesSample, SeriesStore, aggregated

VALUES = st.lists(st.floats(0, 1e12), min_size=1, max_size=200)
EVERYTHING = (-(2**40), 2**40)


def filled(values: list[float], points_max: int = 4096) -> SeriesStore:
    store = SeriesStore(points_max)
    store.append(SeriesSample(kinds.NODE_CPU, 1000 * index, value) for index, value in enumerate(values))
    return store


@settings(deadline=None)
@given(VALUES)
def test_a_percentile_is_one_of_the_values_and_higher_shares_are_no_smaller(values: list[float]) -> None:
    points = filled(values).query(kinds.NODE_CPU, *EVERYTHING)
    ranked = [points.aggregate(how) for how in (Aggregation.P50, Aggregation.P90, Aggregation.P99)]

    assert all(value in values for value in ranked)
    assert ranked == sorted(ranked, key=lambda value: value or 0.0)
    assert points.aggregate(Aggregation.LAST) == values[-1]


@settings(deadline=None)
@given(VALUES)
def test_a_mean_adds_one_point_after_the_other_for_one_node_as_for_many(values: list[float]) -> None:
    total = 0.0
    for value in values:
        total += value
    mean = filled(values).query(kinds.NODE_CPU, *EVERYTHING).aggregate(Aggregation.AVG)

    assert mean == total / len(values)
    assert set(aggregated(np.array([values, values]).T.copy(), Aggregation.AVG)) == {mean}


@settings(deadline=None)
@given(VALUES, st.integers(1, 50))
def test_a_full_ring_holds_the_newest_points(values: list[float], points_max: int) -> None:
    points = filled(values, points_max).query(kinds.NODE_CPU, *EVERYTHING)

    assert points.values.tolist() == values[-points_max:]
    assert np.all(np.diff(points.at_ms) > 0)


@settings(deadline=None)
@given(VALUES, st.integers(-5, 205), st.integers(-5, 205))
def test_a_window_holds_the_points_between_its_ends(values: list[float], start: int, end: int) -> None:
    points = filled(values).query(kinds.NODE_CPU, start * 1000, end * 1000)

    assert points.values.tolist() == values[max(start, 0) : max(end + 1, 0)]


def test_one_bad_sample_rolls_back_its_batch() -> None:
    store = SeriesStore()
    good = SeriesSample(kinds.NODE_CPU, 0, 1.0)

    for bad in (
        SeriesSample("no_such_kind", 0, 1.0),
        SeriesSample(kinds.POD_CPU, 0, 1.0),
        SeriesSample(kinds.NODE_CPU, 0, math.nan),
        SeriesSample(kinds.NODE_CPU, 0, 1.0, {"pod_uid": "x"}),
    ):
        with pytest.raises(SampleError):
            store.append([good, bad])

    assert store.query(kinds.NODE_CPU, *EVERYTHING).count == 0


def test_points_may_come_late_but_not_too_late() -> None:
    store = filled([1.0] * 200)
    newest_ms = 199_000

    store.append([SeriesSample(kinds.NODE_CPU, newest_ms - LATE_MS_MAX, 5.0)])
    with pytest.raises(SampleError, match="late"):
        store.append([SeriesSample(kinds.NODE_CPU, newest_ms - LATE_MS_MAX - 1, 5.0)])

    assert store.query(kinds.NODE_CPU, *EVERYTHING).aggregate(Aggregation.LAST) == 1.0


def test_a_query_for_less_joins_series_and_unknown_properties_are_refused() -> None:
    store = SeriesStore()
    for minor in ("0", "1"):
        at = {kinds.GPU_MINOR: minor, kinds.GPU_UUID: f"u{minor}"}
        store.append([SeriesSample(kinds.NODE_GPU_CORE, 0, 10.0, at)])

    assert store.query(kinds.NODE_GPU_CORE, *EVERYTHING).count == 2
    assert store.query(kinds.NODE_GPU_CORE, *EVERYTHING, {kinds.GPU_MINOR: "1"}).count == 1
    with pytest.raises(SampleError):
        store.query(kinds.NODE_GPU_CORE, *EVERYTHING, {kinds.POD_UID: "x"})


def test_series_of_vanished_pods_are_dropped() -> None:
    store = SeriesStore()
    store.append(
        [SeriesSample(kinds.POD_CPU, at_ms, 1.0, {kinds.POD_UID: f"p{at_ms}"}) for at_ms in (0, 9_000)]
    )

    assert store.expire(before_ms=5_000) == 1
    assert store.query(kinds.POD_CPU, *EVERYTHING).count == 1


def test_a_kept_ring_comes_back_with_its_next_point_when_its_series_was_dropped() -> None:
    store = SeriesStore()
    ring = store.ring(kinds.POD_CPU, {kinds.POD_UID: "p"})
    ring.append(0, 1.0)

    assert store.expire(before_ms=5_000) == 1
    assert store.query(kinds.POD_CPU, *EVERYTHING).count == 0
    ring.append(9_000, 2.0)

    assert store.query(kinds.POD_CPU, *EVERYTHING).values.tolist() == [2.0]
    assert store.ring(kinds.POD_CPU, {kinds.POD_UID: "p"}) is ring


def test_points_of_the_future_are_forgotten_when_the_clock_was_set_back() -> None:
    store = SeriesStore()
    ring = store.ring(kinds.NODE_CPU)
    for second in range(100, 200):
        ring.append(3_600_000 + 1000 * second, 8.0)

    ring.append(200_000, 1.0)

    assert store.query(kinds.NODE_CPU, *EVERYTHING).values.tolist() == [1.0]
    assert ring.newest == 1.0


def test_the_latest_value_is_that_of_the_window_also_when_the_clock_was_set_back_a_little() -> None:
    store = SeriesStore()
    ring = store.ring(kinds.NODE_CPU)
    ring.append(100_000, 8.0)
    ring.append(80_000, 1.0)

    assert store.latest(kinds.NODE_CPU, 79_000, 81_000) == 1.0
    assert store.latest(kinds.NODE_CPU, 90_000, 110_000) == 8.0
    assert store.latest(kinds.NODE_CPU, 101_000, 110_000) is None


@settings(deadline=None)
@given(VALUES, st.integers(1, 50), st.integers(1, 50))
def test_a_ring_keeps_the_newest_points_when_its_kind_keeps_more_or_fewer(
    values: list[float], first: int, second: int
) -> None:
    store = SeriesStore(first)
    ring = store.ring(kinds.NODE_CPU)
    for index, value in enumerate(values):
        if index == len(values) // 2:
            store.retain([kinds.NODE_CPU], second)
        ring.append(1000 * index, value)

    kept = store.query(kinds.NODE_CPU, *EVERYTHING).values.tolist()

    assert kept == values[-len(kept) :]
    assert len(kept) >= min(len(values), first, second)
    assert len(kept) <= max(first, second)


def test_series_of_groups_keep_fewer_points_than_those_of_the_node() -> None:
    store = SeriesStore(points_max=100, group_points_max=10)
    for second in range(200):
        store.ring(kinds.NODE_CPU).append(1000 * second, 1.0)
        store.ring(kinds.POD_CPU, {kinds.POD_UID: "p"}).append(1000 * second, float(second))

    assert store.query(kinds.NODE_CPU, *EVERYTHING).count == 100
    assert store.query(kinds.POD_CPU, *EVERYTHING).values.tolist() == [
        float(each) for each in range(190, 200)
    ]
    assert store.latest_by(kinds.POD_CPU, kinds.POD_UID, *EVERYTHING) == {"p": 199.0}
    assert store.average_by(kinds.POD_CPU, kinds.POD_UID, 198_000, 199_000) == {"p": 198.5}
