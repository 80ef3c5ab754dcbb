"""Refusals for want of resources name each of them, also where a code has no bit for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.status import Code
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koordinator.scheduler.plugins.scorers import NodeResourcesBalancedAllocation
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.small_cluster import SmallCluster
from tests.scheduler.world import node, pod


@pytest.mark.parametrize("count", [2, 14, 15, 60, 61])
def test_each_resource_that_is_short_is_named_however_many_are_asked_for(count: int) -> None:
    names = [f"example.com/r{number:02}" for number in range(count)]
    engine = Engine(config.SchedulerConfig(), FixedClock(), plugins=installed_plugins())
    short_of = {"a": names[-1:], "b": names[:1], "c": [names[0], names[-1]], "d": []}
    for name, short in short_of.items():
        extra = {each: "0" if each in short else "1" for each in names}
        engine.table.set_node(from_builtins(node(name, extra=extra), Node))
    body = pod("p", requests=dict.fromkeys(names, "1"))
    info = PodInfo.of(from_builtins(body, Pod), engine.table.registry)
    [profile] = engine.profiles.values()

    evaluation = Evaluation(profile, engine.table, info)
    if count > 60:
        assert evaluation.status.code is Code.ERROR
        assert evaluation.status.message == "pod requests 61 different resources"
        return
    for name, short in short_of.items():
        row = engine.table.row_of(name)
        assert row is not None
        assert evaluation.status_of(row).reasons == tuple(f"Insufficient {each}" for each in short)


@pytest.mark.parametrize(("more_bytes", "score"), [(0, (75 + 99) // 2), (1, (75 + 98) // 2)])
def test_amounts_beyond_floating_point_are_scored_to_the_last_byte(more_bytes: int, score: int) -> None:
    cluster = SmallCluster.shipped()
    cluster.node(node("large", cpu="8", memory="25Pi"))
    cluster.node(node("small", cpu="8", memory="16Gi"))
    fit = cluster.plugin(NodeResourcesFit)
    state = fit.prepare(cluster.pod(pod("p", cpu="2", memory=str(2**48 + more_bytes))))

    assert fit.score(state, cluster.table.rows[:1]).tolist() == [score]


@pytest.mark.parametrize("kind", ["LeastAllocated", "MostAllocated"])
def test_a_pod_that_asks_for_nothing_of_what_counts_scores_0_everywhere(kind: str) -> None:
    resources = [{"name": "example.com/fpga", "weight": 1}, {"name": "kubernetes.io/batch-cpu", "weight": 2}]
    cluster = SmallCluster.shipped(
        NodeResourcesFit={"scoringStrategy": {"type": kind, "resources": resources}}
    )
    cluster.node(node("a", extra={"example.com/fpga": "4"}))
    cluster.node(node("b"))
    fit = cluster.plugin(NodeResourcesFit)
    state = fit.prepare(cluster.pod(pod("p")))

    assert fit.score(state, cluster.table.rows).tolist() == [0, 0]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["cpu", "memory", "pods"], id="the number of pods is nothing that pods ask for"),
        pytest.param([], id="an empty list means the default"),
    ],
)
def test_nodes_are_scored_by_cpu_and_memory(names: list[str]) -> None:
    def scores(listed: list[str]) -> list[list[int]]:
        resources = [{"name": name, "weight": 1} for name in listed]
        cluster = SmallCluster.shipped(
            NodeResourcesFit={"scoringStrategy": {"type": "LeastAllocated", "resources": resources}},
            NodeResourcesBalancedAllocation={"resources": resources},
        )
        cluster.node(node("a"))
        wanted = cluster.pod(pod("p", cpu="1", memory="8Gi"))
        plugins = (cluster.plugin(NodeResourcesFit), cluster.plugin(NodeResourcesBalancedAllocation))
        return [each.score(each.prepare(wanted), cluster.table.rows).tolist() for each in plugins]

    assert scores(names) == scores(["cpu", "memory"]) != [[0], [0]]


CORES = st.integers(0, 3)


@given(
    held=st.lists(CORES, max_size=2), sleeping=st.lists(CORES, min_size=1, max_size=4), left=st.sets(CORES)
)
@settings(max_examples=60, deadline=None)
def test_a_node_with_room_wakes_just_the_pods_that_fit_and_none_when_it_has_no_place_left(
    held: list[int], sleeping: list[int], left: set[int]
) -> None:
    cluster = SmallCluster.shipped()
    cluster.node(node("a", cpu="4", pods=2))
    for number, cores in enumerate(held):
        body = pod(f"held-{number}", cpu=str(cores), nodeName="a")
        body["metadata"]["uid"] = body["metadata"]["name"]
        cluster.pod(body)
    fit = cluster.plugin(NodeResourcesFit)
    index, row = fit.wake_index(), cluster.table.row_of("a")
    asleep = [cluster.pod(pod(f"p{number}", cpu=str(cores))) for number, cores in enumerate(sleeping)]
    for slot, each in enumerate(asleep):
        index.put(slot, each)
    for slot in left & set(range(len(asleep))):
        index.clear(slot)

    event = QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, None, None)

    wanted = [slot not in left and fit.wakes(event, each) for slot, each in enumerate(asleep)]
    assert index.may_wake(event, len(asleep)).tolist() == wanted
