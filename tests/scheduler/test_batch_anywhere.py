"""Plans that leave nodes open: each pod goes where the engine finds best, all of them or none."""

from collections.abc import Hashable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.capabilities import FindOneNodePlugin, FoundNode, PlacementPlan, Quorum
from koordinator.scheduler.plugin.framework import PreFilterPlugin, PreFilterResult
from koordinator.scheduler.plugin.status import SKIP, SUCCESS
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.extending import Desk
from tests.scheduler.world import Json, pod

ON = "EnableInlineBatchSchedule=true"


class Planner(PreFilterPlugin[bool], FindOneNodePlugin[bool]):
    """Makes the plan of a test."""

    name = "Planner"
    plan: ClassVar[PlacementPlan | None] = None

    def class_key(self, pod: PodInfo) -> Hashable:
        return ()

    def prepare(self, pod: PodInfo) -> bool:
        return True

    def pre_filter(self, state: bool) -> PreFilterResult:
        return PreFilterResult(SKIP)

    def find_one_node(self, state: bool, pod: PodInfo, result: PreFilterResult) -> FoundNode:
        return FoundNode(SKIP) if self.plan is None else FoundNode(SUCCESS, plan=self.plan)


def desk_of(*cpus: str, **options: Any) -> Desk:
    """A desk with a node of each of these sizes."""
    desk = Desk(Planner, gates=ON, **options)
    for number, cpu in enumerate(cpus):
        desk.nodes(f"node-{number}", cpu=cpu)
    Planner.plan = None
    return desk


def job(*cpus: str) -> list[Json]:
    return [pod(f"p{number}", cpu=cpu) for number, cpu in enumerate(cpus)]


def run(desk: Desk, pods: list[Json], first: int = 0, **plan: Any) -> Placed | Unplaced:
    """Plan all pods in the cycle of one of them."""
    infos = tuple(desk.info(each) for each in pods)
    Planner.plan = PlacementPlan(infos, **plan)
    return desk.run(pods[first])


def where(found: Placed | Unplaced) -> dict[str, str]:
    own = {found.pod.uid: found.node_name} if isinstance(found, Placed) else {}
    return own | {each.pod.uid: each.node_name for each in found.together}


def one_by_one(desk: Desk, pods: list[Json]) -> dict[str, str] | None:
    """Where the pods go without a plan; None when one of them finds no node."""
    Planner.plan = None
    found = {}
    for each in pods:
        placed = desk.run(each)
        if not isinstance(placed, Placed):
            return None
        found[placed.pod.uid] = placed.node_name
    return found


def requested(desk: Desk) -> list[list[int]]:
    return desk.table.requested[:, desk.table.rows].tolist()  # type: ignore[no-any-return]


def test_pods_go_where_they_would_go_one_after_the_other() -> None:
    pods = job("1", "2", "1", "3", "1")
    assert where(run(desk_of("4", "6", "2"), pods)) == one_by_one(desk_of("4", "6", "2"), pods)


def test_equal_pods_share_one_evaluation() -> None:
    desk = desk_of(*["16"] * 20)
    found = run(desk, job(*["1"] * 300))
    assert len(where(found)) == 300
    assert desk.engine.cache.miss_count == 1


def test_when_one_finds_no_node_none_is_placed_and_the_message_says_how_far_it_got() -> None:
    desk = desk_of("4", "4")
    before = requested(desk)
    found = run(desk, job("3", "3", "2", "1"))

    assert isinstance(found, Unplaced)
    assert found.status.message.startswith(
        "0/2 nodes are available: job failed due to job batch schedule failed, assumed 2 pods, failed 2 pods, "
        "first failed pod default/p2 failed due to 0/2 nodes are available: 2 Insufficient cpu."
    )
    assert (found.together, requested(desk), desk.table.assumed_count) == ((), before, 0)


