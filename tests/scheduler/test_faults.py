"""What goes wrong around a placement: nothing is lost, nothing is counted twice, the owner is told."""

import pytest

from koordinator.cluster import errors
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.plugin.framework import (
    NoArgs,
    PermitPlugin,
    PermitResult,
    PreBindPlugin,
    ReservePlugin,
)
from koordinator.scheduler.plugin.status import SUCCESS, Code, PodPatch, Status, unschedulable
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import World, node, play, pod, requested_cpu, with_plugins


def test_a_refused_binding_is_forgotten_and_tried_again() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        world.api.fail_next["bind"] = [errors.TooManyRequests("slow down")]
        world.api.put("Pod", pod("web"))
        await world.settle()

        assert requested_cpu(world) == [0]
        assert world.condition("web")["reason"] == "SchedulerError"
        [event] = world.api.events("FailedScheduling")
        assert "slow down" in event["message"]

        await world.settle(3)
        assert world.api.placements() == {"web": "node-0"}
        assert requested_cpu(world) == [1000]
        assert world.scheduler.table.assumed_count == 0

    play(story)


def test_a_binding_without_an_answer_is_asked_for_again_while_its_room_is_kept() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        world.api.fail_next["bind"] = [errors.ConnectionFailed("the API is away")] * 4
        world.api.put("Pod", pod("web"))
        await world.settle()
        assert requested_cpu(world) == [1000]

        await world.settle(3)
        assert world.api.placements() == {"web": "node-0"}
        assert requested_cpu(world) == [1000]
        assert not world.api.events("FailedScheduling")

    play(story)


def test_a_pod_that_cannot_be_bound_for_long_goes_back_to_the_queue() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        world.api.fail_next["bind"] = [errors.ConnectionFailed("the API is away")] * 9
        world.api.put("Pod", pod("web"))
        await world.settle(16)

        [event] = world.api.events("FailedScheduling")
        assert "the API is away" in event["message"]
        await world.settle(3)
        assert world.api.placements() == {"web": "node-0"}
        assert requested_cpu(world) == [1000]

    play(story)


def test_a_binding_that_came_through_in_spite_of_an_error_stands() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        bind = world.api.bind

        async def bind_and_break(namespace: str, name: str, node_name: str, *, uid: str = "") -> None:
            await bind(namespace, name, node_name, uid=uid)
            await world.settle()
            raise errors.Timeout("no answer in time")

        world.api.bind = bind_and_break  # type: ignore[method-assign]
        world.api.put("Pod", pod("web"))
        await world.settle(5)

        assert len(world.api.bindings) == 1
        assert sum(requested_cpu(world)) == 1000
        assert len(world.scheduler.queue) == 0
        assert not world.api.events("FailedScheduling")

    play(story)


def test_a_pod_deleted_while_it_is_bound_leaves_no_trace() -> None:
    async def story(world: World) -> None:
        world.nodes(1)

        async def never(namespace: str, name: str, node_name: str, *, uid: str = "") -> None:
            world.api.remove("Pod", name, namespace)
            await world.settle()
            raise errors.not_found("pods", name)

        world.api.bind = never  # type: ignore[method-assign]
        world.api.put("Pod", pod("web"))
        await world.settle(5)

        assert requested_cpu(world) == [0]
        assert len(world.scheduler.queue) == 0
        assert not world.api.events("FailedScheduling")

    play(story)


def test_after_a_restart_the_api_tells_what_is_taken() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        world.api.put("Pod", pod("old", cpu="1500m", nodeName="node-0"))
        world.api.put("Pod", pod("done", cpu="2", nodeName="node-0") | {"status": {"phase": "Succeeded"}})
        world.api.put("Pod", pod("wide", cpu="1"))
        world.api.put("Pod", pod("small", cpu="500m"))
        await world.settle()

        assert requested_cpu(world) == [2000]
        assert world.api.placements()["small"] == "node-0"
        assert world.api.placements()["wide"] == ""

    play(story)


def test_room_made_by_a_deleted_pod_is_used_after_the_backoff() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        world.api.put("Pod", pod("old", cpu="2", nodeName="node-0"))
        world.api.put("Pod", pod("next", cpu="2"))
        await world.settle()
        assert world.api.placements()["next"] == ""
        attempts = len(world.api.events("FailedScheduling"))

        await world.settle(60)
        assert len(world.api.events("FailedScheduling")) == attempts  # nothing happened: no idle retries

        world.api.remove("Pod", "old", "default")
        await world.settle(2)
        assert world.api.placements()["next"] == "node-0"

    play(story)


