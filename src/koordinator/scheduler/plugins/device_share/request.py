"""Read what a pod asks of devices: checked, by type, in base names, per device. Source: behaviour/devices 4."""

from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api import label_selector, resource_vector, resources
from koordinator.api.annotations.device import AllocateStrategy, DeviceHint, DeviceType, ExclusivePolicy
from koordinator.api.quantity import ResourceList
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable

Amounts = dict[str, int]
"""Resource → amount in base units: percent, bytes, cores."""

WHOLE = 100
"""Percent of one device."""

_VENDOR_GPUS = (resources.NVIDIA_GPU, resources.AMD_GPU, resources.HYGON_DCU)
_NPU = (resources.HUAWEI_NPU_CORE, resources.HUAWEI_NPU_CPU, resources.HUAWEI_NPU_DVPP)
_PERCENTAGES = (resources.GPU_CORE, resources.GPU_MEMORY_RATIO)
_UNIT_CHECKED = (resources.GPU, resources.RDMA, resources.FPGA)
NAMES_BY_TYPE: dict[str, tuple[str, ...]] = {
    DeviceType.GPU: (
        *_VENDOR_GPUS,
        resources.GPU,
        resources.GPU_CORE,
        resources.GPU_MEMORY,
        resources.GPU_MEMORY_RATIO,
        resources.GPU_SHARED,
        *_NPU,
        *resources.BATCH_GPU_RESOURCES,
    ),
    DeviceType.RDMA: (resources.RDMA,),
    DeviceType.FPGA: (resources.FPGA,),
}
NAMES = (
    frozenset(name for names in NAMES_BY_TYPE.values() for name in names)
    | resources.DEPRECATED_DEVICE_NAMES.keys()
)
"""Every name by which a pod asks for devices."""
LENT = frozenset(resources.BATCH_GPU_RESOURCES)
"""Resources that batch pods have of cards that belong to others."""
_ALONE = frozenset((*_VENDOR_GPUS, resources.GPU, resources.RDMA, resources.FPGA))
_PARTS = frozenset(
    frozenset(names)
    for names in (
        (resources.GPU_MEMORY,),
        (resources.GPU_MEMORY_RATIO,),
        (resources.GPU_CORE, resources.GPU_MEMORY),
        (resources.GPU_CORE, resources.GPU_MEMORY_RATIO),
    )
)
_BY_PERCENT = _PARTS | {frozenset((resources.HUAWEI_NPU_CORE, resources.GPU_MEMORY_RATIO))}
_SHARED = frozenset(names | {resources.GPU_SHARED} for names in _PARTS)
_NPU_SLICE = frozenset(
    (resources.GPU_SHARED, resources.HUAWEI_NPU_CORE, resources.HUAWEI_NPU_CPU, resources.GPU_MEMORY)
)


class PodDeviceRequest(msgspec.Struct, frozen=True):
    """Amounts by type in base names; nothing when refused."""

    by_type: Mapping[str, Amounts] = {}
    status: Status = SUCCESS


class PerDevice(msgspec.Struct, frozen=True):
    """The number of devices of a type, and the amount of each."""

    count: int = 0
    amounts: Amounts = {}
    is_shared: bool = False
    """True where a pod takes only a part of each GPU."""
    status: Status = SUCCESS


def insufficient(device_type: str) -> str:
    """Return the reason that users know."""
    return f"Insufficient {device_type} devices"


def parse(requests: ResourceList) -> PodDeviceRequest:
    """Return the device requests of a pod by type, checked and rewritten to base names. Raises: QuantityError when an
    amount is no quantity."""
    renamed = resources.rename_all(requests, resources.DEPRECATED_DEVICE_NAMES)
    by_type: dict[str, Amounts] = {}
    for device_type, names in NAMES_BY_TYPE.items():
        asked = {name: resource_vector.amount(name, renamed[name]) for name in names if name in renamed}
        asked = {name: amount for name, amount in asked.items() if amount > 0}
        if not asked:
            continue
        status = _check(asked)
        if not status.is_success:
            return PodDeviceRequest(status=status)
        by_type[device_type] = _in_base_names(asked)
    return PodDeviceRequest(by_type)


def _check(asked: Amounts) -> Status:
    for name in _UNIT_CHECKED:
        if _is_broken(asked.get(name, 0)):
            return unresolvable(f"invalid resource unit {name}: {asked[name]}")
    if _fits_together(asked):
        return SUCCESS
    return unresolvable(f"invalid resource device requests: [{' '.join(sorted(asked))}]")


