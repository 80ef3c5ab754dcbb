"""Keep which devices a node has, what is used, and what a pod may see of them. Source: behaviour/devices 5.1 and
5.3."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from koordinator.api import label_selector, resource_vector, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.device import (
    AllocationExtension,
    DeviceAllocation,
    DeviceAllocations,
    DeviceType,
)
from koordinator.api.annotations.device import VirtualFunction as AllocatedVF
from koordinator.api.device import Device, DeviceInfo, VirtualFunctionGroup
from koordinator.api.quantity import RawQuantity
from koordinator.api.resource_vector import add_in_place
from koordinator.scheduler.plugins.device_share.request import LENT, Amounts, is_owned

AmountsByMinor = Mapping[int, Mapping[str, int]]
NOTHING: Mapping[Any, Any] = {}


class DeviceEntry(msgspec.Struct, frozen=True):
    """One device as reported; `total` is empty when it is not healthy."""

    minor: int
    total: Amounts
    labels: Mapping[str, str] = {}
    has_topology: bool = False
    numa_node: int = -1
    """-1 when it is close to none."""
    pcie: str = ""
    vf_groups: tuple[VirtualFunctionGroup, ...] = ()


class NodeDevices(msgspec.Struct, frozen=True):
    """The devices of a node by type and minor, what pods use of each, and the bus ids of taken VFs."""

    labels: Mapping[str, str] = {}
    """Labels of the Device object."""
    annotations: Mapping[str, str] = {}
    node_labels: Mapping[str, str] = {}
    devices: Mapping[str, Mapping[int, DeviceEntry]] = {}
    used: Mapping[str, AmountsByMinor] = {}
    taken_vfs: Mapping[str, frozenset[str]] = {}

    def is_used(self, device_type: str, minor: int) -> bool:
        """Return whether any pod has a part of the device that is not lent only."""
        return is_owned(self.used.get(device_type, {}).get(minor, {}))


class DeviceLimits(msgspec.Struct, frozen=True):
    """The devices that a pod may see, and what others give back for it; all by type of device."""

    numa_nodes: Collection[int] | None = None
    given_back: Mapping[str, AmountsByMinor] = {}
    required: Mapping[str, AmountsByMinor] = {}
    """Only these minors, and at most these amounts of each: nothing of what is not named, all where nothing is."""
    preferred: Mapping[str, frozenset[int]] = {}
    given_back_vfs: Mapping[str, Mapping[int, frozenset[str]]] = {}
    """Bus ids by minor."""
    allowed_vfs: Mapping[str, Mapping[int, frozenset[str]]] = {}
    """Only these VFs of each minor, for the types that are named."""
    must: Mapping[str, frozenset[int]] = {}
    """Minors that have to be among those that are taken."""
    preferred_vfs: frozenset[str] = frozenset()
    """Bus ids of VFs that are taken before others of the same device."""


NO_LIMITS = DeviceLimits()


class VisibleDevice(msgspec.Struct, frozen=True):
    """A device that a pod may get, and what is left of it."""

    entry: DeviceEntry
    free: Mapping[str, int]
    is_used: bool

    @property
    def minor(self) -> int:
        return self.entry.minor

    @property
    def is_healthy(self) -> bool:
        return bool(self.entry.total)

    def fits(self, amounts: Mapping[str, int]) -> bool:
        """Return whether anything is left, and enough of each amount that the device reports, or should lend."""
        if not any(self.free.values()):
            return False
        return all(
            amount <= self.free.get(name, 0)
            for name, amount in amounts.items()
            if name in self.free or name in LENT
        )


View = dict[int, VisibleDevice]
"""Minor → device, ascending."""


class HeldDevice(msgspec.Struct, frozen=True):
    """A part of one device that a pod holds."""

    minor: int
    amounts: Mapping[str, int]
    vfs: tuple[AllocatedVF, ...] = ()
    template: str = ""


Held = Mapping[str, tuple[HeldDevice, ...]]
"""Devices that one pod holds, by type."""


def held_by(allocations: DeviceAllocations) -> Held:
    """Return what a pod's annotation says it holds. Raises: QuantityError when an amount is no quantity."""
    return {
        device_type: tuple(
            HeldDevice(
                each.minor,
                amounts_of(each.resources),
                tuple(each.extension.vfs) if each.extension is not None else (),
                each.extension.gpu_shared_resource_template if each.extension is not None else "",
            )
            for each in of_type
        )
        for device_type, of_type in allocations.items()
    }


def allocations_of(held: Held, ids: Mapping[str, Mapping[int, str]]) -> DeviceAllocations:
    """Return what is written on a pod: its devices with their ids, which are given by type and minor."""
    return {
        device_type: [
            DeviceAllocation(
                minor=each.minor,
                resources=resource_vector.texts(each.amounts),
                id=ids.get(device_type, {}).get(each.minor, ""),
                extension=_extension(each),
            )
            for each in devices
        ]
        for device_type, devices in held.items()
    }


