"""CPUs, cores, sockets and NUMA nodes of a machine, from `lscpu`. Source: behaviour/koordlet-observe 4.2."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from koordinator.host.cgroup_values import count
from koordinator.host.errors import ContentError

LSCPU = ("lscpu", "-e=CPU,NODE,SOCKET,CORE,CACHE,ONLINE")
_COLUMNS = 6
_L1_L2_L3_PARTS = 4


class CacheIDs(NamedTuple):
    """Ids of the caches of a CPU: first level as text, third as a number."""

    l1l2: str
    l3: int


NO_CACHE = CacheIDs("0", 0)


class Processor(msgspec.Struct, frozen=True, order=True):
    """A logical CPU; `core` is unique on the machine. Ordered by place."""

    node: int
    socket: int
    core: int
    cpu: int
    l1l2: str = NO_CACHE.l1l2
    l3: int = NO_CACHE.l3
    online: str = "yes"


class CPUTopology(msgspec.Struct, frozen=True):
    """All usable CPUs, ordered by NUMA node, socket, core, id."""

    processors: tuple[Processor, ...]

    @property
    def cpus(self) -> frozenset[int]:
        """Ids of all CPUs."""
        return frozenset(processor.cpu for processor in self.processors)

    def by(self, level: str) -> dict[int, list[int]]:
        """Sorted CPU ids by id of `core`, `node`, `socket` or `l3`."""
        groups: dict[int, list[int]] = {}
        for processor in sorted(self.processors, key=lambda p: p.cpu):
            groups.setdefault(getattr(processor, level), []).append(processor.cpu)
        return groups


def topology_of(processors: Iterable[Processor]) -> CPUTopology:
    """The topology of these CPUs, in order."""
    return CPUTopology(tuple(sorted(processors)))


def parse_lscpu(text: str, *, accepts_no_cache: bool = True) -> CPUTopology:
    """The topology that `LSCPU` prints; lines that do not fit are left out, the header among them.

    Some virtual machines show `-` as cache. The reference accepts that on arm64 only and sees no CPU elsewhere.
    Raises: ContentError when no line fits.
    """
    rows = (_processor(line.split(), accepts_no_cache) for line in text.splitlines())
    found = topology_of(row for row in rows if row is not None)
    if not found.processors:
        raise ContentError("lscpu", "no usable line")
    return found


def parse_cache(text: str, *, accepts_no_cache: bool = True) -> CacheIDs:
    """Ids in a CACHE column: `l1d:l1i:l2:l3`, or without the last part.

    Raises: ContentError.
    """
    text = text.strip()
    if text == "-" and accepts_no_cache:
        return NO_CACHE
    parts = text.split(":")
    if len(parts) < _L1_L2_L3_PARTS - 1:
        raise ContentError("lscpu", f"{text[:40]!r} does not list caches")
    l3 = count("lscpu l3", parts[3]) if len(parts) >= _L1_L2_L3_PARTS else NO_CACHE.l3
    return CacheIDs(parts[0], l3)


def _processor(columns: list[str], accepts_no_cache: bool) -> Processor | None:
    if len(columns) < _COLUMNS:
        return None
    cpu, node, socket, core, cache, online = columns[:_COLUMNS]
    try:
        caches = parse_cache(cache, accepts_no_cache=accepts_no_cache)
        return Processor(
            node=count("lscpu", node) if node.isascii() and node.isdigit() else 0,
            socket=count("lscpu", socket),
            core=count("lscpu", core),
            cpu=count("lscpu", cpu),
            l1l2=caches.l1l2,
            l3=caches.l3,
            online=online,
        )
    except ContentError:
        return None
