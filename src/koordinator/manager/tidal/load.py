"""Remember the online load of a pool over the window of its load rule. Source: behaviour/tidal 3, `spec.load`."""

from collections import deque

GAP_S = 120.0
"""Samples further apart than this tell nothing about the time between them."""


class LoadHistory:
    """Samples of the load that one node less would have made."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, percent: float | None, window_s: float) -> None:
        """Note a sample; None, a gap, and a clock that went back begin anew."""
        samples = self._samples
        if samples and not 0.0 <= at_s - samples[-1][0] <= GAP_S:
            samples.clear()
        if percent is None:
            samples.clear()
            return
        samples.append((at_s, percent))
        # The oldest one that is kept tells that the window is full.
        while len(samples) > 1 and samples[1][0] <= at_s - window_s:
            samples.popleft()

    def clear(self) -> None:
        """Forget everything: a node was lent, so what was measured was another pool."""
        self._samples.clear()

    def highest(self, now_s: float, window_s: float) -> float | None:
        """Return the highest load within the window, None while the window is not full."""
        if not self._samples or self._samples[0][0] > now_s - window_s:
            return None
        return max(percent for _, percent in self._samples)
