"""Find out what this host can do, feature by feature, and why not: asked once, reported to people.

Knobs of groups are looked for in the group of all pods, as the strategies will write them there.
"""

import enum
from collections.abc import Mapping

from koordinator.host import perf_events
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import KernelSupport
from koordinator.host.host import Host


class Feature(enum.StrEnum):
    """Names for reports."""

    CPU_BURST = "cpu-burst"
    CPU_IDLE = "cpu-idle"
    GROUP_IDENTITY = "group-identity"
    CORE_SCHED = "core-scheduling"
    MEMORY_PROTECTION = "memory-protection"
    MEMORY_WATERMARKS = "memory-watermarks"
    MEMORY_PRIORITY = "memory-priority"
    OOM_GROUP = "oom-group"
    PAGE_CACHE_LIMIT = "page-cache-limit"
    BLKIO_THROTTLE = "blkio-throttle"
    BLKIO_COST = "blkio-cost"
    NET_CLASS = "net-class"
    PRESSURE = "pressure"
    CPI = "cpi"
    RESCTRL = "resctrl"
    KIDLED = "kidled"
    DAMON = "damon"


_KNOBS = {
    Feature.CPU_BURST: (Knob.CPU_BURST,),
    Feature.CPU_IDLE: (Knob.CPU_IDLE,),
    Feature.GROUP_IDENTITY: (Knob.CPU_BVT,),
    Feature.MEMORY_PROTECTION: (Knob.MEMORY_MIN, Knob.MEMORY_LOW, Knob.MEMORY_HIGH),
    Feature.MEMORY_WATERMARKS: (
        Knob.MEMORY_WMARK_RATIO,
        Knob.MEMORY_WMARK_SCALE,
        Knob.MEMORY_WMARK_MIN_ADJ,
    ),
    Feature.MEMORY_PRIORITY: (Knob.MEMORY_PRIORITY, Knob.MEMORY_USE_PRIORITY_OOM),
    Feature.OOM_GROUP: (Knob.MEMORY_OOM_GROUP,),
    Feature.PAGE_CACHE_LIMIT: (Knob.PAGE_CACHE_ENABLE, Knob.PAGE_CACHE_SIZE, Knob.PAGE_CACHE_SYNC),
    Feature.BLKIO_THROTTLE: (Knob.BLKIO_READ_BPS, Knob.BLKIO_WRITE_BPS),
    Feature.BLKIO_COST: (Knob.BLKIO_WEIGHT, Knob.BLKIO_QOS, Knob.BLKIO_MODEL),
    Feature.NET_CLASS: (Knob.NET_CLASS,),
    Feature.PRESSURE: (Knob.CPU_PRESSURE, Knob.MEMORY_PRESSURE, Knob.IO_PRESSURE),
}
_KNOBS_V2 = {
    Feature.BLKIO_THROTTLE: (Knob.IO_MAX,),
    Feature.BLKIO_COST: (Knob.IO_WEIGHT, Knob.BLKIO_QOS, Knob.BLKIO_MODEL),
}
"""What stands for them on cgroup v2, where that is something else."""


def probe(host: Host, kubepods: str) -> Mapping[Feature, KernelSupport]:
    """Return each feature with the answer of this host; `kubepods` is the group of all pods."""
    features = _KNOBS if host.cgroups.version == V1 else _KNOBS | _KNOBS_V2
    found = {feature: _knobs(host, kubepods, knobs) for feature, knobs in features.items()}
    found[Feature.CORE_SCHED] = host.core_sched.support()
    found[Feature.CPI] = _cpi(host)
    found[Feature.RESCTRL] = host.resctrl.support()
    found[Feature.KIDLED] = host.kidled.support()
    found[Feature.DAMON] = host.damon.support()
    return {feature: found[feature] for feature in Feature}


def _knobs(host: Host, group: str, knobs: tuple[Knob, ...]) -> KernelSupport:
    """Supported when all its knobs are."""
    for knob in knobs:
        if not (support := host.cgroups.support(knob, group)).is_supported:
            return support
        path = host.cgroups.path(knob, group)
        # Some knobs count as present everywhere; a kernel built without them has no file all the same.
        if not host.files.exists(path) and host.cgroups.exists(group):
            return KernelSupport(False, f"no file {path}")
    return KernelSupport(True)


def _cpi(host: Host) -> KernelSupport:
    counted = perf_events.support(host.syscalls)
    if not counted.is_supported:
        return counted
    root = perf_events.directory(host.cgroups, "")
    if not host.files.exists(root):
        version = "perf_event controller" if host.cgroups.version == V1 else "cgroup2"
        return KernelSupport(False, f"no directory {root}: {version} is not mounted")
    return KernelSupport(True)
