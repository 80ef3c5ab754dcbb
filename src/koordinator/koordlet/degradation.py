"""Say how degraded services are, and by whom: what `interference` finds each second and publishes as
`view.interference` (docs/interference.md).
"""

import enum
from collections.abc import Mapping

import msgspec

from koordinator.api.workload_profile import ContainerProfile

INTERFERENCE = "Interference"
"""Feature gate of all indicators, and of naming culprits."""


class Indicator(enum.StrEnum):
    """A way to notice that a service is degraded."""

    LATENCY = "latency"
    """Latency that the service itself reports (annotation `latency-objective`)."""
    CPI = "cpi"
    """Cycles per instruction against the profile of its workload."""
    MEMORY_BANDWIDTH = "memory-bandwidth"
    """Traffic of its cache misses, against the profile of its workload."""
    RUN_QUEUE = "run-queue"
    """Share of its runnable time in which its threads wait for a CPU."""
    CPU_PRESSURE = "cpu-pressure"
    MEMORY_PRESSURE = "memory-pressure"
    IO_PRESSURE = "io-pressure"


class Contended(enum.StrEnum):
    """A resource that a culprit may take from a service."""

    CPU = "cpu"
    MEMORY = "memory"
    """Pages: it grows, others are reclaimed."""
    CACHE = "cache"
    """The last-level cache and the bandwidth of memory."""
    DISK = "disk"
    NETWORK = "network"


class Degradation(msgspec.Struct, frozen=True, kw_only=True):
    """One service pod in one second. Times are those of the event loop, which no step of the clock moves."""

    uid: str
    indicators: Mapping[Indicator, float] = {}
    """By indicator, without those that say nothing now: 0 is calm, from 1 on the service is degraded."""
    slack: float | None = None
    """(target - now) / target of its latency objective: 1 is instant, 0 at the target, negative beyond it; None without
    an objective, without requests, and while its target does not answer."""
    present_slack: float | None = None
    """The same of this second's requests alone; None where there are too few."""
    since_s: float | None = None
    """Since when it is degraded, without a calm second; None while calm."""
    at_s: float = 0.0
    """Time at which this was made."""
    age_s: float = 0.0
    """Age of the oldest of its inputs."""

    @property
    def level(self) -> float:
        """Return what the worst of its indicators says; 0 without any."""
        return max(self.indicators.values(), default=0.0)

    @property
    def is_degraded(self) -> bool:
        """Return whether any indicator says so."""
        return self.level >= DEGRADED


DEGRADED = 1.0
"""The level from which a service is degraded."""


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """The profile that this node has learnt of one container of a service."""

    workload: str
    """`namespace/kind/name`."""
    name: str
    """The container's."""
    cpu_model: str
    profile: ContainerProfile


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The culprit that degrades a service, by which resource, how sure that is, and why."""

    victim: str
    """UID of the service's pod."""
    culprit: str
    """UID of the pod, or of a container of another runtime."""
    resource: Contended
    indicator: Indicator
    """The indicator that is highest."""
    confidence: float
    """Correlation of the culprit's use with the degradation times its share, 0 to 1 (`interference.culprit`)."""
    runner_up: float
    """The same of the next likely candidate."""
    share: float
    """The culprit's share of the evidence against all candidates."""
    since_s: float
    """Since when the service is degraded."""
    at_s: float
    """Time at which the culprit was named."""


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """The services and verdicts of this second."""

    at_s: float
    services: Mapping[str, Degradation] = {}
    """Each running service pod, by UID."""
    verdicts: Mapping[str, Verdict] = {}
    """The newest verdict about each service that is still degraded, by the service's UID."""
