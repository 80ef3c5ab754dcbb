"""The CPUs of a machine by core, NUMA node and socket, as bit masks, and amounts per NUMA node.

A set of CPUs is a Python int whose bit i stands for CPU i: union, intersection and size are single operations
on a few machine words. Amounts are integers by resource and zone: cpu in milli-cores, others in base units.
Source: behaviour/numa-cpu 3.1.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koordinator.api import node_labels
from koordinator.api.errors import KoordinatorError
from koordinator.scheduler.table.columns import Recent

Amounts = dict[str, int]
"""Resource → amount: cpu in milli-cores, others in base units."""

Zones = dict[int, Amounts]
"""NUMA node id → what it has, or what is used or free of it."""

CPU_MILLI = 1_000
"""One CPU."""


def amplified(amounts: Mapping[str, int], ratios: Mapping[str, float]) -> Amounts:
    """Return the amounts with those that have a ratio above 1 multiplied by it, rounded up."""
    return {name: node_labels.amplify(amount, ratios.get(name, 1.0)) for name, amount in amounts.items()}


CPUMask = int
"""A set of CPU ids: bit i is CPU i."""

CPU_ID_MAX = 65_535
"""The highest CPU id: more than any machine has, and masks stay within 8 KiB."""

CORES_PER_SOCKET_MAX = 65_536
"""Core ids are unique within a socket only; this is the distance between sockets."""


class CPUTopologyError(KoordinatorError, ValueError):
    """A reported CPU that no mask can hold."""

    def __init__(self, cpu: int) -> None:
        super().__init__(cpu)
        self.cpu = cpu

    def __str__(self) -> str:
        return f"cpu-topology: detail.id: {self.cpu} is not between 0 and {CPU_ID_MAX}"


class CPUPlace(msgspec.Struct, frozen=True):
    """The place of a logical CPU; `core` is unique on the machine."""

    core: int
    numa: int
    socket: int


class NodeCPUTopology(msgspec.Struct, frozen=True, eq=False):
    """All CPUs of a machine. Masks by id of core, NUMA node and socket, in ascending order of ids.

    The counts per core, NUMA node and socket are averages, cut off: on machines with unlike cores they say what
    the allocation counts with, not what each core has.
    """

    places: Mapping[int, CPUPlace]
    cores: Mapping[int, CPUMask]
    numa_nodes: Mapping[int, CPUMask]
    sockets: Mapping[int, CPUMask]
    numa_node_count: int
    core_count: int
    all: CPUMask
    thread_distance: int = 0
    """Distance between the CPUs of a core, where all cores have equally many at the same distance; else 0."""
    socket_of_numa: Mapping[int, int] = {}
    """NUMA node → its socket; where it lies on several, that of its lowest CPU."""
    first_threads: CPUMask = 0
    """The CPU with the lowest id of each core."""

    @property
    def cpu_count(self) -> int:
        return len(self.places)

    @property
    def socket_count(self) -> int:
        return len(self.sockets)

    @property
    def is_valid(self) -> bool:
        """Return whether there is anything to bind."""
        return bool(self.places)

    @property
    def cpus_per_core(self) -> int:
        """At least one, also where a report names one CPU on two cores."""
        return max(self.cpu_count // max(self.core_count, 1), 1)

    @property
    def cpus_per_numa_node(self) -> int:
        return self.cpu_count // max(self.numa_node_count, 1)

    @property
    def cpus_per_socket(self) -> int:
        return self.cpu_count // max(self.socket_count, 1)

    def mask_of(self, cpus: Iterable[int]) -> CPUMask:
        """Return the CPUs of these ids that the machine has."""
        return mask_of(cpu for cpu in cpus if cpu in self.places)

    def whole_cores(self, cpus: CPUMask) -> CPUMask:
        """Return the CPUs whose core is all in `cpus`."""
        if self.thread_distance:
            cores = self.first_threads
            for shift in self._shifts:
                cores &= cpus >> shift
            return self._all_threads(cores)
        per_core = self.cpus_per_core
        kept = 0
        for core in self.cores.values():
            inside = core & cpus
            if inside.bit_count() == per_core:
                kept |= inside
        return kept

    def one_per_core(self, cpus: CPUMask) -> CPUMask:
        """Return the CPU with the lowest id of each core."""
        kept = 0
        if self.thread_distance:
            seen = 0
            for shift in self._shifts:
                new = (cpus >> shift) & self.first_threads & ~seen
                seen |= new
                kept |= new << shift
            return kept
        for core in self.cores.values():
            inside = core & cpus
            kept |= inside & -inside
        return kept

    def core_count_of(self, cpus: CPUMask) -> int:
        """Return number of cores that these CPUs lie on."""
        if self.thread_distance:
            cores = 0
            for shift in self._shifts:
                cores |= (cpus >> shift) & self.first_threads
            return cores.bit_count()
        return sum(1 for core in self.cores.values() if core & cpus)

    @property
    def _shifts(self) -> range:
        """Return how far the threads of a core are from the first."""
        return range(0, self.cpus_per_core * self.thread_distance, self.thread_distance)

    def _all_threads(self, cores: CPUMask) -> CPUMask:
        """Return all CPUs of the cores whose first threads these are."""
        cpus = 0
        for shift in self._shifts:
            cpus |= cores << shift
        return cpus


def topology_of(rows: Iterable[tuple[int, int, int, int]]) -> NodeCPUTopology:
    """Return the topology from (socket, NUMA node, core, CPU) per logical CPU; the last row of a CPU counts.
    Raises: CPUTopologyError for an id that is out of range."""
    places: dict[int, CPUPlace] = {}
    numa_nodes: set[tuple[int, int]] = set()
    cores: set[tuple[int, int, int]] = set()
    for socket, numa, core, cpu in rows:
        if not 0 <= cpu <= CPU_ID_MAX:
            raise CPUTopologyError(cpu)
        places[cpu] = CPUPlace(socket * CORES_PER_SOCKET_MAX + core, numa, socket)
        numa_nodes.add((socket, numa))
        cores.add((socket, numa, core))
    by_core = _grouped((place.core, cpu) for cpu, place in places.items())
    distance = _thread_distance(by_core.values()) if len(by_core) == len(cores) else 0
    return NodeCPUTopology(
        places=places,
        cores=by_core,
        numa_nodes=_grouped((place.numa, cpu) for cpu, place in places.items()),
        sockets=_grouped((place.socket, cpu) for cpu, place in places.items()),
        numa_node_count=len(numa_nodes),
        core_count=len(cores),
        all=mask_of(places),
        socket_of_numa={places[cpu].numa: places[cpu].socket for cpu in sorted(places, reverse=True)},
        thread_distance=distance,
        first_threads=union_of(core & -core for core in by_core.values()),
    )


def _thread_distance(cores: Iterable[CPUMask]) -> int:
    """`NodeCPUTopology.thread_distance`; any number does where cores have one CPU."""
    shapes = {core // (core & -core) for core in cores}
    if len(shapes) != 1:
        return 0
    threads = list(cpus_of(shapes.pop()))
    steps = {after - before for before, after in itertools.pairwise(threads)} or {1}
    return steps.pop() if len(steps) == 1 else 0


def union_of(masks: Iterable[CPUMask]) -> CPUMask:
    """Return the CPUs that are in any of the masks."""
    joined = 0
    for mask in masks:
        joined |= mask
    return joined


def mask_of(cpus: Iterable[int]) -> CPUMask:
    """Return the mask of these CPU ids, which are at most `CPU_ID_MAX`."""
    mask = 0
    for cpu in cpus:
        mask |= 1 << cpu
    return mask


def cpus_of(mask: CPUMask) -> Iterator[int]:
    """Yield the CPU ids in a mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _grouped(members: Iterable[tuple[int, int]]) -> dict[int, CPUMask]:
    masks: dict[int, CPUMask] = {}
    for group, cpu in members:
        masks[group] = masks.get(group, 0) | 1 << cpu
    return dict(sorted(masks.items()))


NO_TOPOLOGY = topology_of(())
"""Topology of a node that reported none."""

TOPOLOGIES_MAX = 1_024
"""Kinds of machines remembered; clusters have few, and each takes some 100 KiB."""

Topologies = Recent[NodeCPUTopology]
"""Machines by the text that reported them: nodes of one kind share one, which is read once."""
