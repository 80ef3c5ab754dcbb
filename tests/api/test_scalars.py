"""Plain texts: integers, booleans, floats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import scalars
from koordinator.api.scalars import ScalarError


@given(st.integers(-(2**70), 2**70), st.sampled_from([32, 64]))
def test_integers_are_read_within_their_bits_and_refused_beyond(number: int, bits: int) -> None:
    if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        assert scalars.parse_int(str(number), bits) == number
    else:
        with pytest.raises(ScalarError):
            scalars.parse_int(str(number), bits)


@pytest.mark.parametrize("text", ["", " 1", "1_0", "0x1", "1.0", "+", "1" * 65, "²"])
def test_other_spellings_are_no_integers(text: str) -> None:
    with pytest.raises(ScalarError):
        scalars.parse_int(text)


@pytest.mark.parametrize("text", ["", "yes", "tRUE", "01", "on"])
def test_other_words_are_no_booleans(text: str) -> None:
    with pytest.raises(ScalarError):
        scalars.parse_bool(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_finite_numbers_are_read(number: float) -> None:
    assert scalars.parse_float(repr(number)) == number


@pytest.mark.parametrize("text", ["", "NaN", "Inf", "1e400", "0x1p-2", "1_0", "."])
def test_other_spellings_are_no_floats(text: str) -> None:
    with pytest.raises(ScalarError):
        scalars.parse_float(text)