def test_a_finished_pod_makes_room_too() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        old = world.api.put("Pod", pod("old", cpu="2", nodeName="node-0"))
        world.api.put("Pod", pod("next", cpu="2"))
        await world.settle()

        world.api.put("Pod", {**old, "status": {"phase": "Succeeded"}})
        await world.settle(2)
        assert world.api.placements()["next"] == "node-0"

    play(story)


def test_higher_priority_goes_first_whatever_came_first() -> None:
    async def story(world: World) -> None:
        for number in range(3):
            world.api.put("Pod", pod(f"low-{number}", cpu="1"))
        world.api.put("Pod", pod("high", cpu="1", priority=100))
        await world.settle()
        world.nodes(1, cpu="1")
        await world.settle(3)

        placed = [name for name, place in world.api.placements().items() if place]
        assert placed == ["high"]

    play(story)


def test_a_gated_pod_waits_until_its_gates_are_gone() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        gated = world.api.put("Pod", pod("web", schedulingGates=[{"name": "quota"}]))
        await world.settle(5)
        assert world.api.placements() == {"web": ""}
        assert world.scheduler.queue.counts()["gated"] == 1
        assert not world.api.events("FailedScheduling")

        world.api.put("Pod", {**gated, "spec": {**gated["spec"], "schedulingGates": []}})
        await world.settle()
        assert world.api.placements() == {"web": "node-0"}

    play(story)


def test_a_pod_with_unreadable_requests_stops_nobody() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("broken", requests={"cpu": "many"}))
        world.api.put("Pod", pod("web"))
        await world.settle()

        assert world.api.placements() == {"broken": "", "web": "node-0"}
        [event] = world.api.events("FailedScheduling")
        assert "Pod default/broken: resources: 'many' is not a quantity" in event["message"]

    play(story)


def test_a_node_with_unreadable_amounts_keeps_its_last_state() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        await world.settle()
        world.api.put("Node", node("node-0", cpu="lots"))
        await world.settle()
        world.api.put("Pod", pod("web", cpu="3"))
        await world.settle()

        assert world.api.placements() == {"web": "node-0"}

    play(story)


def test_a_vanished_node_is_not_chosen_and_its_row_is_used_again() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        world.api.remove("Node", "node-0")
        world.api.put("Pod", pod("web"))
        await world.settle()
        assert world.api.placements() == {"web": "node-1"}

        world.api.put("Node", node("fresh", cpu="64", memory="64Gi"))
        world.api.put("Pod", pod("next"))
        await world.settle()
        assert world.api.placements()["next"] == "fresh"

    play(story)


class Picky(ReservePlugin[None]):
    """Refuses one node at Reserve."""

    name = "Picky"
    unreserved: list[str] = []

    def reserve(self, state: None, pod: PodInfo, row: int) -> Status:
        is_refused = self.handle.table.name_of(row) == "big"
        return unschedulable("no device left") if is_refused else SUCCESS

    def unreserve(self, state: None, pod: PodInfo, node_name: str) -> None:
        self.unreserved.append(node_name)


class Stamp(PreBindPlugin[None]):
    """Writes where the pod was put."""

    name = "Stamp"

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        patch.annotations["example.com/node"] = node_name
        patch.labels["example.com/stamped"] = "yes"
        return SUCCESS


class Hold(PermitPlugin[None]):
    """Holds every pod for 5 seconds at most."""

    name = "Hold"

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), timeout_s=5.0)


def test_when_reserve_refuses_the_next_best_node_is_taken_in_the_same_cycle() -> None:
    async def story(world: World) -> None:
        Picky.unreserved.clear()
        world.api.put("Node", node("big", cpu="64", memory="64Gi"))
        world.api.put("Node", node("small"))
        world.api.put("Pod", pod("web"))
        await world.settle()

        assert world.api.placements() == {"web": "small"}
        assert Picky.unreserved == ["big"]
        assert not world.api.events("FailedScheduling")

    play(story, **with_plugins(Picky, reserve="Picky"))


def test_what_plugins_write_reaches_the_pod_in_one_patch_before_it_is_bound() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await world.settle()

        [written] = world.api.pods()
        assert written["metadata"]["annotations"] == {"example.com/node": "node-0"}
        assert written["metadata"]["labels"] == {"example.com/stamped": "yes"}
        assert len(world.api.patches) == 1
        assert world.api.placements() == {"web": "node-0"}

    play(story, **with_plugins(Stamp, preBind="Stamp"))


