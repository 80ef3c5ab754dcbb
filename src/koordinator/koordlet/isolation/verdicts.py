"""Judge what the isolation probe measured: does a mechanism have its effect? Pure functions of numbers.

A verdict is never a guess: where a busy node gave the probe too little to tell, or the kernel lacks something, it is
`UNKNOWN` and says why.
"""

import enum
from collections.abc import Collection, Mapping, Sequence

import msgspec


class Mechanism(enum.StrEnum):
    """The mechanisms that strategies rest on."""

    CPU_QUOTA = "cpu-quota"
    CPU_WEIGHT = "cpu-weight"
    CPU_IDLE = "cpu-idle"
    TIME_SLICE = "time-slice"
    CPUSET = "cpuset"
    MEMORY_LIMIT = "memory-limit"
    MEMORY_HIGH = "memory-high"
    IO_LIMIT = "io-limit"
    RESCTRL = "resctrl"
    KILL = "kill"


class Works(enum.StrEnum):
    """The outcome for one mechanism."""

    YES = "works"
    NO = "broken"
    UNKNOWN = "unknown"


class MechanismVerdict(msgspec.Struct, frozen=True):
    """The verdict on one mechanism, and what it was found by."""

    works: Works
    why: str


class Spun(msgspec.Struct, frozen=True):
    """CPU seconds of a process that wanted a CPU, and the longest time for which nobody else got it."""

    cpu_s: float
    longest_s: float


QUOTA_RATIO = 0.2
"""The quota that the probe gives itself, in CPUs."""
QUOTA_SLACK = 1.75
"""Quota is given by the period: a short run may have some of it more."""
WEIGHTS = 4.0
"""Ratio of the weights of the two groups."""
WEIGHT_RATIO_MIN = 1.8
IDLE_SHARE_MAX = 0.2
LONG_RATIO, LONG_S_MIN = 2.0, 0.025
"""A run with a long slice lasts at least so many times the longest with usual ones, which end with a tick."""
OTHERS_SHARE_MAX = 0.15
CPU_S_MIN = 0.03
"""With less than that nothing can be told."""
LIMIT_SLACK = 1.25
IO_SECONDS_MIN_RATIO = 0.5
"""A limited read may be so much quicker than the limit says: there is a burst at the start."""

GROUPS: Mapping[str, tuple[Mechanism, ...]] = {
    "cpu": (Mechanism.CPU_QUOTA, Mechanism.CPU_WEIGHT, Mechanism.CPUSET),
    "memory": (Mechanism.MEMORY_LIMIT,),
    "io": (Mechanism.IO_LIMIT,),
    "cache": (Mechanism.RESCTRL,),
}
"""Kind of isolation that a pod may require → the mechanisms that it needs."""


def unknown(why: str) -> MechanismVerdict:
    """Return that nothing can be told."""
    return MechanismVerdict(Works.UNKNOWN, why)


def quota(free_ratio: float, limited_ratio: float, throttled_above: int) -> MechanismVerdict:
    """Judge CPUs had without and with a quota of `QUOTA_RATIO`; `throttled_above` counts how often groups above were
    throttled while there was none."""
    numbers = f"{limited_ratio:.2f} CPUs with a quota of {QUOTA_RATIO:g}, {free_ratio:.2f} without"
    if limited_ratio > QUOTA_RATIO * QUOTA_SLACK:
        return MechanismVerdict(Works.NO, f"not held back: {numbers}")
    if free_ratio > QUOTA_RATIO * QUOTA_SLACK:
        return MechanismVerdict(Works.YES, numbers)
    if throttled_above:
        return MechanismVerdict(Works.NO, f"a group above allows less than the probe's own quota: {numbers}")
    return unknown(f"the node was too busy: {numbers}")


def weight(heavy_s: float, light_s: float) -> MechanismVerdict:
    """Judge CPU time of two groups on one CPU, one entitled to `WEIGHTS` times as much as the other."""
    numbers = f"{heavy_s * 1000:.0f} and {light_s * 1000:.0f} ms at {WEIGHTS:g} to 1"
    if heavy_s + light_s < CPU_S_MIN:
        return unknown(f"the node was too busy: {numbers}")
    works = heavy_s >= light_s * WEIGHT_RATIO_MIN
    return MechanismVerdict(Works.YES if works else Works.NO, numbers)


