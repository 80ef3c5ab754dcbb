"""Read which parts of GPUs a pod holds: its own, as services have them, or lent of what services leave."""

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceAllocation, DeviceType
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError

BATCH_GPU = "BatchGPU"
"""The feature gate of all that the node agent does for batch pods on GPUs of services."""


class GPUShare(msgspec.Struct, frozen=True):
    """A part of one card. `id` may be empty; amounts are 0 where the pod asked for none."""

    minor: int
    id: str
    core_percent: int
    memory_bytes: int
    is_lent: bool

    def is_of(self, minor: int, uuid: str) -> bool:
        """Return whether this is a part of that card, which has not been numbered anew since."""
        return self.minor == minor and self.id in ("", uuid)


def shares_of(pod: Pod) -> tuple[GPUShare, ...]:
    """Return the GPUs that the scheduler wrote on a pod; none of those that cannot be read: it says so in its log."""
    try:
        allocated = DEVICE_ALLOCATED.read(pod.metadata.annotations) or {}
        return tuple(map(_share, allocated.get(DeviceType.GPU, ())))
    except (ProtocolError, QuantityError):
        return ()


def _share(gpu: DeviceAllocation) -> GPUShare:
    is_lent = any(name in gpu.resources for name in resources.BATCH_GPU_RESOURCES)
    names = resources.BATCH_GPU_RESOURCES if is_lent else (resources.GPU_CORE, resources.GPU_MEMORY)
    core, memory = (quantity.value(gpu.resources.get(name, 0)) for name in names)
    return GPUShare(gpu.minor, gpu.id, core, memory, is_lent)
