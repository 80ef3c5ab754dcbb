"""Find the NUMA nodes that can give a pod its devices. Source: behaviour/devices 8."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from koordinator.api.annotations.device import DeviceType
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.device_share.allocate import (
    AllocateOptions,
    DeviceDecision,
    PodDevices,
    allocate,
    wanted_of,
)
from koordinator.scheduler.plugins.device_share.inventory import NO_LIMITS, DeviceLimits, NodeDevices

SAME_GPUS_SCORE = 500
"""Of NUMA nodes that give the GPUs which would be chosen among all: more than CPUs can score."""

ALL_SUBSETS_NODES_MAX = 8
"""Up to here all sets of NUMA nodes are tried; beyond, single ones, pairs and all together."""

TOO_FEW = unschedulable("Insufficient NUMA Scoped Devices")
NO_NUMA_NODE = unschedulable("Designated Allocation Lack NUMA Node ID")


class DeviceTopologyHint(msgspec.Struct, frozen=True):
    """NUMA nodes that would do."""

    numa_nodes: tuple[int, ...]
    is_preferred: bool
    score: int


class DeviceHintDecision(msgspec.Struct, frozen=True):
    """Hints by type of device, smaller sets first; none where the node does not know where devices are."""

    by_type: Mapping[str, Sequence[DeviceTopologyHint]] = {}
    status: Status = SUCCESS


def numa_hints(
    node: NodeDevices,
    pod: PodDevices,
    limits: DeviceLimits = NO_LIMITS,
    options: AllocateOptions | None = None,
) -> DeviceHintDecision:
    """Return the sets of NUMA nodes from which the pod can get its devices.

    `limits.required` stands for devices that were chosen beforehand: their NUMA nodes are the only hint.
    """
    if limits.required:
        return _designated(node, pod, limits)
    ids = sorted(
        {
            entry.numa_node
            for of_type in node.devices.values()
            for entry in of_type.values()
            if entry.has_topology and entry.numa_node >= 0
        }
    )
    if not ids:
        return DeviceHintDecision()
    widest = _try(node, pod, tuple(ids), limits, options)
    if not widest.status.is_success:
        return DeviceHintDecision(status=widest.status)
    feasible: dict[tuple[int, ...], DeviceDecision] = {}
    for subset in _subsets(ids):
        decision = widest if len(subset) == len(ids) else _try(node, pod, subset, limits, options)
        if decision.status.is_success:
            feasible[subset] = decision
    smallest = min(map(len, feasible))
    hints = [
        DeviceTopologyHint(
            subset, len(subset) == smallest, SAME_GPUS_SCORE if _gpus(decision) == _gpus(widest) else 0
        )
        for subset, decision in feasible.items()
    ]
    return DeviceHintDecision(dict.fromkeys(pod.by_type, hints))


def _subsets(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    sizes = range(1, len(ids) + 1) if len(ids) <= ALL_SUBSETS_NODES_MAX else (1, 2, len(ids))
    return itertools.chain.from_iterable(itertools.combinations(ids, size) for size in sizes)


def _try(
    node: NodeDevices,
    pod: PodDevices,
    subset: tuple[int, ...],
    limits: DeviceLimits,
    options: AllocateOptions | None,
) -> DeviceDecision:
    for device_type in pod.by_type:
        wanted = wanted_of(node, pod, device_type)
        if not wanted.status.is_success:
            return DeviceDecision(status=wanted.status)
        near = [
            entry
            for entry in node.devices[device_type].values()
            if entry.has_topology and entry.numa_node in (-1, *subset)
        ]
        if near and len(near) < wanted.count:
            return DeviceDecision(status=TOO_FEW)
    return allocate(node, pod, msgspec.structs.replace(limits, numa_nodes=subset), options)


def _gpus(decision: DeviceDecision) -> list[int]:
    return [picked.minor for picked in decision.by_type.get(DeviceType.GPU, ())]


def _designated(node: NodeDevices, pod: PodDevices, limits: DeviceLimits) -> DeviceHintDecision:
    """Exactly the NUMA nodes of the devices that were chosen beforehand."""
    ids: set[int] = set()
    for device_type, minors in limits.required.items():
        for minor in minors:
            entry = node.devices.get(device_type, {}).get(minor)
            if entry is None or not entry.has_topology or entry.numa_node < 0:
                return DeviceHintDecision(status=NO_NUMA_NODE)
            ids.add(entry.numa_node)
    hint = DeviceTopologyHint(tuple(sorted(ids)), True, SAME_GPUS_SCORE)
    return DeviceHintDecision({device_type: [hint] for device_type in pod.by_type})
