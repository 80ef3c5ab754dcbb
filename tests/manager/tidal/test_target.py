"""How many nodes a tidal pool keeps and lends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.errors import ProtocolError
from koordinator.manager.tidal.target import (
    LendTarget,
    LoadRule,
    OnlineLoad,
    PoolFacts,
    PoolShare,
    TargetReason,
    Window,
    reserves,
    target,
)

shares = st.builds(PoolShare, st.integers(0, 120), st.booleans())
HOUR_S = 3600.0


@given(members=st.integers(0, 500), online=shares, batch=shares)
def test_every_node_of_a_pool_is_on_exactly_one_side(
    members: int, online: PoolShare, batch: PoolShare
) -> None:
    sides = reserves(members, online, batch)
    assert sides.online + sides.batch + sides.tidal == members
    assert min(sides.online, sides.batch, sides.tidal) >= 0


@given(
    members=st.integers(0, 500),
    online=shares,
    batch=shares,
    wanted=shares,
    left_s=st.integers(0, 7200),
    lead_s=st.integers(0, 7200),
)
def test_a_window_never_lends_reserved_nodes_and_has_none_at_its_end(
    members: int, online: PoolShare, batch: PoolShare, wanted: PoolShare, left_s: int, lead_s: int
) -> None:
    pool = PoolFacts(
        members=members,
        online_reserve=online,
        batch_reserve=batch,
        windows=[Window(-1.0, left_s, wanted)],
        lead_s=lead_s,
    )

    found = target(pool, 0.0, None)

    assert 0 <= found.nodes <= reserves(members, online, batch).tidal
    assert left_s > 0 or found == LendTarget(0, TargetReason.NO_WINDOW)


@given(early_s=st.integers(0, 7199), later_s=st.integers(0, 7199))
def test_fewer_and_fewer_nodes_are_lent_towards_the_end_of_a_window(early_s: int, later_s: int) -> None:
    pool = PoolFacts(members=40, windows=[Window(0, 2 * HOUR_S, PoolShare(50, True))], lead_s=HOUR_S)
    early_s, later_s = sorted((early_s, later_s))
    assert target(pool, early_s, None).nodes >= target(pool, later_s, None).nodes


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        pytest.param(
            OnlineLoad(40, 44), LendTarget(4, TargetReason.LOAD_LOW), id="a low load lends one node more"
        ),
        pytest.param(
            OnlineLoad(40, 45), LendTarget(3, TargetReason.LOAD_STEADY), id="at the mark nothing moves"
        ),
        pytest.param(
            OnlineLoad(40, None), LendTarget(3, TargetReason.LOAD_STEADY), id="a short history does not lend"
        ),
        pytest.param(
            OnlineLoad(66, 30), LendTarget(2, TargetReason.LOAD_HIGH), id="a high load returns one node"
        ),
        pytest.param(None, LendTarget(3, TargetReason.LOAD_STEADY), id="an unknown load moves nothing"),
    ],
)
def test_the_load_rule_moves_one_node_at_a_time(load: OnlineLoad | None, expected: LendTarget) -> None:
    assert target(PoolFacts(members=10, rule=LoadRule(), lent=3), 0.0, load) == expected


def test_the_schedule_is_the_ceiling_of_the_load_rule() -> None:
    pool = PoolFacts(members=10, windows=[Window(0, 9 * HOUR_S, PoolShare(3))], rule=LoadRule(), lent=3)
    assert target(pool, 0.0, OnlineLoad(10, 20)) == LendTarget(3, TargetReason.WINDOW)


def test_a_suspended_pool_still_returns_nodes() -> None:
    assert target(PoolFacts(members=10, windows=[], suspended=True, lent=3), 0.0, None).nodes == 0


@pytest.mark.parametrize("raw", ["", "50", "-1%", "1.5%", "%", -1, True])
def test_what_is_no_share_is_refused_by_field(raw: int | str) -> None:
    with pytest.raises(ProtocolError, match="onlineReserve"):
        PoolShare.of(raw, "onlineReserve")
