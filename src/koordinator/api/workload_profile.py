"""Wire types of profiles of workloads: how many cycles an instruction takes them, and what they move from memory.

Node agents learn from their own pods and tell it in `podsMetric[].extensions` of their NodeMetric; the manager merges
what all say of a workload on one CPU model, and gives it back in `extensions` of NodeSLOs. Neither is in the reference.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koordinator.api import decode
from koordinator.api.meta import ViewPart
from koordinator.api.node_metric import NodeMetric, PodMetricInfo

EXTENSION = "interference"
"""Key in the extensions of a pod in a NodeMetric."""
PROFILES = "workloadProfiles"
"""Key in the extensions of a NodeSLO."""


class Moments(ViewPart, frozen=True, kw_only=True):
    """Samples of one quantity by their weight (number, faded by age), mean and variance."""

    weight: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    @property
    def deviation(self) -> float:
        """Return the standard deviation."""
        return math.sqrt(max(self.variance, 0.0))


class ContainerProfile(ViewPart, frozen=True, kw_only=True):
    """One container of a workload."""

    cpi: Moments | None = None
    """Cycles per instruction."""
    memory_bandwidth: Moments | None = None
    """Bytes per second and core in use, moved for its cache misses."""


class PodInterference(ViewPart, frozen=True, kw_only=True):
    """A service pod in a NodeMetric: how it suffers now, and what its containers taught the agent."""

    level: float = 0.0
    slack: float | None = None
    suffering_seconds: float | None = None
    culprit: str = ""
    """`namespace/name` of the pod that makes it suffer."""
    resource: str = ""
    confidence: float = 0.0
    workload: str = ""
    """`namespace/kind/name`."""
    cpu_model: str = ""
    containers: dict[str, ContainerProfile] = {}


class WorkloadProfiles(ViewPart, frozen=True, kw_only=True):
    """NodeSLO's `extensions.workloadProfiles`: what the cluster knows of the workloads of one node, on its CPU."""

    cpu_model: str = ""
    workloads: dict[str, dict[str, ContainerProfile]] = {}
    """Workload, container → profile."""


class ProfiledMetric(NodeMetric, frozen=True, kw_only=True):
    """A NodeMetric out of which profiles have been read already; it never travels on the wire."""

    profiles: tuple[PodInterference, ...] = ()


def merged(parts: Iterable[Moments]) -> Moments | None:
    """Return the moments of all samples together; None without any."""
    known = [each for each in parts if each.weight > 0]
    weight = math.fsum(each.weight for each in known)
    if not known:
        return None
    mean = math.fsum(each.weight * each.mean for each in known) / weight
    spread = math.fsum(each.weight * (each.variance + (each.mean - mean) ** 2) for each in known)
    return Moments(weight=weight, mean=mean, variance=spread / weight)


def merged_profile(parts: Iterable[ContainerProfile]) -> ContainerProfile:
    """Return the profile of all parts together."""
    known = list(parts)
    return ContainerProfile(
        cpi=merged(each.cpi for each in known if each.cpi is not None),
        memory_bandwidth=merged(each.memory_bandwidth for each in known if each.memory_bandwidth is not None),
    )


def of_pods(pods: Iterable[PodMetricInfo]) -> tuple[PodInterference, ...]:
    """Return what a NodeMetric tells of profiles; what cannot be read is left out."""
    found = []
    for each in pods:
        raw = each.extensions.get(EXTENSION) if each.extensions else None
        read = of_extension(raw) if raw is not None else None
        if read is not None and read.containers:
            found.append(read)
    return tuple(found)


def of_extension(raw: Any) -> PodInterference | None:
    """Return what the extension of a pod says; None when it cannot be read."""
    try:
        return decode.from_builtins(raw, PodInterference)
    except msgspec.ValidationError:
        return None


def of_node_slo(extensions: Mapping[str, Any]) -> WorkloadProfiles | None:
    """Return the profiles that a NodeSLO gives; None without any that can be read."""
    raw = extensions.get(PROFILES)
    if raw is None:
        return None
    try:
        return decode.from_builtins(raw, WorkloadProfiles)
    except msgspec.ValidationError:
        return None
