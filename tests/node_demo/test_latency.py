"""Percentiles of what the load generator wrote."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.node_demo import measure
from koordinator.node_demo.plan import DemoError
from tests.node_demo.measurements import records


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        pytest.param(50, 50, id="the median of 1 to 100"),
        pytest.param(99, 99, id="one in a hundred is above p99"),
        pytest.param(99.9, 100, id="a tail finer than the sample is its maximum"),
        pytest.param(100, 100, id="p100 is the maximum"),
        pytest.param(0, 1, id="p0 is the minimum"),
    ],
)
def test_percentiles_are_values_that_were_measured(percent: float, expected: int) -> None:
    values = np.arange(100, 0, -1, dtype=np.int64)

    assert measure.percentile(values, percent) == expected


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.floats(0, 100))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(
    values: list[int], percent: float
) -> None:
    array = np.array(values, dtype=np.int64)

    found = measure.percentile(array, percent)

    share = percent / 100 * len(values) - 1e-6
    assert sum(value <= found for value in values) >= share
    assert sum(value < found for value in values) < max(share + 2e-6, 1)


def test_a_request_without_an_answer_counts_with_what_it_had_waited() -> None:
    summary = measure.summarise(records(1.0, 2.0, -500.0), window_s=1.0)

    assert summary.unanswered == 1
    assert summary.max_ms == 500.0
    assert summary.answered_per_s == 2.0


def test_answers_after_the_window_are_no_throughput() -> None:
    summary = measure.summarise(records(1.0, 1_000.0), window_s=1.0)

    assert summary.unanswered == 0
    assert summary.answered_per_s == 1.0


def test_a_file_of_the_load_generator_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "latencies"
    np.array([[0, 1_500_000, 10], [1_000_000, -7, 20]], dtype=np.int64).tofile(path)

    found = measure.read(path)

    assert found.due_ns.tolist() == [0, 1_000_000]
    assert found.latency_ns.tolist() == [1_500_000, -7]
    assert found.late_ns.tolist() == [10, 20]


@pytest.mark.parametrize("size", [0, 8, 32])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "latencies"
    path.write_bytes(b"\0" * size)

    with pytest.raises(DemoError, match="no list of requests"):
        measure.read(path)
