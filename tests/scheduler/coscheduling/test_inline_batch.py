"""Stories of gangs that are placed in one cycle (gate EnableInlineBatchSchedule)."""

import json
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.scheduler.config import config
from tests.scheduler.coscheduling.test_backoff import Attempts, attempts_max, put_gang
from tests.scheduler.coscheduling.test_plugin import member, placed
from tests.scheduler.world import World, node, play, pod

ON = FeatureGates.of(Component.SCHEDULER, "EnableInlineBatchSchedule=true")


def play_inline(story: Any, **options: Any) -> None:
    play(story, gates=ON, **options)


def test_a_gang_is_placed_in_the_cycle_of_its_first_member() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(3, cpu="4")
        put_gang(world, "job", 10)
        await world.settle()
        assert len(placed(world)) == 10
        assert attempts.total("job") == 1
        marks = {each["metadata"]["annotations"][labels.BIND_GANG_MEMBER_COUNT] for each in world.api.pods()}
        assert marks == {"10"}
        assert len(world.api.events("Scheduled")) == 10
        assert len(world.scheduler.queue) == world.scheduler.bindings_in_progress == 0
        assert sum(world.scheduler.metrics.batch_duration.of("success").counts) == 1

    play_inline(story)


def test_members_go_where_they_go_one_by_one() -> None:
    found: list[dict[str, str]] = []

    async def story(world: World) -> None:
        for number, cpu in enumerate(("5", "3", "4", "6")):
            world.api.put("Node", node(f"node-{number}", cpu=cpu))
        for number in range(9):
            world.api.put("Pod", member(f"job-{number}", "job", 9, cpu=str(1 + number % 2)))
        await world.settle()
        found.append(world.api.placements())

    play_inline(story)
    play(story)
    assert found[0] == found[1]
    assert "" not in found[0].values()


def test_a_gang_that_does_not_fit_says_how_far_it_got_and_is_placed_when_there_is_room() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        for number, cpu in enumerate(("5100m", "3")):
            world.api.put("Node", node(f"node-{number}", cpu=cpu))
        # What is free would do, were it not on two nodes.
        for number, cpu in ((1, "4"), (2, "2"), (3, "2"), (0, "100m")):
            world.api.put("Pod", member(f"job-{number}", "job", 4, cpu=cpu))
        await world.settle(30)
        assert placed(world) == []
        assert (
            "assumed 3 pods, failed 1 pods, first failed pod default/job-3 failed due to 0/2 nodes are available: "
            "2 Insufficient cpu."
        ) in world.condition("job-0")["message"]
        assert world.scheduler.table.assumed_count == 0
        # The first member would fit here, the one that failed would not: nothing to be tried.
        world.api.put("Node", node("tiny", cpu="500m"))
        await world.settle(30)
        assert attempts.total("job") == 4
        world.api.put("Node", node("node-2", cpu="4"))
        await world.settle(5)
        assert len(placed(world)) == 4

    play_inline(story)


def test_a_gang_that_is_too_large_is_not_even_planned_and_is_placed_when_there_is_room() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(1, cpu="4")
        for number in range(1, 6):
            world.api.put("Pod", member(f"job-{number}", "job", 6))
        world.api.put("Pod", member("job-0", "job", 6, cpu="100m"))
        await world.settle(30)
        assert sum(world.scheduler.metrics.batch_duration.of("failure").counts) == 0
        assert (
            "1 Insufficient cpu, gang default/job needs 5 members like default/job-1, at most 4 fit now"
            in world.condition("job-0")["message"]
        )
        # The first member would fit here, the others would not: nothing to be tried.
        world.api.put("Node", node("tiny", cpu="500m"))
        await world.settle(30)
        assert attempts.total("job") == 6
        world.api.put("Node", node("node-1", cpu="4"))
        await world.settle(5)
        assert len(placed(world)) == 6

    play_inline(story)


def test_members_beyond_the_minimum_are_placed_as_far_as_there_is_room() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(1, cpu="4")
        for number in range(6):
            world.api.put("Pod", member(f"job-{number}", "job", 3))
        await world.settle(20)
        assert len(placed(world)) == 4
        assert attempts.total("job") <= 1 + 2 * 2
        world.api.put("Node", node("node-1", cpu="4"))
        await world.settle(20)
        assert len(placed(world)) == 6

    play_inline(story)


@pytest.mark.parametrize(("cpu", "count"), [("8", 6), ("5", 0)])
def test_roles_of_a_job_are_placed_together_each_with_its_minimum(cpu: str, count: int) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu=cpu)
        groups = json.dumps(["default/ps", "default/worker"])
        for number in range(2):
            world.api.put("Pod", member(f"ps-{number}", "ps", 2, groups=groups))
        for number in range(4):
            world.api.put("Pod", member(f"worker-{number}", "worker", 4, groups=groups))
        await world.settle(5)
        assert len(placed(world)) == count

    play_inline(story)


def test_a_member_with_scheduling_gates_is_done_without_where_the_minimum_allows_it() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        for number in range(4):
            body = member(f"job-{number}", "job", 3)
            if number == 1:
                body["spec"]["schedulingGates"] = [{"name": "ready"}]
            world.api.put("Pod", body)
        await world.settle(5)
        assert placed(world) == ["job-0", "job-2", "job-3"]

    play_inline(story)


def test_a_gang_that_does_not_fit_leaves_the_room_to_others_and_backs_off() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(2, cpu="4")
        put_gang(world, "job", 9)
        for step in range(600):
            world.api.put("Node", node("node-0", cpu="4", pods=110 + step % 2))
            if step == 100:
                world.api.put("Pod", pod("single"))
            await world.settle(0.5)
            if step == 100:
                assert placed(world) == ["single"]
        assert 9 + 2 <= attempts.most("job") <= attempts_max(9)

    play_inline(story)


def test_with_job_preemption_members_that_do_not_fit_together_are_tried_one_by_one() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for number in range(4):
            world.api.put("Pod", pod(f"low-{number}"))
        await world.settle()
        for number in range(3):
            body = member(f"job-{number}", "job", 3)
            body["spec"]["priority"] = 100
            world.api.put("Pod", body)
        await world.settle(30)
        assert [name for name in placed(world) if name.startswith("job")] == ["job-0", "job-1", "job-2"]

    body = {
        "profiles": [
            {
                "schedulerName": "koord-scheduler",
                "pluginConfig": [{"name": "Coscheduling", "args": {"enablePreemption": True}}],
            }
        ]
    }
    play_inline(story, config=config.decode(body))
