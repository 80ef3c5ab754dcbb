"""Loops of the agent wake up together."""

import asyncio
import itertools
from collections.abc import Coroutine

import pytest

from koordinator.koordlet import wakeups
from koordinator.koordlet.wakeups import SLOT_S
from koordinator.simulate import virtual_time

LATE_S = 0.03


def run(main: Coroutine[None, None, None]) -> None:
    virtual_time.run_virtual(lambda _: main)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_loops_that_began_at_any_time_wake_up_at_the_same_moments() -> None:
    moments: list[float] = []

    async def repeat(after_s: float) -> None:
        await asyncio.sleep(after_s)
        for _ in range(5):
            await wakeups.sleep(1.0)
            moments.append(now_s())

    async def main() -> None:
        await asyncio.gather(*(repeat(number * 0.011) for number in range(10)))

    run(main())
    assert len(moments) == 50
    assert len(set(moments)) == 5


def test_rounds_that_take_their_time_keep_their_pace() -> None:
    moments: list[float] = []

    async def main() -> None:
        for _ in range(20):
            await wakeups.sleep(1.0)
            moments.append(now_s())
            await asyncio.sleep(LATE_S)

    run(main())
    assert [later - sooner for sooner, later in itertools.pairwise(moments)] == pytest.approx([1.0] * 19)


@pytest.mark.parametrize("seconds", [0.0, 0.1, SLOT_S, 0.4, 1.0, 57.8])
def test_nobody_sleeps_much_longer_or_shorter_than_asked(seconds: float) -> None:
    async def main() -> None:
        for _ in range(10):
            await asyncio.sleep(0.037)
            began_s = now_s()
            await wakeups.sleep(seconds)
            assert abs(now_s() - began_s - seconds) <= (SLOT_S / 2 if seconds >= SLOT_S else 1e-6) + 1e-6

    run(main())


def test_a_sleeper_that_is_cancelled_leaves_the_others_asleep() -> None:
    async def main() -> None:
        began_s = now_s()
        cancelled, other = (asyncio.create_task(wakeups.sleep(2.0)) for _ in range(2))
        await asyncio.sleep(1.0)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        assert not other.done()
        await other
        assert now_s() - began_s == pytest.approx(2.0, abs=SLOT_S / 2)

    run(main())
