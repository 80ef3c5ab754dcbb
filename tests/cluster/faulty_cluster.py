"""A cluster whose API misbehaves at random: late answers, refusals, lost answers, broken watches."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, Page, WatchEvent
from koordinator.cluster.write_through import ClusterWrite, WriteThrough

T = TypeVar("T", bound=Object)
R = TypeVar("R")

REFUSALS = (errors.TooManyRequests, errors.InternalError, errors.ServiceUnavailable, errors.Conflict)
"""Errors of requests that had no effect."""
LOSSES = (errors.Timeout, errors.ConnectionFailed, errors.InternalError)
"""Errors of requests that may have had one."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How the API misbehaves; ratios are of requests, of batches of a watch for those of watches."""

    refused_ratio: float = 0.0
    lost_before_ratio: float = 0.0
    """No effect and no answer."""
    lost_after_ratio: float = 0.0
    """An effect, but no answer."""
    delay_s_max: float = 0.0
    watch_broken_ratio: float = 0.0
    watch_expired_ratio: float = 0.0
    """The watch ends with 410, so that its client lists again."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "Faults":
        """Some kinds of faults, often or rarely."""

        def ratio(most: float) -> float:
            return rng.choice((0.0, rng.uniform(0.0, most)))

        return cls(
            refused_ratio=ratio(0.3),
            lost_before_ratio=ratio(0.2),
            lost_after_ratio=ratio(0.3),
            delay_s_max=rng.choice((0.0, 0.05, 1.0)),
            watch_broken_ratio=ratio(0.1),
            watch_expired_ratio=ratio(0.05),
        )


class FaultyCluster(WriteThrough):
    """`inner` with `faults`, until `heal` is called. `on_request` hears of each moment before and after an
    effect."""

    def __init__(self, inner: Cluster, faults: Faults, rng: random.Random) -> None:
        super().__init__(inner)
        self.on_moment: Callable[[], None] = lambda: None
        self._faults = faults
        self._rng = rng

    def heal(self) -> None:
        self.misbehave(Faults())

    def misbehave(self, faults: Faults) -> None:
        """Be as bad as this from now on."""
        self._faults = faults

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        return await self._send(None, lambda: self._inner.get(view, name, namespace))

    async def list(self, view: type[T], namespace: str = "", **options: Any) -> Page[T]:
        return await self._send(None, lambda: self._inner.list(view, namespace, **options))

    async def watch(
        self, view: type[T], namespace: str = "", **options: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        async for batch in self._inner.watch(view, namespace, **options):
            await self._delay()
            if self._happens(self._faults.watch_expired_ratio):
                raise errors.Gone("too old resource version")
            if self._happens(self._faults.watch_broken_ratio):
                raise errors.ConnectionFailed("the connection was reset")
            yield batch

    async def request(self, *args: Any) -> dict[str, Any]:
        return await self._send(None, lambda: self._inner.request(*args))

    async def _send(self, write: ClusterWrite | None, effect: Callable[[], Awaitable[R]]) -> R:
        self.on_moment()
        await self._delay()
        if self._happens(self._faults.refused_ratio):
            raise self._rng.choice(REFUSALS)("injected refusal")
        if self._happens(self._faults.lost_before_ratio):
            raise self._rng.choice(LOSSES)("injected loss of a request")
        result = await effect()
        self.on_moment()
        await self._delay()
        if self._happens(self._faults.lost_after_ratio):
            raise self._rng.choice(LOSSES)("injected loss of an answer")
        return result

    async def _delay(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, self._faults.delay_s_max))

    def _happens(self, ratio: float) -> bool:
        return ratio > 0.0 and self._rng.random() < ratio
