"""The CPUs that pods without CPUs of their own share. Source: behaviour/koordlet-observe 9.4 and 9.6."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordinator.api import cpuset, node_reservation, qos, quantity
from koordinator.api.annotations.node import NodeReservation, SystemQOSResource
from koordinator.api.annotations.topology import CPUSharedPool
from koordinator.api.core import Pod
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import QuantityError
from koordinator.host.cpu_topology import HostCPUTopology, Processor
from koordinator.koordlet.errors import NodeConfigError
from koordinator.koordlet.report import reserved_cpus
from koordinator.koordlet.report.kubelet_state import bound_cpus


class SharedPools(msgspec.Struct, frozen=True):
    """Pools by NUMA node: of LS pods, and of best-effort pods."""

    shared: tuple[CPUSharedPool, ...]
    best_effort: tuple[CPUSharedPool, ...]


def shared_pools(
    topology: HostCPUTopology,
    pods: Sequence[Pod],
    taken: CPUSet,
    reserved: CPUSet,
    system: SystemQOSResource | None,
) -> SharedPools:
    """Pools after bound pods, CPUs that the kubelet gave away (`taken`), reserved ones and those of SYSTEM.

    Services leave the CPUs of every bound pod, best-effort pods only those of LSE pods.
    """
    exclusive = _bound(pod for pod in pods if qos.raw(pod) is QoSClass.LSE)
    left_out = reserved | exclusive_system_cpus(system)
    free = topology.cpus - taken
    return SharedPools(
        _pools(topology.processors, free - _bound(pods), left_out),
        _pools(topology.processors, free - exclusive, left_out),
    )


def resolved_reservation(topology: HostCPUTopology, annotations: Mapping[str, str]) -> NodeReservation:
    """Return the node's reservation with its CPUs chosen: the list as given, else as many as the amount of cpu.

    A list that is malformed is dropped; so is an amount that the machine does not have.
    """
    reservation = node_reservation.of_annotations(annotations)
    return msgspec.structs.replace(reservation, reserved_cpus=cpuset.text_of(_chosen(topology, reservation)))


def exclusive_system_cpus(system: SystemQOSResource | None) -> CPUSet:
    """Return CPUs that only SYSTEM pods may use; none when the list is malformed."""
    if system is None or not system.is_exclusive:
        return frozenset()
    try:
        return cpuset.parse(system.cpuset)
    except CPUSetError:
        return frozenset()


def _chosen(topology: HostCPUTopology, reservation: NodeReservation) -> CPUSet:
    try:
        if reservation.reserved_cpus:
            return cpuset.parse(reservation.reserved_cpus)
        cpu = quantity.of(reservation.resources.get("cpu"))
        return reserved_cpus.take(topology, topology.cpus, math.ceil(cpu.nanos / quantity.NANO))
    except (CPUSetError, QuantityError, NodeConfigError):
        return frozenset()


def _bound(pods: Iterable[Pod]) -> CPUSet:
    cpus: CPUSet = frozenset()
    return cpus.union(*(bound_cpus(pod.metadata.annotations) for pod in pods))


def _pools(processors: Iterable[Processor], free: CPUSet, left_out: CPUSet) -> tuple[CPUSharedPool, ...]:
    """Pools by socket and NUMA node; one emptied by what is left out stays as an entry without CPUs."""
    by_place: dict[tuple[int, int], set[int]] = {}
    for processor in processors:
        if processor.cpu in free:
            by_place.setdefault((processor.socket, processor.node), set()).add(processor.cpu)
    return tuple(
        CPUSharedPool(socket=socket, node=node, cpuset=cpuset.text_of(cpus - left_out))
        for (socket, node), cpus in sorted(by_place.items())
    )
