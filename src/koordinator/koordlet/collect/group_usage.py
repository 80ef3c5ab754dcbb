"""CPU, memory and throttling of many groups at once: the reading that the agent does most.

A round costs three small reads per group (two on v2). `memory.stat`, which costs more than all others together (the
kernel adds up statistics of the whole subtree), is read only when the memory of the group has changed, and now and
then. A first reading, a group made anew below the same path, a counter that went backwards and a period that is not
positive give no sample. Source: spec 10, sections 5.3, 5.8 and 17.
"""

import asyncio
from collections.abc import Callable, Sequence

from koordinator.host import cgroup_counters
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Identity
from koordinator.koordlet.collect import rates
from koordinator.koordlet.series import Ring

GROUPS_AT_ONCE = 32
"""Groups that are read before the time is taken again, so that a pause in between falsifies few rates."""
MEMORY_ROUNDS = 10
"""After so many rounds `memory.stat` is read anyway: shares of file and anonymous pages may shift within a total."""
CORES_TOLERANCE = 1.25
"""How much more than all CPUs a group may seem to use, since reading takes its time; above that it is no rate."""

_NS_PER_S = 1_000_000_000


class GroupRings:
    """Series of one group; None for those that are not kept."""

    __slots__ = ("cpu", "memory", "page_cache", "throttled")

    def __init__(self, cpu: Ring, memory: Ring, throttled: Ring | None, page_cache: Ring | None) -> None:
        self.cpu = cpu
        self.memory = memory
        self.throttled = throttled
        self.page_cache = page_cache


class MeasuredGroup:
    """One group and its last readings."""

    __slots__ = (
        "_at_s",
        "_cpu_path",
        "_identity",
        "_memory_seen",
        "_rounds_left",
        "_stat_path",
        "_stat_seen",
        "_throttling",
        "_usage_ns",
        "cores",
        "group",
        "is_measured",
        "memory_bytes",
        "page_cache_bytes",
        "paths",
        "rings",
    )

    def __init__(self, cgroups: Cgroups, group: str, rings: GroupRings, index: int = 0) -> None:
        self.group = group
        self.rings = rings
        self._cpu_path = cgroups.path(Knob.CPU_USAGE, group)
        self._stat_path = cgroups.path(Knob.MEMORY_STAT, group)
        memory_path = cgroups.path(Knob.MEMORY_USAGE, group)
        self.paths = (
            [self._cpu_path, memory_path, cgroups.path(Knob.CPU_STAT, group)]
            if cgroups.version == V1
            else [self._cpu_path, memory_path]
        )
        self.is_measured = False
        """Whether the last round gave CPU and memory."""
        self.cores = 0.0
        self.memory_bytes = self.page_cache_bytes = 0
        self._rounds_left = index % MEMORY_ROUNDS  # not all in the same round
        self._forget()

    def _forget(self) -> None:
        self._usage_ns = -1
        self._at_s = 0.0
        self._identity: Identity | None = None
        self._memory_seen = self._stat_seen = b""
        self._throttling: tuple[int, int] | None = None

    def gone(self) -> None:
        """It cannot be read (now)."""
        self.is_measured = False
        self._forget()

    def stat_path_if_changed(self, memory: bytes) -> str | None:
        """The file that tells what its memory is, when that has to be read again."""
        if memory == self._memory_seen and self._rounds_left > 0:
            self._rounds_left -= 1
            return None
        return self._stat_path

    def take_memory(self, version: int, memory: bytes, stat: bytes) -> bool:
        """What `memory.stat` says now; False when it does not say it."""
        used = cgroup_counters.memory_usage_bytes(version, stat)
        cached = cgroup_counters.page_cache_bytes(version, stat)
        if used is None or cached is None:
            return False
        if self._memory_seen:
            self._rounds_left = MEMORY_ROUNDS
        self.memory_bytes, self.page_cache_bytes = used, cached
        self._memory_seen = memory
        return True

    def take_cpu(
        self, version: int, usage: bytes, identity: Identity | None, at_s: float, cores_max: float
    ) -> bool:
        """CPU in use since the last reading, in `cores`; False when this reading is but the first of its counter."""
        usage_ns = cgroup_counters.cpu_usage_ns(version, usage)
        if usage_ns is None:
            self._forget()
            return False
        last_ns, last_s, last_identity = self._usage_ns, self._at_s, self._identity
        self._usage_ns, self._at_s, self._identity = usage_ns, at_s, identity
        if last_ns < 0 or identity != last_identity:
            self._throttling, self._memory_seen = None, b""
            return False
        cores = rates.cgroup_cores(last_ns, usage_ns, int((at_s - last_s) * _NS_PER_S))
        if cores is None or cores > cores_max:
            return False
        self.cores = cores
        return True

    def take_throttling(self, version: int, stat: bytes) -> float | None:
        """Share of quota periods in which it was throttled since the last reading; None without one before."""
        if stat == self._stat_seen and self._throttling is not None:
            return 0.0
        self._stat_seen = stat
        found = cgroup_counters.throttling(version, stat)
        last = self._throttling
        self._throttling = None if found is None else (found.periods, found.throttled)
        if found is None or last is None:
            return None
        periods, throttled = found.periods - last[0], found.throttled - last[1]
        if periods < 0 or throttled < 0:
            return None
        return min(throttled / periods, 1.0) if periods else 0.0


