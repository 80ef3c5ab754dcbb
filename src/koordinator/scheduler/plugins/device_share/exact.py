"""Decide exactly for one pod and one node: what the node's kind, reservations and NUMA nodes leave, then `allocate`.
Source: behaviour/devices 5, 6, 8 and 9."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koordinator.api.annotations.device import DeviceType
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.device_share.allocate import (
    AllocateOptions,
    DeviceDecision,
    PodDevices,
    check_shared_gpu,
    designated,
    node_score,
    tried_types,
    wanted_by_type,
)
from koordinator.scheduler.plugins.device_share.inventory import NO_LIMITS, DeviceLimits, NodeDevices
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.plugins.device_share.pick import DeviceScoringStrategy
from koordinator.scheduler.plugins.device_share.pod_state import DeviceState
from koordinator.scheduler.plugins.device_share.reservations import (
    ReservedDevices,
    allocate_ignoring,
    allocate_reserved,
    includes,
    within,
)
from koordinator.scheduler.plugins.device_share.templates import GPUTemplates
from koordinator.scheduler.plugins.node_numa_resource.admission import subsets_of
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of, mask_of
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHint, ProvidedHints

SAME_GPUS_SCORE = 500
"""Score of NUMA nodes that give the GPUs which would be chosen among all: more than CPUs can score."""

TOO_FEW = unresolvable("Insufficient NUMA Scoped Devices")
NO_NUMA_NODE = unschedulable("Designated Allocation Lack NUMA Node ID")


class Room(msgspec.Struct, frozen=True):
    """The part of a node that a pod may look at: these NUMA nodes (a mask; None: any), and besides what is free what is
    left of one of `reserved`, the first that will do; if `is_ignoring`, of all."""

    numa_nodes: int | None = None
    reserved: Sequence[ReservedDevices] = ()
    is_ignoring: bool = False
    must_use: bool = False
    """Whether nothing will do but one of `reserved`, where there are any; else it may also be all of them together."""
    must_have: bool = False
    """Whether all of `reserved` has to be in what it takes: that of pods which it takes over."""
    card_points: Mapping[int, int] = {}
    """Points of GPUs by minor, where a score of the profile chooses them."""


WHOLE_NODE = Room()
NOT_TAKEN_OVER = unschedulable("Reservation(s) would not get all devices of the pods that it takes over")


def decide_within(
    node: NodeDevices, pod: PodDevices, room: Room, limits: DeviceLimits, options: AllocateOptions | None
) -> DeviceDecision:
    """Return what the pod would get of the room within the limits. Raises: ProtocolError when the node's partition
    table is malformed."""
    reasons: list[str] = []
    for reserved in () if room.is_ignoring else room.reserved:
        if room.must_have:
            limits = msgspec.structs.replace(limits, must=reserved.minors)
        found = allocate_reserved(node, pod, reserved, limits, options)
        if found.status.is_success and room.must_have and not includes(found.by_type, reserved.left):
            found = DeviceDecision(status=NOT_TAKEN_OVER)
        if found.status.is_success:
            return found
        reasons += found.status.reasons
    if reasons and room.must_use:
        return DeviceDecision(status=unschedulable(*dict.fromkeys(reasons)))
    return allocate_ignoring(node, pod, room.reserved, limits, options)


def numa_hints(
    node: NodeDevices,
    pod: PodDevices,
    limits: DeviceLimits = NO_LIMITS,
    options: AllocateOptions | None = None,
    room: Room = WHOLE_NODE,
) -> ProvidedHints:
    """Return the sets of NUMA nodes from which the pod can get its devices, by type of device, smaller sets first; none
    where the node does not know where devices are."""
    ids = sorted(_numa_nodes_of(node))
    if not ids:
        return ProvidedHints()

    def try_on(subset: tuple[int, ...]) -> DeviceDecision:
        status = _few_devices(node, pod, subset)
        if not status.is_success:
            return DeviceDecision(status=status)
        return decide_within(node, pod, room, msgspec.structs.replace(limits, numa_nodes=subset), options)

    widest = try_on(tuple(ids))
    if not widest.status.is_success:
        return ProvidedHints(status=widest.status)
    feasible: dict[tuple[int, ...], DeviceDecision] = {}
    for subset in subsets_of(ids):
        decision = widest if len(subset) == len(ids) else try_on(subset)
        if decision.status.is_success:
            feasible[subset] = decision
    smallest = min(map(len, feasible))
    hints = [
        NUMATopologyHint(
            mask_of(subset),
            len(subset) == smallest,
            SAME_GPUS_SCORE if _gpus(decision) == _gpus(widest) else 0,
        )
        for subset, decision in feasible.items()
    ]
    return ProvidedHints(dict.fromkeys(tried_types(node, pod), hints))


def _numa_nodes_of(node: NodeDevices) -> set[int]:
    """Return the NUMA nodes that some device is close to."""
    return {
        entry.numa_node
        for of_type in node.devices.values()
        for entry in of_type.values()
        if entry.has_topology and entry.numa_node >= 0
    }


def _few_devices(node: NodeDevices, pod: PodDevices, subset: tuple[int, ...]) -> Status:
    """Return why NUMA nodes have too few devices for the pod, however much of these is free."""
    wanted, status = wanted_by_type(node, pod, tried_types(node, pod))
    if not status.is_success:
        return status
    for device_type, each in wanted.items():
        near = [
            entry
            for entry in node.devices[device_type].values()
            if entry.has_topology and entry.numa_node in (-1, *subset)
        ]
        if near and len(near) < each.count:
            return TOO_FEW
    return SUCCESS


def _gpus(decision: DeviceDecision) -> list[int]:
    return [picked.minor for picked in decision.by_type.get(DeviceType.GPU, ())]


def designated_hints(node: NodeDevices, pod: PodDevices, limits: DeviceLimits) -> ProvidedHints:
    """Return exactly the NUMA nodes of the devices that were chosen beforehand, which the limits require."""
    ids: set[int] = set()
    for device_type, minors in limits.required.items():
        for minor in minors:
            entry = node.devices.get(device_type, {}).get(minor)
            if entry is None or not entry.has_topology or entry.numa_node < 0:
                return ProvidedHints(status=NO_NUMA_NODE)
            ids.add(entry.numa_node)
    hint = NUMATopologyHint(mask_of(ids), True, SAME_GPUS_SCORE)
    return ProvidedHints({device_type: [hint] for device_type in limits.required})


class ExactDecisions:
    """Decides for single nodes."""

    def __init__(
        self,
        strategy: DeviceScoringStrategy,
        unsupported: Mapping[str, frozenset[str]],
        templates: Callable[[], GPUTemplates],
    ) -> None:
        self._strategy, self._unsupported, self._templates = strategy, unsupported, templates

    def decide(
        self, state: DeviceState, record: NodeDeviceRecord, room: Room = WHOLE_NODE, *, reserves: bool = False
    ) -> DeviceDecision:
        """Return what the pod would get on a node. `reserves`: it is given to the pod now, the best devices first."""
        devices, asked = record.devices, state.asked
        status = check_shared_gpu(asked, state.labels, devices.node_labels, self._unsupported)
        if not status.is_success:
            return DeviceDecision(status=status)
        options = AllocateOptions(
            self._strategy if reserves else None, self._templates(), reserves, room.card_points
        )
        try:
            limits = _limits(state, devices, room.numa_nodes)
            return decide_within(devices, asked, room, limits, options)
        except (ProtocolError, QuantityError) as problem:
            return DeviceDecision(status=unresolvable(str(problem)))

    def numa_hints(self, state: DeviceState, record: NodeDeviceRecord, room: Room) -> ProvidedHints:
        """Return the NUMA nodes from which the pod can get its devices."""
        devices = record.devices
        try:
            limits = _limits(state, devices, None)
            if state.chosen:
                return designated_hints(devices, state.asked, limits)
            options = AllocateOptions(templates=self._templates())
            return numa_hints(devices, state.asked, limits, options, room)
        except (ProtocolError, QuantityError) as problem:
            return ProvidedHints(status=unresolvable(str(problem)))

    def points(
        self, state: DeviceState, record: NodeDeviceRecord, reserved: ReservedDevices | None = None
    ) -> int:
        """Return the score of a node, or of a reservation there."""
        devices = record.devices
        limits = _limits(state, devices, None)
        if reserved is not None:
            limits = within(reserved, limits)
        return node_score(devices, state.asked, self._strategy, limits)


def _limits(state: DeviceState, devices: NodeDevices, numa_nodes: int | None) -> DeviceLimits:
    limits = NO_LIMITS
    if numa_nodes is not None and _numa_nodes_of(devices):
        limits = DeviceLimits(numa_nodes=tuple(cpus_of(numa_nodes)))
    return limits if state.chosen is None else designated(limits, devices, state.chosen)
