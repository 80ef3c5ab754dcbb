"""A planner places all pods of a job in the cycle of the first one, or none of them."""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import pytest

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cluster import errors
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.capabilities import FindOneNodePlugin, FoundNode, PlacementPlan
from koordinator.scheduler.plugin.framework import (
    PermitPlugin,
    PermitResult,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReservePlugin,
)
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.extending import Desk, with_plugins
from tests.scheduler.world import World, play, pod

ON = "EnableInlineBatchSchedule=true"


class JobPlanner(
    PreEnqueuePlugin[str | None],
    PreFilterPlugin[str | None],
    FindOneNodePlugin[str | None],
    ReservePlugin[str | None],
    PermitPlugin[str | None],
):
    """Plans the pods that a test lists; the last to be permitted lets all go."""

    name = "JobPlanner"
    pods: ClassVar[dict[str, PodInfo]] = {}
    nodes: ClassVar[dict[str, str]] = {}
    held_back: ClassVar[frozenset[str]] = frozenset()
    gated: ClassVar[frozenset[str]] = frozenset()
    log: ClassVar[list[str]] = []

    def pre_enqueue(self, pod: PodInfo) -> Status:
        return unresolvable("comes with p0") if pod.pod.metadata.name in self.gated else SUCCESS

    def class_key(self, pod: PodInfo) -> Hashable:
        return self.prepare(pod)

    def prepare(self, pod: PodInfo) -> str | None:
        return pod.pod.metadata.labels.get("job")

    def pre_filter(self, state: str | None) -> PreFilterResult:
        return PreFilterResult()

    def find_one_node(self, state: str | None, pod: PodInfo, result: PreFilterResult) -> FoundNode:
        self.log.append(f"plan {pod.pod.metadata.name}")
        members = tuple(self.pods.values()) or (pod,)
        nodes = {each.uid: self.nodes[each.pod.metadata.name] for each in members}
        return FoundNode(SUCCESS, plan=PlacementPlan(members, nodes))

    def reserve(self, state: str | None, pod: PodInfo, row: int) -> Status:
        self.log.append(f"reserve {pod.pod.metadata.name}")
        return unschedulable("no") if pod.pod.metadata.name == "unlucky" else SUCCESS

    def unreserve(self, state: str | None, pod: PodInfo, node_name: str) -> None:
        self.log.append(f"unreserve {pod.pod.metadata.name}")

    def permit(self, state: str | None, pod: PodInfo, node_name: str) -> PermitResult:
        if pod.pod.metadata.name in self.held_back:
            return PermitResult(timeout_s=60.0)
        return PermitResult(unschedulable("forbidden") if pod.pod.metadata.name == "forbidden" else SUCCESS)


def member(name: str, cpu: str = "1") -> dict[str, Any]:
    found = pod(name, cpu=cpu)
    found["metadata"]["labels"] = {"job": "j"}
    return found


def planned(nodes: dict[str, str], cpu: str = "1", held_back: tuple[str, ...] = (), gates: str = ON) -> Desk:
    """A desk with nodes a and b of four cores, and a plan for pods of these names."""
    desk = Desk(JobPlanner, gates=gates).nodes("a", "b", cpu="4")
    JobPlanner.nodes = nodes
    JobPlanner.held_back = frozenset(held_back)
    JobPlanner.log.clear()
    JobPlanner.pods = {name: desk.info(member(name, cpu)) for name in nodes}
    return desk


def run(desk: Desk, name: str, cpu: str = "1") -> Placed | Unplaced:
    return desk.run(member(name, cpu))


def test_all_pods_of_the_plan_are_placed_in_the_first_ones_cycle() -> None:
    desk = planned({"p0": "a", "p1": "b", "p2": "a"})
    placed = run(desk, "p1")

    assert isinstance(placed, Placed)
    assert (placed.node_name, placed.waits) == ("b", {})
    assert {each.pod.uid: each.node_name for each in placed.together} == {"p0": "a", "p2": "a"}
    assert desk.table.assumed_count == 3
    assert JobPlanner.log == ["plan p1", "reserve p0", "reserve p2", "reserve p1"]


def test_without_the_gate_only_the_pod_itself_is_placed_where_it_is_planned() -> None:
    placed = run(planned({"p0": "a", "p1": "b"}, gates=""), "p1")
    assert isinstance(placed, Placed)
    assert (placed.node_name, placed.together) == ("b", ())


def test_pods_of_the_plan_that_are_placed_already_are_left_alone() -> None:
    desk = planned({"p0": "a", "p1": "b"})
    desk.table.assign(JobPlanner.pods["p0"], "b")
    placed = run(desk, "p1")
    assert isinstance(placed, Placed)
    assert placed.together == ()


def test_one_that_does_not_fit_fails_the_plan_and_nothing_stays_booked() -> None:
    desk = planned({"p0": "a", "p1": "a", "p2": "a", "p3": "b"}, cpu="2")
    desk.table.assign(desk.info(pod("other", cpu="1")), "a")
    found = run(desk, "p3", "2")

    assert isinstance(found, Unplaced)
    assert found.status.message.startswith(
        "0/2 nodes are available: job failed due to job batch schedule failed, assumed 2 pods, failed 2 pods, "
        "first failed pod default/p1@a failed due to Insufficient cpu, assumed pods on node a: default/p0."
    )
    assert found.rejected_by == {"JobPlanner", "NodeResourcesFit"}
    assert found.about is not None
    assert found.about.pod.key == "default/p1"
    assert desk.table.assumed_count == 0
    assert JobPlanner.log[-2:] == ["unreserve p3", "unreserve p0"]


