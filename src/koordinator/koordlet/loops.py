"""Loops of the agent: one round at once, then each an interval after the end of the one before, whatever happens."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from koordinator.api.feature_gates import FeatureGates
from koordinator.cluster.supervise import Guard
from koordinator.koordlet import pace
from koordinator.koordlet.parts import Following, Reporter, Shared, Strategy

log = logging.getLogger(__name__)

FAILED_S_MAX = 10.0
"""The longest pause after rounds that failed in a row; a service waits for its protection meanwhile."""
PAUSE_S_MIN = 0.1

Pause = Callable[[], Awaitable[None]]


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
    return pace.of(strategy, shared).pause if isinstance(strategy, Following) else _pause_of(strategy)


def _pause_of(part: Strategy | Reporter) -> Pause:
    def pause() -> Awaitable[None]:
        return asyncio.sleep(max(part.interval_s, PAUSE_S_MIN))  # it may be another one by now

    return pause
