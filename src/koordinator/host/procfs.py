"""Parse `/proc`: pure functions of text. Source: behaviour/koordlet-observe 4.1."""

import functools
import re
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.host.cgroup_values import count
from koordinator.host.errors import ContentError

KIB = 1024
CLOCK_TICKS_PER_S = 100
"""Value of `getconf CLK_TCK` nearly everywhere; the default where it cannot be asked."""
UNKNOWN = "unknown"

_BUSY_FIELDS = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq; not idle, iowait, steal, guest
_STOLEN_FIELD = 8
_STAT_FIELDS_MIN = 8
_START_FIELD = 19  # field 22 of the line, counted from the state
_EVERYWHERE = "00000000"
_METRIC_WORST = 2**32


class Memory(msgspec.Struct, frozen=True):
    """Memory of the machine, in bytes."""

    total_bytes: int
    usage_bytes: int
    usage_with_page_cache_bytes: int


class CPUModel(msgspec.Struct, frozen=True):
    """The kind of CPU that `/proc/cpuinfo` names."""

    model: str
    vendor: str
    flags: frozenset[str]


class CPUTicks(msgspec.Struct, frozen=True):
    """Clock ticks that CPUs were busy since boot: all together, and each; and those that a hypervisor gave to others
    while somebody here wanted to run, of all CPUs."""

    total: int
    by_cpu: dict[int, int]
    stolen: int = 0


class ProcessStat(msgspec.Struct, frozen=True):
    """The first fields of `/proc/<pid>/stat`."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int


def busy_ticks(text: str) -> int:
    """Clock ticks that all CPUs together were busy, from `/proc/stat`. Raises: ContentError."""
    return _busy(_all_cpus(text))


def stolen_ticks(text: str) -> int:
    """Return the clock ticks that a hypervisor took from all CPUs, 0 by kernels that do not say. Raises:
    ContentError."""
    fields = _all_cpus(text)
    return count("stat", fields[_STOLEN_FIELD]) if len(fields) > _STOLEN_FIELD else 0


def _all_cpus(text: str) -> list[str]:
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["cpu"]:
            return fields
    raise ContentError("stat", "no line cpu")


def busy_ticks_by_cpu(text: str) -> dict[int, int]:
    """Return the same for each CPU. Raises: ContentError when there is no such line, or one does not count ticks."""
    found = {}
    for line in text.splitlines():
        fields = line.split()
        number = fields[0].removeprefix("cpu") if fields else ""
        if fields and fields[0] != number and number.isascii() and number.isdigit():
            found[int(number)] = _busy(fields)
    if not found:
        raise ContentError("stat", "no line of a single CPU")
    return found


def cpu_ticks(text: str) -> CPUTicks:
    """Return what `/proc/stat` says of all CPUs and of each. Raises: ContentError."""
    head = text.partition("\nintr")[0]  # what follows is by far the longest part
    return CPUTicks(busy_ticks(head), busy_ticks_by_cpu(head), stolen_ticks(head))


def meminfo_kib(text: str) -> dict[str, int]:
    """`Key: value kB` lines in KiB; a value that is no number counts 0, other lines are left out."""
    found = {}
    for line in text.splitlines():
        name, separator, rest = line.partition(":")
        if separator:
            words = rest.split()
            found[name.strip()] = int(words[0]) if words and words[0].isascii() and words[0].isdigit() else 0
    return found


def kib_of(text: str, name: str) -> int:
    """Return the value of one key as `meminfo_kib` has it, 0 without: for what is read each second."""
    found = _line_of(name).search(text)
    return int(found[1]) if found is not None else 0


@functools.cache
def _line_of(name: str) -> re.Pattern[str]:
    """`Node N` stands before the key in files of a NUMA node."""
    return re.compile(
        rf"^[ \t]*(?:Node[ \t]+\S+[ \t]+)?{re.escape(name)}[ \t]*:[ \t]*([0-9]+)(?!\S)", re.MULTILINE
    )


def memory(text: str) -> Memory:
    """Return what `/proc/meminfo` says of the whole machine."""
    total, free, available = (kib_of(text, name) for name in ("MemTotal", "MemFree", "MemAvailable"))
    return Memory(
        total_bytes=total * KIB,
        usage_bytes=max(total - available, 0) * KIB,
        usage_with_page_cache_bytes=max(total - free, 0) * KIB,
    )


def cpu_model(text: str) -> CPUModel:
    """Return what `/proc/cpuinfo` says of the first CPU; `UNKNOWN` where it says nothing."""
    model = vendor = flags = ""
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in ("model name", "Model Name"):
            model = model or value
        elif name == "vendor_id":
            vendor = vendor or value
        elif name == "flags":
            flags = flags or value
    return CPUModel(model or UNKNOWN, vendor or UNKNOWN, frozenset(flags.split()))


def process_stat(text: str) -> ProcessStat:
    """Return the process that `/proc/<pid>/stat` describes; its command ends at the first closing bracket.

    Raises: ContentError.
    """
    head, closing, tail = text.partition(")")
    pid, opening, comm = head.partition("(")
    if not closing or not opening:
        raise ContentError("pid stat", "no command in brackets")
    fields = tail.split()
    if len(fields) < 3:
        raise ContentError("pid stat", f"{len(fields)} fields after the command, expected at least 3")
    if len(fields[0]) != 1:
        raise ContentError("pid stat", f"{fields[0][:40]!r} is no state, expected one letter")
    return ProcessStat(
        pid=count("pid stat", pid),
        comm=comm,
        state=fields[0],
        ppid=count("pid stat", fields[1]),
        pgrp=count("pid stat", fields[2]),
    )


def start_ticks(text: str) -> int:
    """Return when the process of `/proc/<pid>/stat` started, in ticks after boot: with its id that names it for good.

    Raises: ContentError.
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < _START_FIELD + 1:
        raise ContentError("pid stat", f"{len(fields)} fields after the command, expected {_START_FIELD + 1}")
    return count("pid stat", fields[_START_FIELD])


def default_interface(route: str) -> str:
    """Interface of the default route with the least metric, from `/proc/net/route`; empty without."""
    best = ("", _METRIC_WORST)
    for line in route.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8 and fields[1] == fields[7] == _EVERYWHERE and fields[6].isdigit():
            best = min(best, (fields[0], int(fields[6])), key=lambda each: each[1])
    return best[0]


def process_groups(pids: Iterable[int], stats: Mapping[int, str]) -> list[int]:
    """Process groups of the processes of a cgroup, ascending.

    A process whose group leader is outside of the cgroup stands for itself; one without readable stat is gone.
    """
    members = list(pids)
    within = frozenset(members)
    groups: set[int] = set()
    for pid in members:
        if pid in stats:
            try:
                group = process_stat(stats[pid]).pgrp
            except ContentError:
                continue
            groups.add(group if group in within else pid)
    return sorted(groups)


def _busy(fields: list[str]) -> int:
    if len(fields) < _STAT_FIELDS_MIN:
        raise ContentError("stat", f"{len(fields)} fields, expected at least {_STAT_FIELDS_MIN}")
    return sum(count("stat", fields[index]) for index in _BUSY_FIELDS)