def _is_broken(percent: int) -> bool:
    return percent > WHOLE and percent % WHOLE != 0


def _fits_together(asked: Amounts) -> bool:
    names = frozenset(asked)
    if len(names) == 1 and names <= _ALONE:
        return True
    percentages = [asked[name] for name in _PERCENTAGES if name in asked]
    if names in _BY_PERCENT:
        return not any(map(_is_broken, percentages))
    if names == LENT:
        return asked[resources.BATCH_GPU_CORE] <= WHOLE
    cards = asked.get(resources.GPU_SHARED, 0)
    if names in _SHARED:
        return all(percent % cards == 0 and percent // cards <= WHOLE for percent in percentages)
    if names - {resources.HUAWEI_NPU_DVPP} == _NPU_SLICE:
        return cards <= 1 and asked.get(resources.HUAWEI_NPU_DVPP, 0) <= WHOLE
    return False


def _in_base_names(asked: Amounts) -> Amounts:
    percent = asked.get(resources.GPU, 0) or WHOLE * sum(asked.get(name, 0) for name in _VENDOR_GPUS)
    return dict.fromkeys(_PERCENTAGES, percent) if percent else asked


def per_gpu(asked: Mapping[str, int]) -> PerDevice:
    """Return number of GPUs and the amounts on each; without a whole memory ratio the GPUs are shared."""
    ratio = asked.get(resources.GPU_MEMORY_RATIO, 0)
    count = asked.get(resources.GPU_SHARED, 0)
    if not count:
        count = ratio // WHOLE if ratio > WHOLE and ratio % WHOLE == 0 else 1
    memory = resources.GPU_MEMORY_RATIO if ratio else resources.GPU_MEMORY
    amounts = {
        name: asked[name] // count
        for name in (resources.GPU_CORE, memory, *_NPU, *resources.BATCH_GPU_RESOURCES)
        if asked.get(name, 0) > 0
    }
    return PerDevice(count, amounts, is_shared=amounts.get(resources.GPU_MEMORY_RATIO, 0) < WHOLE)


def is_owned(used: Mapping[str, int]) -> bool:
    """Return whether what pods have of a device makes it theirs: what is lent does not."""
    if LENT.isdisjoint(used):
        return any(used.values())  # nearly always, and asked for each card of each placement
    return any(amount for name, amount in used.items() if name not in LENT)


def per_device(
    device_type: str,
    asked: Mapping[str, int],
    device_labels: Sequence[Mapping[str, str]],
    hint: DeviceHint,
) -> PerDevice:
    """Return number of NICs or FPGAs on a node whose devices have these labels, and the amount of each."""
    name = NAMES_BY_TYPE[device_type][0]
    amount = asked[name]
    refused = PerDevice(status=unresolvable(insufficient(device_type)))
    if not device_labels:
        return refused
    if amount > WHOLE:
        return PerDevice(amount // WHOLE, {name: WHOLE})
    if hint.allocate_strategy == AllocateStrategy.APPLY_FOR_ALL:
        selector = hint.selector
        matching = [ls for ls in device_labels if selector is None or label_selector.matches(selector, ls)]
        return PerDevice(len(matching), {name: amount}) if matching else refused
    if hint.allocate_strategy == AllocateStrategy.REQUESTS_AS_COUNT:
        is_exclusive = hint.exclusive_policy == ExclusivePolicy.DEVICE_LEVEL
        return PerDevice(amount, {name: WHOLE if is_exclusive else 1})
    return PerDevice(1, {name: amount})


def with_gpu_memory(allocated: Mapping[str, int], total: Mapping[str, int]) -> Amounts | None:
    """Return the amounts on one GPU with both memory and its ratio; None when the GPU has nothing to give."""
    if not any(total.values()):
        return None
    memory_bytes = total.get(resources.GPU_MEMORY, 0)
    completed = dict(allocated)
    ratio, wanted_bytes = allocated.get(resources.GPU_MEMORY_RATIO), allocated.get(resources.GPU_MEMORY)
    if ratio is None and wanted_bytes is not None:
        completed[resources.GPU_MEMORY_RATIO] = WHOLE * wanted_bytes // memory_bytes if memory_bytes else 0
    elif wanted_bytes is None and ratio is not None:
        completed[resources.GPU_MEMORY] = ratio * memory_bytes // WHOLE
    return completed
