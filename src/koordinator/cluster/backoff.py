"""Decide how long to wait before trying again: exponential growth with seeded jitter."""

import random

import msgspec

from koordinator.cluster import errors


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
        """Seconds to wait now; at least what the server asked for in `error` (Retry-After)."""
        base_s = min(self._next_s, self._policy.max_s)
        self._next_s = min(self._next_s * self._policy.factor, self._policy.max_s)
        pause_s = base_s * (1.0 + self._policy.jitter_ratio * self._rng.random())
        return max(pause_s, retry_after_s(error))

    def reset(self) -> None:
        self._next_s = self._policy.initial_s


def retry_after_s(error: Exception | None) -> float:
    """Seconds that the server asked to wait, 0 when it did not."""
    if isinstance(error, errors.ApiError) and error.details is not None:
        return float(error.details.retry_after_seconds)
    return 0.0
