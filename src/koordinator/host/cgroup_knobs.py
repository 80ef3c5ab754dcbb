"""The files of a cgroup by name: where they are on v1 and v2, what may be written, and in which form.

A knob is named after its v1 file (its v2 file where v1 has none) and its values are those of v1, whatever the kernel
has. Source: behaviour/koordlet-observe 3.3; behaviour/koordlet-act 3.3 and 3.5.

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
    """One knob: its v1 subsystem, and how the file differs from one of the same name that all versions have."""

    subsystem: str
    form: KnobFormat = KnobFormat.READ_ONLY
    allowed: Range = _ANY
    v2: str = ""
    """The name on v2 where it is another."""
    allowed_v2: Range | None = None
    only: int | None = None
    """The one version that has it."""
    presence: Presence = Presence.ALWAYS
    merge: Merge = Merge.NONE


def _own(subsystem: str, low: int, high: int, *, only: int | None = None) -> _File:
    """Return a vendor kernel's number."""
    return _File(subsystem, KnobFormat.NUMBER, (low, high), only=only, presence=Presence.OWN_FILE)


_PROTECTED = _File(
    "memory",
    KnobFormat.NUMBER,
    (0, COUNT_MAX),
    presence=Presence.KUBEPODS_FILE_ON_V1,
    merge=Merge.LARGER,
)
_THROTTLE = _File("blkio", KnobFormat.DEVICE_NUMBER, (0, COUNT_MAX), only=V1, presence=Presence.KUBEPODS_FILE)
_DISK_COST = _File("blkio", KnobFormat.TEXT, presence=Presence.ROOT_FILE)
_OF_DISKS_V2 = _File("blkio", KnobFormat.TEXT, only=V2, presence=Presence.OWN_FILE)
_PRESSURE = _File("cpuacct", presence=Presence.KUBEPODS_FILE_ON_V1)
_FILES = {
    Knob.CPU_SHARES: _File("cpu", KnobFormat.NUMBER, (SHARES_MIN, SHARES_MAX), "cpu.weight"),
    Knob.CPU_QUOTA: _File("cpu", KnobFormat.NUMBER, v2="cpu.max", merge=Merge.LARGER),
    Knob.CPU_PERIOD: _File("cpu", KnobFormat.NUMBER, v2="cpu.max"),
    Knob.CPU_BURST: _File(
        "cpu",
        KnobFormat.NUMBER,
        (0, 100_000_000),
        "cpu.max.burst",
        (0, COUNT_MAX),
        presence=Presence.OWN_FILE,
    ),
    Knob.CPU_BVT: _own("cpu", -1, 2),
    Knob.CPU_IDLE: _File("cpu", KnobFormat.NUMBER, (0, 1), presence=Presence.KUBEPODS_FILE),
    Knob.TASKS: _File("cpu", KnobFormat.TEXT, v2="cgroup.threads"),
    Knob.PROCS: _File("cpu", KnobFormat.TEXT),
    Knob.CPUSET: _File("cpuset", KnobFormat.CPUS, merge=Merge.UNION),
    Knob.CPUSET_EFFECTIVE: _File("cpuset", only=V2),
    Knob.MEMORY_LIMIT: _File("memory", KnobFormat.NUMBER, v2="memory.max"),
    Knob.MEMORY_USAGE: _File("memory", v2="memory.current"),
    Knob.MEMORY_MIN: _PROTECTED,
    Knob.MEMORY_LOW: _PROTECTED,
    Knob.MEMORY_HIGH: _PROTECTED,
    Knob.MEMORY_WMARK_RATIO: _own("memory", 0, 100),
    Knob.MEMORY_WMARK_SCALE: _own("memory", 1, 1000),
    Knob.MEMORY_WMARK_MIN_ADJ: _own("memory", -25, 50),
    Knob.MEMORY_PRIORITY: _own("memory", 0, 12),
    Knob.MEMORY_USE_PRIORITY_OOM: _own("memory", 0, 1),
    Knob.MEMORY_OOM_GROUP: _own("memory", 0, 1),
    Knob.PAGE_CACHE_ENABLE: _own("memory", 0, 1, only=V2),
    Knob.PAGE_CACHE_SIZE: _own("memory", 0, COUNT_MAX, only=V2),
    Knob.PAGE_CACHE_SYNC: _own("memory", 0, 1, only=V2),
    Knob.BLKIO_READ_IOPS: _THROTTLE,
    Knob.BLKIO_WRITE_IOPS: _THROTTLE,
    Knob.BLKIO_READ_BPS: _THROTTLE,
    Knob.BLKIO_WRITE_BPS: _THROTTLE,
    Knob.BLKIO_WEIGHT: msgspec.structs.replace(_THROTTLE, allowed=(1, 100)),
    Knob.BLKIO_QOS: msgspec.structs.replace(_DISK_COST, v2="io.cost.qos"),
    Knob.BLKIO_MODEL: msgspec.structs.replace(_DISK_COST, v2="io.cost.model"),
    Knob.IO_MAX: _OF_DISKS_V2,
    Knob.IO_WEIGHT: _OF_DISKS_V2,
    Knob.IO_BYTES: _File("blkio", v2="io.stat", presence=Presence.OWN_FILE),
    Knob.NET_CLASS: _File("net_cls", KnobFormat.CLASS_ID, (0, COUNT_MAX), presence=Presence.KUBEPODS_FILE),
    Knob.CPU_STAT: _File("cpu"),
    Knob.CPU_USAGE: _File("cpuacct", v2="cpu.stat"),
    Knob.CPUACCT_STAT: _File("cpuacct", v2="cpu.stat"),
    Knob.MEMORY_STAT: _File("memory"),
    Knob.MEMORY_NUMA_STAT: _File("memory"),
    Knob.MEMORY_IDLE_PAGES: _File("memory", only=V1, presence=Presence.KUBEPODS_FILE),
    Knob.CPU_PRESSURE: _PRESSURE,
    Knob.MEMORY_PRESSURE: _PRESSURE,
    Knob.IO_PRESSURE: _PRESSURE,
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
    if file.only not in (None, version):
        raise UnsupportedError(knob, version)
    if version == V1 or knob in _STAYS_A_V1_HIERARCHY:
        return cgroup_layout.join(file.subsystem, directory, knob)
    return cgroup_layout.join(directory, file.v2 or knob)


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
