"""Trying a write again after somebody else changed the object (behaviour/api 1.4)."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy

R = TypeVar("R")

CONFLICT_TRIES_MAX = 4
CONFLICT_BACKOFF = BackoffPolicy(initial_s=0.01, max_s=10.0, factor=5.0, jitter_ratio=0.1)


Errors = tuple[type[errors.ApiError], ...]

LOST_RACE: Errors = (errors.Conflict, errors.TooManyRequests)
# For attempts that may safely happen twice: also when the connection was closed or reset.
LOST_RACE_OR_CONNECTION: Errors = (*LOST_RACE, errors.ConnectionFailed)


async def retry_on_conflict(
    attempt: Callable[[], Awaitable[R]], rng: random.Random, *, on: Errors = LOST_RACE
) -> R:
    """Return what `attempt` returns; it reads the object afresh, decides and writes each time.

    Tried four times when it fails with one of `on`, pausing 10 ms, 50 ms and 250 ms (or as long as the
    server asks). Raises: the last error.
    """
    backoff = Backoff(CONFLICT_BACKOFF, rng)
    for _ in range(CONFLICT_TRIES_MAX - 1):
        try:
            return await attempt()
        except on as error:
            await asyncio.sleep(backoff.next_s(error))
    return await attempt()