def _extension(held: HeldDevice) -> AllocationExtension | None:
    if not (held.vfs or held.template):
        return None
    return AllocationExtension(vfs=list(held.vfs), gpu_shared_resource_template=held.template)


def node_devices(device: Device, node_labels: Mapping[str, str]) -> NodeDevices:
    """Return a node's devices by ascending minor, as if nobody held any. Raises: QuantityError when an amount is no
    quantity."""
    by_type: dict[str, dict[int, DeviceEntry]] = {}
    for info in sorted(device.spec.devices, key=lambda info: info.minor or 0):
        entry = _entry(info)
        by_type.setdefault(info.type, {})[entry.minor] = entry
    return NodeDevices(device.metadata.labels, device.metadata.annotations, node_labels, by_type)


def with_lent(
    devices: NodeDevices, lent: DeviceAllocations, ids: Mapping[str, Mapping[int, str]]
) -> NodeDevices:
    """Return the devices of a node with what each healthy GPU lends; `ids` by type and minor. A card that is another
    one now lends nothing. Raises: QuantityError when an amount is no quantity."""
    gpus = dict(devices.devices.get(DeviceType.GPU, {}))
    known = ids.get(DeviceType.GPU, {})
    for each in lent.get(DeviceType.GPU, ()):
        entry = gpus.get(each.minor)
        if entry is None or not entry.total or known.get(each.minor) != each.id:
            continue
        amounts = {name: amount for name, amount in amounts_of(each.resources).items() if name in LENT}
        gpus[each.minor] = msgspec.structs.replace(entry, total={**entry.total, **amounts})
    if not gpus:
        return devices
    return msgspec.structs.replace(devices, devices={**devices.devices, DeviceType.GPU: gpus})


def amounts_of(wire: Mapping[str, RawQuantity]) -> Amounts:
    """Return a resource list in integers, under the names of today. Raises: QuantityError."""
    return resource_vector.integers(resources.rename_all(dict(wire), resources.DEPRECATED_DEVICE_NAMES))


def total_of(held: Held) -> Amounts:
    """Return the sums over all devices that a pod holds."""
    summed: Amounts = {}
    for devices in held.values():
        for device in devices:
            add_in_place(summed, device.amounts)
    return summed


def _entry(info: DeviceInfo) -> DeviceEntry:
    topology = info.topology
    return DeviceEntry(
        minor=info.minor or 0,
        total=amounts_of(info.resources) if info.health else {},
        labels=info.labels,
        has_topology=topology is not None,
        numa_node=topology.node_id if topology is not None else -1,
        pcie=topology.pcie_id if topology is not None else "",
        vf_groups=tuple(info.vf_groups),
    )


def view_of(
    node: NodeDevices, device_type: str, limits: DeviceLimits, selector: LabelSelector | None = None
) -> View:
    """Return the devices of a type that a pod may see; none when nothing is left of any."""
    required = limits.required.get(device_type)
    visible: View = {}
    for minor, entry in node.devices.get(device_type, {}).items():
        if required is not None and minor not in required:
            continue
        if limits.numa_nodes is not None and not _is_near(entry, limits.numa_nodes):
            continue
        if selector is not None and not label_selector.matches(selector, entry.labels):
            continue
        visible[minor] = visible_device(node, device_type, entry, limits)
    has_any = any(any(device.free.values()) for device in visible.values())
    return visible if has_any else {}


def _is_near(entry: DeviceEntry, numa_nodes: Collection[int]) -> bool:
    return entry.has_topology and (entry.numa_node == -1 or entry.numa_node in numa_nodes)


def visible_device(
    node: NodeDevices, device_type: str, entry: DeviceEntry, limits: DeviceLimits
) -> VisibleDevice:
    """Return what a pod may have of one device."""
    minor = entry.minor
    held: Mapping[str, int] = node.used.get(device_type, NOTHING).get(minor, NOTHING)
    if limits.given_back and (back := limits.given_back.get(device_type, NOTHING).get(minor)):
        held = resource_vector.less(held, back)
    free: Mapping[str, int] = entry.total
    if held:
        free = resource_vector.less(free, held)
    if limits.required and (cap := limits.required.get(device_type, NOTHING).get(minor)):
        free = {name: min(amount, cap.get(name, 0)) for name, amount in free.items()}
        # The rest of the card is somebody else's, so that it is no whole card.
        held = resource_vector.less(entry.total, free)
    # One that is not healthy draws nobody near it.
    return VisibleDevice(entry, free, bool(entry.total) and is_owned(held))
