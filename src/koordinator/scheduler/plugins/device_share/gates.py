"""Early refusals, and devices that were chosen beforehand. Source: behaviour/devices 3.2 and 6.2."""

from collections.abc import Mapping

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.device import DeviceAllocation, DeviceAllocations, DeviceType
from koordinator.scheduler.plugin.status import SUCCESS, Status, error, unresolvable
from koordinator.scheduler.plugins.device_share.allocate import PodDevices
from koordinator.scheduler.plugins.device_share.inventory import DeviceLimits, NodeDevices, amounts_of
from koordinator.scheduler.plugins.device_share.request import Amounts, with_gpu_memory

NO_HAMI_CORE = error("GPUIsolationProviderHAMICore not found on the node")


def check_shared_gpu(
    pod: PodDevices,
    pod_labels: Mapping[str, str],
    node_labels: Mapping[str, str],
    unsupported: Mapping[str, frozenset[str]],
) -> Status:
    """Return whether a node can isolate shares of its GPUs as the pod wants; `unsupported` models by vendor cannot."""
    if DeviceType.GPU not in pod.by_type or pod.is_whole_gpus:
        return SUCCESS
    provider = pod_labels.get(labels.GPU_ISOLATION_PROVIDER, "")
    if provider and provider != node_labels.get(labels.GPU_ISOLATION_PROVIDER, ""):
        return NO_HAMI_CORE
    vendor, model = node_labels.get(labels.GPU_VENDOR, ""), node_labels.get(labels.GPU_MODEL, "")
    if model in unsupported.get(vendor, ()):
        return unresolvable(f'model "{model}" of vendor "{vendor}" does not support GPU Share')
    return SUCCESS


def designated(limits: DeviceLimits, node: NodeDevices, recorded: DeviceAllocations) -> DeviceLimits:
    """Limits to exactly the devices, amounts and virtual functions that were recorded.

    Raises: QuantityError when an amount is no quantity.
    """
    required = {
        device_type: {entry.minor: _amounts(node, device_type, entry) for entry in entries}
        for device_type, entries in recorded.items()
    }
    vfs = {
        device_type: {
            entry.minor: frozenset(vf.bus_id for vf in entry.extension.vfs)
            for entry in entries
            if entry.extension is not None
        }
        for device_type, entries in recorded.items()
        if any(entry.extension is not None and entry.extension.vfs for entry in entries)
    }
    return msgspec.structs.replace(
        limits, required={**limits.required, **required}, allowed_vfs={**limits.allowed_vfs, **vfs}
    )


def _amounts(node: NodeDevices, device_type: str, entry: DeviceAllocation) -> Amounts:
    amounts = amounts_of(entry.resources)
    device = node.devices.get(device_type, {}).get(entry.minor)
    if device_type != DeviceType.GPU or device is None:
        return amounts
    return with_gpu_memory(amounts, device.total) or amounts
