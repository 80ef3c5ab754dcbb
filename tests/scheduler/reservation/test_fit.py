"""Whether pods fit nodes with reservations, and what is given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.resource_list import sum_of
from koordinator.scheduler.plugins.reservation import fit, preallocation
from koordinator.scheduler.plugins.reservation.fit import (
    Ignored,
    ReservationAmounts,
    ReservationNodeView,
    ReservationRequest,
)

lists = st.dictionaries(st.sampled_from(["cpu", "memory", "x/y"]), st.integers(0, 9), max_size=3)
rooms = st.builds(
    lambda name, restricted, allocatable, allocated, kept: ReservationAmounts(
        name=name,
        is_restricted=restricted,
        allocatable=allocatable,
        allocated=allocated,
        kept=kept,
        names=tuple(sorted(allocatable)),
    ),
    st.sampled_from("abc"),
    st.booleans(),
    lists,
    lists,
    lists,
)


def node(allocatable: dict[str, int], requested: dict[str, int]) -> ReservationNodeView:
    return ReservationNodeView(allocatable={"pods": 9, **allocatable}, requested=requested)


@given(
    request=lists, allocatable=lists, requested=lists, held=st.lists(rooms, max_size=3), must=st.booleans()
)
def test_every_refusal_has_a_reason(
    request: dict[str, int],
    allocatable: dict[str, int],
    requested: dict[str, int],
    held: list[ReservationAmounts],
    must: bool,
) -> None:
    found = fit.fit(
        ReservationRequest(request=request, must_reserve=must), node(allocatable, requested), held
    )

    assert found.ok is not bool(found.reasons)
    assert not must or not found.ok or found.room is not None


@given(request=lists, more=lists, held=st.lists(rooms, min_size=1, max_size=3))
def test_who_asks_for_less_fits_as_well(
    request: dict[str, int], more: dict[str, int], held: list[ReservationAmounts]
) -> None:
    view = node({"cpu": 9, "memory": 9, "x/y": 9}, {"cpu": 5, "memory": 5})
    larger = fit.fit(ReservationRequest(request=sum_of((request, more)), must_reserve=True), view, held)
    smaller = fit.fit(
        ReservationRequest(
            request={name: request.get(name, 0) for name in sum_of((request, more))}, must_reserve=True
        ),
        view,
        held,
    )
    assert smaller.ok or not larger.ok


@given(request=lists, room=rooms)
def test_a_restricted_reservation_never_gives_more_than_it_holds(
    request: dict[str, int], room: ReservationAmounts
) -> None:
    if not fit.short_in_room(request, room, Ignored()):
        for name in set(room.names) & {name for name, amount in request.items() if amount}:
            assert (
                request[name] + room.allocated.get(name, 0) + room.kept.get(name, 0) <= room.allocatable[name]
            )


def test_who_asks_for_nothing_of_a_resource_does_not_care_that_it_is_used_up() -> None:
    room = ReservationAmounts(
        is_restricted=True,
        allocatable={"cpu": 4, "memory": 1},
        allocated={"memory": 2},
        names=("cpu", "memory"),
    )
    assert not fit.short_in_room({"cpu": 4, "memory": 0}, room, Ignored())


def test_a_reserved_number_of_pods_counts_whatever_else_is_restricted() -> None:
    room = ReservationAmounts(
        is_restricted=True, allocatable={"cpu": 4, "pods": 1}, names=("cpu",), pods=1, name="room"
    )
    assert fit.short_in_room({"cpu": 1}, room, Ignored()) == ["Reservation(s) Too many pods"]


def test_an_ignored_group_does_not_cover_native_resources() -> None:
    asked = ReservationRequest(request={"cpu": 2, "x/y": 9})
    found = fit.fit(asked, node({"cpu": 1}, {}), [], Ignored(frozenset({"cpu"}), frozenset({"x"})))
    assert found.reasons == ("Insufficient cpu by node",)


def test_a_pod_that_needs_a_reservation_does_not_take_free_room() -> None:
    found = fit.fit(ReservationRequest(request={"cpu": 1}, must_reserve=True), node({"cpu": 9}, {}), [])
    assert found.reasons == (fit.NONE_MATCHED,)


@given(
    candidates=st.lists(lists, max_size=4),
    request=lists,
    requested=lists,
    multiple=st.booleans(),
    required=st.booleans(),
)
def test_required_pre_allocation_never_uses_free_room_only(
    candidates: list[dict[str, int]],
    request: dict[str, int],
    requested: dict[str, int],
    multiple: bool,
    required: bool,
) -> None:
    named = [preallocation.PreAllocationCandidate(str(i), each) for i, each in enumerate(candidates)]
    room = ReservationAmounts(allocatable=request, names=tuple(request), is_restricted=True)
    policy = preallocation.PreAllocationMode(is_multiple=multiple, is_required=required)

    found = preallocation.pre_allocate(request, node({"cpu": 9, "memory": 9}, requested), room, named, policy)

    assert found.ok or found.reasons
    assert not required or not found.ok or found.selected


@pytest.mark.parametrize(
    ("leaving", "policy", "reasons"),
    [
        pytest.param([{"memory": 3}], {}, ("Insufficient cpu by node",), id="what one leaves is not lacking"),
        pytest.param(
            [{"memory": 9}],
            {"is_required": True, "is_multiple": True},
            ("Insufficient cpu by node", "Reservation(s) Insufficient memory"),
            id="what one would leave who does not fit is not lacking, either",
        ),
        pytest.param(
            [], {"is_required": True, "is_multiple": True}, (preallocation.NOBODY,), id="nobody may leave"
        ),
    ],
)
def test_a_pre_allocation_tells_what_is_lacking_in_spite_of_who_leaves(
    leaving: list[dict[str, int]], policy: dict[str, bool], reasons: tuple[str, ...]
) -> None:
    wanted = {"cpu": 4, "memory": 4}
    found = preallocation.pre_allocate(
        wanted,
        node({"cpu": 8, "memory": 8, "pods": 9}, {"cpu": 6, "memory": 6}),
        ReservationAmounts(allocatable=wanted, names=("cpu", "memory"), is_restricted=True),
        [
            preallocation.PreAllocationCandidate(f"pod-{number}", request)
            for number, request in enumerate(leaving)
        ],
        preallocation.PreAllocationMode(**policy),
    )
    assert not found.ok
    assert found.reasons == reasons


@given(request=lists, room=rooms)
def test_a_score_is_a_percentage(request: dict[str, int], room: ReservationAmounts) -> None:
    assert 0 <= preallocation.score(request, room) <= preallocation.SCORE_MAX


@given(scores=st.lists(st.integers(0, 3), min_size=1, max_size=5), flip=st.booleans())
def test_a_nomination_does_not_depend_on_the_order_of_the_cache(scores: list[int], flip: bool) -> None:
    options = [preallocation.NominationCandidate(name=str(i), score=each) for i, each in enumerate(scores)]
    shuffled = options[::-1] if flip else options
    assert preallocation.nominate(shuffled, False) == str(scores.index(max(scores)))


def test_the_order_of_a_used_up_reservation_does_not_count() -> None:
    used = preallocation.NominationCandidate(name="used", order="1", assigned=1)
    assert preallocation.nominate([used, preallocation.NominationCandidate(name="free")], True) == "free"


def option(name: str, **parts: int) -> preallocation.NominationCandidate:
    return preallocation.NominationCandidate(name=name, **parts)


@pytest.mark.parametrize(
    ("options", "must_reserve", "existing", "expected"),
    [
        ([option("a", score=1), option("b", score=9)], False, "a", "a"),
        ([option("a", score=1), option("b", score=9)], False, "gone", "b"),
        ([option("a", assigned=1), option("b")], False, "a", "a"),
        ([option("a", assigned=1)], True, None, "a"),
        ([option("a", assigned=1)], False, None, None),
        ([option("a", assigned=1, is_once=False)], False, None, "a"),
        ([option("a", assigned=1), option("b", assigned=1)], True, None, None),
        ([option("a", order=2, score=9), option("b", order=1), option("c", score=99)], False, None, "b"),
        ([option("b", order=1), option("a", order=1)], False, None, "a"),
        ([], True, None, None),
    ],
)
def test_who_is_nominated(
    options: list[preallocation.NominationCandidate],
    must_reserve: bool,
    existing: str | None,
    expected: str | None,
) -> None:
    assert preallocation.nominate(options, must_reserve, existing) == expected


@pytest.mark.parametrize(
    ("asks", "allocated", "allocatable", "expected"),
    [
        ({"cpu": 3}, {"cpu": 2}, {"cpu": 5}, 100),
        ({"cpu": 4}, {"cpu": 2}, {"cpu": 5}, 0),
        ({"cpu": 1}, {}, {"cpu": 3}, 33),
        ({}, {"cpu": 1}, {"cpu": 2, "memory": 4}, 25),
        ({"cpu": 1}, {}, {"cpu": 1, "memory": 0}, 100),
        ({"cpu": 1}, {}, {}, 0),
    ],
)
def test_a_reservation_scores_by_how_full_the_pod_makes_it(
    asks: dict[str, int], allocated: dict[str, int], allocatable: dict[str, int], expected: int
) -> None:
    room = ReservationAmounts(allocatable=allocatable, allocated=allocated)
    assert preallocation.score(asks, room) == expected
