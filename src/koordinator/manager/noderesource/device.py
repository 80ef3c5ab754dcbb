"""GPU and RDMA resources of a node, from what its Device object lists (behaviour/manager 10).

Amounts are in thousandths, as everywhere in this room; None or absent means that the node must not have it.
"""

import msgspec
import numpy as np

from koordinator.api import labels, quantity, resources
from koordinator.api.device import Device, DeviceInfo
from koordinator.manager.noderesource.batch import MILLI

GPU_TYPE, RDMA_TYPE = "gpu", "rdma"
WHOLE_DEVICE_PERCENT = 100

GPU_RESOURCES = (
    resources.GPU,
    resources.GPU_CORE,
    resources.GPU_MEMORY,
    resources.GPU_MEMORY_RATIO,
    resources.GPU_SHARED,
    resources.HUAWEI_NPU_CORE,
    resources.HUAWEI_NPU_CPU,
    resources.HUAWEI_NPU_DVPP,
)
"""All that is ever written on, or removed from, a node for its GPUs."""
RDMA_RESOURCES = (resources.RDMA,)

_COPIED_LABELS = (labels.GPU_VENDOR, labels.GPU_MODEL, labels.GPU_DRIVER_VERSION)
_VENDORS_WITH_GPU_RESOURCE = ("", "nvidia")


class DeviceTarget(msgspec.Struct, frozen=True):
    """The amounts and labels that the node should have: None removes an amount; a resource not named stays."""

    amounts: dict[str, int | None]
    labels: dict[str, str] = {}


NO_GPUS = DeviceTarget(dict.fromkeys(GPU_RESOURCES))
NO_NICS = DeviceTarget(dict.fromkeys(RDMA_RESOURCES))


def gpu_target(device: Device | None, *, publishes_shared: bool) -> DeviceTarget:
    """Sums over healthy GPUs; without any, all known resources go.

    `publishes_shared` is the feature gate EnableSyncGPUSharedResource. Raises: quantity.QuantityError.
    """
    healthy = _healthy(device, GPU_TYPE)
    if device is None or not healthy:
        return NO_GPUS
    sums = _sums(healthy)
    amounts: dict[str, int | None] = {name: sums[name] for name in GPU_RESOURCES if name in sums}
    own = device.metadata.labels
    # Amounts of koordinator.sh/gpu are percents of cards, which only these vendors' cores are.
    if own.get(labels.GPU_VENDOR, "") in _VENDORS_WITH_GPU_RESOURCE:
        amounts[resources.GPU] = sums.get(resources.GPU_CORE, 0)
    if publishes_shared:
        amounts[resources.GPU_SHARED] = len(healthy) * WHOLE_DEVICE_PERCENT * MILLI
    return DeviceTarget(amounts, {key: own[key] for key in _COPIED_LABELS if key in own})


def rdma_target(device: Device | None) -> DeviceTarget:
    """100 for each healthy NIC; without any, the resource goes."""
    count = len(_healthy(device, RDMA_TYPE))
    return DeviceTarget({resources.RDMA: count * WHOLE_DEVICE_PERCENT * MILLI if count else None})


def _healthy(device: Device | None, kind: str) -> list[DeviceInfo]:
    if device is None:
        return []
    return [info for info in device.spec.devices if info.type == kind and info.health]


def _sums(devices: list[DeviceInfo]) -> dict[str, int]:
    """Resource -> thousandths over all devices, of every resource that any of them names."""
    names = sorted({name for info in devices for name in info.resources})
    rows = [[quantity.milli(info.resources.get(name, 0)) for name in names] for info in devices]
    totals = np.array(rows, np.int64).reshape(len(devices), len(names)).sum(axis=0)
    return dict(zip(names, totals.tolist(), strict=True))