def idle(normal_s: float, idle_s: float) -> MechanismVerdict:
    """Judge CPU time of a normal and an idle group on one CPU."""
    numbers = f"{normal_s * 1000:.0f} ms normal, {idle_s * 1000:.0f} ms idle"
    if normal_s + idle_s < CPU_S_MIN:
        return unknown(f"the node was too busy: {numbers}")
    works = idle_s <= IDLE_SHARE_MAX * (normal_s + idle_s)
    return MechanismVerdict(Works.YES if works else Works.NO, numbers)


def time_slice(usual: Sequence[Spun], long: Sequence[Spun], alone: Spun, others: float) -> MechanismVerdict:
    """Judge two processes on one CPU with the kernel's own slices and with long ones. Short runs say nothing where
    others want that CPU, too: who runs there `alone` is interrupted, or they use a part of it while the probe waits."""
    own_s, long_s = (max(each.longest_s for each in found) for found in (usual, long))
    wanted_s = max(own_s * LONG_RATIO, LONG_S_MIN)
    numbers = (
        f"at most {long_s * 1000:.0f} ms at once with long slices, {own_s * 1000:.0f} ms with usual ones, "
        f"{alone.longest_s * 1000:.0f} ms alone"
    )
    had_both = min(each.cpu_s for each in usual) >= CPU_S_MIN / 2
    if had_both and long_s >= wanted_s:
        return MechanismVerdict(Works.YES, numbers)
    is_free = alone.longest_s >= max(wanted_s, long_s * LONG_RATIO) and others <= OTHERS_SHARE_MAX
    if had_both and is_free:
        return MechanismVerdict(Works.NO, numbers)
    return unknown(f"the node was too busy: {numbers}")


def confined(wanted: Collection[int], found: Collection[int]) -> MechanismVerdict:
    """Judge the CPUs that the kernel lets a process of a group run on."""
    numbers = f"CPUs {sorted(found)} where {sorted(wanted)} were given"
    return MechanismVerdict(Works.YES if set(found) == set(wanted) else Works.NO, numbers)


def memory_limit(limit: int, resident: int | None) -> MechanismVerdict:
    """Judge the bytes of a process that wanted more than its limit; None when it was killed for it."""
    if resident is None:
        return MechanismVerdict(Works.YES, f"a process above {limit >> 20} MiB was ended")
    numbers = f"{resident >> 20} MiB resident under a limit of {limit >> 20} MiB"
    return MechanismVerdict(Works.YES if resident <= limit * LIMIT_SLACK else Works.NO, numbers)


def memory_high(high: int, usage: int, events: int) -> MechanismVerdict:
    """Judge the use of a group that filled the page cache above `memory.high`."""
    numbers = f"{usage >> 20} MiB used above {high >> 20} MiB of memory.high, reclaimed {events} times"
    if usage > high * LIMIT_SLACK:
        return MechanismVerdict(Works.NO, numbers)
    return MechanismVerdict(Works.YES, numbers) if events else unknown(f"never reached: {numbers}")


def io_limit(amount: int, bytes_per_s: int, free_s: float, limited_s: float) -> MechanismVerdict:
    """Judge the seconds of a read without and with a limit."""
    numbers = (
        f"{amount >> 10} KiB in {limited_s:.2f} s at {bytes_per_s >> 10} KiB/s, in {free_s:.2f} s without"
    )
    if free_s * 2 > amount / bytes_per_s:
        return unknown(f"the disk itself is as slow as the limit: {numbers}")
    works = limited_s >= amount / bytes_per_s * IO_SECONDS_MIN_RATIO
    return MechanismVerdict(Works.YES if works else Works.NO, numbers)


def provided(found: Mapping[Mechanism, Works]) -> dict[str, Works]:
    """Return by what pods may require whether it is there: broken when a part is, proven when all are."""
    outcome = {}
    for name, parts in GROUPS.items():
        states = {found.get(part, Works.UNKNOWN) for part in parts}
        if Works.NO in states:
            outcome[name] = Works.NO
        else:
            outcome[name] = Works.UNKNOWN if Works.UNKNOWN in states else Works.YES
    return outcome
