"""Loops of the agent: one round at once, then each an interval after the end of the one before, whatever happens."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from koordinator.api.feature_gates import FeatureGates
from koordinator.cluster.supervise import Guard
from koordinator.koordlet.parts import Following, Reporter, Shared, Strategy
from koordinator.koordlet.view import NodeView, Topic

log = logging.getLogger(__name__)

LATE_INTERVALS = 2.0
"""A round that follows a change comes after so many intervals even without one."""

FAILED_S_MAX = 10.0
"""The longest pause after rounds that failed in a row; a service waits for its protection meanwhile."""
PAUSE_S_MIN = 0.1
Pause = Callable[[], Awaitable[None]]


class Pace:
    """The pauses of one loop. Rounds that follow a topic are at least `interval_s` less half of `change_interval_s`
    apart, where `change_interval_s` is how often the topic changes.

    A strategy that acts on samples and runs by a clock of its own sees each sample up to an interval late. One that
    follows the measuring reacts at once, and when nothing is measured any more it still gets its rounds.
    """

    def __init__(
        self,
        interval_s: float,
        view: NodeView,
        after: Topic | None,
        name: str,
        change_interval_s: float = 1.0,
    ) -> None:
        self._interval_s = interval_s
        self._gap_s = max(interval_s - change_interval_s / 2, 0.0)
        self._is_following = after is not None
        self._due: asyncio.Future[None] | None = None
        self._last_s = float("-inf")
        self._is_overdue = False
        if after is not None:
            view.listen(after, name, self._changed)

    async def pause(self) -> None:
        """Until the next round is due; to be called after each."""
        if not self._is_following:
            await asyncio.sleep(self._interval_s)
            return
        loop = asyncio.get_running_loop()
        if not self._is_overdue:
            self._due = loop.create_future()
            try:
                async with asyncio.timeout(self._interval_s * LATE_INTERVALS):
                    await self._due
            except TimeoutError:
                pass
            finally:
                self._due = None
        self._is_overdue = False
        self._last_s = loop.time()

    def _changed(self) -> None:
        if self._due is None:
            self._is_overdue = True  # while the round was running: the next one follows at once
        elif asyncio.get_running_loop().time() - self._last_s >= self._gap_s and not self._due.done():
            self._due.set_result(None)


def is_on(strategy: Strategy, gates: FeatureGates) -> bool:
    """Return whether a strategy runs at all."""
    return strategy.interval_s > 0 and (not strategy.gates or any(map(gates.is_on, strategy.gates)))


def start(strategies: Iterable[Strategy], shared: Shared, group: asyncio.TaskGroup) -> None:
    """Run strategies as tasks of `group`; who is off puts back what a former run of the agent changed."""
    for strategy in strategies:
        guard = Guard(strategy.name)
        if is_on(strategy, shared.gates):
            group.create_task(repeat(strategy, _pace_of(strategy, shared), guard), name=strategy.name)
        else:
            log.info("strategy is off", extra={"strategy": strategy.name, "gates": strategy.gates})
            guard.call(strategy.disable)


def disable(strategies: Iterable[Strategy]) -> None:
    """Let all put back what a former run of the agent changed."""
    for strategy in strategies:
        Guard(strategy.name).call(strategy.disable)


def start_reporters(reporters: Iterable[Reporter], group: asyncio.TaskGroup) -> None:
    """Run reporters as tasks of `group`, with the caches that they read."""
    for reporter in reporters:
        for informer in reporter.informers:
            group.create_task(informer.run(), name=informer.guard.name)
        group.create_task(repeat(reporter, _pause_of(reporter), Guard(reporter.name)), name=reporter.name)


async def repeat(part: Strategy | Reporter, pause: Pause, guard: Guard) -> NoReturn:
    """Rounds until cancelled. One that fails is logged; pauses then grow, up to a limit."""
    failed_s = 0.0
    while True:
        if await guard.call_async(_round, part) is None:
            failed_s = 0.0
            await pause()
        else:
            failed_s = min(max(failed_s * 2, part.interval_s, PAUSE_S_MIN), FAILED_S_MAX)
            await asyncio.sleep(failed_s)


async def _round(part: Strategy | Reporter) -> None:
    result = part.run()
    if inspect.isawaitable(result):
        await result


def _pace_of(strategy: Strategy, shared: Shared) -> Pause:
    if not isinstance(strategy, Following):
        return _pause_of(strategy)
    every_s = shared.config.collect.used_interval_s
    return Pace(
        strategy.interval_s, shared.view, strategy.after, strategy.name, change_interval_s=every_s
    ).pause


def _pause_of(part: Strategy | Reporter) -> Pause:
    def pause() -> Awaitable[None]:
        return asyncio.sleep(max(part.interval_s, PAUSE_S_MIN))  # it may be another one by now

    return pause
