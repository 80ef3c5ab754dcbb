"""CPU, memory and throttling of many groups at once: the reading that the agent does most.

Reading is what costs (2 to 15 us a file when nobody else has just touched it), so only what can have changed is read:

* CPU time of each pod, and of its containers when that of the pod has grown (each fifth round where nobody asks within
  seconds: those of batch pods, and of services without a quota, which are not throttled);
* quota periods of groups whose CPU time has grown, and the whole memory of such pods (of batch each second round, of
  services, upon which nobody acts within seconds, each fifth; nobody asks for that of containers);
* `memory.stat` (as dear as all others together: the kernel adds up statistics of the whole subtree) of groups whose
  whole memory has moved by more than `MEMORY_SHARE`.

Memory is looked at anyway after `MEMORY_ROUNDS` rounds, since others may have reclaimed it, and quota periods of groups
that run without a quota after `PERIODS_S`. A first reading, a group made anew below the same path, a counter that
went backwards and a period that is not positive give no sample. Source: behaviour/koordlet-observe 5.3 and 5.8.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from koordinator.host import cgroup_counters
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Identity
from koordinator.koordlet.collect import rates
from koordinator.koordlet.series import CONTAINER_ROUNDS, Ring

GROUPS_AT_ONCE = 8
"""Pods that are read before the time is taken again, so that a pause in between falsifies few rates."""
MEMORY_SHARE = 1 / 128
MEMORY_ROUNDS = 10
BATCH_MEMORY_ROUNDS = 2
SERVICE_MEMORY_ROUNDS = 5
PERIODS_S = 4.5
CORES_TOLERANCE = 1.25
"""Ratio to all CPUs that a group may seem to use, since reading takes its time; above that it is no rate."""

_NS_PER_S = 1_000_000_000
_UNKNOWN = -1


class GroupRings:
    """Series of one group; None for those that are not kept. Memory is read only with a series for it."""

    __slots__ = ("cpu", "memory", "page_cache", "throttled")

    def __init__(
        self, cpu: Ring, memory: Ring | None, throttled: Ring | None, page_cache: Ring | None
    ) -> None:
        self.cpu = cpu
        self.memory = memory
        self.throttled = throttled
        self.page_cache = page_cache


class MeasuredGroup:
    """One group, its last readings, and the groups below it. Many are kept, hence no dictionaries."""

    __slots__ = (
        "_at_s",
        "_below_rounds_left",
        "_identity",
        "_is_rate",
        "_memory_every",
        "_memory_rounds_left",
        "_memory_seen",
        "_periods",
        "_periods_at_s",
        "_throttled",
        "_usage_ns",
        "_whole_rounds_left",
        "below",
        "cores",
        "cpu_stat_path",
        "group",
        "has_quota",
        "has_run",
        "is_measured",
        "memory_bytes",
        "memory_path",
        "memory_stat_path",
        "page_cache_bytes",
        "rings",
        "usage_path",
        "watches_quotas",
    )

    def __init__(
        self,
        cgroups: Cgroups,
        group: str,
        rings: GroupRings,
        *,
        memory_every: int = 1,
        watches_quotas: bool = False,
        index: int = 0,
    ) -> None:
        """`memory_every`: after how many rounds its memory is looked at; `index` tells apart when that is. With
        `watches_quotas` what is below it is looked at in each round while any of it has a quota."""
        self.group = group
        self.watches_quotas = watches_quotas
        self.rings = rings
        self.below: Sequence[MeasuredGroup] = ()
        self.has_run = True
        """It used CPU since what is below it was looked at."""
        self.usage_path = cgroups.path(Knob.CPU_USAGE, group)
        self.cpu_stat_path = cgroups.path(Knob.CPU_STAT, group)
        self.memory_path = cgroups.path(Knob.MEMORY_USAGE, group)
        self.memory_stat_path = cgroups.path(Knob.MEMORY_STAT, group)
        self.cores = 0.0
        self.memory_bytes = self.page_cache_bytes = 0
        self._below_rounds_left = 0 if watches_quotas else index % CONTAINER_ROUNDS
        self._memory_every = memory_every
        self._memory_rounds_left = index % MEMORY_ROUNDS  # not all in the same round
        self._whole_rounds_left = index % memory_every
        self._forget()

    def _forget(self) -> None:
        self.is_measured = False
        """True when the last round gave CPU, and memory if there is a series for it."""
        self._is_rate = False
        self._usage_ns = self._memory_seen = _UNKNOWN
        self._at_s = 0.0
        self._identity: Identity | None = None
        self._forget_periods()

    def _forget_periods(self) -> None:
        self.has_quota = True
        """False when it ran and nobody counted its periods."""
        self._periods: tuple[int, int] | None = None
        self._periods_at_s = 0.0
        self._throttled: float | None = None

    def take_usage(
        self, now_ns: int | None, identity: Identity | None, at_s: float, cores_max: float
    ) -> bool:
        """Take its CPU time, None where it cannot be read; return whether there is more to be read."""
        if now_ns is None:
            self._forget()
            return False
        last_ns, last_s = self._usage_ns, self._at_s
        self._usage_ns, self._at_s = now_ns, at_s
        if identity != self._identity:
            self._identity = identity
            self._memory_seen = last_ns = _UNKNOWN
            self._forget_periods()
        if last_ns < 0:
            self._is_rate = False
            return True
        cores = rates.cgroup_cores(last_ns, now_ns, int((at_s - last_s) * _NS_PER_S))
        self._is_rate = cores is not None and cores <= cores_max
        self.cores = cores if cores is not None and self._is_rate else 0.0
        return now_ns != last_ns or not self._rests()

    def stay(self, at_s: float) -> bool:
        """Its parent's CPU time has not changed, so neither has its own; False when it has to be read all the same."""
        if self._usage_ns < 0 or not self._rests():
            return False
        self._at_s, self._is_rate, self.cores = at_s, True, 0.0
        return True

    def wants_below(self) -> bool:
        """Return whether to look at what is below it now."""
        self._below_rounds_left -= 1
        if self._below_rounds_left > 0:
            return False
        is_urgent = self.watches_quotas and any(each.has_quota for each in self.below)
        self._below_rounds_left = 1 if is_urgent else CONTAINER_ROUNDS
        return True

    def _rests(self) -> bool:
        """Nothing more is to be read of a group that does not run."""
        if self.rings.memory is not None:
            self._memory_rounds_left -= 1
            if self._memory_seen < 0 or self._memory_rounds_left <= 0:
                return False
        if self._periods is not None:
            self._throttled = 0.0
        return True

    def wants_periods(self) -> bool:
        """Return whether to look at its quota periods now."""
        return self.has_quota or self._at_s - self._periods_at_s >= PERIODS_S

    def take_periods(self, version: int, stat: bytes | None) -> None:
        """Share of quota periods in which it was throttled since the last reading; unknown without one before."""
        last = self._periods
        found = None if stat is None else cgroup_counters.throttling(version, stat)
        self._forget_periods()
        if found is None:
            return
        self._periods = found.periods, found.throttled
        self._periods_at_s = self._at_s
        if last is None:
            return
        periods, throttled = found.periods - last[0], found.throttled - last[1]
        if periods < 0 or throttled < 0:
            return
        self._throttled = min(throttled / periods, 1.0) if periods else 0.0
        self.has_quota = periods > 0 or self.cores == 0

    def wants_memory(self) -> bool:
        """Return whether to look at its memory now."""
        if self.rings.memory is None:
            return False
        self._memory_rounds_left -= 1
        self._whole_rounds_left -= 1
        if self._memory_seen >= 0 and self._whole_rounds_left > 0:
            return False
        if self._memory_seen >= 0:
            self._whole_rounds_left = self._memory_every
        return True

    def take_memory(self, memory: bytes | None) -> bool:
        """Take what its whole memory is; return whether to ask what it consists of."""
        try:
            whole = int(memory or b"")
        except ValueError:
            self._memory_seen = _UNKNOWN
            return False
        seen = self._memory_seen
        if seen >= 0 and self._memory_rounds_left > 0 and abs(whole - seen) <= seen * MEMORY_SHARE:
            return False
        if seen >= 0:
            self._memory_rounds_left = MEMORY_ROUNDS
        self._memory_seen = whole
        return True

    def take_memory_stat(self, version: int, stat: bytes | None) -> None:
        """Take what its memory consists of."""
        found = None if stat is None else cgroup_counters.memory_bytes(version, stat)
        if found is None:
            self._memory_seen = _UNKNOWN
        else:
            self.memory_bytes, self.page_cache_bytes = found

    def store(self, at_ms: int) -> None:
        """Store what is known now, if it is."""
        rings = self.rings
        self.is_measured = self._is_rate and (rings.memory is None or self._memory_seen >= 0)
        if not self.is_measured:
            return
        rings.cpu.append(at_ms, self.cores)
        if rings.throttled is not None and self._throttled is not None:
            rings.throttled.append(at_ms, self._throttled)
        if rings.memory is not None:
            rings.memory.append(at_ms, self.memory_bytes)
        if rings.page_cache is not None:
            rings.page_cache.append(at_ms, self.memory_bytes + self.page_cache_bytes)