def test_a_held_pod_is_bound_when_allowed_and_freed_when_time_is_over() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        world.api.put("Pod", pod("first"))
        world.api.put("Pod", pod("second"))
        await world.settle()
        assert world.api.placements() == {"first": "", "second": ""}
        assert requested_cpu(world) == [2000]

        waiting = {each.pod.key: each for each in world.scheduler.waiting}
        waiting["default/first"].allow("Hold")
        await world.settle()
        assert world.api.placements()["first"] == "node-0"

        await world.settle(5)
        [event] = world.api.events("FailedScheduling")
        assert "rejected due to timeout after waiting 5s at plugin Hold" in event["message"]

    play(story, **with_plugins(Hold, permit="Hold"))


def test_a_pod_taken_by_another_scheduler_meanwhile_is_not_said_to_be_ours() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        bind = world.api.bind

        async def outrun(namespace: str, name: str, node_name: str, *, uid: str = "") -> None:
            other = "node-1" if node_name == "node-0" else "node-0"
            await bind(namespace, name, other, uid=uid)
            await world.settle()
            await bind(namespace, name, node_name, uid=uid)

        world.api.bind = outrun  # type: ignore[method-assign]
        world.api.put("Pod", pod("web"))
        await world.settle(5)

        [(_, taken)] = world.api.bindings
        table = world.scheduler.table
        assert sum(requested_cpu(world)) == 1000
        assert len(table.pods_at(table.row_of(taken) or 0)) == 1
        assert len(world.scheduler.queue) == 0
        assert not world.api.events("Scheduled")

    play(story)


def test_a_pod_whose_node_goes_before_it_is_bound_goes_elsewhere() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await world.settle(1)
        assert [each.pod.key for each in world.scheduler.waiting] == ["default/web"]
        world.api.remove("Node", "node-0")
        world.api.put("Node", node("node-1"))
        await world.settle(0.1)
        [waiting] = world.scheduler.waiting
        waiting.allow("Hold")
        await world.settle(0.1)
        [event] = world.api.events("FailedScheduling")
        assert "node node-0 is gone" in event["message"]

        await world.settle(2)
        [waiting] = world.scheduler.waiting
        waiting.allow("Hold")
        await world.settle(0.1)
        assert world.api.placements() == {"web": "node-1"}

    play(story, **with_plugins(Hold, permit="Hold"))


def test_a_pod_that_changes_its_scheduler_while_it_waits_is_let_go() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        body = world.api.put("Pod", pod("web"))
        await world.settle(0.1)
        world.api.put("Pod", {**body, "spec": {**body["spec"], "schedulerName": "other"}})
        await world.settle(0.1)
        [waiting] = world.scheduler.waiting
        waiting.allow("Hold")
        await world.settle(30)

        assert world.api.placements() == {"web": ""}
        assert requested_cpu(world) == [0]
        assert len(world.scheduler.queue) == 0
        assert not world.api.events("FailedScheduling")

    play(story, **with_plugins(Hold, permit="Hold"))


def test_a_resource_that_the_api_does_not_serve_does_not_hold_up_the_start() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await world.settle()

        assert world.api.placements() == {"web": "node-0"}

    play(story, unserved=("NodeMetric",))


def test_plugins_have_arguments_only_if_they_say_so() -> None:
    with pytest.raises(config.SchedulerConfigError, match=r"pluginConfig\[0\].args.ink: unknown field"):
        play(
            None,  # type: ignore[arg-type]
            config.decode({"profiles": [{"pluginConfig": [{"name": "Stamp", "args": {"ink": "blue"}}]}]}),
            plugins={**built_in.PLUGINS, "Stamp": Stamp},
        )
    assert Stamp.args is NoArgs


def test_the_shipped_profile_names_only_known_plugins() -> None:
    assert default_plugins.shipped_config().profiles[0].plugins is default_plugins.SHIPPED_PLUGINS


def test_a_condition_says_which_generation_of_the_pod_it_is_about() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        body = pod("big", cpu="8")
        body["metadata"]["generation"] = 3
        world.api.put("Pod", body)
        await world.settle()

        assert world.condition("big")["observedGeneration"] == 3

    play(story)
