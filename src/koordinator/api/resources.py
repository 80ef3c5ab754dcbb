"""Resource names, what stands for them per priority class, and their deprecated spellings.

Source: behaviour/api 5.1 to 5.3.
"""

import functools

from koordinator.api import quantity
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import ResourceList

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
HUGEPAGES_PREFIX = "hugepages-"

BATCH_CPU = "kubernetes.io/batch-cpu"
"""Milli-cores, as an integer."""
BATCH_MEMORY = "kubernetes.io/batch-memory"
MID_CPU = "kubernetes.io/mid-cpu"
"""Milli-cores, as an integer."""
MID_MEMORY = "kubernetes.io/mid-memory"

GPU = "koordinator.sh/gpu"
"""Percent: 100 is one GPU; so are gpu-core and gpu-memory-ratio."""
GPU_SHARED = "koordinator.sh/gpu.shared"
GPU_CORE = "koordinator.sh/gpu-core"
GPU_MEMORY = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"
BATCH_GPU_CORE = "koordinator.sh/batch-gpu-core"
"""Percent of one GPU, lent of what services on that card requested (ours; the reference lends no cards)."""
BATCH_GPU_MEMORY = "koordinator.sh/batch-gpu-memory"
RDMA = "koordinator.sh/rdma"
"""Percent: 100 is one NIC."""
FPGA = "koordinator.sh/fpga"

NVIDIA_GPU = "nvidia.com/gpu"
AMD_GPU = "amd.com/gpu"
HYGON_DCU = "dcu.com/gpu"
HUAWEI_NPU_CORE = "huawei.com/npu-core"
HUAWEI_NPU_CPU = "huawei.com/npu-cpu"
HUAWEI_NPU_DVPP = "huawei.com/npu-dvpp"

BATCH_RESOURCES = (BATCH_CPU, BATCH_MEMORY)
MID_RESOURCES = (MID_CPU, MID_MEMORY)
BATCH_GPU_RESOURCES = (BATCH_GPU_CORE, BATCH_GPU_MEMORY)

BATCH_GPU_NAMES = {BATCH_GPU_CORE: GPU_CORE, BATCH_GPU_MEMORY: GPU_MEMORY}
"""Batch resource of a GPU → the resource that it is lent from."""

DEPRECATED_BATCH_NAMES = {
    "koordinator.sh/batch-cpu": BATCH_CPU,
    "koordinator.sh/batch-memory": BATCH_MEMORY,
}
"""Old name → current name."""

DEPRECATED_DEVICE_NAMES = {
    f"kubernetes.io/{name}": f"koordinator.sh/{name}"
    for name in ("rdma", "fpga", "gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio")
}
"""Old name → current name."""

_EXTENDED = {
    PriorityClass.BATCH: {CPU: BATCH_CPU, MEMORY: BATCH_MEMORY},
    PriorityClass.MID: {CPU: MID_CPU, MEMORY: MID_MEMORY},
    PriorityClass.FREE: {},
}

UNSET = -1
"""Answer of the integer readers below for a resource that is not in the list."""


def translate(cls: PriorityClass, name: str) -> str:
    """Return the resource that a pod of the class uses for `name`; empty when there is none.

    Prod and classless pods use all names as they are.
    """
    extended = _EXTENDED.get(cls)
    return name if extended is None else extended.get(name, "")


def translate_requirements(
    cls: PriorityClass, requests: ResourceList, limits: ResourceList
) -> tuple[ResourceList, ResourceList]:
    """Requests and limits of a container as admission rewrites them for a batch or mid pod.

    cpu becomes whole milli-cores of the extended resource, memory moves unchanged; an extended limit
    without a request is copied to the requests. Other classes keep what they have.
    """
    if not (names := _EXTENDED.get(cls)):
        return requests, limits
    requests, limits = translate_list(cls, requests), translate_list(cls, limits)
    for extended in names.values():
        if extended in limits and extended not in requests:
            requests[extended] = limits[extended]
    return requests, limits


def translate_list(cls: PriorityClass, amounts: ResourceList) -> ResourceList:
    """Return a copy of one list with cpu and memory moved to the extended resources of the class."""
    translated = dict(amounts)
    for native, extended in _EXTENDED.get(cls, {}).items():
        if native in translated:
            amount = translated.pop(native)
            translated[extended] = milli_as_whole(amount) if native == CPU else amount
    return translated


def milli_as_whole(cpu: quantity.RawQuantity) -> str:
    """Return text of a cpu amount counted in whole milli-cores, rounded up. Raises: quantity.QuantityError."""
    return _text_of_whole(quantity.milli(cpu))


# Pods of one workload ask for the same, and there are few sizes.
@functools.lru_cache(4096)
def _text_of_whole(milli: int) -> str:
    return quantity.text_of_value(milli)


def whole(amounts: ResourceList, name: str) -> int:
    """Whole units of a Batch or Mid resource (milli-cores, bytes), `UNSET` without."""
    return quantity.value(amounts[name]) if name in amounts else UNSET


def rename(amounts: ResourceList, old: str, new: str) -> ResourceList:
    """Return the list with `old` called `new`; unchanged if `new` is empty or present, or `old` is absent.

    An amount that was cpu becomes whole milli-cores.
    """
    if not new or new in amounts or old not in amounts:
        return amounts
    renamed = dict(amounts)
    amount = renamed.pop(old)
    renamed[new] = milli_as_whole(amount) if old == CPU else amount
    return renamed


def rename_all(amounts: ResourceList, names: dict[str, str]) -> ResourceList:
    """`rename` for each pair; the same list when there is nothing to do."""
    if not names.keys().isdisjoint(amounts):
        for old, new in names.items():
            amounts = rename(amounts, old, new)
    return amounts
