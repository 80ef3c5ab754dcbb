"""Name the pod that degrades a service. While that is not sure, nobody is named. Pure, over arrays.

The culprit's use rises with the degradation, falls with it, and nobody else's does: the use of each candidate and
resource is correlated with the victim's degradation over the seconds since that began and the calm ones before, both
weighing the same. How much more those use that correlate is the evidence, and the correlation times the share of the
evidence is how sure it is.

CPI2 sums use that is normalised to 1 against the degradation's distance from its mark, over ten minutes of one sample
each. With one sample per second and an answer within three, chance is kept out by the correlation's use of calm
seconds, by the share, and by the distance to the next candidate. Source: Zhang et al., CPI2, EuroSys 2013, section 4.2.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.koordlet.degradation import DEGRADED, Contended

F64 = NDArray[np.float64]

RESOURCES = tuple(Contended)
"""Columns of use, in this order."""
UNITS: Mapping[Contended, float] = {
    Contended.CPU: 0.1,
    Contended.MEMORY: 32 * 2**20,
    Contended.CACHE: 50e6,
    Contended.DISK: 2**20,
    Contended.NETWORK: 2**20,
}
"""Increase in use from which a candidate matters: cores, bytes, bytes per second moved from memory, disk
and network."""
CALM_S_MIN, CALM_S_MAX = 4, 30
"""Calm seconds that must be known, and that are looked at."""
DEGRADED_S_MIN, DEGRADED_S_MAX = 2, 30
PAUSE_S = 3
"""So many calm seconds in a row end an episode; the ones before are another's fault, perhaps."""
CORRELATION_MIN = 0.6
CONFIDENCE_MIN = 0.45
MARGIN_MIN = 0.2
"""Distance by which the next candidate must be behind."""


class Attribution(msgspec.Struct, frozen=True):
    """The candidate and the resource, by index, and how sure that is."""

    candidate: int
    resource: Contended
    confidence: float
    """Correlation times share, 0 to 1."""
    share: float
    """Its share of the evidence: of the orders of magnitude by which candidates use more than in calm."""
    runner_up: float
    """Confidence of the next likely candidate."""


def name(
    level: F64, use: F64, own_cpu: F64 | None = None, units: Mapping[Contended, float] = UNITS
) -> Attribution | None:
    """Return who degrades the victim; None while unsure.

    Shapes: level (seconds,), the victim's degradation with the newest last, 1 at its mark, NaN where unknown; use
    (seconds, candidates, resources) in the order of `RESOURCES`, NaN where unknown; own_cpu (seconds,), the victim's
    own use, which counts like a candidate's: one that has more to do itself speaks against all others. Multiplying
    use, own_cpu and `units` by the same number changes nothing.
    """
    assert use.shape[0] == level.shape[0], (use.shape, level.shape)
    assert use.shape[2] == len(RESOURCES), use.shape
    if own_cpu is not None and use.shape[1]:
        own = np.zeros((use.shape[0], 1, len(RESOURCES)))
        own[:, 0, RESOURCES.index(Contended.CPU)] = own_cpu
        found = name(level, np.concatenate([use, own], axis=1), units=units)
        return None if found is None or found.candidate == use.shape[1] else found
    weight = weights(level)
    if weight is None or not use.shape[1]:
        return None
    seconds = weight > 0
    weight, level = weight[seconds], level[seconds]
    use = np.nan_to_num(use[seconds])
    degraded = level >= DEGRADED
    rise = 2 * (_mean(use[degraded], weight[degraded]) - _mean(use[~degraded], weight[~degraded]))
    correlation = correlations(level / (level + DEGRADED), use, weight)
    return _surest(rise / np.array([units[each] for each in RESOURCES]), correlation)


def weights(level: F64) -> F64 | None:
    """Return what each second weighs, shape (seconds,): the seconds of degradation of this episode together as much as
    the newest calm ones; None when there are too few of either.

    Shapes: level (seconds,).
    """
    degraded, calm = level >= DEGRADED, level < DEGRADED  # neither where it is not known
    good = np.flatnonzero(calm)[-CALM_S_MAX:]
    in_a_row = calm[PAUSE_S - 1 :].copy()
    for before in range(PAUSE_S - 1):
        in_a_row &= calm[before : before + len(in_a_row)]
    pauses = np.flatnonzero(in_a_row)
    begin = pauses[-1] if len(pauses) else 0
    bad = begin + np.flatnonzero(degraded[begin:])[-DEGRADED_S_MAX:]
    if len(bad) < DEGRADED_S_MIN or len(good) < CALM_S_MIN:
        return None
    found = np.zeros(len(level))
    found[bad], found[good] = 0.5 / len(bad), 0.5 / len(good)
    return found


