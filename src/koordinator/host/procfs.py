"""What `/proc` says, as pure functions of text. Source: spec 10, section 4.1."""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.host.cgroup_values import count
from koordinator.host.errors import ContentError

KIB = 1024
CLOCK_TICKS_PER_S = 100
"""What `getconf CLK_TCK` says nearly everywhere; the default where it cannot be asked."""
UNKNOWN = "unknown"

_BUSY_FIELDS = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq; not idle, iowait, steal, guest
_STAT_FIELDS_MIN = 8


class Memory(msgspec.Struct, frozen=True):
    """Memory of the machine, in bytes."""

    total_bytes: int
    usage_bytes: int
    usage_with_page_cache_bytes: int


class CPUModel(msgspec.Struct, frozen=True):
    """What kind of CPU `/proc/cpuinfo` names."""

    model: str
    vendor: str
    flags: frozenset[str]


class ProcessStat(msgspec.Struct, frozen=True):
    """The first fields of `/proc/<pid>/stat`."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int


def busy_ticks(text: str) -> int:
    """Clock ticks that all CPUs together were busy, from `/proc/stat`.

    Raises: ContentError.
    """
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["cpu"]:
            return _busy(fields)
    raise ContentError("stat", "no line cpu")


def busy_ticks_by_cpu(text: str) -> dict[int, int]:
    """The same for each CPU.

    Raises: ContentError when there is no such line, or one does not count ticks.
    """
    found = {}
    for line in text.splitlines():
        fields = line.split()
        number = fields[0].removeprefix("cpu") if fields else ""
        if fields and fields[0] != number and number.isascii() and number.isdigit():
            found[int(number)] = _busy(fields)
    if not found:
        raise ContentError("stat", "no line of a single CPU")
    return found


def meminfo_kib(text: str) -> dict[str, int]:
    """`Key: value kB` lines in KiB; a value that is no number counts 0, other lines are left out."""
    found = {}
    for line in text.splitlines():
        name, separator, rest = line.partition(":")
        if separator:
            words = rest.split()
            found[name.strip()] = int(words[0]) if words and words[0].isascii() and words[0].isdigit() else 0
    return found


def memory(text: str) -> Memory:
    """What `/proc/meminfo` says of the whole machine."""
    kib = meminfo_kib(text)
    total = kib.get("MemTotal", 0)
    return Memory(
        total_bytes=total * KIB,
        usage_bytes=max(total - kib.get("MemAvailable", 0), 0) * KIB,
        usage_with_page_cache_bytes=max(total - kib.get("MemFree", 0), 0) * KIB,
    )


def cpu_model(text: str) -> CPUModel:
    """What `/proc/cpuinfo` says of the first CPU; `UNKNOWN` where it says nothing."""
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
    """The process that `/proc/<pid>/stat` describes; its command ends at the first closing bracket.

    Raises: ContentError.
    """
    head, closing, tail = text.partition(")")
    pid, opening, comm = head.partition("(")
    if not closing or not opening:
        raise ContentError("pid stat", "no command in brackets")
    fields = tail.split()
    if len(fields) < 3:
        raise ContentError("pid stat", f"{len(fields)} fields after the command, expected at least 3")
    return ProcessStat(
        pid=count("pid stat", pid),
        comm=comm,
        state=fields[0],
        ppid=count("pid stat", fields[1]),
        pgrp=count("pid stat", fields[2]),
    )


def process_groups(pids: Iterable[int], stats: Mapping[int, str]) -> list[int]:
    """Process groups of the processes of a cgroup, in the order met.

    A process whose group leader is outside of the cgroup stands for itself; one without readable stat is gone.
    """
    members = list(pids)
    within = frozenset(members)
    groups: dict[int, None] = {}
    for pid in members:
        if pid in stats:
            try:
                group = process_stat(stats[pid]).pgrp
            except ContentError:
                continue
            groups[group if group in within else pid] = None
    return list(groups)


def _busy(fields: list[str]) -> int:
    if len(fields) < _STAT_FIELDS_MIN:
        raise ContentError("stat", f"{len(fields)} fields, expected at least {_STAT_FIELDS_MIN}")
    return sum(count("stat", fields[index]) for index in _BUSY_FIELDS)
