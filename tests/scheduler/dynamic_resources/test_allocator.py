"""The search finds devices exactly when there are some, and keeps all that was asked for."""

import itertools
from collections.abc import Iterator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.plugins.dynamic_resources.allocator import (
    ALL,
    AllocationOutcome,
    AllocationProblem,
    AllocatorResult,
    ClaimRequest,
    MatchConstraint,
    Pick,
    Stock,
    SubRequest,
    search,
)

SELECTIONS, ATTRIBUTES, CLAIMS = 2, 2, 2


def stock(fits: list[tuple[bool, ...]], values: list[tuple[int, ...]], used: list[bool]) -> Stock:
    looks = list(zip(fits, values, used, strict=True))
    return Stock(
        kinds=[sorted(set(looks)).index(look) for look in looks],
        fits=[[each[index] for each in fits] for index in range(SELECTIONS)],
        values=[[each[index] for each in values] for index in range(ATTRIBUTES)],
        is_used=used,
        is_incomplete=[False] * len(fits),
        is_invalid=[False] * len(fits),
    )


def is_kept(problem: AllocationProblem, stock: Stock, picks: tuple[Pick, ...]) -> bool:
    """Whether picks obey every rule, checked one by one."""
    takers: dict[int, list[tuple[int, bool]]] = {}
    seen: dict[int, list[int]] = {}
    for ask, pick in zip(problem.asks, picks, strict=True):
        sub_request = ask.sub_requests[pick.sub_request]
        fitting = [device for device, fits in enumerate(stock.fits[sub_request.fits]) if fits]
        if sub_request.count == ALL:
            if not fitting or sorted(pick.devices) != fitting:
                return False
        elif len(pick.devices) != sub_request.count or not set(pick.devices) <= set(fitting):
            return False
        for device in pick.devices:
            earlier = takers.setdefault(device, [])
            if sub_request.is_admin and any(claim == ask.claim for claim, _ in earlier):
                return False
            if not sub_request.is_admin and (stock.is_used[device] or earlier):
                return False
            earlier.append((ask.claim, sub_request.is_admin))
            for rule in sub_request.rules:
                seen.setdefault(rule, []).append(stock.values[problem.rules[rule].values][device])
    for number, values in seen.items():
        is_distinct = problem.rules[number].is_distinct
        if -1 in values or len(set(values)) != (len(values) if is_distinct else 1):
            return False
    return True


def all_picks(problem: AllocationProblem, size: int) -> Iterator[tuple[Pick, ...]]:
    """Every way to answer, the preferred ones first."""
    per_ask = []
    for ask in problem.asks:
        ways = []
        for index, sub_request in enumerate(ask.sub_requests):
            counts = range(1, size + 1) if sub_request.count == ALL else (sub_request.count,)
            for count in counts:
                ways += [Pick(index, devices) for devices in itertools.combinations(range(size), count)]
        per_ask.append(ways)
    return itertools.product(*per_ask)


sub_requests = st.builds(
    SubRequest,
    fits=st.integers(0, SELECTIONS - 1),
    count=st.sampled_from([1, 1, 2, ALL]),
    is_admin=st.sampled_from([False, False, False, True]),
    rules=st.sets(st.integers(0, 1)).map(lambda found: tuple(sorted(found))),
)
asks = st.builds(
    ClaimRequest,
    claim=st.integers(0, CLAIMS - 1),
    sub_requests=st.lists(sub_requests, min_size=1, max_size=2).map(tuple),
)
problems = st.builds(
    AllocationProblem,
    asks=st.lists(asks, min_size=1, max_size=3).map(tuple),
    rules=st.just((MatchConstraint(0), MatchConstraint(1, is_distinct=True))),
    claim_count=st.just(CLAIMS),
)


@st.composite
def stocks(draw: st.DrawFn) -> Stock:
    size = draw(st.integers(0, 4))
    fits = draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=size, max_size=size))
    number = st.integers(-1, 1)
    values = draw(st.lists(st.tuples(number, number), min_size=size, max_size=size))
    used = draw(st.lists(st.sampled_from([False, False, True]), min_size=size, max_size=size))
    return stock(fits, values, used)


@settings(max_examples=300, deadline=None)
@given(problems, stocks())
def test_devices_are_found_exactly_when_trying_everything_finds_some(
    problem: AllocationProblem, given_stock: Stock
) -> None:
    answer = search(problem, given_stock, 0)

    possible = any(
        is_kept(problem, given_stock, picks) for picks in all_picks(problem, len(given_stock.kinds))
    )
    assert answer.outcome is (AllocationOutcome.FOUND if possible else AllocationOutcome.NOT_FOUND)
    if possible:
        assert is_kept(problem, given_stock, answer.picks)


@settings(max_examples=200, deadline=None)
@given(problems, stocks())
def test_that_equal_devices_are_tried_once_changes_no_answer(
    problem: AllocationProblem, given_stock: Stock
) -> None:
    all_differ = msgspec.structs.replace(given_stock, kinds=list(range(len(given_stock.kinds))))

    assert search(problem, given_stock, 0) == search(problem, all_differ, 0)


def test_the_first_wish_that_lets_all_others_be_met_counts() -> None:
    one_of_two = ClaimRequest(0, (SubRequest(fits=0, count=1), SubRequest(fits=1, count=1)))
    needs_first = ClaimRequest(0, (SubRequest(fits=0, count=1),))
    devices = stock([(True, False), (False, True)], [(0, 0), (0, 0)], [False, False])

    answer = search(AllocationProblem((one_of_two, needs_first)), devices, 0)

    assert answer == AllocatorResult(AllocationOutcome.FOUND, (Pick(1, (1,)), Pick(0, (0,))))


def test_a_claim_never_gets_more_devices_than_its_status_can_hold() -> None:
    count = 40
    devices = stock([(True, True)] * count, [(0, 0)] * count, [False] * count)

    assert (
        search(AllocationProblem((ClaimRequest(0, (SubRequest(fits=0, count=ALL),)),)), devices, 0).outcome
        is AllocationOutcome.NOT_FOUND
    )
    assert (
        search(AllocationProblem((ClaimRequest(0, (SubRequest(fits=0, count=32),)),)), devices, 0).outcome
        is AllocationOutcome.FOUND
    )


def test_a_search_that_takes_too_long_ends() -> None:
    count = 24
    numbered = [(number, number) for number in range(count)]
    devices = stock([(True, True)] * count, numbered, [False] * count)
    impossible = AllocationProblem(
        (ClaimRequest(0, (SubRequest(fits=0, count=12, rules=(0,)),)),),
        (MatchConstraint(0, is_distinct=True),),
    )
    too_many = AllocationProblem(
        (*impossible.asks, ClaimRequest(0, (SubRequest(fits=1, count=13, rules=(0,)),))), impossible.rules
    )

    assert search(too_many, devices, 10_000).outcome is AllocationOutcome.TOO_MANY_STEPS


def test_all_devices_cannot_be_told_while_a_pool_changes() -> None:
    devices = msgspec.structs.replace(
        stock([(True, True)] * 2, [(0, 0)] * 2, [False] * 2), is_incomplete=[False, True]
    )

    assert (
        search(AllocationProblem((ClaimRequest(0, (SubRequest(fits=0, count=ALL),)),)), devices, 0).outcome
        is AllocationOutcome.UPDATING
    )
    assert (
        search(AllocationProblem((ClaimRequest(0, (SubRequest(fits=0, count=2),)),)), devices, 0).outcome
        is AllocationOutcome.FOUND
    )
