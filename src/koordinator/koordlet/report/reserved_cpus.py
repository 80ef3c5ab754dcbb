"""Find the CPUs that the kubelet's static policy keeps for the system, and those that pods without CPUs of their own
share. Source: behaviour/koordlet-observe 9.3 to 9.6.

The choice follows the kubelet's packed policy step by step, since what is reserved must be what it reserves itself.

Pods that the kubelet's CPU manager pinned, and its topology policy, are read from its state and configuration
(behaviour/koordlet-observe 9).
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from koordinator.api import cpuset, node_reservation, qos, quantity, resources
from koordinator.api.annotations.node import (
    STATIC_CPU_POLICY,
    CPUSharedPool,
    NodeReservation,
    PodCPUAlloc,
    SystemQOSResource,
)
from koordinator.api.annotations.placement import RESOURCE_STATUS
from koordinator.api.core import Pod
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ViewPart
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import Quantity, QuantityError, ResourceList
from koordinator.host.sysfs import HostCPUTopology, Processor
from koordinator.koordlet.errors import NodeConfigError

STATE_FILE = "cpu_manager_state"
NO_POLICY = "None"
_POLICIES = {
    "single-numa-node": "SingleNUMANode",
    "restricted": "Restricted",
    "best-effort": "BestEffort",
}
_SCOPES = {"container": "ContainerLevel", "pod": "PodLevel"}
_NEVER_PINNED = (QoSClass.LS, QoSClass.BE)


class _State(msgspec.Struct, rename="camel"):
    """The file; its checksum is not verified, as older and newer kubelets disagree about it."""

    entries: dict[str, dict[str, str]] | None = None


class KubeletAllocations(msgspec.Struct, frozen=True):
    """Pods that the kubelet pinned, by UID, and all their CPUs."""

    pods: tuple[PodCPUAlloc, ...]
    cpus: CPUSet


def allocations(state: str | None, pods: Iterable[Pod], finished: Collection[str] = ()) -> KubeletAllocations:
    """Return what the text of the state file says; None when there is no file.

    Pods of classes that are never pinned, and those whose CPUs our scheduler chose, are left out; so are `finished`
    ones (UIDs), which the kubelet takes out of its file a while after their end.
    Raises: NodeConfigError when it is not the file of a kubelet that we know.
    """
    if not state or not state.strip():
        return KubeletAllocations((), frozenset())
    try:
        entries = msgspec.json.decode(state, type=_State).entries or {}
    except msgspec.MsgspecError as error:
        raise NodeConfigError(STATE_FILE, str(error)) from error
    known = {pod.metadata.uid: pod for pod in pods}
    found = []
    everything: CPUSet = frozenset()
    for uid in sorted(entries.keys() - set(finished)):
        cpus = _union(entries[uid])
        pod = known.get(uid)
        if cpus and not (pod is not None and _is_ours(pod)):
            everything |= cpus
            found.append(
                PodCPUAlloc(
                    namespace=pod.metadata.namespace if pod is not None else "",
                    name=pod.metadata.name if pod is not None else "",
                    uid=uid,
                    cpuset=cpuset.text_of(cpus),
                    managed_by_kubelet=True,
                )
            )
    return KubeletAllocations(tuple(found), everything)


def topology_policy(policy: str, scope: str) -> str:
    """Return the element of `topologyPolicies` for the kubelet's topology manager."""
    if policy in _POLICIES and scope in _SCOPES:
        return _POLICIES[policy] + _SCOPES[scope]
    return NO_POLICY


def bound_cpus(annotations: Mapping[str, str]) -> CPUSet:
    """Return the CPUs that our scheduler gave a pod; none when absent or malformed."""
    try:
        status = RESOURCE_STATUS.read(annotations)
        return cpuset.parse(status.cpuset) if status is not None else frozenset()
    except (ProtocolError, CPUSetError):
        return frozenset()


def _is_ours(pod: Pod) -> bool:
    return qos.raw(pod) in _NEVER_PINNED or bool(bound_cpus(pod.metadata.annotations))


def _union(texts: Mapping[str, str]) -> CPUSet:
    """Return CPUs of all containers; a list that is malformed is left out."""
    cpus: CPUSet = frozenset()
    for text in texts.values():
        try:
            cpus |= cpuset.parse(text)
        except CPUSetError:
            continue
    return cpus


_RESERVABLE = frozenset(("cpu", "memory", "ephemeral-storage", "pid"))

_LEVELS = ("socket", "node", "core")


class KubeletConfig(ViewPart, frozen=True, kw_only=True):
    """The part of the kubelet's configuration that matters here."""

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] = {}
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    reserved_system_cpus: str = ""
    kube_reserved: ResourceList = {}
    system_reserved: ResourceList = {}


