"""Parse the files of a cgroup, in the units of v1. Pure functions of text.

Source: behaviour/koordlet-observe 4.3; behaviour/koordlet-act 3.4.
"""

import re

import msgspec

from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import UNLIMITED, V1
from koordinator.host.errors import ContentError

NUMA_PAGE_BYTES = 4096
COLD_BOUNDARY = 5
"""Index of the first column of `memory.idle_page_stats` that counts as cold."""

_IDLE_LINES = 31
_IDLE_BUCKETS_LINE = 5
_IDLE_FIRST_ROW = 14
_IDLE_COLUMNS = 8
_COLD_ROWS = frozenset(("cfei", "dfei", "cfui", "dfui"))
_NS_PER_US = 1000


class Throttling(msgspec.Struct, frozen=True):
    """Counters of quota periods since the group was made."""

    periods: int
    throttled: int
    throttled_ns: int


class MemoryStat(msgspec.Struct, frozen=True):
    """Memory of a group and all below it, in bytes."""

    cache: int
    rss: int
    inactive_file: int
    active_file: int
    inactive_anon: int
    active_anon: int
    unevictable: int

    @property
    def usage_bytes(self) -> int:
        """Return the bytes that cannot be dropped."""
        return self.inactive_anon + self.active_anon + self.unevictable

    @property
    def usage_with_page_cache_bytes(self) -> int:
        """The same with file pages."""
        return self.usage_bytes + self.active_file + self.inactive_file


