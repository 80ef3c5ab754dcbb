"""What nodes are expected to use: a node that stays hot counts, a moment does not, and the tide of the pool does."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.descheduler.config.low_node_load import NodePool
from koordinator.descheduler.measurements import NOTHING
from koordinator.descheduler.plugins.low_node_load import cycle, usage
from koordinator.descheduler.plugins.low_node_load.cycle import UsageForecast
from koordinator.descheduler.plugins.low_node_load.usage import Classified, NodeUtilization

CORES, LIMIT = 100, 65
FILLED = usage.fill(
    NodePool(low_thresholds={"cpu": 45, "memory": 99}, high_thresholds={"cpu": LIMIT, "memory": 99})
)
shares = st.floats(0.0, 1.0)


def pool(used: Sequence[float]) -> list[Classified]:
    """One pool whose nodes use these parts of their CPU."""
    loads = []
    for row, part in enumerate(used):
        amounts = {"cpu": str(CORES), "memory": "1Gi"}
        node = from_builtins({"metadata": {"name": f"n{row}"}, "status": {"allocatable": amounts}}, Node)
        now = {"cpu": int(part * CORES * 10**9), "memory": 0}
        loads.append(NodeUtilization(node, (), (), usage.capacity_of(node), now, {"cpu": 0}, NOTHING))
    return [usage.classify(loads, FILLED)]


def names(found: Sequence[Classified]) -> list[str]:
    return [load.name for each in found for load in each.loads]


def lived(
    courses: Sequence[Sequence[float]], minutes: float = 1.0
) -> tuple[UsageForecast, list[Classified], float]:
    """A forecast after these usages, one per step; when the last one was seen."""
    seen, found, now_s = UsageForecast(), pool(courses[0]), 0.0
    for step, used in enumerate(courses):
        now_s = step * minutes * 60
        found = pool(used)
        seen.see(found, [1], now_s)
    return seen, found, now_s


@given(used=st.lists(shares, min_size=2, max_size=5), steps=st.integers(1, 20))
def test_what_never_changes_is_expected_to_stay(used: list[float], steps: int) -> None:
    seen, found, _ = lived([used] * steps)
    hot = {f"n{row}" for row, part in enumerate(used) if int(part * CORES * 1000) > LIMIT * 1000}
    near = {f"n{row}" for row, part in enumerate(used) if abs(part * CORES - LIMIT) < 0.01}
    assert seen.sources(found, names(found)) - near == hot - near
    [after] = seen.as_targets(found, set())
    assert np.abs(after.usage - found[0].usage).max() <= 1


@given(courses=st.lists(st.tuples(shares, shares, shares), min_size=1, max_size=12))
def test_targets_use_no_less_than_they_do_and_none_is_hot_by_it(courses: list[tuple[float, ...]]) -> None:
    seen, found, _ = lived(courses, 10.0)
    [after] = seen.as_targets(found, {"n0"})
    limit = found[0].limits.high
    assert (after.usage >= found[0].usage).all()
    assert ((after.usage > limit) == (found[0].usage > limit)).all()
    assert (after.usage[0] == found[0].usage[0]).all(), "of a source counts what it uses"


@given(low=shares, high=st.tuples(shares, shares), minutes=st.integers(0, 60))
def test_a_hotter_node_counts_no_later(low: float, high: tuple[float, float], minutes: int) -> None:
    before = [min(low, LIMIT / CORES)] * 2
    seen, found, _ = lived([before] * 10 + [sorted(high)] * minutes)
    if "n0" in seen.sources(found, names(found)):
        assert "n1" in seen.sources(found, names(found))


@pytest.mark.parametrize(
    ("hot", "cycles", "minutes"),
    [
        pytest.param(0.70, 1, 2, id="as far above as it was below"),
        pytest.param(0.70, 5, 6, id="the same, where nodes must be hot for five cycles"),
        pytest.param(0.95, 1, 0, id="far above"),
    ],
)
def test_a_node_counts_the_later_the_less_it_is_hot(hot: float, cycles: int, minutes: int) -> None:
    others = 1.2 - hot  # the pool neither grows nor ebbs
    seen, found, now_s = lived([[0.6, 0.6]] * 100)
    waited = 0
    while True:
        now_s += 60
        found = pool([hot, others])
        seen.see(found, [cycles], now_s)
        if seen.sources(found, ["n0"]):
            break
        waited += 1
    assert waited == minutes


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(0.84, 0.68, False, id="the pool ebbs"),
        pytest.param(0.52, 0.66, True, id="the pool grows"),
    ],
)
def test_a_node_comes_and_goes_with_the_tide_of_its_pool(before: float, after: float, expected: bool) -> None:
    steps = [before + (after - before) * step / 120 for step in range(121)]
    seen, found, _ = lived([[used, used, used] for used in steps])
    assert bool(seen.sources(found, ["n0"])) is expected


def test_a_chance_low_makes_no_good_target() -> None:
    seen, found, _ = lived([[0.6, 0.5]] * 120 + [[0.3, 0.5]])
    [after] = seen.as_targets(found, set())
    assert after.usage[0, 0] > 0.55 * CORES * 1000


def test_nodes_come_and_go_and_so_do_pools() -> None:
    seen, _, now_s = lived([[]] + [[0.7, 0.5]] * 10)
    more = pool([0.5, 0.5, 0.9])
    seen.see(more, [1], now_s + 60)
    assert "n2" in seen.sources(more, ["n2"]), "one that was not known begins as it is"
    fewer = pool([0.9])
    seen.see([*fewer, *fewer], [1, 1], now_s - 600)  # the clock was set back
    assert seen.sources([*fewer, *fewer], ["n0"]) == {"n0"}


def test_the_level_of_targets_is_the_slower_one() -> None:
    assert cycle.SOURCE_S_MAX < cycle.TARGET_S <= cycle.TIDE_LONG_S
