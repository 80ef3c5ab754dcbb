"""Percentiles of a service's own buckets: within the bucket of the exact one, whatever restarts in between."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.koordlet.interference import exposition, latency
from koordinator.koordlet.interference.exposition import BucketReader, FamilyError, QuantileReader
from koordinator.koordlet.interference.latency import BucketWindow

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, math.inf)
DURATIONS = st.lists(st.floats(0.0001, 0.99), min_size=1, max_size=200)
SHARES = st.floats(0.01, 0.999)


def cumulative(durations: list[float]) -> dict[float, float]:
    return {end: float(sum(each <= end for each in durations)) for end in BOUNDS}


def changed(durations: list[float]) -> dict[float, float]:
    return {end: count for end, count in cumulative(durations).items() if count}


def text(durations: list[float], labels: str = "") -> str:
    lines = ["# TYPE t histogram"]
    for end, count in cumulative(durations).items():
        upper = "+Inf" if math.isinf(end) else f"{end:g}"
        lines.append(f't_bucket{{{labels}le="{upper}"}} {count:g}')
    return "\n".join([*lines, f"t_sum{{{labels}}} 1", f"t_count{{{labels}}} {len(durations)}", ""])


@given(durations=DURATIONS, share=SHARES)
def test_a_percentile_of_buckets_lies_in_the_bucket_of_the_exact_one(
    durations: list[float], share: float
) -> None:
    found = latency.percentile_of_buckets(cumulative(durations), share)
    exact = sorted(durations)[max(math.ceil(share * len(durations)) - 1, 0)]

    assert found is not None
    upper = min(end for end in BOUNDS if exact <= end)
    lower = max((end for end in BOUNDS if end < upper), default=0.0)
    assert lower <= found <= upper


@given(now=st.floats(0, 10), later=st.floats(0, 10), target=st.floats(0.001, 10))
def test_slack_falls_with_latency(now: float, later: float, target: float) -> None:
    slower, faster = max(now, later), min(now, later)

    assert latency.slack(slower, target) <= latency.slack(faster, target) <= 1
    assert latency.slack(target, target) == 0


@given(first=DURATIONS, second=DURATIONS, third=DURATIONS)
def test_counters_that_begin_anew_lose_no_request_of_theirs(
    first: list[float], second: list[float], third: list[float]
) -> None:
    reader = BucketReader(exposition.family("t", {}))

    assert reader.read(text(first).encode()) is None
    assert reader.read(text(first + second).encode()) == pytest.approx(changed(second))
    found = reader.read(text([]).encode())
    assert found is not None
    assert max(found.values()) == 0
    assert reader.read(text(third).encode()) == pytest.approx(changed(third))


def test_only_series_with_the_wanted_labels_count_and_all_of_them() -> None:
    reader = BucketReader(exposition.family("t", {"path": 'a"b'}))
    body = text([0.002], 'path="a\\"b",code="200",') + text([0.02], 'path="a\\"b",code="500",') + text([0.3])
    reader.read(b"t_bucket_other 1\n" + text([], 'path="a\\"b",code="200",').encode())

    found = reader.read(body.encode())

    assert found is not None
    assert {end: count for end, count in found.items() if count} == changed([0.002, 0.02])


@pytest.mark.parametrize("count", ["NaN", "+Inf", "-5"])
def test_a_count_that_cannot_be_true_is_told_and_spoils_nothing_after_it(count: str) -> None:
    reader, window = BucketReader(exposition.family("t", {})), BucketWindow(5.0)
    reader.read(text([]).encode())
    sound = text([0.02] * 10)

    with pytest.raises(FamilyError, match="no number"):
        reader.read(sound.replace('le="0.05"} 10', f'le="0.05"}} {count}').encode())
    increase = reader.read(sound.encode())

    assert increase == pytest.approx(changed([0.02] * 10))
    window.add(2.0, 0.0, increase)
    found = window.latency(0.99, 0.1, 2.0)
    assert found is not None and 0.01 <= found.now_s <= 0.05 and found.rate == 5


def test_a_quantile_or_count_that_cannot_be_true_is_no_latency() -> None:
    reader = QuantileReader(exposition.family("t", {}), 0.99)

    def told(value: str, count: str) -> tuple[float, float] | None:
        return reader.read(f't{{quantile="0.99"}} {value}\nt_count {count}\n'.encode())

    assert told("0.1", "0") is None
    assert told("+Inf", "10") is None and told("-1", "20") is None and told("NaN", "30") is None
    with pytest.raises(FamilyError, match="no number"):
        told("0.1", "NaN")
    assert told("0.2", "40") == (0.2, 10.0)


def test_times_and_exemplars_after_a_number_do_not_matter() -> None:
    lines = b't_bucket{le="1.0"} 5 1700000000 # {trace="} x"} 0.3\nt_bucket{le="+Inf"} 7\n'
    reader = BucketReader(exposition.family("t", {}))
    reader.read(b't_bucket{le="1.0"} 0\nt_bucket{le="+Inf"} 0\n')

    assert reader.read(lines) == {1.0: 5.0, math.inf: 7.0}


def test_a_summary_tells_its_quantile_while_requests_come() -> None:
    reader = QuantileReader(exposition.family("t", {}), 0.99)
    body = 't{quantile="0.5"} 0.1\nt{quantile="0.99"} 0.4\nt_sum 3\nt_count %d\n'

    assert reader.read((body % 10).encode()) is None
    assert reader.read((body % 14).encode()) == (0.4, 4)
    assert reader.read((body % 14).encode()) is None  # nobody asked: an old quantile says nothing


def test_a_summary_without_the_quantile_says_which_it_has() -> None:
    reader = QuantileReader(exposition.family("t", {}), 0.99)

    with pytest.raises(FamilyError, match=r"no quantile 0\.99, only 0\.5"):
        reader.read(b't{quantile="0.5"} 0.1\nt_count 4\n')


def test_a_window_forgets_what_is_older_and_knows_its_rate() -> None:
    window = BucketWindow(5)
    window.add(1.0, 0.0, cumulative([0.9] * 10))
    window.add(6.5, 5.5, cumulative([0.002] * 10))

    found = window.latency(0.99, 0.1, 6.5)

    assert found is not None
    assert found.now_s <= 0.005
    assert found.rate == pytest.approx(10)
    assert found.slack >= 0.95
    assert window.latency(0.99, 0.1, 20) is None  # nothing was asked meanwhile


@given(parts=st.lists(st.tuples(st.floats(0.1, 4), DURATIONS), min_size=1, max_size=12))
def test_a_window_is_what_came_within_it(parts: list[tuple[float, list[float]]]) -> None:
    window, at_s, told = BucketWindow(5), 0.0, []
    for gap_s, durations in parts:
        since_s, at_s = at_s, at_s + gap_s
        window.add(at_s, since_s, cumulative(durations))
        told.append((at_s, durations))
        found = window.latency(0.9, 0.1, at_s)

        within = [each for then_s, each in told if then_s > at_s - 5]
        every = [duration for each in within for duration in each]
        if len(every) < latency.REQUESTS_MIN:
            assert found is None
        else:
            assert found is not None
            assert found.now_s == latency.percentile_of_buckets(cumulative(every), 0.9)
