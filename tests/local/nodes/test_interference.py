"""The curve of interference: fitted to measured runs, never falling, and made from a file that demo-node writes."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.local.nodes import contention
from koordinator.local.nodes.contention import Interference
from koordinator.node_demo.plan import DemoMode
from koordinator.node_demo.results import Circumstances
from koordinator.node_demo.results import interference as written
from tests.node_demo.measurements import measured

RUNS = st.lists(st.floats(0.1, 1_000), min_size=2, max_size=6)


def of(alone: dict[int, list[float]], beside: dict[int, list[float]]) -> Interference:
    return msgspec.structs.replace(contention.shipped(), p99_ms={"alone": alone, "default": beside})


def test_growth_that_rises_is_taken_as_it_was_measured() -> None:
    curve = contention.curve(of({20: [1, 1], 60: [2, 2]}, {20: [1.5, 1.5], 60: [5, 5]}), "default")
    assert curve.load == (0.2, 0.6)
    assert curve.slowdown == pytest.approx((1.5, 2.5))


def test_a_noisy_load_hardly_moves_its_neighbour() -> None:
    alone = {50: [2.0, 2.0], 80: [4.0, 40.0]}
    curve = contention.curve(of(alone, {50: [3.0, 3.0], 80: [4.0, 4.0]}), "default")
    assert curve.slowdown == pytest.approx((1.5, 1.5), rel=0.01)
    both = contention.curve(of({50: [2, 2], 80: [4, 4]}, {50: [3, 3], 80: [4, 4]}), "default")
    assert both.slowdown == pytest.approx([math.sqrt(1.5)] * 2)


@given(st.lists(st.tuples(RUNS, RUNS), min_size=1, max_size=6))
def test_batch_never_helps_and_more_load_never_helps(runs: list[tuple[list[float], list[float]]]) -> None:
    loads = range(10, 10 + len(runs))
    alone, beside = (dict(zip(loads, each, strict=True)) for each in zip(*runs, strict=True))
    slowdown = contention.curve(of(alone, beside), "default").slowdown
    assert slowdown[0] >= 1
    assert list(slowdown) == sorted(slowdown)


@pytest.mark.parametrize("alone", [{}, {40: [1.0]}])
def test_a_load_with_too_few_runs_is_refused(alone: dict[int, list[float]]) -> None:
    with pytest.raises(ValueError, match="two runs or more"):
        contention.curve(of(alone, {40: [1.0, 2.0]}), "default")


def test_what_demo_node_writes_is_what_the_model_reads() -> None:
    known = Circumstances("2026-11-23T00:00:00Z", "6.18", "a machine", 2, 1, 5.0, [])
    runs = [
        measured(mode, load, repeat=repeat, p99_ms=p99)
        for load in (60, 20)
        for mode, p99 in ((DemoMode.ALONE, 2.0), (DemoMode.DEFAULT, 3.0))
        for repeat in range(2)
    ]
    document = msgspec.json.encode(written(runs, known))
    read = msgspec.json.decode(document, type=Interference)
    assert read.p99_ms["default"] == {20: [3.0, 3.0], 60: [3.0, 3.0]}
    assert contention.curve(read, "default").slowdown == pytest.approx((1.5, 1.5))
    assert (read.kernel, read.machine, read.measured_at) == ("6.18", "a machine", "2026-11-23T00:00:00Z")


def test_the_shipped_measurement_has_five_loads_of_the_shipped_protection() -> None:
    shipped = contention.shipped()
    assert len(shipped.p99_ms["default"]) >= 5
    assert shipped.kernel and shipped.machine and shipped.measured_at
