"""Attempts that take too long: found while they hang, and told again until they end. Source: behaviour/scheduler C7."""

import logging
from collections.abc import Callable

import msgspec

log = logging.getLogger(__name__)


class MonitorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between scans; how long an attempt may take; when a popped pod that nobody started is
    forgotten."""

    period_s: float = 10.0
    timeout_s: float = 30.0
    drop_unhandled_s: float = 5.0


class Attempt(msgspec.Struct):
    """A pod that left the queue. `started_s` is set when its cycle begins."""

    key: str
    profile: str
    popped_s: float
    attempt_count: int
    started_s: float | None = None


class Overdue(msgspec.Struct, frozen=True):
    """An attempt that takes longer than it may."""

    key: str
    profile: str
    attempt_count: int
    duration_s: float


class Monitor:
    """Follows attempts from the queue to their end. Times are arguments; `overdue` hears of each attempt
    that is too slow, on each scan and at its end."""

    def __init__(self, options: MonitorOptions, overdue: Callable[[Overdue], None]) -> None:
        self.options = options
        self._overdue = overdue
        self._attempts: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def popped(self, uid: str, attempt: Attempt) -> None:
        self._attempts[uid] = attempt

    def started(self, uid: str, now_s: float) -> None:
        """Its cycle begins."""
        attempt = self._attempts.get(uid)
        if attempt is not None:
            attempt.started_s = now_s

    def completed(self, uid: str, now_s: float) -> float:
        """The attempt ended; how long it took (0 when nobody followed it)."""
        attempt = self._attempts.pop(uid, None)
        if attempt is None or attempt.started_s is None:
            return 0.0
        duration_s = max(0.0, now_s - attempt.started_s)
        if duration_s > self.options.timeout_s:
            self._overdue(_overdue(attempt, duration_s))
        return duration_s

    def forget(self, uid: str) -> None:
        """Nobody needs to know how it ends."""
        self._attempts.pop(uid, None)

    def scan(self, now_s: float) -> None:
        """Tell of slow attempts; forget pods that were popped and never started."""
        for uid, attempt in list(self._attempts.items()):
            if attempt.started_s is None:
                if now_s - attempt.popped_s > self.options.drop_unhandled_s:
                    del self._attempts[uid]
            elif now_s - attempt.started_s > self.options.timeout_s:
                self._overdue(_overdue(attempt, now_s - attempt.started_s))


def warn(found: Overdue, timeout_s: float) -> None:
    """The log line that operators search for."""
    log.warning(
        "!!!CRITICAL TIMEOUT!!! scheduling takes too long",
        extra={
            "pod": found.key,
            "profile": found.profile,
            "attempts": found.attempt_count,
            "duration_s": round(found.duration_s, 3),
            "timeout_s": timeout_s,
        },
    )


def _overdue(attempt: Attempt, duration_s: float) -> Overdue:
    return Overdue(attempt.key, attempt.profile, attempt.attempt_count, duration_s)
