"""The laws of resource-list arithmetic."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import resource_list as rl
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts

names = st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu", "nvidia.com/gpu"])
lists = st.dictionaries(names, st.builds(Quantity, st.integers(-(10**18), 10**18)))
positive = st.dictionaries(names, st.builds(Quantity, st.integers(1, 10**18)))


@given(lists, lists)
def test_taking_away_what_was_added_leaves_the_amounts(a: Amounts, b: Amounts) -> None:
    assert rl.is_equal_ignoring_zeros(rl.sub(rl.add(a, b), b), a)
    assert rl.add(a, b) == rl.add(b, a)


@given(lists, lists)
def test_smaller_and_larger_of_two_lists_are_their_bounds(a: Amounts, b: Amounts) -> None:
    low, high = rl.minimum(a, b), rl.maximum(a, b)
    assert all(amount <= each[name] for name, amount in low.items() for each in (a, b))
    assert all(each[name] <= high[name] for each in (a, b) for name in each)
    assert low.keys() == a.keys() & b.keys()
    assert high.keys() == a.keys() | b.keys()


@given(positive, positive)
def test_a_list_fits_completely_only_where_nothing_is_left_over(a: Amounts, b: Amounts) -> None:
    left = rl.sub(a, b)
    assert rl.fits_completely(a, b) == all(amount.nanos <= 0 for amount in left.values())


@given(lists)
def test_what_goes_to_the_wire_comes_back(a: Amounts) -> None:
    assert rl.of(rl.to_wire(a)) == a
    assert list(rl.to_wire(a)) == sorted(a)


@given(lists, lists)
def test_arguments_stay_as_they_were(a: Amounts, b: Amounts) -> None:
    before = dict(a), dict(b)
    rl.add(a, b), rl.sub(a, b), rl.maximum(a, b), rl.minimum(a, b)
    assert (a, b) == before
