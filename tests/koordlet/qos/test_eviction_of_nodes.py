"""Victims of many nodes at once are those that the agents of the nodes would choose one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.eviction import Arbitration, EvictionTask, ReleaseTarget

PODS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=12)


@given(PODS, st.lists(st.integers(-5, 120), min_size=3, max_size=3))
def test_the_largest_go_until_the_node_has_enough(pods: list[tuple[int, int]], release: list[int]) -> None:
    node, used = np.array(pods, np.int64).reshape(-1, 2).T
    # Whoever of equals goes does not matter: amounts are made to differ.
    used = np.where(used > 0, used * 100 + np.arange(used.size), 0)
    wanted = np.array(release, np.int64) * 100

    goes = eviction.largest_of_nodes(node, used, wanted)

    for row in range(3):
        of_row = [str(at) for at in np.flatnonzero(node == row).tolist()]
        largest = sorted(of_row, key=lambda uid: -int(used[int(uid)]))
        gives = {uid: {"memory": int(used[int(uid)])} for uid in of_row}
        task = EvictionTask(
            "BEMemoryEvict", ReleaseTarget.USED, {"memory": int(wanted[row])}, tuple(largest), gives
        )
        round_ = Arbitration(eviction.narrowed([task]))
        victims = set()
        while (victim := round_.next_victim()) is not None:
            victims.add(victim.uid)
            round_.settle(victim, True)
        assert {str(at) for at in np.flatnonzero(goes & (node == row)).tolist()} == victims
