"""After hours of coming and going the scheduler knows exactly what is there."""

import random

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local.registry import in_memory
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.pod_info import PodInfo
from tests.churn import objects
from tests.churn import scenario as churn
from tests.churn.table_differences import differences


@pytest.mark.parametrize("seed", [0, 1])
def test_the_table_equals_one_rebuilt_from_the_objects(seed: int) -> None:
    result = churn.run(churn.ChurnScenario(nodes=40, pods=1_200, hours=1.0, seed=seed))
    assert result.differences == []
    assert result.created == 1_200
    assert result.bound + result.given_up > 1_000
    assert min(result.finished, result.given_up, result.node_actions, result.left_running) > 0


async def test_a_difference_is_found_and_named() -> None:
    clock = FixedClock(1_700_000_000.0)
    cluster = MemoryCluster(in_memory(clock, checks=False))
    rng = random.Random(0)
    for number in range(3):
        await cluster.create(Node, objects.node(number, rng))
    live, fresh = Scheduler(cluster), Scheduler(cluster)
    probes = objects.probes(rng)
    async with live.following(), fresh.following():
        assert differences(live, fresh, probes) == []
        ghost = from_builtins(objects.of_template(probes[0], "ghost"), Pod)
        live.table.assign(PodInfo.of(ghost, live.table.registry), "node-1")
        found = differences(live, fresh, probes)
    assert any(line.startswith("node-1: requested is {") for line in found)
    assert any(line.startswith("node-1: free is ") for line in found)
    assert any(line.startswith("node-1: pods is ['probe-0']") for line in found)
    assert any(" on node-1: " in line for line in found)


def test_the_slope_of_memory_is_that_of_the_second_half() -> None:
    def growth(*memory: float) -> float:
        return churn.ChurnResult(0, 0, 0, 0, 0, 0, [], list(memory)).memory_growth()

    assert growth(100, 300, 400, 400, 400) == 0
    assert growth(0, 0, 10, 12, 14) == pytest.approx(2)
    assert growth(5) == 0