def test_what_helps_the_pod_that_found_no_node_wakes_the_one_in_whose_cycle_it_was() -> None:
    found = run(desk_of("4"), job("1", "8"))
    assert isinstance(found, Unplaced)
    assert found.rejected_by == {"Planner", "NodeResourcesFit"}
    assert found.about is not None
    assert found.about.pod.uid == "p1"


def test_named_and_open_nodes_go_together() -> None:
    found = run(desk_of("4", "4"), job("3", "3"), nodes={"p1": "node-0"})
    assert where(found) == {"p0": "node-1", "p1": "node-0"}


@pytest.mark.parametrize(
    ("minimum", "placed"),
    [
        pytest.param(2, ["p0", "p1", "p3"], id="all that fit are placed"),
        pytest.param(4, [], id="none is placed when they are too few"),
    ],
)
def test_a_quorum_of_pods_is_enough(minimum: int, placed: list[str]) -> None:
    pods = job("2", "1", "8", "1", "2")
    quorum = Quorum(frozenset(f"p{number}" for number in range(5)), minimum)
    desk = desk_of("4")
    found = run(desk, pods, quorums=(quorum,))
    assert sorted(where(found)) == placed
    assert desk.table.assumed_count == len(placed)


def test_each_quorum_counts_its_own_pods() -> None:
    pods = job("1", "1", "9", "9")
    quorums = (Quorum(frozenset(("p0", "p2")), 1), Quorum(frozenset(("p1", "p3")), 2))
    found = run(desk_of("4"), pods, quorums=quorums)
    assert where(found) == {}
    assert "first failed pod default/p2 failed" in found.status.message  # type: ignore[union-attr]


def test_the_others_are_placed_without_the_pod_in_whose_cycle_it_was() -> None:
    quorum = Quorum(frozenset(("p0", "p1", "p2")), 2)
    found = run(desk_of("4"), job("9", "1", "1"), quorums=(quorum,))
    assert isinstance(found, Unplaced)
    assert where(found) == {"p1": "node-0", "p2": "node-0"}
    assert found.rejected_by == {"NodeResourcesFit"}
    assert found.status.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_where_a_plan_falls_back_the_pod_is_tried_as_if_there_was_none() -> None:
    desk = desk_of("4")
    found = run(desk, job("2", "3"), falls_back=True)
    assert where(found) == {"p0": "node-0"}
    assert desk.table.assumed_count == 1


def test_nominated_nodes_are_kept_and_those_of_pods_left_out_stand() -> None:
    desk = desk_of("4", "4")
    pods = job("1", "9", "1")
    for number, node_name in ((0, "node-1"), (1, "node-0")):
        desk.engine.nominations.set(desk.info(pods[number]), node_name)
    found = run(desk, pods, first=2, quorums=(Quorum(frozenset(("p0", "p1", "p2")), 2),))
    assert sorted(where(found)) == ["p0", "p2"]
    assert {each.nominated_before for each in found.together} == {"node-1"}
    assert desk.engine.nominations.node_of("p0") == ""
    assert desk.engine.nominations.node_of("p1") == "node-0"


SIZES = st.integers(1, 6).map(str)


@settings(max_examples=50, deadline=None)
@given(
    nodes=st.lists(SIZES, min_size=1, max_size=6),
    pods=st.lists(SIZES, min_size=2, max_size=12),
    classes_max=st.sampled_from((0, 64)),
)
def test_a_plan_places_all_as_one_by_one_or_leaves_no_trace(
    nodes: list[str], pods: list[str], classes_max: int
) -> None:
    desk, peer = desk_of(*nodes, classes_max=classes_max), desk_of(*nodes)
    before, wanted = requested(desk), one_by_one(peer, job(*pods))
    found = run(desk, job(*pods))
    if wanted is None:
        assert (where(found), requested(desk), desk.table.assumed_count) == ({}, before, 0)
        # Nor in what is remembered of the class: the next pods find what they would have found.
        rest = job("1", "1")
        assert one_by_one(desk, rest) == one_by_one(desk_of(*nodes), rest)
    else:
        assert where(found) == wanted
        assert requested(desk) == requested(peer)
