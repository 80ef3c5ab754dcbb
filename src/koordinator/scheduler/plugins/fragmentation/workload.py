"""Learn from the pods that came in the last hours what pods usually ask for.

A pod that came t seconds ago counts 2^(-t / half-life). The counts follow from the pods that exist: after a restart
they are those of the pods that are still there, by their creation times.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from koordinator.scheduler.plugins.fragmentation.demand import PodDemand

LEARNED_FIRST = 16
"""Pods after which the target is made for the first time."""
_RESCALE_HALF_LIVES = 500.0
"""Counts are kept relative to a start; before they leave the range of numbers, the start moves."""
KINDS_MAX = 4_096
"""Kinds of pods that are counted; the rarest go when there are twice as many."""


class Workload:
    """Decayed counts by kind of pod. `version` grows when they differ noticeably from what they were."""

    def __init__(self, half_life_s: float) -> None:
        self.version = 0
        self._half_life_s = half_life_s
        self._start_s: float | None = None
        self._counts: defaultdict[PodDemand, float] = defaultdict(float)
        self._seen = 0
        """Pods that came since `version` grew."""
        self._enough = LEARNED_FIRST

    def came(self, demand: PodDemand, at_s: float) -> None:
        """Count a pod that came at a time; pods without cards do not matter."""
        if not demand.shape.cards:
            return
        if self._start_s is None:
            self._start_s = at_s
        age = (at_s - self._start_s) / self._half_life_s
        if age > _RESCALE_HALF_LIVES:
            self._move_start(at_s, age)
            age = 0.0
        self._counts[demand] += 2.0**age
        self._seen += 1
        if len(self._counts) > 2 * KINDS_MAX:
            self._drop_rarest()
        if self._seen >= self._enough:
            self.version += 1
            # As many again would make half of what is known: counts are scaled to pods of now.
            self._enough = max(LEARNED_FIRST, math.ceil(sum(self._counts.values()) / 2.0**age))
            self._seen = 0

    @property
    def shares(self) -> Mapping[PodDemand, float]:
        """Return the share of each kind; sums up to 1, empty before anything came."""
        total = sum(self._counts.values())
        return {demand: count / total for demand, count in self._counts.items() if total}

    def _move_start(self, at_s: float, age: float) -> None:
        self._start_s = at_s
        scaled = {demand: count * 2.0**-age for demand, count in self._counts.items()}
        self._counts.clear()
        self._counts.update({demand: count for demand, count in scaled.items() if count > 0})

    def _drop_rarest(self) -> None:
        kept = sorted(self._counts.items(), key=lambda item: -item[1])[:KINDS_MAX]
        self._counts.clear()
        self._counts.update(kept)
