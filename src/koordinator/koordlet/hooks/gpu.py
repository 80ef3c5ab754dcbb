"""What a container must see of its GPUs: environment, and the limits of a shared card.

Source: behaviour/koordlet-act 20.
"""

from collections.abc import Mapping

from koordinator.api import labels, quantity, resources
from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceAllocation, DeviceType
from koordinator.api.errors import ProtocolError

HAMI_CORE = "HAMi-core"
HAMI_LIBRARY = "/usr/local/vgpu/libvgpu.so"
_WHOLE_PERCENT = 100


def environment(
    pod_labels: Mapping[str, str],
    annotations: Mapping[str, str],
    library: str = HAMI_LIBRARY,
    obj: str = "",
) -> dict[str, str]:
    """Variables to add to a container, none for pods without GPU.

    Raises: ProtocolError when the allocation is malformed, or misses what isolation needs.
    """
    allocated = DEVICE_ALLOCATED.read(annotations, obj) or {}
    gpus = allocated.get(DeviceType.GPU)
    if not gpus:
        return {}
    variables = {"NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu.minor) for gpu in gpus)}
    if pod_labels.get(labels.GPU_ISOLATION_PROVIDER) == HAMI_CORE:
        variables |= _isolation(gpus[0], library, obj)
    return variables


def _isolation(gpu: DeviceAllocation, library: str, obj: str) -> dict[str, str]:
    """Limits that the library enforces inside the container; none for a whole card."""
    if _amount(gpu, resources.GPU_MEMORY_RATIO, obj) >= _WHOLE_PERCENT:
        return {}
    variables = {"CUDA_DEVICE_MEMORY_LIMIT": str(_amount(gpu, resources.GPU_MEMORY, obj))}
    if resources.GPU_CORE in gpu.resources:
        variables["CUDA_DEVICE_SM_LIMIT"] = str(_amount(gpu, resources.GPU_CORE, obj))
    return {**variables, "LD_PRELOAD": library}


def _amount(gpu: DeviceAllocation, name: str, obj: str) -> int:
    if name not in gpu.resources:
        raise ProtocolError(obj, labels.DEVICE_ALLOCATED, f"GPU {gpu.minor} has no {name}")
    return quantity.value(gpu.resources[name])
