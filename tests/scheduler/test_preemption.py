"""Important pods take the place of less important ones, and the room made for them stays theirs."""

import asyncio

from koordinator.scheduler.plugins.preemption.eviction import DISRUPTION_TARGET, PREEMPTION
from tests.scheduler.world import World, play, pod


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
        assert not len(world.scheduler.engine.nominations)

    play(story)


def test_victims_are_marked_before_they_are_deleted() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("low", cpu="3", priority=1))
        await world.settle(2)
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
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("low", cpu="3", priority=1))
        await world.settle(2)
        world.api.put("Pod", pod("meek", cpu="3", priority=1000, preemptionPolicy="Never"))
        await world.settle(5)

        assert world.api.placements()["low"] == "node-0"
        assert "not eligible due to preemptionPolicy=Never." in world.condition("meek")["message"]

    play(story)


def test_room_made_by_preemption_is_not_taken_by_less_important_pods() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("low", cpu="4", priority=1))
        await world.settle(2)
        world.api.hold_deletions = True
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

        with table.trial() as trial:
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
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("low", cpu="3", priority=1))
        await world.settle(2)
        world.api.hold_deletions = True
        world.api.put("Pod", pod("high", cpu="4", priority=1000))
        await world.settle(2)
        world.api.put("Pod", pod("small", cpu="1", priority=5))
        await world.settle(2)
        assert world.api.placements()["small"] == ""

        world.api.remove("Pod", "high", "default")
        await world.settle(15)
        assert world.api.placements()["small"] == "node-0"

    play(story)
