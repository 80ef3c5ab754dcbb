"""A scheduler that dies in the middle of a gang, and the next one, which has to go on with it."""

import asyncio
from collections.abc import Callable

import pytest

from tests.cluster import virtual_loop
from tests.scheduler.coscheduling.stage import Json, member, stage
from tests.scheduler.world import pod

SIZE = 4
SPARE = 2
"""Places beside those of the gang."""
SETTLE_S = 700.0
"""Longer than the longest wait of the queue."""


def gang(name: str, size: int = SIZE, **parts: object) -> list[Json]:
    return [member(f"{name}-{number}", name, size, **parts) for number in range(size)]


async def moments_of_a_gang() -> list[str]:
    """Every moment of the gang's way from the first Reserve to the last answer, in order."""
    found: list[str] = []
    async with stage() as played:
        played.moment = found.append
        await played.nodes("3", "3")
        await played.pods(*gang("job"))
        await played.start()
        await asyncio.sleep(5)
        assert await played.bound() == [f"job-{number}" for number in range(SIZE)]
    return found


async def die_at(number: int, others: list[Json]) -> tuple[int, list[str]]:
    """How many of the gang were bound when the scheduler died at that moment, and who is bound in the end.

    There is room for the gang or for `others`, who come before the next scheduler.
    """
    async with stage() as played:
        await played.nodes("3", "3")
        await played.pods(*gang("job"))
        countdown = iter(range(number, -1, -1))

        def moment(_: str) -> None:
            if next(countdown, -1) == 0:
                played.cut()

        played.moment = moment
        await played.start()
        await asyncio.sleep(5)
        await played.bury()
        left_half = len(await played.bound("job"))
        played.moment = lambda _: None

        await played.pods(*others)
        await played.start()
        for _ in range(200):
            await asyncio.sleep(0.05)
            ours, theirs = await played.bound("job"), await played.bound("0")
            is_half = 0 < len(ours) < SIZE
            assert not is_half or len(theirs) <= SPARE, f"{ours} run, and {theirs} have taken their room"
        await asyncio.sleep(SETTLE_S)
        return left_half, await played.bound()


OTHERS: dict[str, Callable[[], list[Json]]] = {
    "nobody else": list,
    "another gang that sorts first": lambda: gang("0-other"),
    "a more important gang": lambda: gang("0-other", priorityClassName="urgent"),
    "more important single pods": lambda: [
        pod(f"0-{number}", priorityClassName="urgent") for number in range(4)
    ],
}


@pytest.mark.parametrize("others", OTHERS)
def test_a_gang_is_bound_as_a_whole_whenever_its_scheduler_dies(others: str) -> None:
    moments = virtual_loop.run(moments_of_a_gang())
    assert len(moments) == SIZE * 6, moments
    everybody = [f"job-{number}" for number in range(SIZE)]
    left = []
    for number, moment in enumerate(moments):
        left_half, bound = virtual_loop.run(die_at(number, OTHERS[others]()))
        ours = [name for name in bound if name.startswith("job")]
        left.append(left_half)
        if left_half:
            assert ours == everybody, f"died {moment}, {left_half} were bound, in the end {bound}"
        else:
            assert ours in ([], everybody), f"died {moment}, in the end {bound}"
    assert set(left) == set(range(SIZE + 1)), "it died with any number of them bound"
