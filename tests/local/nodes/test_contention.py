"""Sharing CPU: conservation and fairness; latency: monotony and the measured points."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.local.nodes import contention
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.usage import F64, Index

EPSILON = 1e-6
milli = st.floats(0, 64_000)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[F64, F64, Index, F64]:
    nodes = draw(st.integers(1, 4))
    pods = draw(st.integers(1, 20))
    demand = np.array(draw(st.lists(milli, min_size=pods, max_size=pods)))
    weight = np.array(draw(st.lists(st.floats(2, 10_000), min_size=pods, max_size=pods)))
    node = np.array(draw(st.lists(st.integers(0, nodes - 1), min_size=pods, max_size=pods)))
    capacity = np.array(draw(st.lists(milli, min_size=nodes, max_size=nodes)))
    return demand, weight, node, capacity


@given(crowds())
def test_nobody_gets_more_than_it_wants_and_no_node_gives_more_than_it_has(
    crowd: tuple[F64, F64, Index, F64],
) -> None:
    demand, weight, node, capacity = crowd
    granted = contention.water_fill(demand, weight, node, capacity)
    assert (granted <= demand + EPSILON).all()
    assert (granted >= 0).all()
    assert (np.bincount(node, granted, minlength=capacity.size) <= capacity + EPSILON * 1e3).all()


@given(crowds())
def test_nothing_is_left_over_while_somebody_wants_more(crowd: tuple[F64, F64, Index, F64]) -> None:
    demand, weight, node, capacity = crowd
    granted = np.bincount(
        node, contention.water_fill(demand, weight, node, capacity), minlength=capacity.size
    )
    wanted = np.bincount(node, demand, minlength=capacity.size)
    assert granted == pytest.approx(np.minimum(wanted, capacity), rel=1e-9, abs=1e-3)


@given(crowds())
def test_who_gets_less_than_wanted_has_no_smaller_share_than_others(
    crowd: tuple[F64, F64, Index, F64],
) -> None:
    demand, weight, node, capacity = crowd
    granted = contention.water_fill(demand, weight, node, capacity)
    level = granted / weight
    for short in np.flatnonzero(granted < demand - 1e-3):
        neighbours = node == node[short]
        assert level[short] >= level[neighbours].max() - 1e-3


@given(crowds())
def test_one_node_shares_as_it_does_among_many(crowd: tuple[F64, F64, Index, F64]) -> None:
    demand, weight, node, capacity = crowd
    together = contention.water_fill(demand, weight, node, capacity)
    for row in range(capacity.size):
        mine = node == row
        zeros = np.zeros(mine.sum(), dtype=np.int64)
        alone = contention.water_fill(demand[mine], weight[mine], zeros, capacity[row : row + 1])
        assert together[mine] == pytest.approx(alone, rel=1e-6, abs=1e-3)


def share(protection: Protection, *, service: float, batch: float, limit: float = 1e9) -> tuple[float, float]:
    """CPU of one service and one equally large best-effort pod on a node of ten cores."""
    granted = contention.share_cpu(
        demand=np.array([service, batch]),
        weight=np.array([1_000.0, 1_000.0]),
        is_best_effort=np.array([False, True]),
        node=np.array([0, 0]),
        available=np.array([10_000.0]),
        best_effort_limit=np.array([limit]),
        protection=protection,
    )
    return float(granted[0]), float(granted[1])


def test_a_protected_service_gets_what_it_wants_and_batch_the_rest() -> None:
    service, batch = share(Protection.SHARES, service=8_000, batch=10_000)
    assert service == pytest.approx(8_000, rel=0.01)
    assert service + batch == pytest.approx(10_000)


def test_an_unprotected_service_shares_with_batch_equally() -> None:
    assert share(Protection.NONE, service=8_000, batch=10_000) == pytest.approx((5_000, 5_000))


def test_a_suppressed_tier_stops_at_its_limit_though_cpu_is_free() -> None:
    assert share(Protection.SUPPRESS, service=1_000, batch=10_000, limit=5_500) == pytest.approx(
        (1_000, 5_500)
    )


@pytest.mark.parametrize("protection", [Protection.SHARES, Protection.SUPPRESS, Protection.IDLE])
def test_slowdown_goes_through_the_fitted_points(protection: Protection) -> None:
    curve = contention.CURVES[protection]
    loads = np.array(curve.load)
    assert loads.size >= 5
    assert contention.slowdown(loads, np.ones(loads.size), protection) == pytest.approx(curve.slowdown)


@given(st.sampled_from(Protection), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_load_or_more_batch_never_makes_services_faster(
    protection: Protection, load: float, more: float, occupied: float
) -> None:
    loads = np.array([load, min(load + more, 1)])
    by_load = contention.slowdown(loads, np.full(2, occupied), protection)
    by_batch = contention.slowdown(
        np.full(2, load), np.array([occupied, min(occupied + more, 1)]), protection
    )
    assert by_load[1] >= by_load[0] >= 1
    assert by_batch[1] >= by_batch[0]


@pytest.mark.parametrize(("load", "measured"), [(0.2, 1.0), (0.4, 4.7), (0.6, 870.0)])
def test_sharing_by_weight_comes_near_what_was_measured_without_protection(
    load: float, measured: float
) -> None:
    # Two cores, a service and as heavy a batch pod that takes all it can get.
    demand = np.array([2_000 * load])
    service, batch = contention.water_fill(
        np.r_[demand, 2_000.0], np.ones(2), np.zeros(2, dtype=np.int64), np.array([2_000.0])
    )
    reachable = np.array([max(2_000 - batch, 1_000.0)])
    beside = contention.latency(demand, reachable, np.ones(1)).p99[0]
    alone = contention.latency(demand, np.array([2_000.0]), np.ones(1)).p99[0]
    assert service <= reachable[0]
    # A queue in a steady state says less of saturation (0.6) than an open-loop test does.
    assert measured / 20 <= beside / alone <= measured * 2


def test_without_batch_nothing_slows_a_service_down() -> None:
    for protection in Protection:
        assert contention.slowdown(np.array([0.9]), np.array([0.0]), protection)[0] == 1


@given(demand=st.floats(1, 20_000), less=st.floats(1, 20_000))
def test_a_service_that_can_reach_less_cpu_is_never_faster(demand: float, less: float) -> None:
    times = contention.latency(np.full(2, demand), np.array([20_000.0, 20_000.0 - less + 1]), np.ones(2))
    assert times.p99[1] >= times.p99[0] - EPSILON
    assert times.p50[1] >= times.p50[0] - EPSILON
    assert (times.p99 > times.p50).all()


def test_an_idle_service_answers_in_its_service_time() -> None:
    times = contention.latency(np.array([10.0]), np.array([8_000.0]), np.ones(1))
    assert times.p50[0] == pytest.approx(np.log(2), rel=0.01)
    assert times.p99[0] == pytest.approx(np.log(100), rel=0.01)


def one_server(busy: float, percentile: float) -> float:
    """A queue before one server, in units of its service time: the percentile of serving and that of waiting."""
    missed = 1 - percentile / 100
    return -math.log(missed) + max(math.log(busy / missed), 0) / (1 - busy) if busy else -math.log(missed)


FOUR_CORES_WAIT = 0.8 ** (math.sqrt(10) - 1)
"""Share of requests that wait where four cores are 80 % busy."""


@pytest.mark.parametrize(
    ("demand", "reachable", "slowdown", "expected"),
    [
        pytest.param(500, 1_000, 1, [one_server(0.5, p) for p in (50, 99, 99.9)], id="one core, half busy"),
        pytest.param(750, 1_000, 1, [one_server(0.75, p) for p in (50, 99, 99.9)], id="and more"),
        pytest.param(
            250, 500, 1, [2 * one_server(0.5, p) for p in (50, 99, 99.9)], id="half a core is slower"
        ),
        pytest.param(
            0,
            1_000,
            16,
            [math.log(2) * 2, math.log(100) * 16, math.log(1000) * 16],
            id="a quarter of growth at p50",
        ),
        pytest.param(
            0,
            1_000,
            9_999,
            [math.log(2) * 1000**0.25, math.log(100) * 1000, math.log(1000) * 1000],
            id="growth has a limit",
        ),
        pytest.param(9_000, 1_000, 1, [one_server(0.99, p) for p in (50, 99, 99.9)], id="99 % busy at most"),
        pytest.param(
            3_200,
            4_000,
            1,
            [
                math.log(2) + math.log(max(FOUR_CORES_WAIT / 0.5, 1)) / 0.8,
                math.log(100) + math.log(FOUR_CORES_WAIT / 0.01) / 0.8,
                math.log(1000) + math.log(FOUR_CORES_WAIT / 0.001) / 0.8,
            ],
            id="four cores wait for each other less",
        ),
        pytest.param(1, 0, 1, [1000 * one_server(0.99, p) for p in (50, 99, 99.9)], id="no core at all"),
    ],
)
def test_a_queue_takes_as_long_as_the_formula_says(
    demand: float, reachable: float, slowdown: float, expected: list[float]
) -> None:
    times = contention.latency(*(np.array([float(each)]) for each in (demand, reachable, slowdown)))
    assert [times.p50[0], times.p99[0], times.p999[0]] == pytest.approx(expected)


def test_slowdown_between_and_beyond_the_measured_points(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = contention.Curve((0.2, 0.4, 0.6), (1.0, 1.4, 2.5))
    monkeypatch.setitem(contention.CURVES, Protection.SHARES, curve)

    def factor(load: float, occupied: float) -> float:
        return float(contention.slowdown(np.array([load]), np.array([occupied]), Protection.SHARES)[0])

    assert factor(0.7, 1.0) == pytest.approx(2.5**1.5 * 1.4**-0.5), "beyond the last point goes its slope"
    assert factor(0.3, 1.0) == pytest.approx(1.4**0.5)
    assert factor(0.6, 0.01) == pytest.approx(2.5), "a tier disturbs by being there"
    assert factor(0.6, 0.005) == pytest.approx(2.5**0.5), "and less while there is little of it"
    assert factor(9.0, 1.0) == 1000, "up to a limit"


@pytest.mark.parametrize(
    ("protection", "tier"),
    [(Protection.SHARES, 2 / 1026), (Protection.SUPPRESS, 2 / 1026), (Protection.IDLE, 0.003 / 1024.003)],
)
def test_the_tier_weighs_next_to_nothing_beside_a_service(protection: Protection, tier: float) -> None:
    granted = contention.share_cpu(
        *(np.array([9e3, 9e3]), np.array([1024.0, 1024.0]), np.array([False, True]), np.array([0, 0])),
        *(np.array([4_000.0]), np.array([np.inf]), protection),
    )
    assert granted.tolist() == pytest.approx([4_000 * (1 - tier), 4_000 * tier])
