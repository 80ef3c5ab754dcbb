"""Share among collectors the newest usage of the node, of all pods and of all host applications.

Times are those of the event loop, which no step of the clock moves. Source: behaviour/koordlet-observe 5.1.
"""

from collections.abc import Mapping

import msgspec

from koordinator.koordlet.collect.rates import Aged, MeasuredUsage

PAGE_CACHE_POLICY = "usageWithPageCache"


class Total(msgspec.Struct, frozen=True):
    """CPU and memory of one part of the node at a time of the loop."""

    cores: float
    memory_bytes: float
    at_s: float

    def aged(self, now_s: float) -> MeasuredUsage:
        """Return the same with its age."""
        return MeasuredUsage(self.cores, self.memory_bytes, _age_ms(now_s, self.at_s))


class NumaValues(msgspec.Struct, frozen=True):
    """A value of each NUMA node at a time of the loop."""

    values: Mapping[int, float]
    at_s: float

    def aged(self, now_s: float) -> dict[int, Aged]:
        """Return the same with their age."""
        age_ms = _age_ms(now_s, self.at_s)
        return {numa: Aged(value, age_ms) for numa, value in self.values.items()}


class LatestSamples:
    """The newest of each; None until it was measured once."""

    def __init__(self) -> None:
        self.node: Total | None = None
        self.node_numa_cores: NumaValues | None = None
        self.node_numa_bytes: NumaValues | None = None
        self.pods: Total | None = None
        self.pods_numa_bytes: NumaValues | None = None
        self.host_applications: Total | None = None


def _age_ms(now_s: float, at_s: float) -> int:
    return int((now_s - at_s) * 1000)
