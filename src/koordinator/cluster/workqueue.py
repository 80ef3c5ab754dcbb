"""A queue of keys to look at: each is in it once, and no two workers hold the same.

The semantics are those of client-go's work queue: a key added while it is being worked on comes again
afterwards, once.
"""

import asyncio
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koordinator.cluster.rate_limit import Rate, TokenBucket

K = TypeVar("K")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The pace at which failed keys come back: each key doubles its own pause, all together obey `overall`.

    The defaults are client-go's default controller rate limiter.
    """

    initial_s: float = 0.005
    max_s: float = 1000.0
    overall: Rate = Rate(per_s=10.0, burst=100)


RETRIES = RetryPolicy()


class QueueObserver(Protocol):
    """Hears what happens to the keys of a queue."""

    def added(self, key: Any) -> None:
        """It waits for a worker, for the first time since it was taken."""

    def taken(self, key: Any) -> None:
        """A worker holds it."""

    def done(self, key: Any) -> None:
        """The worker has finished with it."""

    def retried(self, key: Any) -> None:
        """Its work failed, and it will come back."""


class WorkQueue(Generic[K]):
    """First in, first out. Bounded by the number of distinct keys, which is that of the objects watched."""

    def __init__(self, policy: RetryPolicy = RETRIES) -> None:
        self.observer: QueueObserver | None = None
        self._policy = policy
        self._bucket: TokenBucket | None = None
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._dirty: set[K] = set()
        self._held: set[K] = set()
        self._failures: dict[K, int] = {}
        self._delayed: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Keys that wait for a worker now (not those that wait for their time)."""
        return self._ready.qsize()

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing is held, nothing is delayed."""
        return not (self._dirty or self._held or self._delayed)

    def add(self, key: K) -> None:
        """Have the key looked at; nothing new when it waits already."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if self.observer is not None:
            self.observer.added(key)
        if key not in self._held:
            self._ready.put_nowait(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add the key after `delay_s`; of several such wishes the earliest counts."""
        if delay_s <= 0.0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        planned = self._delayed.get(key)
        if planned is not None:
            if planned.when() <= due_s:
                return
            planned.cancel()
        self._delayed[key] = loop.call_at(due_s, self._is_due, key)

    def add_rate_limited(self, key: K) -> None:
        """Add a key whose work failed, after the pause it has earned."""
        now_s = asyncio.get_running_loop().time()
        if self._bucket is None:
            self._bucket = TokenBucket(self._policy.overall, now_s)
        if self.observer is not None:
            self.observer.retried(key)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # 2.0 ** failures overflows a float near 1,024 failures.
        own_s = min(self._policy.initial_s * 2.0 ** min(failures, 64), self._policy.max_s)
        self.add_after(key, max(own_s, self._bucket.reserve(now_s)))

    def forget(self, key: K) -> None:
        """The key's work succeeded (or is given up): its next failure starts from the first pause."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return how often the key was added rate-limited since it was last forgotten."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Return the next key; the caller must call `done` when it has finished with it."""
        key = await self._ready.get()
        self._dirty.discard(key)
        self._held.add(key)
        if self.observer is not None:
            self.observer.taken(key)
        return key

    def done(self, key: K) -> None:
        """Give the key back; it is queued again if it was added meanwhile."""
        self._held.discard(key)
        if self.observer is not None:
            self.observer.done(key)
        if key in self._dirty:
            self._ready.put_nowait(key)

    def close(self) -> None:
        """Cancel all timers; keys that wait stay readable."""
        for handle in self._delayed.values():
            handle.cancel()
        self._delayed.clear()

    def _is_due(self, key: K) -> None:
        del self._delayed[key]
        self.add(key)
