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
    ClaimRequest,
    MatchConstraint,
    Pick,
    Stock,
    SubRequest,
    search,
)

SELECTIONS, ATTRIBUTES, CLAIMS = 2, 2, 2


class Part(msgspec.Struct, frozen=True):
    """What a device takes of the counters (counter, amount), what is left of its one capacity when it can be shared,
    and what each selection would take of that."""

    consumes: tuple[tuple[int, int], ...] = ()
    room: int | None = None
    shares: tuple[int, ...] = (0,) * SELECTIONS
    is_shared: bool = False


WHOLE = Part()


def stock(
    fits: list[tuple[bool, ...]],
    values: list[tuple[int, ...]],
    used: list[bool],
    parts: list[Part] | None = None,
    available: tuple[int, ...] = (),
) -> Stock:
    parts = parts or [WHOLE] * len(fits)
    looks = list(zip(fits, values, used, parts, strict=True))
    return Stock(
        kinds=[
            (looks.index(look), number if look[3].room is not None else None)
            for number, look in enumerate(looks)
        ],
        fits=[[each[index] for each in fits] for index in range(SELECTIONS)],
        values=[[each[index] for each in values] for index in range(ATTRIBUTES)],
        is_used=used,
        is_unusable=[False] * len(fits),
        consumes=[each.consumes for each in parts],
        available=available,
        room=[None if each.room is None else [each.room] for each in parts],
        shares=[
            [[] if each.room is None else [each.shares[index]] for each in parts]
            for index in range(SELECTIONS)
        ],
        is_shared=[each.is_shared for each in parts],
    )


def is_kept(problem: AllocationProblem, stock: Stock, picks: tuple[Pick, ...]) -> bool:
    """Whether picks obey every rule, checked one by one."""
    takers: dict[int, list[tuple[int, bool]]] = {}
    seen: dict[int, list[int]] = {}
    taken: dict[int, int] = {}
    for ask, pick in zip(problem.asks, picks, strict=True):
        sub_request = ask.sub_requests[pick.sub_request]
        fitting = [device for device, fits in enumerate(stock.fits[sub_request.fits]) if fits]
        shares = stock.shares[sub_request.fits]
        if sub_request.count == ALL:
            fitting = [each for each in fitting if (room := stock.room[each]) is None or shares[each] <= room]
        if sub_request.count == ALL:
            if not fitting or sorted(pick.devices) != fitting:
                return False
        elif len(pick.devices) != sub_request.count or not set(pick.devices) <= set(fitting):
            return False
        for device in pick.devices:
            earlier = takers.setdefault(device, [])
            if sub_request.is_admin and any(claim == ask.claim for claim, _ in earlier):
                return False
            may_share = stock.room[device] is not None
            if not sub_request.is_admin and (stock.is_used[device] or (earlier and not may_share)):
                return False
            if sub_request.is_admin is False and may_share:
                taken[device] = taken.get(device, 0) + shares[device][0]
            earlier.append((ask.claim, sub_request.is_admin))
            for rule in sub_request.rules:
                seen.setdefault(rule, []).append(stock.values[problem.rules[rule].values][device])
    left = list(stock.available)
    drawn: set[int] = set()
    for device, earlier in takers.items():
        if not stock.is_shared[device] and any(not is_admin for _, is_admin in earlier):
            for counter, amount in stock.consumes[device]:
                left[counter] -= amount
                drawn.add(counter)
    rooms = [(room[0], amount) for device, amount in taken.items() if (room := stock.room[device])]
    if any(left[counter] < 0 for counter in drawn) or any(amount > room for room, amount in rooms):
        return False
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
                chosen = itertools.combinations_with_replacement(range(size), count)
                ways += [Pick(index, devices) for devices in chosen]
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


PARTS = (
    WHOLE,
    WHOLE,
    Part(((0, 1),)),
    Part(((0, 2), (1, 1))),
    Part(((1, 2),)),
    Part(room=3, shares=(1, 2)),
    Part(((0, 2),), room=2, shares=(2, 1)),
    Part(((0, 2),), room=1, shares=(1, 1), is_shared=True),
)


@st.composite
def stocks(draw: st.DrawFn) -> Stock:
    size = draw(st.integers(0, 4))
    fits = draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=size, max_size=size))
    number = st.integers(-1, 1)
    values = draw(st.lists(st.tuples(number, number), min_size=size, max_size=size))
    used = draw(st.lists(st.sampled_from([False, False, True]), min_size=size, max_size=size))
    parts = draw(st.lists(st.sampled_from(PARTS), min_size=size, max_size=size))
    return stock(fits, values, used, parts, draw(st.tuples(st.integers(-1, 3), st.integers(0, 3))))


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

    few, many = search(problem, given_stock, 0), search(problem, all_differ, 0)
    assert (few.outcome, few.picks) == (many.outcome, many.picks)


def test_the_first_wish_that_lets_all_others_be_met_counts() -> None:
    one_of_two = ClaimRequest(0, (SubRequest(fits=0, count=1), SubRequest(fits=1, count=1)))
    needs_first = ClaimRequest(0, (SubRequest(fits=0, count=1),))
    devices = stock([(True, False), (False, True)], [(0, 0), (0, 0)], [False, False])

    answer = search(AllocationProblem((one_of_two, needs_first)), devices, 0)

    assert answer.picks == (Pick(1, (1,)), Pick(0, (0,)))


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
        stock([(True, True)] * 2, [(0, 0)] * 2, [False] * 2), is_unusable=[False, True]
    )

    def outcome(count: int) -> AllocationOutcome:
        asked = AllocationProblem((ClaimRequest(0, (SubRequest(fits=0, count=count),)),))
        return search(asked, devices, 0).outcome

    assert outcome(ALL) is AllocationOutcome.UPDATING
    assert outcome(2) is AllocationOutcome.NOT_FOUND
    assert outcome(1) is AllocationOutcome.FOUND
