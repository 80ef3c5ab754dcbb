"""A controller: watch events put keys in a queue, workers bring each key's object to its wanted state."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koordinator.api.meta import Object
from koordinator.cluster.backoff import Rate, TokenBucket, retry_after_s
from koordinator.cluster.informer import Informer
from koordinator.cluster.supervise import Guard

K = TypeVar("K")
T = TypeVar("T", bound=Object)


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
        """Note that a worker holds it."""

    def done(self, key: Any) -> None:
        """Note that the worker has finished with it."""

    def retried(self, key: Any) -> None:
        """Note that its work failed, and it will come back."""


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
        """Add the key after `delay_s`; of several such requests the earliest counts."""
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
        """Note that the key's work succeeded (or is given up): its next failure starts from the first pause."""
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


Reconcile = Callable[[K], Awaitable[float | None]]
"""Brings one key to its wanted state; the seconds after which to look again, None for not before a change.
What it raises is logged and counted, and the key comes back with growing pauses."""


class Controller(Generic[K]):
    """Runs `reconcile` for every key of `queue`, at most `workers` at once, never one key twice at once."""

    def __init__(
        self, name: str, reconcile: Reconcile[K], *, workers: int = 1, retries: RetryPolicy = RETRIES
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name}: workers {workers} must be at least 1")
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(retries)
        self.guard = Guard(f"controller {name}")
        self._reconcile = reconcile
        self._workers = workers

    def watch(self, informer: Informer[T], keys: Callable[[T], Sequence[K]]) -> None:
        """Queue what `keys` gives for each object that appears, changes (both states) or vanishes."""
        queue = self.queue

        def changed(obj: T) -> None:
            for key in keys(obj):
                queue.add(key)

        def updated(old: T, new: T) -> None:
            changed(old)
            changed(new)

        informer.add_handler(changed, updated, changed)

    async def run(self, informers: Sequence[Informer[Any]] = ()) -> None:
        """Work until cancelled, from the moment when all `informers` have their first list."""
        for informer in informers:
            await informer.synced.wait()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.guard.name} worker {number}")
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._handle(key)
            finally:
                self.queue.done(key)
            # A reconcile that never waits (in-process cluster) must not starve the informers.
            await asyncio.sleep(0)

    async def _handle(self, key: K) -> None:
        error = await self.guard.call_async(self._reconcile_and_plan, key)
        if error is None:
            self.queue.forget(key)
        elif (pause_s := retry_after_s(error)) > 0.0:
            self.queue.add_after(key, pause_s)
        else:
            self.queue.add_rate_limited(key)

    async def _reconcile_and_plan(self, key: K) -> None:
        again_s = await self._reconcile(key)
        if again_s is not None:
            self.queue.add_after(key, again_s)


def is_controller_enabled(name: str, listed: Sequence[str]) -> bool:
    """Return what `--controllers` says of a controller: its first mention, `-name` being off; else whether `*` is
    listed."""
    for item in listed:
        if item in (name, f"-{name}"):
            return item == name
    return "*" in listed


class ControllerLoop:
    """Base of loops around a controller: they set what it watches when they are made."""

    _controller: Controller[Any]
    _informers: Sequence[Informer[Any]]

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run(self._informers)
