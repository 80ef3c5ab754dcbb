"""Metrics of a descheduler that has done nothing yet."""

from koordinator.descheduler.metrics import DeschedulerMetrics


def test_an_instance_that_never_led_says_that_it_stands_by() -> None:
    assert "\nkoord_descheduler_is_leader 0\n" in DeschedulerMetrics().registry.text()


def test_cycles_are_told_apart_from_ten_milliseconds_to_more_than_a_minute() -> None:
    metrics = DeschedulerMetrics()
    for seconds in (0.01, 0.011, 0.021, 80.0, 82.0):
        metrics.cycle_seconds.of().observe(seconds)

    name = "koord_descheduler_cycle_duration_seconds_bucket"
    bounds = {
        line.split('le="')[1].split('"')[0]: int(float(line.rsplit(" ", 1)[1]))
        for line in metrics.registry.text().splitlines()
        if line.startswith(name)
    }
    assert list(bounds)[-1] == "+Inf" and len(bounds) == 15
    assert [bounds[each] for each in ("0.01", "0.02", "0.04", "81.92", "+Inf")] == [1, 2, 3, 4, 5]