class GroupScan:
    """Reads lists of groups. `cores_max` tells how much a group can use at most."""

    def __init__(self, cgroups: Cgroups, cores_max: Callable[[], float]) -> None:
        self._cgroups = cgroups
        self._cores_max = cores_max

    def measure(self, groups: Sequence[MeasuredGroup], at_ms: int) -> None:
        """One round: each group's values and points of its series."""
        cores_max = self._cores_max() * CORES_TOLERANCE
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            self._measure_some(groups[start : start + GROUPS_AT_ONCE], at_ms, cores_max)

    def _measure_some(self, groups: Sequence[MeasuredGroup], at_ms: int, cores_max: float) -> None:
        files, version = self._cgroups.files, self._cgroups.version
        now_s = asyncio.get_running_loop().time
        width = 3 if version == V1 else 2
        contents = files.hot_many([path for each in groups for path in each.paths])
        at_s = now_s()
        changed: list[tuple[MeasuredGroup, bytes]] = []
        stat_paths: list[str] = []
        present: list[tuple[MeasuredGroup, bytes, bytes | None]] = []
        for index, each in enumerate(groups):
            usage, memory = contents[width * index], contents[width * index + 1]
            if usage is None or memory is None:
                each.gone()
                continue
            present.append((each, usage, contents[width * index + 2] if version == V1 else usage))
            path = each.stat_path_if_changed(memory)
            if path is not None:
                changed.append((each, memory))
                stat_paths.append(path)
        without_memory = set()
        for (each, memory), stat in zip(changed, files.hot_many(stat_paths), strict=True):
            if stat is None or not each.take_memory(version, memory, stat):
                without_memory.add(each)
        for each, usage, stat in present:
            is_rate = each.take_cpu(version, usage, files.identity(each.paths[0]), at_s, cores_max)
            ratio = None if stat is None else each.take_throttling(version, stat)
            each.is_measured = is_rate and each not in without_memory
            if each.is_measured:
                _store(each, ratio, at_ms)


def _store(each: MeasuredGroup, throttled: float | None, at_ms: int) -> None:
    rings = each.rings
    rings.cpu.append(at_ms, each.cores)
    rings.memory.append(at_ms, each.memory_bytes)
    if throttled is not None and rings.throttled is not None:
        rings.throttled.append(at_ms, throttled)
    if rings.page_cache is not None:
        rings.page_cache.append(at_ms, each.memory_bytes + each.page_cache_bytes)
