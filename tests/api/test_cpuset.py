"""CPU lists: reading, writing, and reading back."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import cpuset

sets = st.frozensets(st.integers(0, 4096), max_size=200)


@given(sets)
def test_what_is_written_reads_back_as_the_same_set(cpus: frozenset[int]) -> None:
    assert cpuset.parse(cpuset.text_of(cpus)) == cpus


@given(sets)
def test_the_canonical_text_has_no_two_runs_that_touch(cpus: frozenset[int]) -> None:
    runs = [item.split("-") for item in cpuset.text_of(cpus).split(",") if item]
    for earlier, later in itertools.pairwise(runs):
        assert int(earlier[-1]) + 1 < int(later[0])


@given(sets, sets)
def test_texts_are_equal_exactly_when_the_sets_are(a: frozenset[int], b: frozenset[int]) -> None:
    assert cpuset.is_equal_text(cpuset.text_of(a), cpuset.text_of(b)) == (a == b)


def test_a_range_may_end_at_the_highest_id_but_not_above_it() -> None:
    assert max(cpuset.parse("4095-4096")) == 4096
    assert cpuset.parse("70000") == {70000}
    with pytest.raises(cpuset.CPUSetError, match="4096"):
        cpuset.parse("0-4097")


def test_a_reversed_range_is_empty() -> None:
    assert cpuset.parse("3-1") == frozenset()


@pytest.mark.parametrize("text", [",", "1,", "-1", "1--2", "1-2-3", "2147483648", "a-b"])
def test_a_bad_item_makes_the_whole_text_bad(text: str) -> None:
    with pytest.raises(cpuset.CPUSetError):
        cpuset.parse(text)
