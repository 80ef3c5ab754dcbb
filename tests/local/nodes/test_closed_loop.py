"""Hollow nodes whose agents follow what services feel: batch has all that harms nobody, services what is theirs."""

import math

import numpy as np
import pytest

from koordinator.koordlet.interference.control import ControlConfig, Resource
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.service_latency import service_latency, time_above
from koordinator.local.nodes.usage import Trace
from koordinator.simulate.scenario import CLOSED_LOOP_STRATEGY
from tests.local.nodes.test_fleet import add, fleet

CONFIG = ControlConfig()
TARGET_MS = 10 * math.log(100) * 1.25


def pressed(
    *ratios: float, nodes: int = 1, is_closed: bool = True, batch_milli: float = 10_000
) -> HollowFleet:
    """Nodes with a service that uses so much of them, step by step of a trace, and batch that wants nearly all."""
    trace = Trace(("m",) * nodes, np.array([ratios] * nodes))
    loop = CONFIG if is_closed else None
    f = fleet(nodes=nodes, trace=trace, closed_loop=loop, strategy=CLOSED_LOOP_STRATEGY)
    for row in range(nodes):
        add(f, row, cpu="6", cpuMilli=6_000, followsTrace=True, serviceTimeMs=10, p99TargetMs=TARGET_MS)
        add(f, row, batch=True, cpu="9", cpuMilli=batch_milli, name="batch")
    return f


def growth(f: HollowFleet) -> float:
    latency = service_latency(f)
    return float(latency.p99_ms[0] / latency.p99_alone_ms[0])


def after(f: HollowFleet, steps: range) -> HollowFleet:
    for step in steps:
        f.step(step * 30.0, 30.0)
    return f


def test_batch_has_nearly_all_of_a_node_whose_services_do_not_feel_it() -> None:
    f = after(pressed(0.2), range(10))

    assert f.used[0] == pytest.approx(CONFIG.threshold_max_percent / 100 * f.capacity[0], rel=0.06)
    assert growth(f) == pytest.approx(1.0)


def test_services_that_feel_batch_are_protected_better_than_by_the_fixed_threshold() -> None:
    closed, fixed = after(pressed(0.5), range(20)), after(pressed(0.5, is_closed=False), range(20))

    assert growth(closed) < 1.15 < 1.3 < growth(fixed)


def test_until_the_loop_has_acted_a_jump_costs_services_something_and_then_hardly_anything() -> None:
    f = after(pressed(0.1, 0.6), range(10))

    f.step(300.0, 30.0)
    assert f.closed_loop is not None
    course = f.closed_loop.course[:, 0]
    assert course[0] > 1.2
    assert course[-1] < 1.1


def test_what_is_left_of_a_full_node_is_too_little_to_disturb() -> None:
    courses = {}
    for share in (0.98, 0.996, 1.0):
        f = pressed(share)
        f.step(0.0, 30.0)
        assert f.closed_loop is not None
        courses[share] = f.closed_loop.course[0, 0]

    assert courses[0.98] > 1.2
    assert 1 < courses[1.0] < courses[0.996] < courses[0.98]


def test_services_get_the_same_cpu_with_the_loop_and_without() -> None:
    closed, fixed = pressed(0.1, 0.9, 0.4), pressed(0.1, 0.9, 0.4, is_closed=False)
    for step in range(30):
        closed.step(step * 30.0, 30.0)
        fixed.step(step * 30.0, 30.0)
        assert closed.granted[closed.is_service] == pytest.approx(fixed.granted[fixed.is_service], rel=0.02)


def test_under_a_constant_load_batch_comes_to_rest() -> None:
    f = after(pressed(0.55), range(40))
    assert f.closed_loop is not None

    found = set()
    for step in range(40, 60):
        f.step(step * 30.0, 30.0)
        found.add(float(f.closed_loop.state.ceiling[0, Resource.CPU]))

    assert len(found) == 1


def test_a_node_of_a_fleet_goes_the_way_of_a_node_alone() -> None:
    ratios = (0.1, 0.7, 0.3)
    alone, fleet_of_three = after(pressed(*ratios), range(30)), after(pressed(*ratios, nodes=3), range(30))

    assert fleet_of_three.used == pytest.approx(np.repeat(alone.used, 3))


def test_seconds_in_which_services_are_slow_are_counted_within_a_step() -> None:
    f = after(pressed(0.1, 0.6), range(11))

    latency = service_latency(f)
    some = time_above(f, latency, 1.2, 30.0).seconds
    none = time_above(f, latency, 2.0, 30.0).seconds

    assert 0 < some[0] < 30
    assert none[0] == 0
