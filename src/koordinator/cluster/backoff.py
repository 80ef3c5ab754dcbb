"""Decide how long to wait before trying again: exponential growth with seeded jitter.

A write is tried again after somebody else changed the object (behaviour/api 1.4).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from koordinator.cluster import errors


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """`per_s` actions per second in the long run, `burst` at once."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError(f"rate: per_s {self.per_s} must be above 0 and burst {self.burst} at least 1")


class TokenBucket:
    """Grants actions in the order they are asked for; what exceeds the rate is told to wait."""

    __slots__ = ("_rate", "_refilled_s", "_tokens")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._refilled_s = now_s

    def reserve(self, now_s: float) -> float:
        """Take a token, on credit when there is none; seconds until the action may happen."""
        self._refill(now_s)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate.per_s)

    def try_take(self, now_s: float) -> bool:
        """Take a token if there is one."""
        self._refill(now_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    async def wait(self) -> float:
        """Take a token and sleep until it is due; how many seconds that is. When cancelled meanwhile, the token is
        given back."""
        pause_s = self.reserve(asyncio.get_running_loop().time())
        if pause_s <= 0.0:
            return 0.0
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            self._tokens += 1.0
            raise
        return pause_s

    def _refill(self, now_s: float) -> None:
        earned = max(0.0, now_s - self._refilled_s) * self._rate.per_s
        self._tokens = min(float(self._rate.burst), self._tokens + earned)
        # Also where a clock went back: else nothing is granted until it has caught up.
        self._refilled_s = now_s


class BackoffPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """First pause, growth and ceiling. `jitter_ratio` 0.1 adds up to 10 % to each pause."""

    initial_s: float = 0.8
    max_s: float = 30.0
    factor: float = 2.0
    jitter_ratio: float = 1.0


class Backoff:
    """Pauses that grow while failures continue; `reset` after a success."""

    def __init__(self, policy: BackoffPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._next_s = policy.initial_s

    def next_s(self, error: Exception | None = None) -> float:
        """Return seconds to wait now; at least what the server asked for in `error` (Retry-After)."""
        base_s = min(self._next_s, self._policy.max_s)
        self._next_s = min(self._next_s * self._policy.factor, self._policy.max_s)
        pause_s = base_s * (1.0 + self._policy.jitter_ratio * self._rng.random())
        return max(pause_s, retry_after_s(error))

    def reset(self) -> None:
        self._next_s = self._policy.initial_s


def new_rng(parent: random.Random) -> random.Random:
    """Return a generator of its own for one part, so that parts do not change each other's numbers."""
    return random.Random(parent.getrandbits(64))


def retry_after_s(error: Exception | None) -> float:
    """Return seconds that the server asked to wait, 0 when it did not."""
    if isinstance(error, errors.ApiError) and error.details is not None:
        return float(error.details.retry_after_seconds)
    return 0.0


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
