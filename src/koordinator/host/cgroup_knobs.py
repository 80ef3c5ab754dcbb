"""The files of a cgroup by name: where they are on v1 and v2, what may be written, and in which form.

A knob is named after its v1 file and its values are those of v1, whatever the kernel has. Source:
behaviour/koordlet-observe 3.3; behaviour/koordlet-act 3.3 and 3.5.

CPU amounts are counted as the kernel counts them (behaviour/koordlet-act 3.4 and 3.5).
"""

import enum
import re

import msgspec

from koordinator.api import cpuset, scalars
from koordinator.api.cpuset import CPUSetError
from koordinator.api.scalars import ScalarError
from koordinator.host import cgroup_layout
from koordinator.host.errors import KnobValueError, UnsupportedError

SHARES_MIN, SHARES_MAX = 2, 262_144
WEIGHT_MIN, WEIGHT_MAX = 1, 10_000
SHARES_PER_CORE = 1024
CFS_PERIOD_US = 100_000
CFS_QUOTA_US_MIN = 1_000
"""The kernel refuses a smaller quota."""
UNLIMITED = -1
"""A quota or limit that is not there."""
COUNT_MAX = 2**63 - 1
"""Number that the word `max` stands for."""
UNLIMITED_BYTES_MIN = 0x7FFF_FFFF_FFFF_F000
"""Cgroup v1 shows no limit as the largest whole number of pages."""

_SHARES_SPAN = SHARES_MAX - SHARES_MIN
_WEIGHT_SPAN = WEIGHT_MAX - WEIGHT_MIN


def weight_of_shares(shares: int) -> int:
    """`cpu.weight` for v1 shares, which must be within `SHARES_MIN` and `SHARES_MAX`."""
    assert SHARES_MIN <= shares <= SHARES_MAX, shares
    return WEIGHT_MIN + (shares - SHARES_MIN) * _WEIGHT_SPAN // _SHARES_SPAN


def shares_of_weight(weight: int) -> int:
    """V1 shares for a `cpu.weight`, which must be within `WEIGHT_MIN` and `WEIGHT_MAX`."""
    assert WEIGHT_MIN <= weight <= WEIGHT_MAX, weight
    return (weight - WEIGHT_MIN) * _SHARES_SPAN // _WEIGHT_SPAN + SHARES_MIN


