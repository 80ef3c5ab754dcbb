"""Wall-clock time as an argument: components never ask the system for it.

Timers belong to the event loop (`asyncio.sleep`, `loop.call_later`); `Clock.now` is only for timestamps
that travel in objects. `LoopClock` derives both from the loop, so that a loop with virtual time moves
timestamps and timers together.
"""

import asyncio
import functools
import math
import time
from datetime import UTC, datetime
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Tells the wall-clock time."""

    def now(self) -> float:
        """Return seconds since 1970-01-01 UTC."""


class SystemClock:
    """The machine's clock: the one place in the project that reads it."""

    def now(self) -> float:
        return time.time()


class LoopClock:
    """Wall-clock time that advances with an event loop: `epoch_s` when the loop's own time was `start_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_s: float) -> None:
        self._loop = loop
        self._offset_s = epoch_s - loop.time()

    def now(self) -> float:
        return self._loop.time() + self._offset_s


class FixedClock:
    """A clock that stands still until it is set (tests, replay)."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s

    def now(self) -> float:
        return self.now_s


def rfc3339(now_s: float) -> str:
    """`metav1.Time` text: whole seconds, UTC, `Z`."""
    return _second_text(int(now_s))


@functools.lru_cache(maxsize=256)  # a busy server writes thousands of times within a second
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(now_s: float) -> str:
    """`metav1.MicroTime` text: microseconds, UTC, `Z` (Leases, events)."""
    part, whole = math.modf(now_s)
    micros = round(part * 1e6)
    if micros == 1_000_000:
        whole, micros = whole + 1, 0
    return f"{_second_text(int(whole))[:-1]}.{micros:06d}Z"


@functools.lru_cache(maxsize=4096)  # a time is read by everybody who sees the object again
def parse_rfc3339(text: str) -> float:
    """Return seconds since 1970 of an RFC 3339 time.

    Raises: ValueError when the text is no such time.
    """
    return datetime.fromisoformat(text).timestamp()


def parse_rfc3339_or(text: str | None, otherwise: T) -> float | T:
    """Return seconds since 1970 of an RFC 3339 time, `otherwise` where the text is missing or no such time."""
    try:
        return parse_rfc3339(text) if text else otherwise
    except ValueError:
        return otherwise
