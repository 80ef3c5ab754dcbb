"""Python's garbage collector in a process that holds a cluster: the store itself, or a component's caches.

Hundreds of thousands of objects are no garbage and hold no cycles. With the collector's defaults, going through
them again and again takes a fifth of the time, and a full collection stops everything for a tenth of a second and
more. Reference counts free what is really freed.
"""

import asyncio
import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

GIVE_BACK_S = 10.0
"""Interval at which `giving_back` looks."""
GROWTH = 1.1
"""Memory that is worth a look: so many times what was left by the last one."""
BUSY = 0.3
"""Share of a core above which work goes first."""


@contextlib.contextmanager
def collected_rarely() -> Iterator[None]:
    """Look for cycles rarely, and among young objects only; the collector is as before afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 1_000, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def set_aside() -> None:
    """Exclude all present objects from garbage collection, in a process whose caches have just been filled.

    Present garbage stays, too: a few thousand objects that imports left. To find them would hold up the first pods
    (0.2 s per million objects).
    """
    gc.freeze()


@contextlib.contextmanager
def left_to_exit() -> Iterator[None]:
    """Look for no cycles in a process that ends after this: its memory goes back as a whole."""
    gc.disable()
    yield
    gc.freeze()  # the interpreter collects once more when it ends, all but this


async def giving_back() -> None:
    """Whenever the process has little to do: hand free memory back to the system, which the C library would keep, and
    collect cycles where it has grown since the last time. A collection takes about 0.2 s per million objects; giving
    back takes next to nothing and goes on afterwards, since much is freed without growth before it."""
    loop = asyncio.get_running_loop()
    settled, busy_s, now_s = resident_bytes(), _busy_s(), loop.time()
    least = settled
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        was_busy_s, was_s = busy_s, now_s
        busy_s, now_s = _busy_s(), loop.time()
        if busy_s - was_busy_s >= BUSY * (now_s - was_s):
            continue
        resident = resident_bytes()
        settled, least = min(settled, resident), min(least, resident)
        has_grown = resident > settled * GROWTH
        if has_grown:
            gc.collect()
        if has_grown or resident > least * GROWTH:
            _trim()
        if has_grown:
            settled = resident_bytes()


def resident_bytes() -> int:
    """Memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _busy_s() -> float:
    """CPU time of this process so far."""
    used = os.times()
    return used.user + used.system


def _trim() -> None:
    """Give freed memory back to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
