"""Decide exactly for one pod and one node: what the node's kind, reservations and NUMA nodes leave, then `allocate`.
Source: behaviour/devices 5, 6, 8 and 9."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.plugin.status import unresolvable, unschedulable
from koordinator.scheduler.plugins.device_share.allocate import (
    AllocateOptions,
    DeviceDecision,
    allocate,
    check_shared_gpu,
    designated,
    node_score,
)
from koordinator.scheduler.plugins.device_share.hints import DeviceHintDecision, numa_hints
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    DeviceLimits,
    Held,
    HeldDevice,
    NodeDevices,
)
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.plugins.device_share.pick import DeviceScoringStrategy, Picked
from koordinator.scheduler.plugins.device_share.pod_state import DeviceState
from koordinator.scheduler.plugins.device_share.reservations import (
    ReservedDevices,
    allocate_ignoring,
    allocate_reserved,
    includes,
    within,
)
from koordinator.scheduler.plugins.device_share.templates import GPUTemplates


class Room(msgspec.Struct, frozen=True):
    """The part of a node that a pod may look at: these NUMA nodes (a mask; None: any), and besides what is free what is
    left of `reserved`, of which it takes one or, if `is_ignoring`, all together."""

    numa_nodes: int | None = None
    reserved: Sequence[ReservedDevices] = ()
    is_ignoring: bool = False
    must_have: bool = False
    """Whether all of `reserved` has to be in what it takes: that of pods which it takes over."""
    card_points: Mapping[int, int] = {}
    """Points of GPUs by minor, where a score of the profile chooses them."""

    @property
    def is_whole_node(self) -> bool:
        """Return whether reservations play no part."""
        return not self.reserved


WHOLE_NODE = Room()
NOT_TAKEN_OVER = unschedulable("Reservation(s) would not get all devices of the pods that it takes over")


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
            if room.is_ignoring:
                return allocate_ignoring(devices, asked, room.reserved, limits, options)
            if room.reserved:
                found = allocate_reserved(
                    devices, asked, room.reserved, is_required=True, limits=limits, options=options
                )
                lacks = room.must_have and not includes(held_of(found.decision), room.reserved[0].left)
                return DeviceDecision(status=NOT_TAKEN_OVER) if lacks else found.decision
            return allocate(devices, asked, limits, options)
        except (ProtocolError, QuantityError) as problem:
            return DeviceDecision(status=unresolvable(str(problem)))

    def numa_hints(self, state: DeviceState, record: NodeDeviceRecord, room: Room) -> DeviceHintDecision:
        """Return the NUMA nodes from which the pod can get its devices."""
        devices = record.devices
        try:
            limits = _limits(state, devices, None)
            for each in room.reserved:
                limits = within(each, limits)
            options = AllocateOptions(templates=self._templates())
            return numa_hints(devices, state.asked, limits, options)
        except (ProtocolError, QuantityError) as problem:
            return DeviceHintDecision(status=unresolvable(str(problem)))

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
    if numa_nodes is not None and _has_topology(devices):
        limits = DeviceLimits(numa_nodes=_ids(numa_nodes))
    return limits if state.chosen is None else designated(limits, devices, state.chosen)


def _has_topology(devices: NodeDevices) -> bool:
    return any(
        entry.has_topology and entry.numa_node >= 0
        for of_type in devices.devices.values()
        for entry in of_type.values()
    )


def _ids(mask: int) -> tuple[int, ...]:
    return tuple(numa for numa in range(mask.bit_length()) if mask >> numa & 1)


def held_of(decision: DeviceDecision) -> Held:
    """Return what a pod holds that was given this."""
    return {
        device_type: [_held_device(each) for each in picked]
        for device_type, picked in decision.by_type.items()
    }


def _held_device(picked: Picked) -> HeldDevice:
    vfs = (picked.vf,) if picked.vf is not None else ()
    return HeldDevice(picked.minor, picked.amounts, vfs, picked.template)
