"""Important pods take the place of less important ones, and the room made for them stays theirs."""

import asyncio
from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.cluster import errors
from koordinator.scheduler.config import config
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import PermitPlugin, PermitResult
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.executor import DISRUPTION_TARGET, PREEMPTION
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.table.pod_info import Nominations, PodInfo
from koordinator.scheduler.table.trial import trial_of
from tests.scheduler.world import World, play, pod


async def a_taken_node(world: World, cpu: str = "4", *, hold_deletions: bool = False) -> None:
    """One node of 4 cores with the pod `low` on it, which anybody may evict."""
    world.nodes(1, cpu="4")
    world.api.put("Pod", pod("low", cpu=cpu, priority=1))
    await world.settle(2)
    world.api.hold_deletions = hold_deletions


def nominated(world: World, name: str) -> str:
    """The node that a pod is told it will get."""
    found = world.api.objects["Pod"][("default", name)]
    return str(found.get("status", {}).get("nominatedNodeName", ""))


def test_an_important_pod_evicts_the_least_important_ones_and_takes_their_place() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for number in range(4):
            world.api.put("Pod", pod(f"low-{number}", cpu="2", priority=10 + number))
        await world.settle(3)

        world.api.put("Pod", pod("high", cpu="3", priority=1000))
        await world.settle(30)

        placements = world.api.placements()
        assert placements["high"]
        left = [name for name in placements if name.startswith("low")]
        assert len(left) == 2
        victims = {event["involvedObject"]["name"] for event in world.api.events("Preempted")}
        assert victims == {f"low-{number}" for number in range(4)} - set(left)
        assert all("on node" in event["message"] for event in world.api.events("Preempted"))
        for event in world.api.events("Preempted"):  # as kube-scheduler tells it, field by field
            assert (event["action"], event["related"]["name"]) == ("Preempting", "high")
            assert event["eventTime"] and event["reportingInstance"] == "koord-scheduler"
        assert {event["action"] for event in world.api.events("FailedScheduling")} == {"Scheduling"}
        assert {event["action"] for event in world.api.events("Scheduled")} == {"Binding"}
        metrics = world.scheduler.metrics
        assert metrics.preemption_count.values == {("success",): 1}
        assert sum(metrics.preemption_duration.of("success").counts) == 1
        assert not len(world.scheduler.engine.nominations)

    play(story)


def test_victims_are_marked_before_they_are_deleted() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world, cpu="3")
        world.api.put("Pod", pod("high", cpu="3", priority=2))
        await world.settle(5)

        [marks] = [
            patch["status"]["conditions"]
            for name, patch in world.api.patches
            if name == "low"
            and any(c["type"] == DISRUPTION_TARGET for c in patch["status"].get("conditions", ()))
        ]
        assert marks[0]["reason"] == PREEMPTION
        assert world.api.placements() == {"high": "node-0"}

    play(story)


def test_nothing_is_evicted_when_that_would_not_make_room() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("equal", cpu="3", priority=1000))
        world.api.put("Pod", pod("low", cpu="1", priority=1))
        await world.settle(2)
        world.api.put("Pod", pod("high", cpu="3", priority=1000))
        await world.settle(5)

        assert set(world.api.placements()) == {"equal", "low", "high"}
        message = world.condition("high")["message"]
        assert message.endswith("preemption: 0/1 nodes are available: 1 Insufficient cpu.")

    play(story)


def test_a_pod_that_must_not_preempt_says_so() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world, cpu="3")
        world.api.put("Pod", pod("meek", cpu="3", priority=1000, preemptionPolicy="Never"))
        await world.settle(5)

        assert world.api.placements()["low"] == "node-0"
        assert "not eligible due to preemptionPolicy=Never." in world.condition("meek")["message"]

    play(story)


def test_room_made_by_preemption_is_not_taken_by_less_important_pods() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world, hold_deletions=True)
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(2)
        assert world.scheduler.engine.nominations.on("node-0")

        world.api.put("Pod", pod("sneaky", cpu="1", priority=5))
        world.api.hold_deletions = False
        world.api.remove("Pod", "low", "default")
        await world.settle(40)

        assert world.api.placements() == {"high": "node-0", "sneaky": ""}

    play(story)


