"""Find which CPUs the kubelet's static policy keeps for the system. Source: behaviour/koordlet-observe 9.3 and 9.5.

The result must be that of the kubelet itself, so the choice follows its packed policy step by step.
"""

import math
from collections.abc import Callable, Mapping

import msgspec

from koordinator.api import cpuset, quantity
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.meta import ViewPart
from koordinator.api.quantity import Quantity, QuantityError, ResourceList
from koordinator.host.cpu_topology import HostCPUTopology, Processor
from koordinator.koordlet.errors import NodeConfigError

STATIC_POLICY = "static"
_RESERVABLE = frozenset(("cpu", "memory", "ephemeral-storage", "pid"))

_GroupOf = Callable[[Processor], int]


class KubeletConfig(ViewPart, frozen=True, kw_only=True):
    """The part of the kubelet's configuration that matters here."""

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] = {}
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    reserved_system_cpus: str = msgspec.field(name="reservedSystemCPUs", default="")
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
    for group_of in (_socket, _node, _core):
        taken |= _take_whole(topology, free - taken, count - len(taken), group_of)
    return taken | _take_single(topology, free - taken, count - len(taken))


def kubelet_reserved(topology: HostCPUTopology, config: KubeletConfig) -> CPUSet:
    """Return the CPUs that the kubelet keeps from pods with CPUs of their own; none unless its policy is static.

    Raises: NodeConfigError when the configuration makes no sense, as the kubelet would not start with it.
    """
    if config.cpu_manager_policy != STATIC_POLICY:
        return frozenset()
    explicit = _explicit(topology, config.reserved_system_cpus)
    amount = _reserved_cores(config)
    if explicit:
        return explicit
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


def _reserved_cores(config: KubeletConfig) -> Quantity | None:
    total: Quantity | None = None
    for field, amounts in (
        ("kubeReserved", config.kube_reserved),
        ("systemReserved", config.system_reserved),
    ):
        cpu = _checked(field, amounts).get("cpu")
        if cpu is not None:
            total = cpu if total is None else total + cpu
    return total


def _checked(field: str, amounts: ResourceList) -> Mapping[str, Quantity]:
    checked = {}
    for name, raw in amounts.items():
        if name not in _RESERVABLE:
            raise NodeConfigError(field, f"{name} cannot be reserved")
        try:
            checked[name] = quantity.of(raw)
        except QuantityError as error:
            raise NodeConfigError(f"{field}.{name}", str(error)) from error
        if checked[name].nanos < 0:
            raise NodeConfigError(f"{field}.{name}", f"{raw} is negative")
    return checked


def _socket(processor: Processor) -> int:
    return processor.socket


def _node(processor: Processor) -> int:
    return processor.node


def _core(processor: Processor) -> int:
    return processor.core


def _take_whole(topology: HostCPUTopology, free: CPUSet, count: int, group_of: _GroupOf) -> CPUSet:
    """Groups that are free as a whole and not larger than what is still needed."""
    groups = {group_of(processor) for processor in topology.processors}
    whole = len(topology.processors) // len(groups)
    taken: CPUSet = frozenset()
    for cpus in _ordered(topology, free, group_of):
        if len(cpus) == whole and len(cpus) <= count - len(taken):
            taken |= cpus
    return taken


def _take_single(topology: HostCPUTopology, free: CPUSet, count: int) -> CPUSet:
    singles = [cpu for cpus in _ordered(topology, free, _core) for cpu in sorted(cpus)]
    return frozenset(singles[:count])


def _ordered(topology: HostCPUTopology, free: CPUSet, group_of: _GroupOf) -> list[CPUSet]:
    """Free CPUs by group: level by level from the socket down, fewest free first, then the smaller id."""
    levels: list[_GroupOf] = [_socket, _node, _core]
    levels = levels[: levels.index(group_of) + 1]
    processors = [processor for processor in topology.processors if processor.cpu in free]
    return _descend(processors, levels)


def _descend(processors: list[Processor], levels: list[_GroupOf]) -> list[CPUSet]:
    level, *below = levels
    groups: dict[int, list[Processor]] = {}
    for processor in processors:
        groups.setdefault(level(processor), []).append(processor)
    ordered: list[CPUSet] = []
    for _, members in sorted(groups.items(), key=lambda item: (len(item[1]), item[0])):
        if below:
            ordered += _descend(members, below)
        else:
            ordered.append(frozenset(member.cpu for member in members))
    return ordered
