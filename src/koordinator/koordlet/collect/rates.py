"""From counters to usage: what is measured between two readings, and the newest of it. Source:
behaviour/koordlet-observe 5.1 to 5.10.

A counter that went backwards and a period that is not positive give no rate (None): a re-created cgroup or a clock step
must not look like a burst of usage. `LatestSamples` are what collectors share; times in it are those of the event loop,
which no step of the clock moves.
"""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import cpuset, pod_resources, qos
from koordinator.api.core import Pod
from koordinator.api.qos import QoSClass
from koordinator.host.cgroup_knobs import UNLIMITED
from koordinator.host.cgroup_values import MemoryStat, Throttling

OUTDATED_MS = 10_000
"""Greatest age of the inputs of system usage."""
MEMORY_WITH_PAGE_CACHE = "usageWithPageCache"

_NS_PER_MS = 1_000_000


class MeasuredUsage(msgspec.Struct, frozen=True):
    """CPU and memory in use, and how long ago that was measured."""

    cores: float
    memory_bytes: float
    age_ms: int = 0


class Aged(msgspec.Struct, frozen=True):
    """A measured value and its age."""

    value: float
    age_ms: int


class HostApplicationUsage(msgspec.Struct, frozen=True):
    """The usage of one host application, by both ways to count memory."""

    cores: float
    stat_bytes: int
    usage_file_bytes: int


class NumaUsage(msgspec.Struct, frozen=True):
    """Usage by NUMA node; a node that is missing was not measured."""

    cores: dict[int, float]
    memory_bytes: dict[int, float]


def node_cores(last_ticks: int, ticks: int, elapsed_ms: float, ticks_per_s: int) -> float | None:
    """Cores in use between two readings of `/proc/stat`."""
    if elapsed_ms <= 0 or ticks < last_ticks:
        return None
    return (ticks - last_ticks) / (elapsed_ms / 1000 * ticks_per_s)


def numa_cores(
    last_ticks: Mapping[int, int],
    ticks: Mapping[int, int],
    numa_of_cpu: Mapping[int, int],
    elapsed_ms: float,
    ticks_per_s: int,
) -> dict[int, float]:
    """Cores in use by NUMA node; CPUs that are new, went backwards or sit nowhere are left out."""
    found: dict[int, float] = {}
    for cpu in ticks.keys() & last_ticks.keys() & numa_of_cpu.keys():
        cores = node_cores(last_ticks[cpu], ticks[cpu], elapsed_ms, ticks_per_s)
        if cores is not None:
            found[numa_of_cpu[cpu]] = found.get(numa_of_cpu[cpu], 0.0) + cores
    return found


def cgroup_cores(last_ns: int, now_ns: int, elapsed_ns: int) -> float | None:
    """Cores in use by a cgroup between two readings of its CPU time."""
    return (now_ns - last_ns) / elapsed_ns if elapsed_ns > 0 and now_ns >= last_ns else None


def throttled_ratio(last: Throttling, now: Throttling) -> float:
    """Share of quota periods in which a cgroup was throttled; 0 when none has passed."""
    periods = now.periods - last.periods
    return (now.throttled - last.throttled) / periods if periods > 0 else 0.0


def be_usage_milli(last_ns: int | None, now_ns: int, elapsed_ms: int) -> int:
    """CPU in use by all best-effort pods; 0 in the first round, as the three figures go together."""
    if last_ns is None or elapsed_ms <= 0 or now_ns < last_ns:
        return 0
    return int((now_ns - last_ns) // _NS_PER_MS / elapsed_ms * 1000)


def be_limit_milli(smallest: cpuset.CPUSet, quota_us: int, period_us: int) -> int:
    """CPU that best-effort pods can get at all: by their CPUs and by their quota."""
    by_cpus = len(smallest) * 1000
    if quota_us == UNLIMITED or period_us <= 0:
        return by_cpus
    return min(by_cpus, quota_us * 1000 // period_us)


def be_request_milli(pods: Iterable[Pod]) -> int:
    """Batch CPU requested by all pods labelled BE."""
    return sum(pod_resources.batch(pod).request_cpu_milli for pod in pods if qos.raw(pod) is QoSClass.BE)


def host_applications_total(
    applications: Iterable[HostApplicationUsage], memory_policy: str
) -> MeasuredUsage:
    """Usage of all host applications, their memory counted as the NodeMetric asks for."""
    known = list(applications)
    with_cache = memory_policy == MEMORY_WITH_PAGE_CACHE
    return MeasuredUsage(
        sum(each.cores for each in known),
        sum(each.usage_file_bytes if with_cache else each.stat_bytes for each in known),
    )


def system_usage(
    node: MeasuredUsage | None,
    pods: Iterable[MeasuredUsage],
    host_applications: MeasuredUsage | None,
    outdated_ms: int = OUTDATED_MS,
) -> MeasuredUsage | None:
    """Return what is neither pods nor host applications, never negative; None unless all are known and fresh.

    `pods` are what each of their collectors found.
    """
    if node is None or host_applications is None:
        return None
    known = [host_applications, *pods]
    if len(known) == 1 or any(usage.age_ms > outdated_ms for usage in (node, *known)):
        return None
    return MeasuredUsage(
        max(node.cores - sum(usage.cores for usage in known), 0.0),
        max(node.memory_bytes - sum(usage.memory_bytes for usage in known), 0),
    )


def system_numa_usage(
    system_cores: float,
    node_cores: Mapping[int, Aged],
    node_bytes: Mapping[int, Aged],
    pods_bytes: Mapping[int, Aged] | None,
    outdated_ms: int = OUTDATED_MS,
) -> NumaUsage:
    """System usage by NUMA node: CPU in proportion to the node's, memory less that of pods.

    `pods_bytes` is None before the first pods were measured. One stale CPU value drops all of CPU, one stale
    value of pods all of memory, a stale memory value of the node only that NUMA node.
    """
    memory: dict[int, float] = {}
    if pods_bytes is not None and all(each.age_ms <= outdated_ms for each in pods_bytes.values()):
        nothing = Aged(0, 0)
        memory = {
            numa: max(each.value - pods_bytes.get(numa, nothing).value, 0)
            for numa, each in node_bytes.items()
            if each.age_ms <= outdated_ms
        }
    cores: dict[int, float] = {}
    if all(each.age_ms <= outdated_ms for each in node_cores.values()):
        total = sum(each.value for each in node_cores.values())
        share = system_cores / total if total > 0 else 0.0
        cores = {numa: share * each.value for numa, each in node_cores.items()}
    return NumaUsage(cores, memory)


def node_hot_bytes(total_bytes: int, free_bytes: int, cold_bytes: int) -> int:
    """Memory of the machine that is in use and not cold."""
    return max(total_bytes - free_bytes - cold_bytes, 0)


def cgroup_hot_bytes(stat: MemoryStat, cold_bytes: int) -> int:
    """Memory of a cgroup that is not cold, page cache included."""
    return max(stat.usage_with_page_cache_bytes - cold_bytes, 0)


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
        self.unseen_pods: Total | None = None
        """Pods without groups that can be read, by what their runtime tells."""
        self.host_applications: Total | None = None


def _age_ms(now_s: float, at_s: float) -> int:
    return int((now_s - at_s) * 1000)
