"""Jobs whose victims take their time, or are on their way out for somebody else."""

from koordinator.cluster import errors
from tests.scheduler.coscheduling.test_preemption import (
    full_of_low_pods,
    gang,
    nominated,
    placed,
    victims,
    with_preemption,
)
from tests.scheduler.world import World, node, play, pod


def attempts(world: World) -> int:
    of = world.scheduler.metrics.attempt_duration.of
    return sum(
        sum(of(result, "koord-scheduler").counts) for result in ("scheduled", "unschedulable", "error")
    )


def test_a_gang_that_fits_once_the_victims_of_another_job_are_gone_waits_for_them_in_peace() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        world.api.put("Pod", pod("low", cpu="4", priority=1, nodeName="node-1"))
        await world.settle(2)
        world.api.hold_deletions = True
        world.api.put(
            "Pod", pod("single", cpu="4", priority=500, nodeSelector={"kubernetes.io/hostname": "node-1"})
        )
        await world.settle(2)
        assert victims(world) == ["low"]
        world.api.remove("Pod", "single", "default")

        # What members are promised only the scheduler knows.
        world.api.fail_next["patch"] = [errors.ServiceUnavailable("not now") for _ in range(10_000)]
        before = attempts(world)
        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(30)
        assert attempts(world) - before < 20
        assert not placed(world, "high")

        world.api.fail_next.clear()
        world.api.remove("Pod", "low", "default")
        await world.settle(10)
        assert sorted(placed(world, "high").values()) == ["node-0", "node-1"]
        assert victims(world) == ["low"]

    play(story, with_preemption())


def test_a_victim_that_can_never_be_deleted_costs_an_attempt_per_backoff() -> None:
    async def story(world: World) -> None:
        await full_of_low_pods(world, 1)
        world.api.fail_next["delete"] = [errors.Forbidden("not yours") for _ in range(1_000)]

        gang(world, "high", 1, cpu="4", priority=1000)
        await world.settle(120)

        tried = 1_000 - len(world.api.fail_next["delete"])
        assert 5 < tried < 40

    play(story, with_preemption())


def test_a_gang_is_tried_again_when_somebody_leaves_whom_it_could_not_evict() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        for name, priority in (("low-0", 1), ("noble-0", 5000), ("low-1", 1), ("noble-1", 5000)):
            world.api.put("Pod", pod(name, cpu="2", priority=priority, nodeName=f"node-{name[-1]}"))
        await world.settle(2)
        gang(world, "high", 2, cpu="4", priority=1000)
        await world.settle(10)
        assert not victims(world)

        for name in ("noble-0", "noble-1"):
            world.api.remove("Pod", name, "default")
        await world.settle(20)

        assert len(placed(world, "high")) == 2
        assert victims(world) == ["low-0", "low-1"]

    play(story, with_preemption())


def test_a_member_that_is_made_anew_waits_for_the_victims_of_the_one_before() -> None:
    async def story(world: World) -> None:
        await full_of_low_pods(world, 1)
        world.api.hold_deletions = True
        gang(world, "high", 1, cpu="4", priority=1000)
        await world.settle(5)
        assert victims(world) == ["low-0"]

        world.api.remove("Pod", "high-0", "default")
        world.api.put("Node", node("node-1", cpu="4"))
        world.api.put("Pod", pod("low-1", cpu="4", priority=0, nodeName="node-1"))
        await world.settle(5)
        gang(world, "high", 1, cpu="4", priority=1000)
        await world.settle(30)
        assert victims(world) == ["low-0"]
        assert nominated(world) == {"high-0": "node-0"}

        world.api.remove("Pod", "low-0", "default")
        await world.settle(20)
        assert placed(world, "high") == {"high-0": "node-0"}

    play(story, with_preemption())


def test_a_job_does_not_wait_for_room_on_a_node_that_takes_none_of_it_any_more() -> None:
    async def story(world: World) -> None:
        await full_of_low_pods(world, 1)
        world.api.hold_deletions = True
        gang(world, "high", 1, cpu="4", priority=1000)
        await world.settle(5)
        assert victims(world) == ["low-0"]

        cordoned = node("node-0", cpu="4")
        cordoned["spec"]["unschedulable"] = True
        world.api.put("Node", cordoned)
        world.api.put("Node", node("node-1", cpu="4"))
        world.api.put("Pod", pod("low-1", cpu="4", priority=1, nodeName="node-1"))
        await world.settle(30)
        assert victims(world) == ["low-0", "low-1"]

    play(story, with_preemption())
