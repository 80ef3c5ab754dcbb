"""Collect what happened to quotas, for loops that look at what changed instead of at all quotas; and measure how long
that takes (behaviour/elastic-quota 16)."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from koordinator.prometheus import Histogram, exponential
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook

T = TypeVar("T")


class ChangeListener:
    """The changes that one loop has not seen yet."""

    def __init__(self) -> None:
        self.touched: set[str] = set()
        """Quotas whose sums or specs changed."""
        self.drifted: set[str] = set()
        """Quotas whose runtime changed."""
        self.bell = asyncio.Event()

    async def wait(self, timeout_s: float | None) -> None:
        """Until something happened, at most so long (None: however long)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.bell.wait()
        except TimeoutError:
            return

    def take(self) -> tuple[set[str], set[str]]:
        """Take what was touched, and what drifted."""
        self.bell.clear()
        taken = self.touched, self.drifted
        self.touched, self.drifted = set(), set()
        return taken


class QuotaChanges:
    """Tells listeners what changed in the book."""

    def __init__(self, book: QuotaBook, *, has_runtime: bool) -> None:
        self._book = book
        self._has_runtime = has_runtime
        self.on_change: list[Callable[[set[str]], None]] = []
        """Functions that hear first which quotas changed."""
        self._listeners: list[ChangeListener] = []

    def happened(self) -> None:
        """Something may have changed; costs nothing, so it may be said of every pod."""
        for each in self._listeners:
            each.bell.set()

    def after(self, handler: Callable[[T], object]) -> Callable[[T], None]:
        """Return the handler, and the news of it."""

        def handle(subject: T) -> None:
            handler(subject)
            self.happened()

        return handle

    def listen(self) -> ChangeListener:
        """Return a new listener, for whom everything is news."""
        listener = ChangeListener()
        listener.touched.update(self._book.names())
        listener.bell.set()
        self._listeners.append(listener)
        return listener

    def leave(self, listener: ChangeListener) -> None:
        """Note that the loop has ended."""
        self._listeners.remove(listener)

    def spread(self) -> None:
        """Brings the quotas up to date, as far as anything changed, and tells what did."""
        drifted = self._book.settle() if self._has_runtime else set()
        touched = self._book.take_touched()
        changed = touched | drifted
        if not changed:
            return
        for each in self._listeners:
            each.touched |= touched
            each.drifted |= drifted
            each.bell.set()
        for handler in self.on_change:
            handler(changed)


Ts = TypeVarTuple("Ts")
R = TypeVar("R")


class Latencies:
    """Measures calls under the names that upstream gives them."""

    def __init__(self, handle: Handle) -> None:
        self._now = handle.clock.now
        self._histogram = handle.metrics.registry.shared(
            Histogram(
                "scheduler_elastic_quota_process_latency",
                "How long operations on quotas take.",
                exponential(1e-5, 2, 24),
                ("operation",),
            )
        )

    def of(self, operation: str, function: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
        """Return the function, measured."""
        observe, now = self._histogram.of(operation).observe, self._now

        def measured(*args: *Ts) -> R:
            began_s = now()
            try:
                return function(*args)
            finally:
                took_s = now() - began_s
                observe(took_s if took_s > 0.0 else 0.0)

        return measured
