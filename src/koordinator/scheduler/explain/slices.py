"""Long answers in slices: between two of them the scheduler goes on with its work.

A question is a generator. Up to each `yield` it takes one look at the tables as they stand, at most some 10 ms; a
trial or a rehearsal never stays open across one, as the scheduler would take what is supposed for what is.
"""

import asyncio
from collections.abc import Generator
from typing import TypeVar

from koordinator.scheduler.engine.engine import Engine

T = TypeVar("T")

Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Return the answer in one piece, where nobody waits for the loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: T = end.value
            return answer


async def in_turns(steps: Steps[T], engine: Engine) -> T:
    """Return the answer; after each slice everybody else has a turn."""
    async with engine.explaining:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer: T = end.value
                return answer
            assert not engine.table.is_trial, "a trial is open across slices"
            await asyncio.sleep(0)
