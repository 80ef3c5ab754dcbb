"""Learn what is usual for a workload, and tell what is not: decayed moments and outliers. Pure.

A value beyond the mean by twice the deviation is a violation; a container with three of them within five minutes that
uses a quarter of a core at least is an outlier. Source: Zhang et al., CPI2, EuroSys 2013, sections 3.1 and 4.1.
"""

from collections import deque

from koordinator.api.core import Pod
from koordinator.api.workload_profile import Moments

DEVIATIONS = 2.0
VIOLATIONS, VIOLATION_WINDOW_S = 3, 300.0
CORES_MIN = 0.25
HALF_LIFE_S = 24 * 3600.0
WEIGHT_MIN = 100.0
"""So many samples make a profile; before that nothing is unusual."""
DEVIATION_SHARE_MIN = 0.05
"""The least deviation, as a share of the mean: a quiet workload's noise is no violation."""
_CALM_MAX = 0.99


def learnt(before: Moments, value: float, elapsed_s: float) -> Moments:
    """Return the moments with one more sample; older ones have faded by half each `HALF_LIFE_S`."""
    faded = before.weight * 0.5 ** (elapsed_s / HALF_LIFE_S)
    weight = faded + 1.0
    mean = before.mean + (value - before.mean) / weight
    spread = faded * (before.variance + (before.mean - mean) ** 2) + (value - mean) ** 2
    return Moments(weight=weight, mean=mean, variance=spread / weight)


def level(known: Moments, value: float) -> float | None:
    """Return how far a value is on the way to a violation, which is 1; None while the profile is too young."""
    if known.weight < WEIGHT_MIN or known.mean <= 0:
        return None
    deviation = max(known.deviation, DEVIATION_SHARE_MIN * known.mean)
    return max(value - known.mean, 0.0) / (DEVIATIONS * deviation)


class Violations:
    """The violations of one container."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque(maxlen=VIOLATIONS)

    def felt(self, level: float, cores: float, now_s: float) -> float:
        """Return the suffering by a new sample: below 1 until the container is an outlier."""
        if level > 1 and cores >= CORES_MIN:
            self._at_s.append(now_s)
        is_outlier = len(self._at_s) == VIOLATIONS and now_s - self._at_s[0] <= VIOLATION_WINDOW_S
        return level if is_outlier and cores >= CORES_MIN else min(level, _CALM_MAX)


def workload_of(pod: Pod) -> str:
    """Return what names the workload of a pod, `namespace/kind/name`: its controller, for a ReplicaSet the Deployment
    above it; the pod itself without one."""
    meta = pod.metadata
    owner = next((each for each in meta.owner_references if each.controller), None)
    if owner is None:
        return f"{meta.namespace}/Pod/{meta.name}"
    hashed = meta.labels.get("pod-template-hash", "")
    if owner.kind == "ReplicaSet" and hashed and owner.name.endswith(f"-{hashed}"):
        return f"{meta.namespace}/Deployment/{owner.name.removesuffix(f'-{hashed}')}"
    return f"{meta.namespace}/{owner.kind}/{owner.name}"
