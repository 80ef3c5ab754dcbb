"""What is learned of the pods that come, and which models of cards it says will be short."""

import numpy as np
import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.plugins.fragmentation import target
from koordinator.scheduler.plugins.fragmentation.demand import PodDemand, Shape, shape_of
from koordinator.scheduler.plugins.fragmentation.target import LEARNED_FIRST, Workload
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import pod

HALF = PodDemand(Shape(1_000, 1 << 30, 1, 50))
WHOLE = PodDemand(Shape(1_000, 1 << 30, 1, 100))


def test_a_pod_on_a_lent_card_asks_for_no_card() -> None:
    registry = ResourceRegistry()
    lent = {"cpu": "1", "koordinator.sh/batch-gpu-core": "50", "koordinator.sh/batch-gpu-memory": "4Gi"}
    body = from_builtins(pod("job", requests=lent), Pod)

    shape = shape_of(PodInfo.of(body, registry), registry.names, lambda: 1 << 34)

    assert shape == Shape(1_000, 0, 0, 0)


def test_a_pod_of_a_half_life_ago_counts_half() -> None:
    workload = Workload(3_600)
    for demand, at_s in ((HALF, 0.0), (WHOLE, 3_600.0)):
        workload.came(demand, at_s)

    assert workload.shares == {HALF: pytest.approx(1 / 3), WHOLE: pytest.approx(2 / 3)}


def test_counts_stay_finite_over_years() -> None:
    workload = Workload(3_600)
    for day in range(800):
        workload.came(HALF if day < 799 else WHOLE, day * 86_400.0)

    assert workload.shares[WHOLE] == pytest.approx(1, abs=1e-6)


def test_after_a_restart_the_pods_that_exist_say_the_same_in_any_order() -> None:
    came = [(HALF if number % 3 else WHOLE, 60.0 * number) for number in range(50)]
    before, after = Workload(3_600), Workload(3_600)
    for demand, at_s in came:
        before.came(demand, at_s)
    for demand, at_s in reversed(came):
        after.came(demand, at_s)

    assert after.shares == {demand: pytest.approx(share) for demand, share in before.shares.items()}


def test_the_target_is_made_anew_when_as_much_came_as_was_known() -> None:
    workload = Workload(1e9)
    versions = []
    for number in range(8 * LEARNED_FIRST):
        workload.came(HALF, float(number))
        versions.append(workload.version)

    assert [versions.index(version) + 1 for version in (1, 2, 3, 4)] == [16, 32, 64, 128]
    assert versions[-1] == 4


def test_pods_without_cards_teach_nothing() -> None:
    workload = Workload(3_600)
    workload.came(PodDemand(Shape(1_000, 1 << 30, 0, 0)), 0.0)

    assert workload.shares == {} and workload.version == 0


def test_cards_that_others_can_only_have_there_have_a_price() -> None:
    prices = target.prices({None: 60.0, ("T4",): 40.0}, ["A10", "T4"], np.array([800.0, 200.0]))

    # T4 is asked for as 40 / 200, A10 as 60 / 800: those who may choose stay away from T4.
    assert prices[0] == pytest.approx(0, abs=1e-6)
    assert prices[1] == pytest.approx(target.SCARCITY_WEIGHT * np.log((40 / 200) / (60 / 800)), rel=0.01)


def test_no_model_has_a_price_where_loads_can_be_made_equal() -> None:
    prices = target.prices({None: 90.0, ("T4",): 10.0}, ["A10", "T4"], np.array([800.0, 200.0]))

    assert np.abs(prices).max() < 0.01