def shares_of_milli(milli: int) -> int:
    """Shares of a CPU request in milli-cores, always valid."""
    return min(max(milli * SHARES_PER_CORE // 1000, SHARES_MIN), SHARES_MAX) if milli > 0 else SHARES_MIN


def quota_of_milli(milli: int) -> int:
    """CFS quota in µs per `CFS_PERIOD_US` of a CPU limit in milli-cores; `UNLIMITED` without limit."""
    return max(milli * CFS_PERIOD_US // 1000, CFS_QUOTA_US_MIN) if milli > 0 else UNLIMITED


V1, V2 = 1, 2


class Knob(enum.StrEnum):
    """A file of a cgroup."""

    CPU_SHARES = "cpu.shares"
    CPU_QUOTA = "cpu.cfs_quota_us"
    CPU_PERIOD = "cpu.cfs_period_us"
    CPU_BURST = "cpu.cfs_burst_us"
    CPU_BVT = "cpu.bvt_warp_ns"
    CPU_IDLE = "cpu.idle"
    TASKS = "tasks"
    PROCS = "cgroup.procs"
    CPUSET = "cpuset.cpus"
    CPUSET_EFFECTIVE = "cpuset.cpus.effective"
    MEMORY_LIMIT = "memory.limit_in_bytes"
    MEMORY_USAGE = "memory.usage_in_bytes"
    MEMORY_MIN = "memory.min"
    MEMORY_LOW = "memory.low"
    MEMORY_HIGH = "memory.high"
    MEMORY_WMARK_RATIO = "memory.wmark_ratio"
    MEMORY_WMARK_SCALE = "memory.wmark_scale_factor"
    MEMORY_WMARK_MIN_ADJ = "memory.wmark_min_adj"
    MEMORY_PRIORITY = "memory.priority"
    MEMORY_USE_PRIORITY_OOM = "memory.use_priority_oom"
    MEMORY_OOM_GROUP = "memory.oom.group"
    PAGE_CACHE_ENABLE = "memory.pagecache_limit.enable"
    PAGE_CACHE_SIZE = "memory.pagecache_limit.size"
    PAGE_CACHE_SYNC = "memory.pagecache_limit.sync"
    BLKIO_READ_IOPS = "blkio.throttle.read_iops_device"
    BLKIO_WRITE_IOPS = "blkio.throttle.write_iops_device"
    BLKIO_READ_BPS = "blkio.throttle.read_bps_device"
    BLKIO_WRITE_BPS = "blkio.throttle.write_bps_device"
    BLKIO_WEIGHT = "blkio.cost.weight"
    BLKIO_QOS = "blkio.cost.qos"
    BLKIO_MODEL = "blkio.cost.model"
    IO_MAX = "io.max"
    IO_WEIGHT = "io.weight"
    IO_BYTES = "blkio.throttle.io_service_bytes_recursive"
    NET_CLASS = "net_cls.classid"
    CPU_STAT = "cpu.stat"
    CPU_USAGE = "cpuacct.usage"
    CPUACCT_STAT = "cpuacct.stat"
    MEMORY_STAT = "memory.stat"
    MEMORY_NUMA_STAT = "memory.numa_stat"
    MEMORY_IDLE_PAGES = "memory.idle_page_stats"
    CPU_PRESSURE = "cpu.pressure"
    MEMORY_PRESSURE = "memory.pressure"
    IO_PRESSURE = "io.pressure"


class Presence(enum.Enum):
    """The way to find out whether this kernel has a knob."""

    ALWAYS = "it is part of every kernel"
    OWN_FILE = "the file of the group itself exists"
    KUBEPODS_FILE = "the file of the group of all pods exists"
    KUBEPODS_FILE_ON_V1 = "as KUBEPODS_FILE on v1, always on v2"
    ROOT_FILE = "the file of the root group exists"


class KnobFormat(enum.Enum):
    """The format of a knob's value."""

    TEXT = enum.auto()
    NUMBER = enum.auto()
    CPUS = enum.auto()
    DEVICE_NUMBER = enum.auto()
    CLASS_ID = enum.auto()
    READ_ONLY = enum.auto()


class Merge(enum.Enum):
    """The choice whether a parent must be wider than its children, and the meaning of wider."""

    NONE = enum.auto()
    LARGER = enum.auto()
    UNION = enum.auto()


Range = tuple[int, int]
_ANY: Range = (-COUNT_MAX - 1, COUNT_MAX)


class _File(msgspec.Struct, frozen=True):
    """One knob: v1 subsystem and file names; None where a version has no such file."""

    subsystem: str
    v1: str | None
    v2: str | None
    form: KnobFormat = KnobFormat.READ_ONLY
    allowed: Range = _ANY
    allowed_v2: Range | None = None
    presence: Presence = Presence.ALWAYS
    merge: Merge = Merge.NONE


def _own(subsystem: str, knob: Knob, low: int, high: int) -> _File:
    """Return a vendor kernel's number with the same name on both versions."""
    return _File(subsystem, knob, knob, KnobFormat.NUMBER, (low, high), presence=Presence.OWN_FILE)


def _page_cache(knob: Knob, high: int) -> _File:
    return _File("memory", None, knob, KnobFormat.NUMBER, (0, high), presence=Presence.OWN_FILE)


def _protected(knob: Knob) -> _File:
    presence = Presence.KUBEPODS_FILE_ON_V1
    return _File(
        "memory", knob, knob, KnobFormat.NUMBER, (0, COUNT_MAX), presence=presence, merge=Merge.LARGER
    )


def _throttle(knob: Knob) -> _File:
    allowed = (0, COUNT_MAX)
    return _File("blkio", knob, None, KnobFormat.DEVICE_NUMBER, allowed, presence=Presence.KUBEPODS_FILE)


_FILES = {
    Knob.CPU_SHARES: _File(
        "cpu",
        "cpu.shares",
        "cpu.weight",
        KnobFormat.NUMBER,
        (SHARES_MIN, SHARES_MAX),
    ),
    Knob.CPU_QUOTA: _File("cpu", "cpu.cfs_quota_us", "cpu.max", KnobFormat.NUMBER, merge=Merge.LARGER),
    Knob.CPU_PERIOD: _File("cpu", "cpu.cfs_period_us", "cpu.max", KnobFormat.NUMBER),
    Knob.CPU_BURST: _File(
        "cpu",
        "cpu.cfs_burst_us",
        "cpu.max.burst",
        KnobFormat.NUMBER,
        (0, 100_000_000),
        allowed_v2=(0, COUNT_MAX),
        presence=Presence.OWN_FILE,
    ),
    Knob.CPU_BVT: _own("cpu", Knob.CPU_BVT, -1, 2),
    Knob.CPU_IDLE: _File(
        "cpu", "cpu.idle", "cpu.idle", KnobFormat.NUMBER, (0, 1), presence=Presence.KUBEPODS_FILE
    ),
    Knob.TASKS: _File("cpu", "tasks", "cgroup.threads", KnobFormat.TEXT),
    Knob.PROCS: _File("cpu", "cgroup.procs", "cgroup.procs", KnobFormat.TEXT),
    Knob.CPUSET: _File("cpuset", "cpuset.cpus", "cpuset.cpus", KnobFormat.CPUS, merge=Merge.UNION),
    Knob.CPUSET_EFFECTIVE: _File("cpuset", None, "cpuset.cpus.effective"),
    Knob.MEMORY_LIMIT: _File("memory", "memory.limit_in_bytes", "memory.max", KnobFormat.NUMBER),
    Knob.MEMORY_USAGE: _File("memory", "memory.usage_in_bytes", "memory.current"),
    Knob.MEMORY_MIN: _protected(Knob.MEMORY_MIN),
    Knob.MEMORY_LOW: _protected(Knob.MEMORY_LOW),
    Knob.MEMORY_HIGH: _protected(Knob.MEMORY_HIGH),
    Knob.MEMORY_WMARK_RATIO: _own("memory", Knob.MEMORY_WMARK_RATIO, 0, 100),
    Knob.MEMORY_WMARK_SCALE: _own("memory", Knob.MEMORY_WMARK_SCALE, 1, 1000),
    Knob.MEMORY_WMARK_MIN_ADJ: _own("memory", Knob.MEMORY_WMARK_MIN_ADJ, -25, 50),
    Knob.MEMORY_PRIORITY: _own("memory", Knob.MEMORY_PRIORITY, 0, 12),
    Knob.MEMORY_USE_PRIORITY_OOM: _own("memory", Knob.MEMORY_USE_PRIORITY_OOM, 0, 1),
    Knob.MEMORY_OOM_GROUP: _own("memory", Knob.MEMORY_OOM_GROUP, 0, 1),
    Knob.PAGE_CACHE_ENABLE: _page_cache(Knob.PAGE_CACHE_ENABLE, 1),
    Knob.PAGE_CACHE_SIZE: _page_cache(Knob.PAGE_CACHE_SIZE, COUNT_MAX),
    Knob.PAGE_CACHE_SYNC: _page_cache(Knob.PAGE_CACHE_SYNC, 1),
    Knob.BLKIO_READ_IOPS: _throttle(Knob.BLKIO_READ_IOPS),
    Knob.BLKIO_WRITE_IOPS: _throttle(Knob.BLKIO_WRITE_IOPS),
    Knob.BLKIO_READ_BPS: _throttle(Knob.BLKIO_READ_BPS),
    Knob.BLKIO_WRITE_BPS: _throttle(Knob.BLKIO_WRITE_BPS),
    Knob.BLKIO_WEIGHT: _File(
        "blkio",
        "blkio.cost.weight",
        None,
        KnobFormat.DEVICE_NUMBER,
        (1, 100),
        presence=Presence.KUBEPODS_FILE,
    ),
    Knob.BLKIO_QOS: _File(
        "blkio", "blkio.cost.qos", "io.cost.qos", KnobFormat.TEXT, presence=Presence.ROOT_FILE
    ),
    Knob.BLKIO_MODEL: _File(
        "blkio", "blkio.cost.model", "io.cost.model", KnobFormat.TEXT, presence=Presence.ROOT_FILE
    ),
    Knob.IO_MAX: _File("blkio", None, "io.max", KnobFormat.TEXT, presence=Presence.OWN_FILE),
    Knob.IO_WEIGHT: _File("blkio", None, "io.weight", KnobFormat.TEXT, presence=Presence.OWN_FILE),
    Knob.IO_BYTES: _File(
        "blkio", "blkio.throttle.io_service_bytes_recursive", "io.stat", presence=Presence.OWN_FILE
    ),
    Knob.NET_CLASS: _File(
        "net_cls",
        "net_cls.classid",
        "net_cls.classid",
        KnobFormat.CLASS_ID,
        (0, COUNT_MAX),
        presence=Presence.KUBEPODS_FILE,
    ),
    Knob.CPU_STAT: _File("cpu", "cpu.stat", "cpu.stat"),
    Knob.CPU_USAGE: _File("cpuacct", "cpuacct.usage", "cpu.stat"),
    Knob.CPUACCT_STAT: _File("cpuacct", "cpuacct.stat", "cpu.stat"),
    Knob.MEMORY_STAT: _File("memory", "memory.stat", "memory.stat"),
    Knob.MEMORY_NUMA_STAT: _File("memory", "memory.numa_stat", "memory.numa_stat"),
    Knob.MEMORY_IDLE_PAGES: _File("memory", "memory.idle_page_stats", None, presence=Presence.KUBEPODS_FILE),
    Knob.CPU_PRESSURE: _File(
        "cpuacct", "cpu.pressure", "cpu.pressure", presence=Presence.KUBEPODS_FILE_ON_V1
    ),
    Knob.MEMORY_PRESSURE: _File(
        "cpuacct", "memory.pressure", "memory.pressure", presence=Presence.KUBEPODS_FILE_ON_V1
    ),
    Knob.IO_PRESSURE: _File("cpuacct", "io.pressure", "io.pressure", presence=Presence.KUBEPODS_FILE_ON_V1),
}
UNSET_BY_DISK = {
    **dict.fromkeys(
        (Knob.BLKIO_READ_IOPS, Knob.BLKIO_READ_BPS, Knob.BLKIO_WRITE_IOPS, Knob.BLKIO_WRITE_BPS), "0"
    ),
    Knob.BLKIO_WEIGHT: "100",
    Knob.BLKIO_QOS: "enable=0",
    Knob.IO_MAX: "rbps=max wbps=max riops=max wiops=max",
    Knob.IO_WEIGHT: "default",
}
"""Files with a line for each disk → the text by which they forget one."""
DEVICE_KNOBS = UNSET_BY_DISK.keys() | {Knob.BLKIO_MODEL}
"""Files with a line for each disk; nothing takes the cost model back."""
_STAYS_A_V1_HIERARCHY = frozenset((Knob.NET_CLASS,))  # cgroup v2 has no such controller
_UNLIMITED_AS_MAX = frozenset((Knob.CPU_QUOTA, Knob.CPU_PERIOD, Knob.MEMORY_LIMIT))
_DEVICE_NUMBER = re.compile(r"[0-9]+:[0-9]+ ([0-9]+)")
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")


def presence(knob: Knob) -> Presence:
    """Return how to find out whether this kernel has the knob."""
    return _FILES[knob].presence


def merge_of(knob: Knob) -> Merge:
    """Return what the first pass of a leveled update does with the knob."""
    return _FILES[knob].merge


def path(knob: Knob, version: int, directory: str) -> str:
    """File of a group, relative to the cgroup root. Raises: UnsupportedError when this version has no such file."""
    file = _FILES[knob]
    name = file.v1 if version == V1 else file.v2
    if name is None:
        raise UnsupportedError(knob, version)
    if version == V1 or knob in _STAYS_A_V1_HIERARCHY:
        return cgroup_layout.join(file.subsystem, directory, name)
    return cgroup_layout.join(directory, name)


def perf_dir(version: int, directory: str) -> str:
    """Directory that stands for a group towards perf events, relative to the cgroup root."""
    return cgroup_layout.join("perf_event", directory) if version == V1 else cgroup_layout.join(directory)


def encode(knob: Knob, version: int, value: str) -> str:
    """Return the text to write for a value in v1 terms.

    Raises: KnobValueError when the kernel would refuse it; UnsupportedError when there is no such file.
    """
    path(knob, version, "")
    check(knob, version, value)
    if version == V1:
        return value
    if knob is Knob.CPU_SHARES:
        return str(weight_of_shares(int(value)))
    if knob in _UNLIMITED_AS_MAX and value == str(UNLIMITED):
        return "max"
    return value


def check(knob: Knob, version: int, value: str) -> None:
    """Refuse what the kernel would refuse; the value is in v1 terms. Raises: KnobValueError."""
    file = _FILES[knob]
    match file.form:
        case KnobFormat.READ_ONLY:
            raise KnobValueError(knob, value, "the file is only read")
        case KnobFormat.CPUS:
            try:
                cpuset.parse(value.strip())
            except CPUSetError as error:
                raise KnobValueError(knob, value, error.reason) from error
        case KnobFormat.NUMBER:
            _check_range(knob, version, value, value)
        case KnobFormat.DEVICE_NUMBER:
            if not (form := _DEVICE_NUMBER.fullmatch(value)):
                raise KnobValueError(knob, value, "expected MAJOR:MINOR NUMBER")
            _check_range(knob, version, value, form[1])
        case KnobFormat.CLASS_ID:
            _check_range(knob, version, value, str(int(value, 16)) if _HEX.fullmatch(value) else value)
        case KnobFormat.TEXT:
            pass


def is_unset(value: str) -> bool:
    """Return whether a value of a disk is what the kernel shows no line for."""
    return value in ("0", "default") or all(word.endswith("=max") for word in value.split())


def number(text: str) -> int:
    """Return the number that a file or a value says, `max` being the largest. Raises: ScalarError."""
    return COUNT_MAX if text == "max" else scalars.parse_int(text)


def _check_range(knob: Knob, version: int, value: str, digits: str) -> None:
    file = _FILES[knob]
    low, high = file.allowed_v2 if version == V2 and file.allowed_v2 else file.allowed
    try:
        amount = number(digits)
    except ScalarError as error:
        raise KnobValueError(knob, value, "expected a number") from error
    if not low <= amount <= high:
        raise KnobValueError(knob, value, f"not within {low} to {high}")
