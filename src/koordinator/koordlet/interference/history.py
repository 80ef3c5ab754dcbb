"""Remember the last seconds of services and of candidates, for `culprit.name`."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from koordinator.koordlet.interference.culprit import F64, RESOURCES, history_of

SECONDS = 90
"""Seconds that are remembered: long suffering, and the calm before it."""


class History:
    """Rows are seconds, the newest last."""

    def __init__(self, seconds: int = SECONDS) -> None:
        self._levels: dict[str, list[float]] = {}
        self.candidates: tuple[str, ...] = ()
        self._use: F64 = np.zeros((seconds, 0, len(RESOURCES)))

    def add(self, levels: Mapping[str, float], candidates: Sequence[str], use: F64) -> None:
        """Add a second: each service's suffering (NaN: unknown), use of shape (candidates, resources).

        Services and candidates that are not named any more are forgotten.
        """
        named = tuple(candidates)
        if named != self.candidates:
            self._use = history_of(named, self.candidates, self._use)
            self.candidates = named
        self._use[:-1] = self._use[1:]
        self._use[-1] = use
        unknown = [math.nan] * len(self._use)
        self._levels = {uid: [*self._levels.get(uid, unknown)[1:], level] for uid, level in levels.items()}

    def of(self, service: str) -> tuple[F64, F64]:
        """Return the service's suffering, shape (seconds,), and what candidates used, shape (seconds, candidates,
        resources)."""
        return np.array(self._levels[service]), self._use
