"""Devices that our scheduler allocated, told to whoever asks the kubelet. Source: spec 10, section 10.5."""

from collections.abc import Mapping

import msgspec

from koordinator.api import resources
from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceAllocation, DeviceType
from koordinator.api.errors import ProtocolError

NVIDIA_GPU = "nvidia.com/gpu"


class ContainerDevices(msgspec.Struct, frozen=True):
    """Devices of one resource in a container."""

    resource: str
    ids: tuple[str, ...]


def allocated_devices(annotations: Mapping[str, str]) -> list[ContainerDevices]:
    """What to add to the first container of a pod, by resource name; nothing when absent or malformed."""
    try:
        allocated = DEVICE_ALLOCATED.read(annotations) or {}
    except ProtocolError:
        return []
    found = []
    gpus, cards = allocated.get(DeviceType.GPU, []), allocated.get(DeviceType.RDMA, [])
    if cards:
        bus_ids = tuple(bus_id for card in cards for bus_id in _bus_ids(card))
        found.append(ContainerDevices(resources.RDMA, bus_ids))
    if gpus:
        found.append(ContainerDevices(NVIDIA_GPU, tuple(gpu.id for gpu in gpus)))
    return found


def _bus_ids(card: DeviceAllocation) -> list[str]:
    """Virtual functions of the card, else the card itself."""
    if card.extension is None:
        return [card.id]
    return [function.bus_id for function in card.extension.vfs]
