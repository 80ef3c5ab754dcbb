"""Pods that Permit holds: who decides, when it counts, and that nothing is left of those that wait no more."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.loop.binding import WaitingPod, WaitingPods
from koordinator.scheduler.plugin.framework import PermitPlugin, PermitResult
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.queue.keyed_heap import STALE_MIN
from koordinator.scheduler.table.pod_info import PodInfo
from tests.cluster import virtual_loop
from tests.scheduler.coscheduling.test_plugin import member
from tests.scheduler.extending import with_plugins
from tests.scheduler.world import Json, World, node, play, pod

REGISTRY = ResourceRegistry()
LONG_S = 3_600.0


def info(name: str) -> PodInfo:
    body = pod(name)
    body["metadata"]["uid"] = name
    return PodInfo.of(from_builtins(body, Pod), REGISTRY)


def enter(waiting: WaitingPods, name: str, **waits: float) -> WaitingPod:
    return waiting.enter(info(name), "node-0", waits)


def taken_up(waiting: WaitingPods) -> dict[str, str]:
    """Pods about which something was decided, and the plugin and message of their rejection."""
    return {
        pod.uid: "" if status.is_success else f"{status.plugin}: {status.message}"
        for pod, status in waiting.decided()
    }


def on_loop(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    virtual_loop.run(main())


def test_a_pod_goes_when_all_of_its_plugins_allow_it() -> None:
    async def story() -> None:
        waiting = WaitingPods()
        one = enter(waiting, "one", A=60.0, B=60.0)
        one.allow("A")
        assert taken_up(waiting) == {}
        assert one.pending_plugins == ("B",)
        one.allow("B")
        one.allow("B")
        assert waiting.find("one") is one, "it waits until the decision is taken up"
        assert taken_up(waiting) == {"one": ""}
        assert waiting.find("one") is None

    on_loop(story)


def test_the_first_rejection_counts_also_when_the_pod_was_allowed_and_has_not_gone_yet() -> None:
    async def story() -> None:
        waiting = WaitingPods()
        one, two = enter(waiting, "one", A=60.0), enter(waiting, "two", A=60.0)
        one.allow("A")
        two.allow("A")
        two.reject("B", "no")
        two.reject("C", "never")
        two.allow("A")
        assert taken_up(waiting) == {"one": "", "two": "B: no"}

    on_loop(story)


def test_what_is_decided_while_decisions_are_taken_up_is_taken_up_as_well() -> None:
    async def story() -> None:
        waiting = WaitingPods()
        pods = [enter(waiting, name, A=60.0) for name in "abc"]
        pods[0].reject("A", "first")
        seen = []
        for each, _ in waiting.decided():
            seen.append(each.uid)
            for other in pods[1:]:
                other.reject("A", "with it")
        assert seen == ["a", "b", "c"]

    on_loop(story)


def test_who_discards_a_pod_hears_no_decision_about_it() -> None:
    async def story() -> None:
        waiting = WaitingPods()
        one, two = enter(waiting, "one", A=60.0), enter(waiting, "two", A=60.0)
        one.allow("A")
        waiting.discard("one")
        assert taken_up(waiting) == {}
        again = enter(waiting, "one", A=60.0)
        one.reject("A", "about the former one")
        assert taken_up(waiting) == {}
        again.allow("A")
        two.allow("A")
        assert taken_up(waiting) == {"one": "", "two": ""}

    on_loop(story)


def test_each_pod_is_rejected_when_its_first_plugin_gives_up() -> None:
    async def story() -> None:
        waited: list[tuple[bool, float]] = []
        noted: list[float] = []
        loop = asyncio.get_running_loop()

        def hear(status: Status, seconds: float) -> None:
            waited.append((status.is_success, round(seconds, 3)))

        waiting = WaitingPods(hear, lambda: noted.append(round(loop.time(), 3)))
        enter(waiting, "slow", A=30.0)
        enter(waiting, "fast", A=20.0, B=10.0)
        patient = enter(waiting, "patient", A=10.0, B=25.0)
        enter(waiting, "for ever", A=LONG_S)
        patient.allow("A")
        await asyncio.sleep(1_000.0)
        assert noted == [10.0, 25.0, 30.0, 900.0]
        assert taken_up(waiting) == {
            "fast": "B: rejected due to timeout after waiting 10s at plugin B",
            "patient": "B: rejected due to timeout after waiting 25s at plugin B",
            "slow": "A: rejected due to timeout after waiting 30s at plugin A",
            "for ever": "A: rejected due to timeout after waiting 15m0s at plugin A",
        }
        assert waited == [(False, 1_000.0)] * 4

    on_loop(story)


def test_a_pod_that_waits_costs_no_task() -> None:
    async def story() -> None:
        waiting = WaitingPods()
        for number in range(100):
            enter(waiting, f"p{number}", A=600.0)
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    on_loop(story)


def test_nothing_is_kept_of_pods_that_wait_no_more() -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(each, WaitingPod) for each in gc.get_objects())

    async def story() -> None:
        of_others = count()
        waiting = WaitingPods()
        enter(waiting, "patient", A=800.0)
        for number in range(4 * STALE_MIN):
            enter(waiting, f"p{number}", A=600.0).allow("A")
            assert len(taken_up(waiting)) == 1
        assert count() - of_others <= 2

    on_loop(story)


# In the scheduler


def test_places_of_a_round_that_failed_are_free_for_the_pod_that_is_tried_next() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(5):
            world.api.put("Pod", member(f"big-{number}", "big", 5))
        world.api.put("Pod", pod("single", cpu="4"))
        await world.settle()
        assert world.api.placements()["single"] == "node-0"
        reported = [each["involvedObject"]["name"] for each in world.api.events("FailedScheduling")]
        assert "single" not in reported

    play(story)


def test_places_of_a_round_that_ran_out_of_members_are_free_for_the_pod_that_is_tried_next() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("node-0", cpu="4"))
        for number in range(5):
            body = member(f"big-{number}", "big", 5)
            if number == 0:
                body["spec"]["schedulingGates"] = [{"name": "ready"}]
            world.api.put("Pod", body)
        world.api.put("Pod", pod("single", cpu="4"))
        await world.settle()
        assert world.api.placements()["single"] == "node-0"
        assert world.scheduler.queue.find("single") is None

    play(story)


class Hold(PermitPlugin[None]):
    """Holds the pod of that name."""

    name = "Hold"

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(timeout_s=600.0 if pod.pod.metadata.name == "held" else 0.0)


def test_a_pod_deleted_while_it_waits_leaves_its_place_to_others() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("held", cpu="4"))
        world.api.put("Pod", pod("next"))
        await world.settle(100)
        assert len(world.scheduler.waiting) == 1
        assert world.api.placements()["next"] == ""

        world.api.remove("Pod", "held", "default")
        await world.settle()
        assert len(world.scheduler.waiting) == world.scheduler.bindings_in_progress == 0
        await world.settle(10)
        assert world.api.placements()["next"] == "node-0"

    play(story, **with_plugins(Hold))


def test_a_pod_that_waited_too_long_is_reported_and_comes_again() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("held", cpu="4"))
        await world.settle(599)
        assert not world.api.events("FailedScheduling")
        await world.settle(2)
        [event] = world.api.events("FailedScheduling")
        assert event["message"] == (
            "0/1 nodes are available: 1 rejected due to timeout after waiting 10m0s at plugin Hold."
        )
        [entry] = [world.scheduler.queue.find(each["metadata"]["uid"]) for each in world.api.pods()]
        assert entry is not None
        assert entry.attempt_count == 1

    play(story, **with_plugins(Hold))


# The node that a pod is expected on (`status.nominatedNodeName`)


def nominated(world: World, name: str) -> str:
    return str(status_of(world, name).get("nominatedNodeName") or "")


def status_of(world: World, name: str) -> Json:
    body: Json = world.api.objects["Pod"][("default", name)].get("status", {})
    return body


def test_a_pod_that_waits_for_a_second_names_its_node_and_counts_there_once() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("held", cpu="2"))
        await world.settle(0.9)
        assert nominated(world, "held") == ""
        await world.settle(0.2)
        assert nominated(world, "held") == "node-0"
        assert "conditions" not in status_of(world, "held")

        world.api.put("Pod", pod("next", cpu="2"))
        await world.settle()
        assert world.api.placements()["next"] == "node-0", "its room is not kept besides what it takes"
        await world.settle(600)
        assert nominated(world, "held") == "", "it may go elsewhere now"
        assert not len(world.scheduler.engine.nominations)

    play(story, **with_plugins(Hold))


def test_a_pod_that_goes_within_a_second_is_written_once() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("held", cpu="2"))
        await world.settle(0.5)
        [waiting] = world.scheduler.waiting
        waiting.allow("Hold")
        await world.settle(2)
        assert world.api.placements()["held"] == "node-0"
        assert not [patch for name, patch in world.api.patches if name == "held"]

    play(story, **with_plugins(Hold))


def test_a_nomination_by_preemption_stands_again_after_a_binding_that_failed() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        body = pod("held", cpu="2")
        body["status"] = {"nominatedNodeName": "node-1"}
        world.api.put("Pod", body)
        world.api.put("Pod", pod("there", cpu="4", nodeName="node-1"))
        await world.settle(2)
        assert nominated(world, "held") == "node-0"
        await world.settle(600)
        assert nominated(world, "held") == "node-1"

    play(story, **with_plugins(Hold))