class Pressure(msgspec.Struct, frozen=True):
    """Share of time lost, in percent over 10, 60 and 300 s, and the total in µs."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total_us: int = 0


class PressureStall(msgspec.Struct, frozen=True):
    """Pressure on some and on all tasks of a group; old kernels do not know `full` for CPU."""

    some: Pressure
    full: Pressure
    is_full_supported: bool


class IdlePages(msgspec.Struct, frozen=True):
    """Bytes by age: row name → bytes per bucket; `buckets` are the lower ends in scan periods."""

    scan_period_s: int
    buckets: tuple[int, ...]
    rows: dict[str, tuple[int, ...]]

    def cold_bytes(self, boundary: int = COLD_BOUNDARY) -> int:
        """File pages on the inactive list that have been idle for at least bucket `boundary`."""
        return sum(sum(row[boundary:]) for name, row in self.rows.items() if name in _COLD_ROWS)


def count(source: str, text: str) -> int:
    """Return a decimal number without sign. Raises: ContentError."""
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise ContentError(source, f"{stripped[:40]!r} is not a number")
    return int(stripped)


def signed(source: str, text: str) -> int:
    """Return a decimal number with or without sign. Raises: ContentError."""
    stripped = text.strip()
    return -count(source, stripped[1:]) if stripped.startswith("-") else count(source, stripped)


def flat(source: str, text: str, names: tuple[str, ...]) -> list[int]:
    """Values of the named lines of a `name value` file. Raises: ContentError when one is missing or no number."""
    found = {}
    wanted = frozenset(names)
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in wanted:
            found[name] = count(f"{source} {name}", value)
    missing = [name for name in names if name not in found]
    if missing:
        raise ContentError(source, f"no line {missing[0]}")
    return [found[name] for name in names]


def throttling(version: int, text: str) -> Throttling:
    """Return what `cpu.stat` says of quota periods. Raises: ContentError."""
    if version == V1:
        periods, throttled, time_ns = flat("cpu.stat", text, ("nr_periods", "nr_throttled", "throttled_time"))
        return Throttling(periods, throttled, time_ns)
    periods, throttled, time_us = flat("cpu.stat", text, ("nr_periods", "nr_throttled", "throttled_usec"))
    return Throttling(periods, throttled, time_us * _NS_PER_US)


def cpu_usage_ns(version: int, text: str) -> int:
    """CPU time since the group was made: from `cpuacct.usage`, on v2 from `cpu.stat`. Raises: ContentError."""
    if version == V1:
        return count("cpuacct.usage", text)
    return flat("cpu.stat", text, ("usage_usec",))[0] * _NS_PER_US


def quota_us(version: int, text: str) -> int:
    """CFS quota, `UNLIMITED` without. Raises: ContentError."""
    if version == V1:
        return signed("cpu.cfs_quota_us", text)
    quota = _cpu_max(text)[0]
    return UNLIMITED if quota == "max" else signed("cpu.max", quota)


def period_us(version: int, text: str) -> int:
    """CFS period. Raises: ContentError."""
    return count("cpu.cfs_period_us", text) if version == V1 else count("cpu.max", _cpu_max(text)[1])


def shares(version: int, text: str) -> int:
    """CPU shares. Raises: ContentError."""
    if version == V1:
        return count("cpu.shares", text)
    weight = count("cpu.weight", text)
    if not cgroup_knobs.WEIGHT_MIN <= weight <= cgroup_knobs.WEIGHT_MAX:
        raise ContentError("cpu.weight", f"{weight} is out of range")
    return cgroup_knobs.shares_of_weight(weight)


def memory_limit_bytes(version: int, text: str) -> int:
    """Memory limit, `UNLIMITED` without. Raises: ContentError."""
    if version != V1:
        return UNLIMITED if text.strip() == "max" else count("memory.max", text)
    limit = signed("memory.limit_in_bytes", text)
    return UNLIMITED if limit >= cgroup_knobs.UNLIMITED_BYTES_MIN or limit < 0 else limit


def memory_stat(version: int, text: str) -> MemoryStat:
    """Return what `memory.stat` says of a group and all below it. Raises: ContentError."""
    prefix, cache, rss = ("total_", "cache", "rss") if version == V1 else ("", "file", "anon")
    fields = (cache, rss, "inactive_file", "active_file", "inactive_anon", "active_anon", "unevictable")
    return MemoryStat(*flat("memory.stat", text, tuple(prefix + field for field in fields)))


def numa_pages(version: int, text: str, *, hierarchical: bool = False) -> dict[int, int]:
    """Pages of 4 KiB by NUMA node, from `memory.numa_stat`.

    On v1 the first line counts only the group's own pages; with `hierarchical` the line that includes all
    below it is taken where the kernel has it. Raises: ContentError.
    """
    lines = text.splitlines()
    if version == V1:
        if not lines or not lines[0].startswith("total"):
            raise ContentError("memory.numa_stat", "the first line is not the total")
        whole = [line for line in lines if hierarchical and line.startswith("hierarchical_total")]
        return _numa_items((whole or lines)[0])
    if len(lines) < 2 or not lines[0].startswith("anon") or not lines[1].startswith("file"):
        raise ContentError("memory.numa_stat", "the first two lines are not anon and file")
    anon, file = _numa_items(lines[0]), _numa_items(lines[1])
    if not list(anon) == list(file) == list(range(len(anon))):
        raise ContentError("memory.numa_stat", "anon and file do not list the same NUMA nodes from 0 on")
    return {node: anon[node] // NUMA_PAGE_BYTES + file[node] // NUMA_PAGE_BYTES for node in anon}


def ids(source: str, text: str) -> list[int]:
    """Process or thread ids, from `cgroup.procs`, `tasks` or `cgroup.threads`. Raises: ContentError."""
    return [count(source, word) for word in text.split()]


_PRESSURE = re.compile(
    r"(some|full) avg10=([0-9]+\.[0-9]+) avg60=([0-9]+\.[0-9]+) avg300=([0-9]+\.[0-9]+) total=([0-9]+)"
)


def pressure(text: str) -> PressureStall:
    """Return what a pressure file says; without a `full` line that is zero and marked as not supported.

    Raises: ContentError, also for an empty file.
    """
    found: dict[str, Pressure] = {}
    for line in text.splitlines():
        form = _PRESSURE.fullmatch(line.strip())
        if form is None:
            raise ContentError("pressure", f"unexpected line {line[:60]!r}")
        found[form[1]] = Pressure(float(form[2]), float(form[3]), float(form[4]), int(form[5]))
    if "some" not in found:
        raise ContentError("pressure", "no line for some")
    return PressureStall(found["some"], found.get("full", Pressure()), "full" in found)


def idle_pages(text: str) -> IdlePages:
    """Return what `memory.idle_page_stats` says; trim the trailing newline before. Raises: ContentError."""
    source = "memory.idle_page_stats"
    lines = text.split("\n")
    if len(lines) != _IDLE_LINES:
        raise ContentError(source, f"{len(lines)} lines, expected {_IDLE_LINES}")
    headers = {}
    for line in lines[: _IDLE_BUCKETS_LINE + 1]:
        name, separator, value = line.removeprefix("#").partition(":")
        if not line.startswith("#") or not separator:
            raise ContentError(source, f"unexpected header {line[:60]!r}")
        headers[name.strip()] = value.strip()
    if "scan_period_in_seconds" not in headers or "buckets" not in headers:
        raise ContentError(source, "no scan period or no buckets")
    rows = {}
    for line in lines[_IDLE_FIRST_ROW:]:
        name, *values = line.split() or [""]
        if len(values) != _IDLE_COLUMNS:
            raise ContentError(source, f"row {name!r} has {len(values)} numbers, expected {_IDLE_COLUMNS}")
        rows[name] = tuple(count(source, value) for value in values)
    return IdlePages(
        scan_period_s=count(source, headers["scan_period_in_seconds"]),
        buckets=tuple(count(source, bucket) for bucket in headers["buckets"].split(",")),
        rows=rows,
    )


def _cpu_max(text: str) -> list[str]:
    words = text.split()
    if len(words) != 2:
        raise ContentError("cpu.max", f"{len(words)} words, expected 2")
    return words


def _numa_items(line: str) -> dict[int, int]:
    """`N<node>=<number>` items of a line, after its name."""
    source = "memory.numa_stat"
    items = {}
    for word in line.split()[1:]:
        name, separator, value = word.partition("=")
        if not separator or not name.startswith("N"):
            raise ContentError(source, f"unexpected item {word[:40]!r}")
        items[count(source, name[1:])] = count(source, value)
    if not items:
        raise ContentError(source, f"{line[:40]!r} names no NUMA node")
    return items
