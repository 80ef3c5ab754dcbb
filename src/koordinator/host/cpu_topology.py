"""CPUs, cores, sockets and NUMA nodes of a machine. Source: behaviour/koordlet-observe 4.2."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


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


class HostCPUTopology(msgspec.Struct, frozen=True):
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


def topology_of(processors: Iterable[Processor]) -> HostCPUTopology:
    """Return the topology of these CPUs, in order."""
    return HostCPUTopology(tuple(sorted(processors)))