class GroupScan:
    """Reads lists of groups with what is below them. `cores_max` tells how much a group can use at most."""

    def __init__(self, cgroups: Cgroups, cores_max: Callable[[], float]) -> None:
        self._cgroups = cgroups
        self._cores_max = cores_max

    def measure(self, groups: Sequence[MeasuredGroup], at_ms: int) -> None:
        """One round: each group's values and points of its series."""
        cores_max = self._cores_max() * CORES_TOLERANCE
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            some = groups[start : start + GROUPS_AT_ONCE]
            active = self._usages(some, cores_max)
            for each in active:
                each.has_run = True
            opened = [each for each in some if each.wants_below()]
            below: list[MeasuredGroup] = []
            for each in opened:
                below += [inner for inner in each.below if each.has_run or not inner.stay(each._at_s)]
                each.has_run = False
            active += self._usages(below, cores_max)
            self._rest(active)
            for each in some:
                each.store(at_ms)
            for each in opened:
                for inner in each.below:
                    inner.store(at_ms)

    def _usages(self, groups: Sequence[MeasuredGroup], cores_max: float) -> list[MeasuredGroup]:
        """Read CPU times; return groups that run or have more to be read."""
        files, version = self._cgroups.files, self._cgroups.version
        usage_ns = cgroup_counters.CPU_USAGE_NS[version]
        contents = files.hot_many([each.usage_path for each in groups])
        at_s = asyncio.get_running_loop().time()
        active: list[MeasuredGroup] = []
        for each, usage in zip(groups, contents, strict=True):
            now_ns = None if usage is None else usage_ns(usage)
            if each.take_usage(now_ns, files.identity(each.usage_path), at_s, cores_max):
                active.append(each)
                if version != V1:
                    each.take_periods(version, usage)  # the same file
        return active

    def _rest(self, active: Sequence[MeasuredGroup]) -> None:
        """Read what else groups that run may have changed."""
        files, version = self._cgroups.files, self._cgroups.version
        if version == V1:
            counted = [each for each in active if each.wants_periods()]
            for each, stat in zip(counted, self._read(each.cpu_stat_path for each in counted), strict=True):
                each.take_periods(version, stat)
        wanting = [each for each in active if each.wants_memory()]
        whole = files.hot_many([each.memory_path for each in wanting])
        moved = [each for each, memory in zip(wanting, whole, strict=True) if each.take_memory(memory)]
        for each, stat in zip(moved, self._read(each.memory_stat_path for each in moved), strict=True):
            each.take_memory_stat(version, stat)

    def _read(self, paths: Iterable[str]) -> list[bytes | None]:
        return self._cgroups.files.hot_many(paths)
