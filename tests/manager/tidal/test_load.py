"""The load rule: one node more or less, judged over a window."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from koordinator.manager.tidal.target import GAP_S, LoadHistory
from tests.manager.tidal.test_controller import all_run
from tests.manager.tidal.world import TideWorld, run

WINDOW_S = 900.0


@given(
    samples=st.lists(st.tuples(st.floats(0.0, GAP_S - 1.0), st.floats(0.0, 100.0)), min_size=1, max_size=60)
)
def test_the_highest_load_of_a_full_window_is_known(samples: list[tuple[float, float]]) -> None:
    history, now_s, seen = LoadHistory(), 0.0, []
    for gap_s, percent in samples:
        now_s += gap_s
        history.add(now_s, percent, WINDOW_S)
        seen.append((now_s, percent))

    highest = history.highest(now_s, WINDOW_S)

    within = [percent for at_s, percent in seen if at_s >= now_s - WINDOW_S]
    assert (highest is not None) is (seen[0][0] <= now_s - WINDOW_S)
    assert highest is None or highest >= max(within)


def test_a_gap_a_clock_that_went_back_and_an_unknown_load_begin_anew() -> None:
    for jump_s, percent in ((GAP_S + 1, 10.0), (-60.0, 10.0), (10.0, None)):
        history = LoadHistory()
        for number in range(100):
            history.add(number * 10.0, 10.0, WINDOW_S)
        assert history.highest(990.0, WINDOW_S) == 10.0

        history.add(990.0 + jump_s, percent, WINDOW_S)
        assert history.highest(990.0 + jump_s, WINDOW_S) is None


def test_without_a_schedule_the_load_lends_node_by_node_and_takes_them_back() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 4)
        await world.reaches(lambda: all_run(world, "web", 4))
        rule = {"scaleInBelowPercent": 30, "scaleOutAbovePercent": 60, "window": "5m"}

        async def lent() -> int:
            return list((await world.phases()).values()).count("batch")

        async with world.manager():
            await world.pool(schedule=[], load=rule, cooldown="1m")
            await asyncio.sleep(290)
            assert await lent() == 0  # 4 of 24 cores would be asked for, but the window is not full
            await asyncio.sleep(60)
            assert await lent() == 1
            await asyncio.sleep(600)
            assert await lent() == 2  # and no third: 4 of 8 cores are above 30 %

            await world.scale("web", 11)  # 11 of 16 cores are above 60 %
            await asyncio.sleep(240)
            assert await lent() == 1
            assert (await world.found_pool()).status.target == 1

    run(story)