def test_a_trial_leaves_no_trace() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(3):
            world.api.put("Pod", pod(f"low-{number}", cpu="1", priority=1))
        await world.settle(2)
        table = world.scheduler.table
        [row] = table.rows.tolist()
        before = (table.requested.copy(), list(table.pods_at(row)), table.changes.sequence)

        with trial_of(table) as trial:
            for info in list(table.pods_at(row).values()):
                trial.take(info)
            assert table.pod_count[row] == 0
            trial.add(info, "node-0")

        assert (table.requested == before[0]).all()
        assert (list(table.pods_at(row)), table.changes.sequence) == before[1:]
        await asyncio.sleep(0)

    play(story)


def test_room_kept_for_a_pod_is_free_again_when_that_pod_is_deleted() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world, cpu="3", hold_deletions=True)
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(2)
        world.api.put("Pod", pod("small", cpu="1", priority=5))
        await world.settle(2)
        assert world.api.placements()["small"] == ""

        world.api.remove("Pod", "high", "default")
        await world.settle(15)
        assert world.api.placements()["small"] == "node-0"

    play(story)


def test_the_preemptor_is_told_its_node_and_the_nomination_is_cleared_when_it_came_to_nothing() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world, hold_deletions=True)
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(2)
        assert nominated(world, "high") == "node-0"

        # Somebody else takes the room, and is too important to be evicted.
        world.api.remove("Pod", "low", "default")
        world.api.put("Pod", pod("other", cpu="4", priority=2000, nodeName="node-0", scheduler="x"))
        await world.settle(400)
        assert nominated(world, "high") == ""
        assert not len(world.scheduler.engine.nominations)

    play(story)


def test_a_preemptor_waits_while_its_victim_takes_its_time_to_leave() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world, hold_deletions=True)
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(400)

        assert (
            "not eligible due to a terminating pod on the nominated node."
            in world.condition("high")["message"]
        )
        assert len(world.api.events("Preempted")) == 1
        world.api.remove("Pod", "low", "default")
        await world.settle(15)
        assert world.api.placements() == {"high": "node-0"}

    play(story)


def test_the_last_victim_goes_after_the_others_and_until_then_the_preemptor_is_gated() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(4):
            world.api.put("Pod", pod(f"low-{number}", cpu="1", priority=number))
        await world.settle(2)
        deleted: list[str] = []
        delete = world.api.delete

        async def slowly(view: Any, name: str, *args: Any, **options: Any) -> None:
            await asyncio.sleep(1)
            deleted.append(name)
            await delete(view, name, *args, **options)

        world.api.delete = slowly  # type: ignore[method-assign]
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(0.5)
        world.scheduler.queue.happened(QueueingEvent(ClusterEvent.WILDCARD), world.clock.now())
        assert world.scheduler.queue.counts()["gated"] == 1
        await world.settle(30)

        assert deleted[-1] == "low-0"
        assert world.api.placements() == {"high": "node-0"}

    play(story)


def test_an_eviction_that_fails_is_tried_again() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world)
        world.api.fail_next["delete"] = [errors.InternalError("try again")]
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(30)

        assert world.api.placements() == {"high": "node-0"}

    play(story)


def test_less_important_pods_lose_their_nomination_to_the_node() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world, hold_deletions=True)
        world.api.put("Pod", pod("middle", cpu="4", priority=10))
        await world.settle(2)
        assert world.scheduler.engine.nominations.on("node-0")[0].key == "default/middle"

        world.api.put("Pod", pod("high", cpu="4", priority=1000, preemptionPolicy="PreemptLowerPriority"))
        await world.settle(2)
        assert [each.key for each in world.scheduler.engine.nominations.on("node-0")] == ["default/high"]
        assert nominated(world, "middle") == ""

    play(story)


class Patience(PermitPlugin[None]):
    """Keeps pods with a label waiting."""

    name = "Patience"

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(timeout_s=600.0 if "wait" in pod.pod.metadata.labels else 0.0)


def test_a_victim_that_waits_for_a_permit_is_turned_down_not_deleted() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        low = pod("low", cpu="4", priority=1)
        low["metadata"]["labels"] = {"wait": ""}
        world.api.put("Pod", low)
        await world.settle(2)
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(30)

        assert world.api.placements() == {"low": "", "high": "node-0"}
        [event] = world.api.events("Preempted")
        assert event["involvedObject"]["name"] == "low"

    profile = {"plugins": {"permit": {"enabled": [{"name": "Patience"}]}}}
    play(story, config.decode({"profiles": [profile]}), plugins={**built_in.PLUGINS, "Patience": Patience})


