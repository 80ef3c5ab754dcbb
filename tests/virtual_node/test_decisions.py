"""Laws of what is offered and of who leaves, over random nodes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordinator.virtual_node import offer, reclaim
from koordinator.virtual_node.offer import LendingPolicy
from koordinator.virtual_node.table import LentPod

AMOUNTS = st.tuples(*[st.integers(0, 64)] * 4)
NODES = st.lists(AMOUNTS, min_size=1, max_size=6).map(lambda rows: np.array(rows, np.int64))


@given(room=NODES, request=AMOUNTS.map(lambda one: np.array(one, np.int64)), data=st.data())
def test_a_pod_is_placed_exactly_when_one_allowed_node_has_room_for_all_of_it(
    room: offer.I64, request: offer.I64, data: st.DataObject
) -> None:
    request[offer.PODS] = 1
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(room), max_size=len(room))))

    row = offer.place(request, room, allowed)

    fits = [bool(allowed[i]) and bool((room[i] >= request).all()) for i in range(len(room))]
    assert fits[row] if row != offer.NOWHERE else not any(fits)


@given(room=NODES)
def test_the_largest_hole_is_what_one_node_has_and_no_node_has_more_of_both(room: offer.I64) -> None:
    row = offer.largest_hole(room)

    cores, memory = room[:, offer.CPU], room[:, offer.MEMORY]
    if row == offer.NOWHERE:
        assert not ((cores > 0) & (memory > 0)).any()
    else:
        assert not ((cores > cores[row]) & (memory > memory[row])).any()


@given(nodes=NODES, others=AMOUNTS, lent=AMOUNTS)
def test_what_a_virtual_node_has_is_what_it_lends_and_what_can_still_be_placed(
    nodes: offer.I64, others: tuple[int, ...], lent: tuple[int, ...]
) -> None:
    rows = np.full(nodes.shape, 0, np.int64)
    held = rows + np.array(lent)
    free = offer.free(nodes, rows + np.array(others), LendingPolicy())
    room = offer.room(np.ones(len(nodes), np.bool_), free, held)

    assert (offer.offered(room, held) - held.sum(axis=0) == room.sum(axis=0)).all()
    assert (room + held + np.array(others) <= np.maximum(nodes, held + np.array(others))).all()


@given(
    nodes=NODES,
    pods=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 20), st.integers(0, 900), st.booleans()), max_size=12
    ),
    cores=st.integers(1, 64),
)
def test_an_online_pod_gets_enough_and_nobody_leaves_who_need_not(
    nodes: offer.I64, pods: list[tuple[int, int, int, bool]], cores: int
) -> None:
    lent = np.zeros_like(nodes)
    by_row: dict[int, list[LentPod]] = {}
    for number, (row, milli, since_s, is_free) in enumerate(pods):
        pod = LentPod(str(number), row % len(nodes), np.array([milli, 0, 0, 0]), since_s, is_free)
        by_row.setdefault(pod.row, []).append(pod)
        lent[pod.row] += pod.request
    request = np.array([cores, 0, 0, 0])
    nothing, everywhere = np.zeros_like(nodes), np.ones(len(nodes), np.bool_)

    given_back = reclaim.for_waiting(
        request, nodes, nothing, by_row, lent, everywhere, lambda _: True, 1000.0
    )

    left = nodes - lent
    if given_back is None:
        fits_now = (left >= request).all(axis=1).any()
        assert fits_now or not ((nodes >= request).all(axis=1) & lent.any(axis=1)).any()
        return
    freed = sum((pod.request for pod in given_back.victims), np.zeros(4, np.int64))
    assert (left[given_back.row] + freed >= request)[0]
    assert all(pod.row == given_back.row for pod in given_back.victims)
    for pod in given_back.victims:
        assert (left[given_back.row] + freed - pod.request < request).any(), "it could have stayed"