def take(topology: HostCPUTopology, free: CPUSet, count: int) -> CPUSet:
    """`count` of the free CPUs, packed: whole sockets, then NUMA nodes, then cores, then single CPUs.

    Raises: NodeConfigError when there are too few.
    """
    if count < 1:
        return frozenset()
    if count > len(free):
        raise NodeConfigError("reserved CPUs", f"{count} wanted, {len(free)} are free")
    taken: CPUSet = frozenset()
    for depth in range(1, len(_LEVELS) + 1):
        taken |= _take_whole(topology, free - taken, count - len(taken), _LEVELS[:depth])
    singles = [cpu for cpus in _ordered(topology, free - taken, _LEVELS) for cpu in sorted(cpus)]
    return taken.union(singles[: count - len(taken)])


def kubelet_reserved(topology: HostCPUTopology, config: KubeletConfig) -> CPUSet:
    """Return the CPUs that the kubelet keeps from pods with CPUs of their own; none unless its policy is static.

    Raises: NodeConfigError when the configuration makes no sense, as the kubelet would not start with it.
    """
    if config.cpu_manager_policy != STATIC_CPU_POLICY:
        return frozenset()
    explicit = _explicit(topology, config.reserved_system_cpus)
    if explicit:
        _reserved_cores(config, ignored=(resources.CPU,))  # the list takes the place of amounts of cpu
        return explicit
    amount = _reserved_cores(config)
    if amount is None or amount.nanos <= 0:
        raise NodeConfigError("kubeReserved", "the static policy needs reserved cpu above zero")
    count = math.ceil(amount.nanos / quantity.NANO)
    return take(topology, topology.cpus, count)


def _explicit(topology: HostCPUTopology, text: str) -> CPUSet:
    try:
        cpus = cpuset.parse(text)
    except CPUSetError as error:
        raise NodeConfigError("reservedSystemCPUs", str(error)) from error
    if not cpus <= topology.cpus:
        unknown = cpuset.text_of(cpus - topology.cpus)
        raise NodeConfigError("reservedSystemCPUs", f"CPUs {unknown} do not exist")
    return cpus


def _reserved_cores(config: KubeletConfig, ignored: Collection[str] = ()) -> Quantity | None:
    total: Quantity | None = None
    for field, amounts in (
        ("kubeReserved", config.kube_reserved),
        ("systemReserved", config.system_reserved),
    ):
        cpu = _checked(field, amounts, ignored).get(resources.CPU)
        if cpu is not None:
            total = cpu if total is None else total + cpu
    return total


def _checked(field: str, amounts: ResourceList, ignored: Collection[str]) -> Mapping[str, Quantity]:
    checked = {}
    for name, raw in amounts.items():
        if name in ignored:
            continue
        if name not in _RESERVABLE:
            raise NodeConfigError(field, f"{name} cannot be reserved")
        try:
            checked[name] = quantity.of(raw)
        except QuantityError as error:
            raise NodeConfigError(f"{field}.{name}", str(error)) from error
        if checked[name].nanos < 0:
            raise NodeConfigError(f"{field}.{name}", f"{raw} is negative")
    return checked


def _take_whole(topology: HostCPUTopology, free: CPUSet, count: int, levels: Sequence[str]) -> CPUSet:
    """Groups of the last level that are free as a whole and not larger than what is still needed.

    As by the kubelet, a NUMA node is whole with all its CPUs, a socket or core with as many as they have on average:
    where CPUs are offline, or only some cores have threads, this is not the same.
    """
    groups = topology.by(levels[-1])
    average = len(topology.processors) // len(groups)
    group_of = {cpu: frozenset(cpus) for cpus in groups.values() for cpu in cpus}
    taken: CPUSet = frozenset()
    for cpus in _ordered(topology, free, levels):
        group = group_of[min(cpus)]
        whole = len(group) if levels[-1] == "node" else average
        if len(cpus) == whole and len(group) <= count - len(taken):
            taken |= group
    return taken


def _ordered(topology: HostCPUTopology, free: CPUSet, levels: Sequence[str]) -> list[CPUSet]:
    """Free CPUs by group of the last level: level by level, fewest free first, then the smaller id."""
    level, *below = levels
    groups = [(free & set(cpus), number) for number, cpus in topology.by(level).items()]
    ordered: list[CPUSet] = []
    for cpus, _ in sorted((each for each in groups if each[0]), key=lambda each: (len(each[0]), each[1])):
        ordered += _ordered(topology, cpus, below) if below else [cpus]
    return ordered


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
        return take(topology, topology.cpus, math.ceil(cpu.nanos / quantity.NANO))
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
