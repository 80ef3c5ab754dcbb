"""Durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import duration
from koordinator.api.scalars import ScalarError


@given(st.integers(-(10**15), 10**15))
def test_what_is_written_reads_back(microseconds: int) -> None:
    seconds = microseconds / 10**6
    assert duration.parse(duration.text_of(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (300, "5m0s"),
        (3600, "1h0m0s"),
        (1.5, "1.5s"),
        (0.2, "200ms"),
        (5400, "1h30m0s"),
        (-90, "-1m30s"),
    ],
)
def test_texts_are_those_of_the_api(seconds: float, text: str) -> None:
    assert duration.text_of(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("-0", 0), (".5s", 0.5), ("1.s", 1), ("1h30m", 5400), ("-2ms", -0.002)]
)
def test_texts_that_are_durations(text: str, seconds: float) -> None:
    assert duration.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "-", "5", "1d", "s", ".s", "1s ", "1h 2m", "1e3s", "9999999h"])
def test_texts_that_are_none(text: str) -> None:
    with pytest.raises(ScalarError):
        duration.parse(text)
