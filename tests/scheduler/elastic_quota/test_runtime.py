"""Properties of fair shares on one level."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.plugins.elastic_quota.runtime import (
    ARRAYS_FROM,
    Claim,
    column,
    fair_shares,
    reduced,
    scaled_min,
    shares,
    split,
)

AMOUNTS = st.one_of(st.integers(0, 8), st.integers(0, 2**50))


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    count = draw(st.integers(0, 6))
    return [
        Claim(
            name=f"q{number}",
            weight=draw(AMOUNTS),
            request=draw(AMOUNTS),
            min=draw(AMOUNTS),
            guarantee=draw(st.one_of(st.just(0), AMOUNTS)),
            lends=draw(st.booleans()),
        )
        for number in range(count)
    ]


@given(total=AMOUNTS, asked=claims())
def test_children_never_get_more_than_the_parent_has_unless_their_floors_do(
    total: int, asked: list[Claim]
) -> None:
    shares = fair_shares(total, asked)

    floors = sum(claim.floor for claim in asked)
    assert sum(shares.values()) <= max(total, floors)


@given(total=AMOUNTS, asked=claims())
def test_everybody_gets_what_it_asks_for_up_to_its_floor(total: int, asked: list[Claim]) -> None:
    shares = fair_shares(total, asked)

    assert all(shares[claim.name] >= min(claim.request, claim.floor) for claim in asked)


@given(total=AMOUNTS, asked=claims())
def test_nobody_gets_more_than_it_asks_for_or_keeps(total: int, asked: list[Claim]) -> None:
    shares = fair_shares(total, asked)

    for claim in asked:
        kept = 0 if claim.lends else claim.floor
        assert shares[claim.name] <= max(claim.request, kept)


@given(total=AMOUNTS, asked=claims(), data=st.data())
def test_the_order_of_children_does_not_matter(total: int, asked: list[Claim], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(asked))

    assert fair_shares(total, shuffled) == fair_shares(total, asked)


@given(total=AMOUNTS, asked=claims())
def test_nothing_is_left_while_somebody_with_a_weight_is_hungry(total: int, asked: list[Claim]) -> None:
    shares = fair_shares(total, asked)

    is_somebody_hungry = any(claim.weight > 0 and shares[claim.name] < claim.request for claim in asked)
    assert not is_somebody_hungry or sum(shares.values()) >= total


@given(amount=AMOUNTS, weights=st.lists(st.integers(-3, 2**60), max_size=8))
def test_parts_add_up_to_the_whole(amount: int, weights: list[int]) -> None:
    whole = [max(weight, 0) for weight in weights]

    parts = split(amount, whole)

    assert (parts is None) == (not any(whole))
    assert parts is None or sum(parts) == amount


@given(available=st.integers(-5, 2**40), mins=st.lists(st.integers(0, 2**40), min_size=1, max_size=6))
def test_scaled_minima_fit_into_what_is_there(available: int, mins: list[int]) -> None:
    scaled = [scaled_min(each, available, sum(mins)) for each in mins]

    rounding = len(mins)  # floats may be a unit off each
    assert sum(scaled) <= max(available, 0) + rounding


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), largest=st.sampled_from((3, 1000, 2**40, 2**61, 2**70)))
def test_many_siblings_share_as_few_do_to_the_last_unit(seed: int, largest: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(ARRAYS_FROM, 3 * ARRAYS_FROM)
    floors, requests, weights = ([rng.randrange(largest) for _ in range(count)] for _ in range(3))
    lends = [rng.random() < 0.7 for _ in range(count)]
    total = rng.randrange(1, 2 * largest * count)

    as_arrays = shares(
        total,
        floors=column(floors),
        requests=column(requests),
        weights=column(reduced(weights)),
        lends=lends,
    )

    as_lists = [
        int(share)
        for share in shares(
            total, floors=tuple(floors), requests=tuple(requests), weights=tuple(weights), lends=lends
        )
    ]
    assert [int(share) for share in as_arrays] == as_lists
