"""Stories of gangs that take the place of less important pods."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from koordinator.cluster import errors
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, PluginRef, PluginSet, SchedulerConfig
from koordinator.scheduler.plugin.events import QueueingEvent
from koordinator.scheduler.plugin.framework import PermitPlugin, PermitResult
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.coscheduling.stage import PREFIX, member
from tests.scheduler.world import World, node, play, pod

Json = dict[str, Any]


def with_preemption(**args: Any) -> SchedulerConfig:
    """What is shipped, with job preemption."""
    shipped = default_plugins.shipped_config()
    own = PluginConfig(name="Coscheduling", args={"enablePreemption": True, **args})
    profiles = [
        msgspec.structs.replace(profile, plugin_config=[*profile.plugin_config, own])
        for profile in shipped.profiles
    ]
    return msgspec.structs.replace(shipped, profiles=profiles)


def gang(world: World, name: str, count: int, *, minimum: int | None = None, **parts: Any) -> None:
    """Members of a gang, of which all are needed unless said otherwise."""
    for number in range(count):
        world.api.put("Pod", member(f"{name}-{number}", name, count if minimum is None else minimum, **parts))


async def full_of_a_lesser_gang(world: World, count: int) -> None:
    """As many nodes of 4 cores, each with a member of gang `low`, of priority 1, that fills it."""
    world.nodes(count, cpu="4")
    gang(world, "low", count, cpu="4", priority=1)
    await world.settle(2)


async def full_of_low_pods(world: World, count: int) -> None:
    """As many nodes of 4 cores, each with a pod of priority 1 that fills it."""
    world.nodes(count, cpu="4")
    for number in range(count):
        world.api.put("Pod", pod(f"low-{number}", cpu="4", priority=1, nodeName=f"node-{number}"))
    await world.settle(2)


def placed(world: World, prefix: str = "") -> dict[str, str]:
    return {n: node for n, node in world.api.placements().items() if node and n.startswith(prefix)}


def nominated(world: World) -> dict[str, str]:
    """Pods without a node, and the node that is kept for them."""
    return {
        each["metadata"]["name"]: node
        for each in world.api.pods()
        if (node := each.get("status", {}).get("nominatedNodeName")) and not each["spec"].get("nodeName")
    }


def victims(world: World) -> list[str]:
    return sorted(event["involvedObject"]["name"] for event in world.api.events("Preempted"))


def test_a_job_takes_the_place_of_a_less_important_one_as_a_whole() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 4)
        assert len(placed(world, "low")) == 4

        gang(world, "high", 4, cpu="4", priority=1000)
        await world.settle(30)

        assert sorted(placed(world, "high").values()) == [f"node-{number}" for number in range(4)]
        assert victims(world) == [f"low-{number}" for number in range(4)]
        assert not placed(world, "low")
        assert not len(world.scheduler.engine.nominations)

    play(story, with_preemption())


def test_of_two_jobs_on_the_same_nodes_only_one_loses_its_pods() -> None:
    async def story(world: World) -> None:
        for number in range(8):
            world.api.put("Node", node(f"node-{number}", cpu="4"))
            world.api.put(
                "Pod",
                member(
                    f"low-{number}", f"low-{number % 2}", 4, cpu="4", priority=1, nodeName=f"node-{number}"
                ),
            )
        await world.settle(2)

        gang(world, "high", 4, cpu="4", priority=1000)
        await world.settle(30)

        assert len(placed(world, "high")) == 4
        assert victims(world) == ["low-0", "low-2", "low-4", "low-6"]

    play(story, with_preemption())


def test_nobody_is_evicted_for_a_job_that_does_not_fit_as_a_whole() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 3)

        gang(world, "high", 4, cpu="4", priority=1000)
        await world.settle(100)

        assert victims(world) == []
        assert len(placed(world, "low")) == 3
        assert not nominated(world)
        reported = [world.condition(f"high-{number}")["message"] for number in range(4)]
        assert all("preemption: " in message for message in reported)
        assert any(
            "preemption: 0/3 nodes are available: 3 Insufficient cpu." in message for message in reported
        )

    play(story, with_preemption())


def test_a_job_starts_with_its_minimum_where_there_is_no_room_for_more() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 3)

        gang(world, "high", 5, minimum=2, cpu="4", priority=1000)
        await world.settle(60)

        assert len(placed(world, "high")) == 3
        assert len(victims(world)) == 3

    play(story, with_preemption())


def test_pods_that_must_not_be_preempted_and_equally_important_ones_stay() -> None:
    async def story(world: World) -> None:
        world.nodes(4, cpu="4")
        for number, mark in enumerate(("disable-preemptible", "quota", "priority", "")):
            low = pod(f"low-{number}", cpu="4", priority=1000 if mark == "priority" else 1)
            low["spec"]["nodeName"] = f"node-{number}"
            if mark == "disable-preemptible":
                low["metadata"]["labels"] = {"scheduling.koordinator.sh/disable-preemptible": "true"}
            elif mark == "quota":
                low["metadata"]["labels"] = {"quota.scheduling.koordinator.sh/preemptible": "false"}
            world.api.put("Pod", low)
        await world.settle(2)

        gang(world, "high", 1, cpu="4", priority=1000)
        await world.settle(30)

        assert victims(world) == ["low-3"]
        assert placed(world, "high") == {"high-0": "node-3"}

    play(story, with_preemption())


def test_only_as_many_go_as_the_job_needs_and_the_most_important_ones_stay() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for number in range(8):
            world.api.put(
                "Pod", pod(f"low-{number}", cpu="1", priority=number, nodeName=f"node-{number % 2}")
            )
        await world.settle(2)

        gang(world, "high", 2, cpu="2", priority=1000)
        await world.settle(30)

        assert len(placed(world, "high")) == 2
        # Both go where the least important pods are, until that node is full.
        assert victims(world) == ["low-0", "low-2", "low-4", "low-6"]

    play(story, with_preemption())


def test_a_job_waits_for_its_victims_and_keeps_their_room() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 3)
        world.api.hold_deletions = True
        gang(world, "high", 3, cpu="4", priority=1000)
        await world.settle(120)

        assert len(victims(world)) == 3
        assert sorted(nominated(world).values()) == ["node-0", "node-1", "node-2"]

        gang(world, "sneaky", 1, cpu="1", priority=5)
        world.api.remove("Pod", "low-0", "default")
        await world.settle(60)
        assert not placed(world, "high")
        assert not placed(world, "sneaky")
        assert "terminating pod on the nominated node" in str(
            [world.condition(f"high-{number}") for number in range(3)]
        )
        assert len(nominated(world)) == 3
        assert len(world.scheduler.engine.nominations) == 3

        world.api.remove("Pod", "low-1", "default")
        world.api.remove("Pod", "low-2", "default")
        await world.settle(60)
        assert len(placed(world, "high")) == 3
        assert not placed(world, "sneaky")
        assert len(victims(world)) == 3

    play(story, with_preemption())


def test_members_that_have_a_place_already_keep_it_while_the_others_make_room() -> None:
    async def story(world: World) -> None:
        world.nodes(3, cpu="4")
        for number in range(2):
            world.api.put("Pod", pod(f"low-{number}", cpu="4", priority=1, nodeName=f"node-{number}"))
        await world.settle(2)

        world.api.hold_deletions = True
        gang(world, "high", 3, cpu="4", priority=1000)
        await world.settle(5)
        assert sorted(nominated(world).values()) == ["node-0", "node-1", "node-2"]

        world.api.remove("Pod", "low-0", "default")
        world.api.remove("Pod", "low-1", "default")
        await world.settle(30)
        assert victims(world) == ["low-0", "low-1"]
        assert len(placed(world, "high")) == 3

    play(story, with_preemption())


@pytest.mark.parametrize("is_for_jobs", [True, False])
def test_nobody_more_is_evicted_while_room_is_being_made_for_a_member_that_found_some_elsewhere(
    is_for_jobs: bool,
) -> None:
    async def story(world: World) -> None:
        await full_of_low_pods(world, 4)
        world.api.hold_deletions = True
        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(5)
        count = 2 if is_for_jobs else 1
        assert len(victims(world)) == count

        others = [f"low-{number}" for number in range(4) if f"low-{number}" not in victims(world)]
        world.api.remove("Pod", others[0], "default")
        await world.settle(30)

        assert len(victims(world)) == count

    play(story, with_preemption() if is_for_jobs else None)


def test_a_member_in_the_room_of_another_is_no_reason_to_evict_more() -> None:
    async def story(world: World) -> None:
        await full_of_low_pods(world, 4)
        world.api.hold_deletions = True
        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(5)
        assert len(victims(world)) == 2

        # Who is tried first takes this room, whoever it was made for.
        free = nominated(world)["high-0"]
        world.api.remove("Pod", free.replace("node", "low"), "default")
        await world.settle(60)
        assert len(victims(world)) == 2

        left = next(name for name in victims(world) if name in world.api.placements())
        world.api.remove("Pod", left, "default")
        await world.settle(30)
        assert sorted(placed(world, "high").values()) == ["node-0", "node-1"]

    play(story, with_preemption())


def slow_deletions(world: World, answer_s: float, effect_s: float) -> list[str]:
    """Deletions are answered and take effect so many seconds later; names of the pods, one per request."""
    asked: list[str] = []
    delete = world.api.delete

    async def slowly(view: Any, name: str, namespace: str = "", **options: Any) -> None:
        asked.append(name)
        is_first = len(asked) == 1
        await asyncio.sleep(0 if is_first else answer_s)

        async def carry_out() -> None:
            await asyncio.sleep(0 if is_first else effect_s)
            await delete(view, name, namespace, **options)

        tasks.append(asyncio.create_task(carry_out()))

    tasks: list[asyncio.Task[None]] = []
    world.api.delete = slowly  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize(
    ("answer_s", "effect_s"),
    [
        pytest.param(20, 0, id="the API takes its time to answer"),
        pytest.param(0, 20, id="news of the deletions take their time"),
    ],
)
def test_a_job_decides_once_however_slow_its_victims_go(answer_s: float, effect_s: float) -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 4)
        asked = slow_deletions(world, answer_s, effect_s)

        gang(world, "high", 3, cpu="4", priority=1000)
        await world.settle(15)
        assert not placed(world, "high")
        await world.settle(60)

        assert len(placed(world, "high")) == 3
        assert len(asked) == 3

    play(story, with_preemption())


def test_room_kept_for_one_member_does_not_stand_in_the_way_of_another() -> None:
    def pod_group(name: str) -> Json:
        groups = json.dumps(["default/server", "default/worker"])
        meta = {"name": name, "namespace": "default", "annotations": {f"{PREFIX}/groups": groups}}
        return {"metadata": meta, "spec": {"minMember": 1}}

    async def story(world: World) -> None:
        for name, cpu in (("node-0", "8"), ("node-1", "4")):
            world.api.put("Node", node(name, cpu=cpu))
            world.api.put("Pod", pod(f"low-{name}", cpu=cpu, priority=1, nodeName=name))
        for name, cpu, nomination in (("server", "4", "node-0"), ("worker", "8", "")):
            world.api.put("PodGroup", pod_group(name))
            body = pod(name, cpu=cpu, priority=9)
            body["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": name}
            body["status"] = {"nominatedNodeName": nomination} if nomination else {}
            world.api.put("Pod", body)
        await world.settle(30)

        assert placed(world) == {"server": "node-1", "worker": "node-0"}

    play(story, with_preemption())


class Holder(PermitPlugin[None]):
    """Lets unimportant pods wait for a long time."""

    name = "Holder"

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(timeout_s=800 if pod.priority == 1 else 0)


def test_victims_that_wait_in_permit_give_their_places_back_and_are_not_deleted() -> None:
    settings = with_preemption()
    [profile] = settings.profiles
    assert profile.plugins is not None
    permit = PluginSet(enabled=[*profile.plugins.permit.enabled, PluginRef(name="Holder")])
    profile = msgspec.structs.replace(
        profile, plugins=msgspec.structs.replace(profile.plugins, permit=permit)
    )
    settings = msgspec.structs.replace(settings, profiles=[profile])

    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for number in range(2):
            world.api.put("Pod", pod(f"low-{number}", cpu="4", priority=1))
        await world.settle(2)
        assert not placed(world)

        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(5)

        assert len(placed(world, "high")) == 2
        assert victims(world) == ["low-0", "low-1"]
        assert len(world.api.pods()) == 4

    play(story, settings, plugins={**built_in.PLUGINS, "Holder": Holder})


def test_a_victim_that_cannot_be_deleted_is_tried_again() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 2)
        world.api.fail_next["delete"] = [errors.ServiceUnavailable("not now")]

        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(60)

        assert len(placed(world, "high")) == 2
        assert world.scheduler.metrics.preemption_count.values["error",] >= 1

    play(story, with_preemption())


def test_workers_and_their_server_make_room_together() -> None:
    groups = '["default/server", "default/worker"]'

    async def story(world: World) -> None:
        world.nodes(3, cpu="8")
        for number in range(3):
            world.api.put("Pod", pod(f"low-{number}", cpu="8", priority=1, nodeName=f"node-{number}"))
        await world.settle(2)

        annotations = {"groups": groups}
        world.api.put("Pod", member("server-0", "server", 1, "1", priority=9, annotations=annotations))
        for number in range(3):
            world.api.put(
                "Pod", member(f"worker-{number}", "worker", 3, "4", priority=9, annotations=annotations)
            )
        await world.settle(30)

        assert len(placed(world, "worker")) == 3
        assert len(placed(world, "server")) == 1
        assert victims(world) == ["low-0", "low-1"]

    play(story, with_preemption())


def test_a_single_pod_preempts_as_a_job_of_one() -> None:
    async def story(world: World) -> None:
        await full_of_low_pods(world, 2)

        world.api.put("Pod", pod("high", cpu="3", priority=1000))
        await world.settle(30)

        assert placed(world, "high") == {"high": "node-0"}
        [mark] = [
            condition
            for name, patch in world.api.patches
            if name == "low-0"
            for condition in patch["status"].get("conditions", ())
        ]
        assert mark["message"] == (
            "koord-scheduler: preempting to accommodate higher priority pods, "
            "preemptor: default/high, triggerPod: default/high"
        )

    play(story, with_preemption())


def test_room_that_a_failed_preemption_kept_is_free_again() -> None:
    async def story(world: World) -> None:
        await full_of_a_lesser_gang(world, 4)
        world.api.hold_deletions = True
        gang(world, "high", 4, cpu="4", priority=1000)
        await world.settle(5)
        assert len(nominated(world)) == 4

        freed: list[str] = []
        happened = world.scheduler.queue.happened

        def spy(event: QueueingEvent, now_s: float) -> None:
            if isinstance(event.old, PodInfo) and event.old.key.startswith("default/high"):
                freed.append(event.old.key)
            happened(event, now_s)

        world.scheduler.queue.happened = spy  # type: ignore[method-assign]
        # All nodes but one are gone for good, and that one is free now.
        for number in range(1, 4):
            world.api.remove("Node", f"node-{number}")
        for number in range(4):
            world.api.remove("Pod", f"low-{number}", "default")
        await world.settle(120)
        assert not placed(world, "high")
        assert not nominated(world)
        assert not len(world.scheduler.engine.nominations)
        assert freed

        gang(world, "small", 1, cpu="4", priority=5)
        await world.settle(2)
        assert len(placed(world, "small")) == 1

    play(story, with_preemption())
