"""Work out what best-effort pods may use of a node's CPUs, whenever pods or the topology change.

Source: behaviour/koordlet-act 4.3, 4.5 and 4.7.
"""

from collections.abc import Iterable

import msgspec

from koordinator.api import cpuset
from koordinator.api.annotations.node import NODE_RESERVATION, SYSTEM_QOS_RESOURCE
from koordinator.api.annotations.placement import RESOURCE_STATUS
from koordinator.api.annotations.topology import KUBELET_CPU_MANAGER_POLICY
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.host.cpu_topology import HostCPUTopology
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.qos import cpu_suppress
from koordinator.koordlet.qos.cpu_suppress import CPUHolder, SuppressPodClass, UsableCPUs

STATIC_POLICY = "static"


class CPUFacts(msgspec.Struct, frozen=True):
    """CPUs by what best-effort pods may do with them."""

    machine_count: int
    usable: UsableCPUs
    recovery: CPUSet
    """What they have while nothing suppresses them."""
    floor: CPUSet
    """What they keep when nothing is usable."""
    is_static: bool
    """The kubelet's CPU manager gives containers their CPUs by itself: parents must stay wide."""


class PodFacts(msgspec.Struct, frozen=True):
    """The facts about pods that suppression needs."""

    classes: dict[str, SuppressPodClass]
    holders: tuple[CPUHolder, ...]
    bound_groups: frozenset[str]
    """Groups of active pods to which the scheduler gave CPUs or NUMA nodes."""
    has_active: bool


def of_pods(pods: Iterable[PodRecord]) -> PodFacts:
    """Facts of all pods of the node; a malformed annotation counts as none."""
    classes: dict[str, SuppressPodClass] = {}
    holders: list[CPUHolder] = []
    bound: set[str] = set()
    has_active = False
    for pod in pods:
        classes[pod.uid] = SuppressPodClass(pod.qos, pod.kube_qos)
        if not pod.is_active:
            continue  # what has ended uses nothing and owns nothing any more
        has_active = True
        try:
            status = RESOURCE_STATUS.read(pod.pod.metadata.annotations)
            cpus = cpuset.parse(status.cpuset) if status is not None and status.cpuset else frozenset()
        except (ProtocolError, CPUSetError):
            continue
        if cpus:
            holders.append(CPUHolder(pod.qos, cpus))
        if status is not None and (cpus or status.numa_node_resources):
            bound.add(pod.group)
    return PodFacts(classes, tuple(holders), frozenset(bound), has_active)


def of_node(cpu: HostCPUTopology, topology: NodeResourceTopology, holders: Iterable[CPUHolder]) -> CPUFacts:
    """Facts of the node's CPUs.

    Raises: ProtocolError, CPUSetError when an annotation of the topology is malformed: then nothing may be written.
    """
    annotations = topology.metadata.annotations
    reservation = NODE_RESERVATION.read(annotations)
    reserved: CPUSet = frozenset()
    if reservation is not None and reservation.reserved_cpus:
        reserved = cpuset.parse(reservation.reserved_cpus)
    system = SYSTEM_QOS_RESOURCE.read(annotations)
    policy = KUBELET_CPU_MANAGER_POLICY.read(annotations)
    owners = tuple(holders)
    return CPUFacts(
        machine_count=len(cpu.processors),
        usable=cpu_suppress.usable_cpus(cpu.processors, owners, reserved, system),
        recovery=cpu_suppress.recovery_cpus(cpu.processors, owners, reserved, system),
        floor=cpu_suppress.floor_cpus(cpu.processors, reserved, system),
        is_static=policy is not None and policy.policy == STATIC_POLICY,
    )
