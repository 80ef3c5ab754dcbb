"""Pauses of reporters: outages are told once, and first rounds wait for what becomes known a moment after the start.

Node, pods and policies are there before reporters start; CPUs are read by a collector that starts with them, and what
is stored in the cluster comes with the first list. A whole interval later would be too late for the first report.
"""

import logging

log = logging.getLogger(__name__)

PAUSE_S_MIN, PAUSE_S_MAX = 3.0, 60.0
"""Between tries; doubled with each failure in a row."""
_DOUBLINGS_MAX = 10


class Outage:
    """Failures of one named thing in a row, and when to try it again (unix seconds)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure_count = 0
        """In a row; 0 while all is well."""
        self._reported = ""
        self._failed_s = 0.0

    def failed(self, error: Exception | str, now_s: float = 0.0) -> None:
        """Log the first failure of a row, and each that is of another kind than the one before."""
        self.failure_count += 1
        self._failed_s = now_s
        kind = error if isinstance(error, str) else type(error).__name__
        if kind != self._reported:
            self._reported = kind
            log.warning(
                "%s failed: %s", self.name, str(error) or kind, extra={"failures": self.failure_count}
            )

    def ended(self) -> None:
        """It worked."""
        if self.failure_count:
            log.info("%s works again after %d failures", self.name, self.failure_count)
        self.failure_count, self._reported = 0, ""

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for another try; a clock that went back does not put it off."""
        if not self.failure_count:
            return True
        doublings = min(self.failure_count - 1, _DOUBLINGS_MAX)
        pause_s = min(PAUSE_S_MIN * 2**doublings, PAUSE_S_MAX)
        return not self._failed_s <= now_s < self._failed_s + pause_s


PAUSE_S = 0.2
ROUNDS_MAX = 50
"""After these a reporter that still waits for something does so at its own interval."""


class FirstRounds:
    """Short pauses until the first report, then those of the interval."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._left = ROUNDS_MAX

    @property
    def interval_s(self) -> float:
        """Return the pause after this round; never longer than the interval."""
        return min(PAUSE_S, self._interval_s) if self._left > 0 else self._interval_s

    def waited(self) -> None:
        """Note that a round had nothing to report, since not all is known yet."""
        self._left -= 1

    def reported(self) -> None:
        """Note that all is known."""
        self._left = 0
