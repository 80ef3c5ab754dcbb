"""The text format of metrics, and the numbers behind it."""

import pytest

from koordinator.prometheus import Counter, Gauge, GaugeReading, Histogram, MetricsRegistry, exponential


def test_a_histogram_is_cumulative_and_counts_bounds_below() -> None:
    histogram = Histogram("h", "Help.", (0.5, 1), ("kind",))
    for number in (0.5, 0.6, 1, 7):
        histogram.of("a").observe(number)

    assert list(histogram.lines()) == [
        "# HELP h Help.",
        "# TYPE h histogram",
        'h_bucket{kind="a",le="0.5"} 1',
        'h_bucket{kind="a",le="1"} 3',
        'h_bucket{kind="a",le="+Inf"} 4',
        'h_sum{kind="a"} 9.1',
        'h_count{kind="a"} 4',
    ]


def test_label_values_are_escaped() -> None:
    counter = Counter("c", "Help.", ("text",))
    counter.inc('a"b\\c\nd', by=2)
    assert list(counter.lines())[-1] == 'c{text="a\\"b\\\\c\\nd"} 2'


def test_families_are_reported_in_order_of_their_names() -> None:
    gauge = Gauge("b", "Help.")
    gauge.set(1.5)
    registry = MetricsRegistry((gauge, GaugeReading("a", "Help.", ("x",), lambda: {("1",): 3})))
    assert registry.text().splitlines()[2::3] == ['a{x="1"} 3', "b 1.5"]
    assert registry.text().endswith("\n")


def test_a_name_is_there_once() -> None:
    registry = MetricsRegistry((Counter("a", "Help."),))
    with pytest.raises(AssertionError, match="there already"):
        registry.add(Gauge("a", "Help."))
    assert registry.shared(Counter("a", "Other.")) is registry.shared(Counter("a", "Help."))
    assert registry.remove("a") and not registry.remove("a")


def test_buckets_of_upstream() -> None:
    assert exponential(0.001, 2, 15)[-1] == pytest.approx(16.384)