def correlations(level: F64, use: F64, weight: F64) -> F64:
    """Return the weighted correlation of each candidate's use of each resource with the level, -1 to 1; 0 where
    nothing varies.

    Shapes: level (seconds,), use (seconds, candidates, resources), weight (seconds,) with the sum 1; result
    (candidates, resources).
    """
    level = level - weight @ level
    use = use - _mean(use, weight)
    together = np.einsum("s,s,scr->cr", weight, level, use)
    spread = np.sqrt(np.einsum("s,scr,scr->cr", weight, use, use) * (weight @ (level * level)))
    found: F64 = np.divide(
        together, spread, out=np.zeros_like(together), where=spread > 1e-12 * np.abs(together)
    )
    return found


def _mean(use: F64, weight: F64) -> F64:
    return np.asarray(np.einsum("s,scr->cr", weight, use))


def _surest(rise: F64, correlation: F64) -> Attribution | None:
    """Shapes: both (candidates, resources); rise in units."""
    matters = (rise >= 1) & (correlation >= CORRELATION_MIN)
    # By orders of magnitude, since units of different resources can hardly be compared.
    evidence = np.where(matters, np.log1p(np.maximum(rise, 0.0)), 0.0)
    resource = evidence.argmax(axis=1)
    rows = np.arange(len(resource))
    of_candidate = evidence[rows, resource]
    total = of_candidate.sum()
    if total <= 0:
        return None
    share = of_candidate / total
    confidence = correlation[rows, resource] * share
    candidate = int(confidence.argmax())
    best, others = float(confidence[candidate]), np.delete(confidence, candidate)
    runner_up = float(others.max()) if others.size else 0.0
    if best < CONFIDENCE_MIN or best - runner_up < MARGIN_MIN:
        return None
    return Attribution(
        candidate=candidate,
        resource=RESOURCES[int(resource[candidate])],
        confidence=best,
        share=float(share[candidate]),
        runner_up=runner_up,
    )


def history_of(candidates: Sequence[str], former: Sequence[str], use: F64) -> F64:
    """Return a history of use (seconds, candidates, resources) for another list of candidates; those that are new used
    nothing before.

    Shapes: use (seconds, former candidates, resources).
    """
    found = np.zeros((use.shape[0], len(candidates), use.shape[2]))
    place = {uid: index for index, uid in enumerate(former)}
    for index, uid in enumerate(candidates):
        if uid in place:
            found[:, index] = use[:, place[uid]]
    return found


HISTORY_S = 90
"""Span of a history: a long episode, and the calm before it."""
_UNKNOWN = [math.nan] * HISTORY_S


class History:
    """The last seconds of services and of candidates, for `name`. Rows are seconds, the newest last."""

    def __init__(self) -> None:
        self._levels: dict[str, deque[float]] = {}
        self._own_cpu: dict[str, deque[float]] = {}
        self.candidates: tuple[str, ...] = ()
        self._use: F64 = np.zeros((HISTORY_S, 0, len(RESOURCES)))

    def add(
        self, levels: Mapping[str, float], own_cpu: Mapping[str, float], candidates: Sequence[str], use: F64
    ) -> None:
        """Add a second: each service's degradation (NaN: unknown) and the cores it uses, use of shape (candidates,
        resources).

        Services and candidates that are not named any more are forgotten.
        """
        named = tuple(candidates)
        if named != self.candidates:
            self._use = history_of(named, self.candidates, self._use)
            self.candidates = named
        self._use[:-1] = self._use[1:]
        self._use[-1] = use
        self._levels = _longer(self._levels, levels)
        self._own_cpu = _longer(self._own_cpu, {uid: own_cpu.get(uid, math.nan) for uid in levels})

    def of(self, service: str) -> tuple[F64, F64, F64]:
        """Return the service's degradation, shape (seconds,), what candidates used, shape (seconds, candidates,
        resources), and the cores it used itself, shape (seconds,)."""
        return np.array(self._levels[service]), self._use, np.array(self._own_cpu[service])


def _longer(rows: Mapping[str, deque[float]], values: Mapping[str, float]) -> dict[str, deque[float]]:
    """Return the rows of those that have a value, with it at the end."""
    found: dict[str, deque[float]] = {}
    for uid, value in values.items():
        row = rows.get(uid)
        found[uid] = row = deque(_UNKNOWN, HISTORY_S) if row is None else row
        row.append(value)
    return found
