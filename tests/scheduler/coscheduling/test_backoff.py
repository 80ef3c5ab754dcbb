"""Gangs that do not fit are tried again when that may help, and no more often than their backoff allows."""

import asyncio
from collections import Counter
from typing import Any

from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.queue.scheduling_queue import UNSCHEDULABLE_CHECK_S, UNSCHEDULABLE_S_MAX
from tests.scheduler.coscheduling.test_plugin import member, placed
from tests.scheduler.world import EPOCH_S, World, node, play, pod

MINUTE_S = 60.0
ROUNDS_PER_MINUTE_MAX = 6 + 1
"""A failed job backs off for 10 s in the end; windows may begin within a minute."""


def attempts_max(members: int) -> int:
    """In a minute: all members are told why once, and where nothing is new one is tried per round."""
    return members - 1 + ROUNDS_PER_MINUTE_MAX


class Attempts:
    """Counts the attempts of each pod per minute of virtual time, by the part of its name before the dash."""

    def __init__(self, world: World) -> None:
        self.per_minute: Counter[tuple[str, int]] = Counter()
        observer, loop = world.scheduler.observer, asyncio.get_running_loop()
        search = observer.search

        def counting(profile: Any, entry: Any, *more: Any) -> Any:
            name = entry.pod.pod.metadata.name.split("-")[0]
            self.per_minute[name, int(loop.time() // MINUTE_S)] += 1
            return search(profile, entry, *more)

        observer.search = counting  # type: ignore[method-assign]

    def most(self, name: str, since_minute: int = 1) -> int:
        """In any minute from that one on; the first has the short backoffs."""
        counts = self.per_minute.items()
        return max(count for (who, minute), count in counts if who == name and minute >= since_minute)

    def total(self, name: str) -> int:
        return sum(n for (who, _), n in self.per_minute.items() if who == name)


def put_gang(world: World, name: str, count: int, **options: Any) -> None:
    for number in range(count):
        world.api.put("Pod", member(f"{name}-{number}", name, count, **options))


def test_two_gangs_that_do_not_fit_do_not_wake_each_other() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(1, cpu="4")
        put_gang(world, "red", 5)
        put_gang(world, "blue", 5)
        await world.settle(UNSCHEDULABLE_S_MAX - 1)
        assert placed(world) == []
        assert (attempts.total("red"), attempts.total("blue")) == (5, 5)
        await world.settle(2 * UNSCHEDULABLE_CHECK_S)
        assert (attempts.total("red"), attempts.total("blue")) == (10, 10)

    play(story)


def test_news_from_nodes_try_a_gang_no_more_often_than_its_backoff_allows() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(2, cpu="4")
        put_gang(world, "red", 9)
        put_gang(world, "blue", 10)
        for step in range(3_000):
            # A node of 4 cores has room for a member whenever it is looked at alone.
            world.api.put("Node", node("node-0", cpu="4", pods=110 + step % 2))
            await world.settle(0.1)
        assert placed(world) == []
        assert 9 + 2 <= attempts.most("red") <= attempts_max(9)
        assert 10 + 2 <= attempts.most("blue") <= attempts_max(10)

    play(story)


def test_single_pods_that_come_and_go_are_placed_at_once_beside_a_gang_that_does_not_fit() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(2, cpu="4")
        put_gang(world, "job", 9)
        for step in range(600):
            name = f"single-{step}"
            world.api.put("Pod", pod(name))
            await world.settle(0.25)
            assert placed(world) == [name]
            world.api.remove("Pod", name, "default")
            await world.settle(0.25)
        assert attempts.total("single") == 600
        assert 9 + 2 <= attempts.most("job") <= attempts_max(9)

    play(story)


def test_a_gang_that_failed_is_placed_within_its_backoff_once_there_is_room() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_gang(world, "job", 8)
        for step in range(100):
            world.api.put("Node", node("node-0", cpu="4", pods=110 + step % 2))
            await world.settle(1)
        assert placed(world) == []
        world.api.put("Node", node("node-1", cpu="4"))
        await world.settle(12)
        assert len(placed(world)) == 8

    play(story)


def test_members_are_tried_as_often_and_as_long_as_the_first_of_their_round() -> None:
    async def story(world: World) -> None:
        bound: list[tuple[int, float | None]] = []
        reported = world.scheduler.observer.placed

        def placed_and_noted(entry: QueuedPod, now_s: float) -> None:
            bound.append((entry.attempt_count, entry.first_attempt_s))
            reported(entry, now_s)

        world.scheduler.observer.placed = placed_and_noted  # type: ignore[method-assign]
        world.nodes(1, cpu="4")
        put_gang(world, "job", 5)
        await world.settle(30)
        world.api.put("Node", node("node-1", cpu="4"))
        await world.settle(15)
        assert bound == [(2, EPOCH_S)] * 5

    play(story)


def test_a_late_member_fails_with_its_job_and_backs_off_with_it() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(1, cpu="4")
        put_gang(world, "job", 5)
        for step in range(300):
            world.api.put("Node", node("node-0", cpu="4", pods=110 + step % 2))
            if step == 200:
                world.api.put("Pod", member("job-late", "job", 5))
            await world.settle(1)
        assert attempts.most("job") <= 6 * (ROUNDS_PER_MINUTE_MAX + 1)

    play(story)
