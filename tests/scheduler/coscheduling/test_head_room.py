"""Upper bounds of what nodes take: never too low, and for members that are alike exact."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.plugins.coscheduling.early_refusal import (
    GangDemand,
    HeadRoom,
    MemberClass,
    MemberShortage,
    shortage_of,
)

Amounts = tuple[int, int]

AMOUNTS = st.tuples(st.integers(0, 3), st.integers(0, 3))
ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=3)
MEMBERS = st.lists(st.integers(0, 2), min_size=1, max_size=3)
"""Of one gang: the number of the kind of each."""


def kinds_of(wanted: Sequence[Amounts]) -> list[MemberClass]:
    nobody: Any = None
    return [
        MemberClass((), nobody, {column: amount for column, amount in enumerate(each) if amount})
        for each in wanted
    ]


def room_of(
    wanted: Sequence[Amounts], rows: Sequence[tuple[int, int, int]], open_to: set[tuple[int, int]]
) -> HeadRoom:
    counts = [
        [_taken(each, row) if (kind, number) in open_to else 0 for number, row in enumerate(rows)]
        for kind, each in enumerate(wanted)
    ]
    free = np.array(rows).T
    return HeadRoom(np.array(counts, np.int64), {0: free[0], 1: free[1]}, free[2])


def _taken(wanted: Amounts, row: tuple[int, int, int]) -> int:
    return min([row[2], *(row[column] // amount for column, amount in enumerate(wanted) if amount)])


def demand_of(gangs: Sequence[tuple[list[int], int]]) -> GangDemand:
    needed = {f"gang-{number}": max(1, len(of) - surplus) for number, (of, surplus) in enumerate(gangs)}
    return GangDemand(needed, {f"gang-{number}": Counter(of) for number, (of, _) in enumerate(gangs)})


def can_start(
    gangs: Sequence[tuple[list[int], int]],
    wanted: Sequence[Amounts],
    rows: Sequence[tuple[int, int, int]],
    open_to: set[tuple[int, int]],
) -> bool:
    """Tries everything."""
    choices = [itertools.combinations(of, max(1, len(of) - surplus)) for of, surplus in gangs]
    return any(
        _fit(list(itertools.chain(*chosen)), wanted, list(rows), open_to)
        for chosen in itertools.product(*choices)
    )


def _fit(
    members: list[int],
    wanted: Sequence[Amounts],
    rows: list[tuple[int, int, int]],
    open_to: set[tuple[int, int]],
) -> bool:
    if not members:
        return True
    kind, cpu, memory = members[0], *wanted[members[0]]
    return any(_fit(members[1:], wanted, left, open_to) for left in _with(kind, cpu, memory, rows, open_to))


def _with(
    kind: int, cpu: int, memory: int, rows: list[tuple[int, int, int]], open_to: set[tuple[int, int]]
) -> Iterator[list[tuple[int, int, int]]]:
    for number, row in enumerate(rows):
        left = (row[0] - cpu, row[1] - memory, row[2] - 1)
        if (kind, number) in open_to and min(left) >= 0:
            yield [*rows[:number], left, *rows[number + 1 :]]


@settings(max_examples=150, deadline=None)
@given(
    wanted=st.lists(AMOUNTS, min_size=3, max_size=3),
    rows=ROWS,
    gangs=st.lists(st.tuples(MEMBERS, st.integers(0, 2)), min_size=1, max_size=2),
    closed=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3),
)
def test_gangs_that_can_start_lack_nothing(
    wanted: list[Amounts],
    rows: list[tuple[int, int, int]],
    gangs: list[tuple[list[int], int]],
    closed: set[tuple[int, int]],
) -> None:
    open_to = set(itertools.product(range(3), range(len(rows)))) - closed
    found = shortage_of(demand_of(gangs), room_of(wanted, rows, open_to), kinds_of(wanted))
    assert found is None or not can_start(gangs, wanted, rows, open_to), found


@settings(max_examples=100, deadline=None)
@given(wanted=AMOUNTS, rows=ROWS, count=st.integers(1, 6), surplus=st.integers(0, 3))
def test_members_that_are_alike_lack_something_exactly_when_they_cannot_start(
    wanted: Amounts, rows: list[tuple[int, int, int]], count: int, surplus: int
) -> None:
    gangs = [([0] * count, surplus)]
    open_to = {(0, number) for number in range(len(rows))}
    found = shortage_of(demand_of(gangs), room_of([wanted], rows, open_to), kinds_of([wanted]))
    assert (found is None) == can_start(gangs, [wanted], rows, open_to)


def test_what_is_lacked_is_told_of_the_kind_that_lacks_it_or_of_all_together() -> None:
    large, small = (4, 0), (3, 0)
    wanted, rows = [large, small], [(5, 9, 9), (5, 9, 9)]
    everywhere = set(itertools.product(range(2), range(2)))

    def found(*gangs: tuple[list[int], int]) -> MemberShortage:
        return cast(
            MemberShortage, shortage_of(demand_of(gangs), room_of(wanted, rows, everywhere), kinds_of(wanted))
        )

    assert found(([0, 0, 0], 0), ([1], 0)) == MemberShortage(("gang-0",), 3, 2, 0)
    assert found(([0, 0], 0), ([1], 0)) == MemberShortage(("gang-0", "gang-1"), 3, 2, None)
    assert found(([0, 1, 1], 0)) == MemberShortage(("gang-0",), 3, 2, None)
    # Of a mixed gang those count that it cannot do without.
    assert found(([0, 0, 0, 1], 0)) == MemberShortage(("gang-0",), 3, 2, 0)
    assert found(([0, 0, 0, 1], 1)) == MemberShortage(("gang-0",), 3, 2, None)


def test_kinds_of_which_nobody_knows_what_they_ask_are_bounded_one_by_one_only() -> None:
    nobody: Any = None
    large, small = (4, 0), (1, 0)
    rows = [(5, 9, 9), (5, 9, 9)]
    room = room_of([large, small], rows, set(itertools.product(range(2), range(2))))
    [known] = kinds_of([large])
    unknown = MemberClass((), nobody, None)

    demand = demand_of([([0], 0), ([1, 1, 1], 0)])
    assert shortage_of(demand, room, [known, unknown]) is None
    assert shortage_of(demand, room, kinds_of([large, large])) is not None, (
        "were it known, it would not be enough"
    )
    too_many = demand_of([([0, 0, 0], 0), ([1], 0)])
    assert shortage_of(too_many, room, [known, unknown]) == MemberShortage(("gang-0",), 3, 2, 0)
