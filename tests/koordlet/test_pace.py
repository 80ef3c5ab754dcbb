"""When rounds are due."""

import asyncio

from koordinator.host.cgroup_layout import Driver
from koordinator.koordlet.agent import LATE_INTERVALS, Pace
from koordinator.koordlet.view import NodeView, Topic
from koordinator.simulate.virtual_time import run_virtual

INTERVAL_S = 1.0


class Loop:
    """A loop of rounds that follows (or not) the usage, and when its rounds began."""

    def __init__(self, after: Topic | None, interval_s: float = INTERVAL_S) -> None:
        self.view = NodeView(Driver.CGROUPFS)
        self.pace = Pace(interval_s, self.view, after, "test")
        self.rounds_s: list[float] = []

    async def run(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        while loop.time() - start_s < until_s:
            self.rounds_s.append(round(loop.time() - start_s, 3))
            await self.pace.pause()

    async def measured(self, *at_s: float) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        for each_s in at_s:
            await asyncio.sleep(start_s + each_s - loop.time())
            self.view.changed(Topic.USAGE)


def rounds(
    after: Topic | None, at_s: tuple[float, ...], until_s: float, interval_s: float = 1.0
) -> list[float]:
    async def life(_: object) -> list[float]:
        loop = Loop(after, interval_s)
        await asyncio.gather(loop.run(until_s), loop.measured(*at_s))
        return loop.rounds_s

    return run_virtual(life)


def test_without_a_topic_rounds_come_by_the_clock() -> None:
    assert rounds(None, (0.3,), 3) == [0.0, 1.0, 2.0]


def test_a_round_follows_each_change_at_once() -> None:
    assert rounds(Topic.USAGE, (0.4, 1.41, 2.42), 2.5) == [0.0, 0.4, 1.41, 2.42]


def test_without_changes_rounds_come_all_the_same() -> None:
    late_s = INTERVAL_S * LATE_INTERVALS
    assert rounds(Topic.USAGE, (0.4,), 4) == [0.0, 0.4, 0.4 + late_s]


def test_a_slow_loop_does_not_follow_every_change() -> None:
    measured = tuple(0.1 + number * 1.01 for number in range(9))
    assert rounds(Topic.USAGE, measured, 7, interval_s=3.0) == [0.0, 0.1, 3.13, 6.16]


def test_changes_that_come_too_fast_are_spared() -> None:
    assert rounds(Topic.USAGE, (0.5, 0.6, 0.7, 1.5), 2) == [0.0, 0.5, 1.5]
