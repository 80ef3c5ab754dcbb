"""Loops of the agent: one round at once, then each an interval after the end of the one before, whatever happens."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from koordinator.api.feature_gates import FeatureGates
from koordinator.cluster.supervise import Guard
from koordinator.koordlet import pace
from koordinator.koordlet.parts import Following, Shared, Strategy

log = logging.getLogger(__name__)

FAILED_S_MAX = 10.0
"""The longest pause after rounds that failed in a row; a service waits for its protection meanwhile."""
FAILED_S_MIN = 0.1


def is_on(strategy: Strategy, gates: FeatureGates) -> bool:
    """Whether a strategy runs at all."""
    return strategy.interval_s > 0 and (not strategy.gates or any(map(gates.is_on, strategy.gates)))


def start(strategies: Iterable[Strategy], shared: Shared, group: asyncio.TaskGroup) -> list[Guard]:
    """Run strategies as tasks of `group`; who is off puts back what a former run of the agent changed."""
    guards = []
    for strategy in strategies:
        guard = Guard(strategy.name)
        if is_on(strategy, shared.gates):
            group.create_task(run(strategy, shared, guard), name=strategy.name)
            guards.append(guard)
        else:
            log.info("strategy is off", extra={"strategy": strategy.name, "gates": strategy.gates})
            guard.call(strategy.disable)
    return guards


async def run(strategy: Strategy, shared: Shared, guard: Guard) -> NoReturn:
    """Rounds of one strategy until cancelled. A round that fails is logged; pauses then grow, up to a limit."""
    pause = _pauses(strategy, shared)
    failed_s = 0.0
    while True:
        try:
            result = strategy.run()
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            guard.failed(error)
            failed_s = min(max(failed_s * 2, strategy.interval_s, FAILED_S_MIN), FAILED_S_MAX)
            await asyncio.sleep(failed_s)
            continue
        failed_s = 0.0
        await pause()


def _pauses(strategy: Strategy, shared: Shared) -> Callable[[], Awaitable[None]]:
    if isinstance(strategy, Following):
        return pace.of(strategy, shared).pause

    def pause() -> Awaitable[None]:
        return asyncio.sleep(max(strategy.interval_s, FAILED_S_MIN))  # it may be another one by now

    return pause
