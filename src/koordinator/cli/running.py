"""Running a component as a process until it is told to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run until it ends or a signal asks to stop (SIGINT, SIGTERM); on uvloop where that is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_until_signal(work))
    else:
        uvloop.run(_until_signal(work))


def cause_of(error: Exception) -> Exception:
    """What is wrong, out of the task groups that it came through."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
