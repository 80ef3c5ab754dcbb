"""Pauses between the rounds of a reporter that waits for what becomes known a moment after the start.

Node, pods and policies are there before reporters start; CPUs are read by a collector that starts with them, and what
is stored in the cluster comes with the first list. A whole interval later would be too late for the first report.
"""

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
        """The pause after this round; never longer than the interval."""
        return min(PAUSE_S, self._interval_s) if self._left > 0 else self._interval_s

    def waited(self) -> None:
        """A round had nothing to report, since not all is known yet."""
        self._left -= 1

    def reported(self) -> None:
        """All is known."""
        self._left = 0
