"""Decide when the next round of a loop is due: by the clock, or as soon as something has changed.

A strategy that acts on samples and runs by a clock of its own sees each sample up to an interval late. One that follows
the measuring reacts at once, and when nothing is measured any more it still gets its rounds.
"""

import asyncio

from koordinator.koordlet.parts import Following, Shared, Strategy
from koordinator.koordlet.view import NodeView, Topic

LATE_INTERVALS = 2.0
"""A round that follows a change comes after so many intervals even without one."""


def of(strategy: Strategy, shared: Shared) -> "Pace":
    """Return the pauses of a strategy's loop."""
    after = strategy.after if isinstance(strategy, Following) else None
    every_s = shared.config.collect.used_interval_s
    return Pace(strategy.interval_s, shared.view, after, strategy.name, change_interval_s=every_s)


class Pace:
    """The pauses of one loop. Rounds that follow a topic are at least `interval_s` less half of `change_interval_s`
    apart, where `change_interval_s` is how often the topic changes.
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
