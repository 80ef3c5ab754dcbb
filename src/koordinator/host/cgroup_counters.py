"""The files that collectors read each second, parsed from bytes with the least work.

The same values as `cgroup_values`, which checks every line; here only the wanted lines are looked for. None means
that the content does not say it. Source: spec 10, sections 4.3 and 5.3.
"""

from koordinator.host.cgroup_knobs import V1
from koordinator.host.cgroup_values import Throttling

_V1_ANON = (b"\ntotal_inactive_anon ", b"\ntotal_active_anon ", b"\ntotal_unevictable ")
_V1_FILE = (b"\ntotal_inactive_file ", b"\ntotal_active_file ")
_V2_ANON = (b"\ninactive_anon ", b"\nactive_anon ", b"\nunevictable ")
_V2_FILE = (b"\ninactive_file ", b"\nactive_file ")
_V1_NUMA = (b"\nhierarchical_anon=", b"\nhierarchical_unevictable=")
_V2_NUMA = (b"\ninactive_anon ", b"\nactive_anon ", b"\nunevictable ")
_NS_PER_US = 1000
_DIGITS_MAX = 20  # of 64 bits


def cpu_usage_ns(version: int, data: bytes) -> int | None:
    """CPU time, from `cpuacct.usage` or `cpu.stat`."""
    if version == V1:
        return _int(data)
    usage_us = _line(b"\n" + data if data.startswith(b"usage_usec ") else data, b"\nusage_usec ")
    return None if usage_us is None else usage_us * _NS_PER_US


def throttling(version: int, data: bytes) -> Throttling | None:
    """Quota periods, from `cpu.stat`."""
    data = b"\n" + data
    periods, throttled = _line(data, b"\nnr_periods "), _line(data, b"\nnr_throttled ")
    time = _line(data, b"\nthrottled_time " if version == V1 else b"\nthrottled_usec ")
    if periods is None or throttled is None or time is None:
        return None
    return Throttling(periods, throttled, time if version == V1 else time * _NS_PER_US)


def memory_usage_bytes(version: int, data: bytes) -> int | None:
    """Memory that cannot be dropped, from `memory.stat`."""
    return _sum(data, _V1_ANON if version == V1 else _V2_ANON)


def page_cache_bytes(version: int, data: bytes) -> int | None:
    """File pages, from `memory.stat`."""
    return _sum(data, _V1_FILE if version == V1 else _V2_FILE)


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


def _sum(data: bytes, names: tuple[bytes, ...]) -> int | None:
    total = 0
    for name in names:
        found = _line(data, name)
        if found is None:
            return None
        total += found
    return total


def _line(data: bytes, name: bytes) -> int | None:
    """The number after `name`, which has the newline before and the space after it."""
    start = data.find(name)
    if start < 0:
        return None
    start += len(name)
    end = data.find(b"\n", start)
    return _int(data[start:] if end < 0 else data[start:end])


def _int(data: bytes) -> int | None:
    data = data.strip()
    return int(data) if data.isdigit() and len(data) <= _DIGITS_MAX else None
