"""The generator is calm, repeatable and has the mean it promises; trace files are read or refused clearly."""

import functools
import gzip
from pathlib import Path

import numpy as np
import pytest

from koordinator.local.nodes import usage
from koordinator.local.nodes.usage import Noise, Trace, TraceError, read_trace

packed = functools.partial(gzip.compress, mtime=0)
"""Without the time: workers of one test run must name cases alike."""

SEEDS = np.arange(400, dtype=np.uint64) * np.uint64(7_919)


def demand_over_a_day(step_s: float = 300.0) -> np.ndarray:
    ones, noise = np.ones(SEEDS.size), Noise(SEEDS)
    return np.array(
        [
            usage.demand_milli(
                1_000 * ones, 0.5 * ones, 14 * 3_600 * ones, 0.3 * ones, noise.at(time_s), time_s
            )
            for time_s in np.arange(0, usage.DAY_S, step_s)
        ]
    )


def test_a_day_averages_the_mean_and_peaks_at_the_peak_hour() -> None:
    demand = demand_over_a_day()
    assert demand.mean() == pytest.approx(1_000, rel=0.03)
    assert abs(demand.mean(axis=1).argmax() - 14 * 12) < 18
    assert (demand >= 0).all()


def test_the_same_moment_gives_the_same_demand_whoever_else_is_asked() -> None:
    three, one = Noise(SEEDS[:3]), Noise(SEEDS[1:2])
    three.at(99.0)  # what was asked before does not matter, either
    assert three.at(12_345.6)[1] == one.at(12_345.6)[0]


def test_noise_is_standard_normal_and_smooth() -> None:
    times = np.arange(0, 40_000, 30.0)
    source = Noise(SEEDS)
    noise = np.array([source.at(time_s) for time_s in times])
    assert noise.mean() == pytest.approx(0, abs=0.05)
    assert noise.std() == pytest.approx(1, abs=0.05)
    assert np.abs(np.diff(noise, axis=0)).mean() < 0.2
    seconds_apart = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
    assert seconds_apart > 0.95


def write(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    data = text.encode()
    path.write_bytes(packed(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_trace_is_read_plain_or_packed_with_or_without_header(tmp_path: Path, name: str) -> None:
    trace = read_trace(write(tmp_path, "name,v0,v1,v2\na,0,50,100\nb,1.5,2,3\n", name))
    assert trace.names == ("a", "b")
    assert trace.at(0).tolist() == [0.0, 0.015]
    assert trace.at(2 * usage.TRACE_STEP_S + 10).tolist() == [1.0, 0.03]
    assert trace.at(3 * usage.TRACE_STEP_S).tolist() == [0.0, 0.015]  # it starts over


@pytest.mark.parametrize(
    ("text", "line", "column", "word"),
    [
        pytest.param("a,1,2\nb,1,x\n", 2, 3, "'x' is not a number", id="a word"),
        pytest.param("a,1,2\nb,1\n", 2, 0, "has 1 values", id="a short line"),
        pytest.param("a,1,101\n", 1, 3, "not a percentage", id="more than all"),
        pytest.param("a,-1\n", 1, 2, "not a percentage", id="less than nothing"),
        pytest.param("a,nan\n", 1, 2, "not a percentage", id="no number at all"),
        pytest.param("a,,2\n", 1, 2, "'' is not a number", id="an empty cell"),
        pytest.param("a\n", 1, 0, "has no values", id="a name only"),
        pytest.param("", 0, 0, "is empty", id="nothing"),
        pytest.param("name,v0\n", 0, 0, "is empty", id="only a header"),
    ],
)
def test_a_bad_trace_is_refused_by_file_line_and_column(
    tmp_path: Path, text: str, line: int, column: int, word: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(path) in str(caught.value)
    assert word in str(caught.value)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    broken = tmp_path / "trace.csv.gz"
    broken.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(TraceError, match=r"trace\.csv\.gz"):
        read_trace(broken)
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(packed(b"a,1,2\n" * 100)[:-12])
    with pytest.raises(TraceError, match=r"torn\.csv\.gz"):
        read_trace(torn)


def test_a_sample_repeats_machines_only_when_there_are_too_few() -> None:
    trace = Trace(tuple("abc"), np.zeros((3, 2)))
    assert sorted(trace.sample(3, np.random.default_rng(1)).names) == ["a", "b", "c"]
    assert len(trace.sample(7, np.random.default_rng(1)).names) == 7