def test_no_preemption_follows_a_plan_that_failed() -> None:
    desk = planned({"p0": "a"}, cpu="4")
    desk.table.assign(desk.info(pod("low", cpu="4")), "a")
    wanted = member("p0", "4")
    wanted["spec"]["priority"] = 10
    JobPlanner.pods = {"p0": desk.info(wanted)}
    found = desk.run(wanted)
    assert isinstance(found, Unplaced)
    assert not found.nominated_node


def test_a_refused_reservation_of_resources_fails_the_plan() -> None:
    desk = planned({"p0": "a", "unlucky": "b"})
    found = run(desk, "p0")
    assert isinstance(found, Unplaced)
    assert "first failed pod default/unlucky@b failed due to no" in found.status.message
    assert desk.table.assumed_count == 0


@pytest.mark.parametrize(
    ("nodes", "held_back", "message"),
    [
        pytest.param(
            {"p0": "a", "p1": "b"},
            ("p0", "p1"),
            "inline batch permit did not complete: 2 pods are still waiting after all pods were permitted",
            id="the last still waits",
        ),
        pytest.param({"forbidden": "a", "p1": "b"}, (), "forbidden", id="one is forbidden"),
    ],
)
def test_a_plan_that_gets_no_permission_is_rolled_back(
    nodes: dict[str, str], held_back: tuple[str, ...], message: str
) -> None:
    desk = planned(nodes, held_back=held_back)
    found = run(desk, "p1")
    assert isinstance(found, Unplaced)
    assert f"0/2 nodes are available: {message}." in found.status.message
    assert desk.table.assumed_count == 0


def test_those_that_wait_for_the_last_one_go_with_it() -> None:
    placed = run(planned({"p0": "a", "p1": "b"}, held_back=("p0",)), "p0")
    assert isinstance(placed, Placed)
    assert placed.waits == placed.together[0].waits == {}


def test_pods_of_one_plan_do_not_keep_room_free_from_each_other() -> None:
    desk = planned({"p0": "a", "p1": "b"}, cpu="3")
    desk.engine.nominations.set(JobPlanner.pods["p1"], "a")
    placed = run(desk, "p0", "3")
    assert isinstance(placed, Placed)
    assert len(desk.engine.nominations) == 0


def test_a_failed_plan_leaves_the_nominations_as_they_were() -> None:
    desk = planned({"p0": "a", "p1": "gone"})
    desk.engine.nominations.set(JobPlanner.pods["p1"], "b")
    found = run(desk, "p0")
    assert isinstance(found, Unplaced)
    assert "node gone is unknown" in found.status.message
    assert desk.engine.metrics.batch_cleanups.values == {("plan failed",): 1}
    assert sum(desk.engine.metrics.batch_duration.of("failure").counts) == 1
    assert desk.engine.nominations.node_of("p1") == "b"


def batch_story(
    check: Callable[[World, dict[str, str]], Any], failures: int = 0, gates: tuple[str, ...] = ()
) -> None:
    """Three members, one of them gated by the planner; all planned at once. `gates` are other gates of that one."""

    async def story(world: World) -> None:
        world.nodes(2)
        world.api.fail_next["bind"] = [errors.Forbidden("no")] * failures
        names = ("p0", "p1", "p2")
        JobPlanner.nodes = {"p0": "node-0", "p1": "node-1", "p2": "node-1"}
        JobPlanner.pods = {}
        JobPlanner.held_back = frozenset()
        JobPlanner.gated = frozenset(("p2",))
        desk = Desk(JobPlanner)
        for name in names:
            body = member(name)
            if name == "p2":
                body["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
            stored = world.api.put("Pod", body)
            JobPlanner.pods[name] = desk.info(stored)
        JobPlanner.log.clear()
        await world.settle(20)
        check(world, world.api.placements())

    play(story, gates=FeatureGates.of(Component.SCHEDULER, ON), **with_plugins(JobPlanner))


def test_members_are_bound_each_and_told_as_any_other_pod() -> None:
    def check(world: World, placements: dict[str, str]) -> None:
        assert placements == JobPlanner.nodes
        assert JobPlanner.log.count("plan p0") == 1
        assert len(world.api.events("Scheduled")) == 3
        assert world.api.events("FailedScheduling") == []
        assert len(world.scheduler.queue) == 0
        assert not world.scheduler.queue.events_in_flight()
        metrics = world.scheduler.metrics
        assert sum(metrics.batch_duration.of("success").counts) == 1
        assert sum(metrics.batch_by_node.of().counts) == 2
        assert sum(metrics.batch_by_pod.of().counts) == 3
        assert metrics.batch_partial_jobs.values == {}

    batch_story(check)


def test_a_member_that_cannot_be_bound_is_tried_again_at_once_alone() -> None:
    def check(world: World, placements: dict[str, str]) -> None:
        assert placements == JobPlanner.nodes
        assert len(world.api.events("Scheduled")) == 3
        assert JobPlanner.log.count("unreserve p0") == 1
        assert "unreserve p1" not in JobPlanner.log
        metrics = world.scheduler.metrics
        assert metrics.batch_partial_jobs.values == {(): 1}
        assert metrics.batch_partial_pods.values == {("success",): 2, ("failure",): 1}
        assert metrics.batch_bind_failures.values == {("DefaultBinder", "Bind"): 1}
        assert metrics.batch_cleanups.values == {("bind failure",): 1}

    batch_story(check, failures=1)


def test_a_pod_that_another_gate_holds_back_is_not_placed_with_the_others() -> None:
    def check(world: World, placements: dict[str, str]) -> None:
        assert set(placements.values()) == {""}
        [reported] = {event["message"] for event in world.api.events("FailedScheduling")}
        assert (
            "first failed pod default/p2@node-1 failed due to waiting for scheduling gates: [ready]"
            in reported
        )

    batch_story(check, gates=("ready",))
