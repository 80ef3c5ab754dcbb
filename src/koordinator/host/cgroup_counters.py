"""The files that collectors read each second, parsed from bytes with the least work.

The same values as `cgroup_values`, which checks every line; here only the wanted lines are looked for. None means
that the content does not say it. Source: behaviour/koordlet-observe 4.3 and 5.3.
"""

import re
from collections.abc import Callable, Mapping

from koordinator.host.cgroup_knobs import V1, V2
from koordinator.host.cgroup_values import Throttling

_LISTS = (b"inactive_anon", b"active_anon", b"inactive_file", b"active_file", b"unevictable")
_Lines = tuple[re.Pattern[bytes], tuple[bytes, ...]]


def _lines(*names: bytes) -> _Lines:
    """Return all lines in one search, as kernels list them next to each other, and their names for any other order."""
    return re.compile(b"\n".join(name + rb" ([0-9]{1,20})" for name in names)), names


_MEMORY = {V1: _lines(*(b"total_" + name for name in _LISTS)), V2: _lines(*_LISTS)}
_PERIODS = {
    V1: _lines(b"nr_periods", b"nr_throttled", b"throttled_time"),
    V2: _lines(b"nr_periods", b"nr_throttled", b"throttled_usec"),
}
_V1_NUMA = (b"\nhierarchical_anon=", b"\nhierarchical_unevictable=")
_V2_NUMA = (b"\ninactive_anon ", b"\nactive_anon ", b"\nunevictable ")
_NS_PER_US = 1000


def cpu_usage_ns(version: int, data: bytes) -> int | None:
    """CPU time, from `cpuacct.usage` or `cpu.stat`."""
    return CPU_USAGE_NS[version](data)


def _v2_usage_ns(data: bytes) -> int | None:
    usage_us = _line(b"\n" + data if data.startswith(b"usage_usec ") else data, b"\nusage_usec ")
    return None if usage_us is None else usage_us * _NS_PER_US


def throttling(version: int, data: bytes) -> Throttling | None:
    """Quota periods, from `cpu.stat`."""
    found = _numbers(data, *_PERIODS[version])
    if found is None:
        return None
    periods, throttled, time = found
    return Throttling(periods, throttled, time if version == V1 else time * _NS_PER_US)


def memory_bytes(version: int, data: bytes) -> tuple[int, int] | None:
    """Memory that cannot be dropped, and file pages, from `memory.stat`."""
    found = _numbers(data, *_MEMORY[version])
    if found is None:
        return None
    inactive_anon, active_anon, inactive_file, active_file, unevictable = found
    return inactive_anon + active_anon + unevictable, inactive_file + active_file


def numa_bytes(version: int, data: bytes, page_bytes: int) -> dict[int, int] | None:
    """Memory that cannot be dropped by NUMA node, of the group and all below it, from `memory.numa_stat`."""
    unit = page_bytes if version == V1 else 1
    total: dict[int, int] = {}
    for name in _V1_NUMA if version == V1 else _V2_NUMA:
        start = data.find(name)
        if start < 0:
            return None
        end = data.find(b"\n", start + 1)
        for word in data[start : len(data) if end < 0 else end].split()[1:]:
            node, _, amount = word.partition(b"=")
            number = _int(amount)
            if not node.startswith(b"N") or not node[1:].isdigit() or number is None:
                return None
            total[int(node[1:])] = total.get(int(node[1:]), 0) + number * unit
    return total


def _numbers(data: bytes, adjacent: re.Pattern[bytes], names: tuple[bytes, ...]) -> list[int] | None:
    """Return the numbers of all names; None when one is missing."""
    form = adjacent.search(data)  # kernels list them next to each other
    if form is not None:
        return [int(each) for each in form.groups()]
    data = b"\n" + data
    found = [number for name in names if (number := _line(data, b"\n" + name + b" ")) is not None]
    return found if len(found) == len(names) else None


def _line(data: bytes, name: bytes) -> int | None:
    """Return the number after `name`, which has the newline before and the space after it."""
    start = data.find(name)
    if start < 0:
        return None
    start += len(name)
    end = data.find(b"\n", start)
    return _int(data[start:] if end < 0 else data[start:end])


def _int(data: bytes) -> int | None:
    try:
        number = int(data)
    except ValueError:
        return None
    return number if number >= 0 else None


CPU_USAGE_NS: Mapping[int, Callable[[bytes], int | None]] = {V1: _int, V2: _v2_usage_ns}
"""By version what reads a group's CPU time, for many groups in a row."""
