"""Quantities: what every text means, and the laws that sums and orders obey."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import quantity
from koordinator.api.quantity import NANO, Family, Quantity, QuantityError

FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
}

amounts = st.builds(Quantity, st.integers(-(10**30), 10**30), st.sampled_from(Family))
wholes = st.integers(-(2**62), 2**62)


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A quantity text and the amount it says."""
    digits, decimals = draw(st.integers(0, 10**6)), draw(st.integers(0, 999))
    suffix, sign = draw(st.sampled_from(sorted(FACTORS))), draw(st.sampled_from(["", "+", "-"]))
    exact = (Fraction(digits) + Fraction(decimals, 1000)) * FACTORS[suffix]
    return f"{sign}{digits}.{decimals:03d}{suffix}", -exact if sign == "-" else exact


@given(texts())
def test_a_text_means_its_amount_rounded_away_from_zero_to_nanos(case: tuple[str, Fraction]) -> None:
    text, exact = case
    nanos = quantity.parse(text).nanos
    assert abs(nanos) - abs(exact * NANO) < 1
    assert abs(nanos) >= abs(exact * NANO)


@given(amounts)
def test_canonical_text_reads_back_to_the_same_amount_and_text(amount: Quantity) -> None:
    if amount.family is Family.BINARY and abs(amount.nanos) > quantity.INT64_MAX * NANO:
        return  # beyond the cap of binary texts
    again = quantity.parse(amount.text)
    assert again == amount
    if amount.family is Family.BINARY and not amount.text.endswith("i"):
        return  # a text without suffix reads back as a decimal one: 125000, then 125k, as in Kubernetes
    assert again.text == amount.text


@given(texts())
def test_the_fast_views_agree_with_the_exact_amount(case: tuple[str, Fraction]) -> None:
    amount = quantity.parse(case[0])
    assert quantity.value(case[0]) == amount.value
    assert quantity.milli(case[0]) == amount.milli


@given(st.integers(0, 10**17), st.sampled_from(["", "m", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]))
def test_the_short_cuts_of_the_fast_views_change_nothing(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert quantity.value(text) == quantity.parse(text).value
    assert quantity.milli(text) == quantity.parse(text).milli


@given(amounts, amounts)
def test_order_is_that_of_the_amounts_whatever_the_family(a: Quantity, b: Quantity) -> None:
    assert (a < b, a == b, a > b) == (a.nanos < b.nanos, a.nanos == b.nanos, a.nanos > b.nanos)
    assert (a <= b) == (not b < a)
    if a == b:
        assert hash(a) == hash(b)


@given(amounts, amounts)
def test_adding_and_taking_away_again_gives_the_amount_back(a: Quantity, b: Quantity) -> None:
    assert a + b - b == a
    assert a + b == b + a
    assert (a + b).family is (a.family if a else b.family)


@given(wholes)
def test_whole_numbers_are_their_own_value(number: int) -> None:
    assert quantity.value(number) == number
    assert quantity.milli(number) == number * 1000
    assert Quantity.of_milli(number).milli == number
    assert quantity.value(quantity.text_of_value(number)) == number
    assert quantity.milli(quantity.text_of_milli(number)) == number


@pytest.mark.parametrize("text", ["", "1e", "1E+", "K", "1Kib", "1 ", "١", "1e1.5", "NaN", "Infinity"])
def test_a_text_that_is_no_quantity_is_refused_and_named(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        quantity.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("raw", [True, float("nan"), float("inf"), {}, [1]])
def test_a_json_value_that_is_no_quantity_is_refused(raw: Any) -> None:
    for read in (quantity.of, quantity.value, quantity.milli, quantity.canonical):
        with pytest.raises(QuantityError):
            read(raw)


def test_true_is_refused_also_after_one_was_read() -> None:
    assert quantity.value(1) == quantity.value(1.0) == 1
    with pytest.raises(QuantityError):
        quantity.value(True)


def test_json_values_may_be_numbers_padded_texts_or_null() -> None:
    assert quantity.of(4.5).milli == 4500
    assert quantity.of(" 1Gi\n").value == 2**30
    assert quantity.of(None) == quantity.ZERO
    assert quantity.value(1e3) == 1000


def test_huge_texts_cost_nothing() -> None:
    for text in ("1e999999999", "9" * 10_000, "1" + "0" * 5000):
        with pytest.raises(QuantityError):
            quantity.parse(text)
    assert quantity.parse("1e-999999999").nanos == 1


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1000E", "1e21"),
        ("-0.1n", "-1n"),
        ("5E2", "500"),
        ("1500e3", "1500e3"),
        ("-1.5Gi", "-1536Mi"),
        ("1.", "1"),
        ("m", "0"),
        ("-Ki", "0"),
        (".", "0"),
        ("e3", "0"),
    ],
)
def test_canonical_texts(text: str, canonical: str) -> None:
    assert quantity.parse(text).text == canonical


RAW = st.one_of(
    texts().map(lambda drawn: drawn[0]),
    st.from_regex(r"[0-9]{1,25}[nm]?", fullmatch=True),
    st.integers(0, 10**12),
    st.sampled_from(["٣m", "3²m", "", "m", "n", "-3m", "1e3", "x"]),
)


@given(RAW)
def test_a_measured_quantity_is_the_quantity_that_others_read(raw: str | int) -> None:
    try:
        parsed = quantity.parse(str(raw))
    except QuantityError:
        for read in (quantity.measured_nanos, quantity.measured_milli):
            with pytest.raises(QuantityError):
                read(raw)
        return

    assert quantity.measured_nanos(raw) == parsed.nanos
    assert quantity.measured_milli(raw) == quantity.milli(raw)
