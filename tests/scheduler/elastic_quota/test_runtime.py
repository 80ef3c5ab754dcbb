"""Properties of fair shares on one level."""

import math
import random
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.plugins.elastic_quota import runtime, runtime_calculator
from koordinator.scheduler.plugins.elastic_quota.runtime import (
    ARRAYS_FROM,
    scaled_min,
    shares,
    split,
    split_arrays,
)
from koordinator.scheduler.plugins.elastic_quota.runtime_calculator import ChildQuota, ChildQuotas


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one child asks of its parent."""

    name: str
    weight: int
    request: int
    floor: int
    lends: bool


def fair_shares(total: int, claims: Iterable[Claim]) -> dict[str, int]:
    """What each child gets of a level of these children."""
    by_name = sorted(claims, key=lambda claim: claim.name)
    columns = ChildQuotas(
        1, [ChildQuota(weight=c.weight, request=c.request, least=c.floor, lends=c.lends) for c in by_name]
    )
    columns.compute(total, None)
    return {claim.name: columns.share(row) for row, claim in enumerate(by_name)}


AMOUNTS = st.one_of(st.integers(0, 8), st.integers(0, 2**50))


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    count = draw(st.integers(0, 6))
    return [
        Claim(
            name=f"q{number}",
            weight=draw(AMOUNTS),
            request=draw(AMOUNTS),
            floor=draw(AMOUNTS),
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


def columns_of(rng: random.Random, count: int, largest: int) -> tuple[list[ChildQuota], ChildQuotas]:
    entries = [entry(rng, largest) for _ in range(count)]
    return entries, ChildQuotas(1, entries)


def entry(rng: random.Random, largest: int) -> ChildQuota:
    weight = rng.choice((0, 1, largest, rng.randrange(largest), rng.randrange(largest)))
    numbers = {"request": rng.randrange(largest), "least": rng.choice((0, rng.randrange(largest)))}
    return ChildQuota(weight=weight, lends=rng.random() < 0.7, **numbers)


def as_few(entries: list[ChildQuota], total: int, shortage: tuple[int, int] | None) -> list[int]:
    """The shares of the plain form for few children."""
    return shares(
        total,
        floors=[each.least if shortage is None else scaled_min(each.least, *shortage) for each in entries],
        requests=[each.request for each in entries],
        weights=[each.weight for each in entries],
        lends=[each.lends for each in entries],
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), largest=st.sampled_from((3, 1000, 2**40, 2**55, 2**61, 2**70)))
def test_many_siblings_share_as_few_do_to_the_last_unit_whatever_changes(seed: int, largest: int) -> None:
    rng = random.Random(seed)
    entries, columns = columns_of(rng, rng.randrange(ARRAYS_FROM, 2 * ARRAYS_FROM), largest)
    total, shortage = 0, None

    for _ in range(12):
        for _ in range(rng.choice((0, 1, 1, 1, 3))):
            row, new = rng.randrange(len(entries)), entry(rng, largest)
            match rng.randrange(12):
                case 0:
                    columns.insert(row, new)
                    entries.insert(row, new)
                case 1:
                    columns.remove(row)
                    del entries[row]
                case 2:
                    columns.replace(row, new)
                    entries[row] = new
                case 3 | 4:
                    columns.keep(row, new.least)
                    entries[row] = msgspec.structs.replace(entries[row], least=new.least)
                case _:
                    columns.ask(row, new.request, is_computed=False)
                    entries[row] = msgspec.structs.replace(entries[row], request=new.request)
        if rng.random() < 0.5:
            total = rng.randrange(1 + rng.choice((1, largest // 2, largest)) * len(entries))
        if rng.random() < 0.1:
            least = sum(each.least for each in entries)
            shortage = (rng.randrange(least), least) if least and shortage is None else None

        columns.compute(total, shortage)

        assert [columns.share(row) for row in range(len(entries))] == as_few(entries, total, shortage)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.sampled_from((3, ARRAYS_FROM)))
def test_a_request_that_changes_no_share_is_known_as_such(seed: int, count: int) -> None:
    rng = random.Random(seed)
    entries, columns = columns_of(rng, count, 1000)
    total = rng.randrange(500 * count)
    columns.compute(total, None)
    before = [columns.share(row) for row in range(count)]

    for _ in range(10):
        row, request = rng.randrange(count), rng.randrange(1000)
        was_asked, entries[row] = entries[row].request, msgspec.structs.replace(entries[row], request=request)
        if not columns.ask(row, request, is_computed=True):
            assert as_few(entries, total, None) == before
        else:
            columns.ask(row, was_asked, is_computed=False)
            entries[row] = msgspec.structs.replace(entries[row], request=was_asked)


@pytest.mark.parametrize("count", [3, ARRAYS_FROM])
def test_what_is_just_enough_for_everybody_is_not_shared_out_in_rounds(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ChildQuotas(1, [ChildQuota(weight=1, request=4, least=9, lends=True)] * count)
    columns.insert(0, ChildQuota(weight=1, request=4, least=6, lends=False))
    monkeypatch.setattr(runtime, "shares", None)
    monkeypatch.setattr(runtime_calculator, "WaterFilling", None)

    columns.compute(4 * count + 6, None)
    assert [columns.share(row) for row in range(count + 1)] == [6, *[4] * count]

    columns.remove(0)
    columns.compute(4 * count, None)
    assert [columns.share(row) for row in range(count)] == [4] * count
    with pytest.raises(TypeError):
        columns.compute(4 * count - 1, None)


def test_rows_are_reported_once_when_their_shares_have_changed() -> None:
    rng = random.Random(7)
    _, columns = columns_of(rng, ARRAYS_FROM, 10)
    columns.compute(10**6, None)
    assert len(columns.take_changed()) == ARRAYS_FROM
    assert list(columns.take_changed()) == []

    columns.ask(5, 1_000, is_computed=False)
    columns.insert(0, ChildQuota(weight=1, request=3, least=0, lends=True))
    columns.compute(10**6, None)

    assert list(columns.take_changed()) == [0, 6]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.sampled_from((3, ARRAYS_FROM)))
def test_changed_rows_are_those_whose_shares_are_others_in_want_and_in_plenty(seed: int, count: int) -> None:
    rng = random.Random(seed)
    _, columns = columns_of(rng, count, 100)
    reported = [-1] * count
    for _ in range(6):
        columns.ask(rng.randrange(count), rng.randrange(100), is_computed=False)
        columns.compute(rng.choice((0, 30, 60, 100)) * count, None)
        now = [columns.share(row) for row in range(count)]
        assert list(columns.take_changed()) == [row for row in range(count) if now[row] != reported[row]]
        reported = now


@pytest.mark.parametrize("bits", [20, 40, 53, 61])
def test_parts_of_large_amounts_are_exact_where_floating_point_is_off_by_one(bits: int) -> None:
    rng = random.Random(bits)
    for _ in range(200):
        whole = 0
        while math.gcd(whole, rest := rng.randrange(1, 1 << bits)) != 1:
            whole = rng.randrange(3, 1 << bits) | 1
        inverse = pow(rest, -1, whole)
        # Products that are just below, at and just above a multiple of the whole.
        weights = [max(inverse * just % whole, 1) for just in (-1, 0, 1)]
        weights.append(max(whole - sum(weights), 1))
        parts = split_arrays(rest, np.array(weights), whole=sum(weights), largest=max(weights))
        assert parts.tolist() == split(rest, weights)
