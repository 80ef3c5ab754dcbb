"""Sleep until one of the few moments that all loops of the agent share: an idle CPU is woken up seldom.

A wake-up costs 0.1 to 0.2 ms where a CPU idles in a virtual machine, as much as the work of most rounds; the kernel
rounds timers that need no exact moment for the same reason (`round_jiffies`).
"""

import asyncio
import weakref

SLOT_S = 0.25
"""Time between two shared moments; what sleeps for less is woken up on its own."""

_sleepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, list[asyncio.Future[None]]]] = (
    weakref.WeakKeyDictionary()
)
"""The tasks that sleep on each event loop, by the number of the moment."""


async def sleep(seconds: float) -> None:
    """Return after so many seconds, up to half of `SLOT_S` sooner or later: at the shared moment that is nearest."""
    if seconds < SLOT_S:
        await asyncio.sleep(seconds)
        return
    loop = asyncio.get_running_loop()
    moment = round((loop.time() + seconds) / SLOT_S)
    moments = _sleepers.setdefault(loop, {})
    due = loop.create_future()
    if moment in moments:
        moments[moment].append(due)
    else:
        moments[moment] = [due]
        loop.call_at(moment * SLOT_S, _wake, moments, moment)
    await due


def _wake(moments: dict[int, list[asyncio.Future[None]]], moment: int) -> None:
    for due in moments.pop(moment):
        if not due.done():  # its task was cancelled
            due.set_result(None)