@pytest.mark.parametrize("is_counted", [False, True])
def test_room_for_pods_that_another_scheduler_nominated_is_kept_if_the_gate_says_so(is_counted: bool) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        theirs = pod("theirs", cpu="4", priority=10, scheduler="other")
        world.api.put("Pod", {**theirs, "status": {"nominatedNodeName": "node-0"}})
        await world.settle(2)
        world.api.put("Pod", pod("ours", cpu="4", priority=9))
        await world.settle(2)

        assert bool(world.api.placements()["ours"]) is not is_counted

    gates = FeatureGates.of(Component.SCHEDULER, f"CrossSchedulerNomination={str(is_counted).lower()}")
    play(story, gates=gates)


def test_pods_of_one_job_do_not_keep_room_from_each_other() -> None:
    def member(name: str, gang: str) -> PodInfo:
        body = pod(name, priority=5)
        body["metadata"] |= {"uid": name, "annotations": {"gang.scheduling.koordinator.sh/name": gang}}
        return PodInfo.of(from_builtins(body, Pod), ResourceRegistry())

    nominations = Nominations()
    nominations.set(member("a", "job"), "node-0")

    assert nominations.that_count("node-0", member("b", "job")) == ()
    assert [each.uid for each in nominations.that_count("node-0", member("c", "other"))] == ["a"]


def test_a_preemption_that_is_cancelled_before_it_began_gates_nobody() -> None:
    async def story(world: World) -> None:
        await a_taken_node(world)
        scheduler = world.scheduler
        [profile] = scheduler.profiles.values()
        plugin = next(each for each in profile.plugins if isinstance(each, DefaultPreemption))
        [low] = scheduler.table.pods_at(0).values()
        body = pod("high", cpu="4", priority=9)
        body["metadata"]["uid"] = "high"
        high = PodInfo.of(from_builtins(body, Pod), scheduler.table.registry)

        victim = victims.Victim.of(low, 0.0)
        plugin.preemptor.evict(high, victims.Candidate("node-0", (victim,), 0), profile.name)
        assert not plugin.pre_enqueue(high).is_success
        await scheduler.actions.stop()

        assert plugin.pre_enqueue(high).is_success
        assert world.api.placements() == {"low": "node-0"}

    play(story)


def test_a_binding_that_fails_leaves_the_nomination_that_others_wrote() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.fail_next["bind"] = [errors.Forbidden("no")]
        world.api.put("Pod", pod("p") | {"status": {"nominatedNodeName": "node-0"}})
        await world.settle(0.5)

        assert world.api.placements() == {"p": ""}
        assert nominated(world, "p") == "node-0"
        assert len(world.scheduler.engine.nominations) == 1
        await world.settle(30)
        assert world.api.placements() == {"p": "node-0"}

    play(story)


@pytest.mark.parametrize(
    ("selector", "labels", "covers"),
    [
        ({"matchLabels": {"app": "a"}}, {"app": "a"}, True),
        ({"matchLabels": {"app": "a"}}, {"app": "b"}, False),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, {"tier": "x"}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, {}, False),
    ],
    ids=["selected", "another", "one without the label", "one without any label is never covered"],
)
def test_a_budget_covers_the_labelled_pods_of_its_namespace_that_are_not_going_already(
    selector: dict[str, Any], labels: dict[str, str], covers: bool
) -> None:
    def budget(namespace: str = "default", **disrupted: str) -> victims.Budgets:
        body = {
            "metadata": {"name": "b", "namespace": namespace},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": 0, "disruptedPods": disrupted},
        }
        found = victims.Budgets()
        found.set(from_builtins(body, PodDisruptionBudget))
        return found

    body = pod("p")
    body["metadata"]["labels"] = labels
    one = PodInfo.of(from_builtins(body, Pod), ResourceRegistry())

    assert bool(budget().covering(one)) is covers
    assert not budget("other").covering(one)
    assert not budget(p="2026-01-01T00:00:00Z").covering(one)
