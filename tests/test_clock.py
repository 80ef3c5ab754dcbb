"""Times as they travel in objects."""

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from koordinator import clock


@given(st.floats(0, 4e9) | st.integers(0, 4 * 10**12).map(lambda micros: micros / 1_000))
@example(1_700_000_000.9999999)
@example(1_700_000_000.0000005)
def test_a_time_of_microseconds_is_the_one_that_python_writes(now_s: float) -> None:
    expected = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    assert clock.rfc3339_micro(now_s) == expected
