"""Runs collectors: each at once, and again one interval after the end of its last round.

Source: behaviour/koordlet-observe 5.1.

Those that measure usage at the same pace share a loop, so that each round of them ends with figures that belong
together, and the agent wakes up once. Whatever a round raises costs only that round.
"""

import asyncio
import inspect
import logging
from collections.abc import Sequence

from koordinator.cluster.supervise import Guard
from koordinator.koordlet.parts import Collector

log = logging.getLogger(__name__)

START_WAIT_S = 30.0
"""How long the rest of the agent waits for first good rounds; one that waits for its NodeSLO may never have one."""


class CollectorRunner:
    """`run` never ends; `wait_started` tells when there is something to act upon."""

    def __init__(self, collectors: Sequence[Collector], used_interval_s: float) -> None:
        self._started = {each.name: asyncio.Event() for each in collectors}
        self._guards = {each.name: Guard(each.name) for each in collectors}
        together = [each for each in collectors if _shares_rounds(each, used_interval_s)]
        alone = [each for each in collectors if each not in together]
        self._loops: list[list[Collector]] = [*([each] for each in alone), together]

    @property
    def missing(self) -> list[str]:
        """Collectors that have not had a good round yet."""
        return [name for name, started in self._started.items() if not started.is_set()]

    async def run(self) -> None:
        """All loops, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._loops:
                if each:
                    names = ", ".join(collector.name for collector in each)
                    tasks.create_task(self._repeat(each), name=f"collect {names}")

    async def wait_started(self, timeout_s: float = START_WAIT_S) -> list[str]:
        """Until every collector has had a good round, but not longer; the names of those that have not."""
        try:
            async with asyncio.timeout(timeout_s):
                for started in self._started.values():
                    await started.wait()
        except TimeoutError:
            log.warning("started without waiting for all collectors", extra={"missing": self.missing})
        return self.missing

    async def _repeat(self, collectors: list[Collector]) -> None:
        while True:
            for each in collectors:
                await self._guards[each.name].call_async(self._round, each)
            await asyncio.sleep(collectors[0].interval_s)

    async def _round(self, collector: Collector) -> None:
        good = collector.collect()
        if inspect.isawaitable(good):
            good = await good
        if good:
            self._started[collector.name].set()


def _shares_rounds(collector: Collector, used_interval_s: float) -> bool:
    return collector.interval_s == used_interval_s and not inspect.iscoroutinefunction(collector.collect)
