"""The Device object: GPUs, other accelerators and RDMA cards of the node. Source: behaviour/koordlet-observe 10.4."""

import types
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordinator.api import labels, quantity, resources, scalars
from koordinator.api.annotations.device import DeviceType, GPUPartition, NodePartitionPolicy
from koordinator.api.device import DeviceInfo, DeviceTopology, VirtualFunction, VirtualFunctionGroup
from koordinator.api.meta import StandardCondition
from koordinator.api.quantity import QuantityError, ResourceList
from koordinator.host.gpu import GPUDevice
from koordinator.host.network import RDMADevice
from koordinator.koordlet.report.xpu import XPUDevice

NVIDIA = "nvidia"
HEALTHY_CONDITION = "Healthy"
APPLICATION_XIDS = frozenset((13, 31, 43, 45, 68, 109))
"""Errors that an application causes; the card is fine."""

_NAME_PREFIX = "NVIDIA "
_WHOLE = "100"
_UNKNOWN_MINOR = -1
_UNDOMAINED = {"gpu-core": resources.GPU_CORE, "gpu-memory": resources.GPU_MEMORY}


class Fault(msgspec.Struct, frozen=True):
    """The fault of a card."""

    code: str
    message: str


NO_FAULTS: Mapping[str, Fault] = types.MappingProxyType({})
HEALTH_NOT_SUPPORTED = Fault("DeviceHealthCheckNotSupported", "device does not support health checking")


class DeviceReport(msgspec.Struct, frozen=True):
    """The content of the Device object; labels and annotations replace the old ones."""

    devices: list[DeviceInfo]
    labels: dict[str, str]
    partitions: dict[int, list[GPUPartition]]


def xid_fault(xid: int) -> Fault | None:
    """Return what a critical error of the driver means for the card; None for errors of applications."""
    if xid in APPLICATION_XIDS:
        return None
    return Fault(f"Xid{xid}", f"Xid error detected on device, error code: {xid}")


def common_model(names: Sequence[str]) -> str:
    """Return the model of all GPUs as a label value; empty when they differ or one is not known."""
    models = {name.removeprefix(_NAME_PREFIX).strip().replace(" ", "-") for name in names}
    return models.pop() if len(models) == 1 else ""


def report(
    gpus: Sequence[GPUDevice],
    xpus: Sequence[XPUDevice],
    rdma_cards: Sequence[RDMADevice],
    *,
    faults: Mapping[str, Fault] = NO_FAULTS,
    gpu_model: str = "",
    driver_version: str = "",
    only_files: bool = False,
    now: str = "",
) -> DeviceReport:
    """Return all devices by type and minor; accelerators from files go before the driver's.

    `faults` are those of the driver's cards by uuid, `now` is the transition time of conditions; `with_old_times`
    puts back that of unchanged ones.
    """
    device_labels: dict[str, str] = {}
    partitions: dict[int, list[GPUPartition]] = {}
    if xpus:
        found = [_xpu_info(xpu, now) for xpu in sorted(xpus, key=lambda xpu: xpu.uuid)]
        device_labels = _xpu_labels(xpus[0])
        partitions = gpu_partitions(xpus)
    elif gpus and not only_files:
        found = [_gpu_info(gpu, faults.get(gpu.uuid), now) for gpu in gpus]
        device_labels = _gpu_labels(gpu_model, driver_version)
    else:
        found = []
    found += [_rdma_info(card) for card in rdma_cards]
    found.sort(key=lambda info: (info.type, info.minor if info.minor is not None else _UNKNOWN_MINOR))
    return DeviceReport(found, device_labels, partitions)


def with_old_times(new: Iterable[DeviceInfo], old: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Return the new devices, each condition with the time at which it really changed."""
    before = {(info.type, info.id): {each.type: each for each in info.conditions} for info in old}
    kept = []
    for info in new:
        known = before.get((info.type, info.id), {})
        conditions = [_with_old_time(condition, known.get(condition.type)) for condition in info.conditions]
        kept.append(msgspec.structs.replace(info, conditions=conditions))
    return kept


def gpu_partitions(xpus: Sequence[XPUDevice]) -> dict[int, list[GPUPartition]]:
    """Groups of linked cards by size, each once.

    Left out are links that name no peer or no type, and minors that are no numbers, the card's own among them.
    """
    found: dict[int, list[GPUPartition]] = {}
    seen: set[tuple[int, ...]] = set()
    for xpu in xpus:
        for link in (xpu.topology and xpu.topology.p2p_links) or ():
            if not link.peer_minor or not link.type:
                continue
            named = (minor.strip() for minor in (xpu.minor, *link.peer_minor.split(",")))
            minors = tuple(sorted({int(minor) for minor in named if _is_number(minor)}))
            if minors not in seen:
                seen.add(minors)
                partition = GPUPartition(minors=list(minors), gpu_link_type=link.type, allocation_score=1)
                found.setdefault(len(minors), []).append(partition)
    return found


def _gpu_info(gpu: GPUDevice, fault: Fault | None, now: str) -> DeviceInfo:
    topology = None
    if gpu.root_complex and gpu.bus_id and gpu.numa_node >= 0:
        topology = _topology(gpu.numa_node, gpu.root_complex, gpu.bus_id)
    amounts: ResourceList = {
        resources.GPU_CORE: _WHOLE,
        resources.GPU_MEMORY: quantity.text_of_value(gpu.memory_bytes, quantity.Family.BINARY),
        resources.GPU_MEMORY_RATIO: _WHOLE,
    }
    return DeviceInfo(
        type=DeviceType.GPU,
        id=gpu.uuid,
        minor=gpu.minor,
        health=fault is None,
        resources=amounts,
        topology=topology,
        conditions=[] if fault is None else [_unhealthy(fault, now)],
    )


def _xpu_info(xpu: XPUDevice, now: str) -> DeviceInfo:
    topology = None
    if xpu.topology is not None:
        node = _number(xpu.topology.node_id) if xpu.topology.node_id else -1
        topology = _topology(node, xpu.topology.pcie_id, xpu.topology.bus_id)
    status = xpu.status
    conditions = []
    if status is not None and status.healthy:
        conditions = [_condition("True", "DeviceHealthy", "device is healthy", now)]
    elif status is not None:
        fault = Fault(status.err_code or "Unknown", status.err_message or "device is unhealthy")
        conditions = [_unhealthy(fault, now)]
    return DeviceInfo(
        type=DeviceType.GPU,
        id=xpu.uuid,
        minor=_number(xpu.minor),
        health=status is None or status.healthy,
        resources=_xpu_resources(xpu.resources),
        topology=topology,
        conditions=conditions,
    )


def _xpu_resources(said: Mapping[str, quantity.RawQuantity]) -> ResourceList:
    """Return what the file says; amounts that are no quantities are left out."""
    amounts: ResourceList = {resources.GPU_MEMORY_RATIO: _WHOLE}
    for name, raw in said.items():
        try:
            amounts[_UNDOMAINED.get(name, name)] = quantity.canonical(raw)
        except QuantityError:
            continue
    return amounts


def _rdma_info(card: RDMADevice) -> DeviceInfo:
    groups = []
    if card.virtual_functions is not None:
        functions = sorted(card.virtual_functions)
        members = [VirtualFunction(minor=_UNKNOWN_MINOR, bus_id=bus_id) for bus_id in functions]
        groups = [VirtualFunctionGroup(vfs=members)]
    return DeviceInfo(
        type=DeviceType.RDMA,
        id=card.id,
        minor=card.minor,
        health=card.is_healthy,
        resources={resources.RDMA: _WHOLE},
        topology=_topology(card.numa_node, card.root_complex, card.bus_id),
        vf_groups=groups,
    )


def _gpu_labels(model: str, driver_version: str) -> dict[str, str]:
    said = {labels.GPU_VENDOR: NVIDIA}
    if model:
        said[labels.GPU_MODEL] = model
    if driver_version:
        said[labels.GPU_DRIVER_VERSION] = driver_version
    return said


def _xpu_labels(first: XPUDevice) -> dict[str, str]:
    said = {labels.GPU_VENDOR: first.vendor, labels.GPU_MODEL: first.model}
    if first.topology is not None and first.topology.p2p_links is not None:
        is_strict = first.topology.must_honor_partition
        policy = NodePartitionPolicy.HONOR if is_strict else NodePartitionPolicy.PREFER
        said[labels.GPU_PARTITION_POLICY] = policy
    return said


def _topology(numa_node: int, root_complex: str, bus_id: str) -> DeviceTopology:
    return DeviceTopology(socket_id=-1, node_id=numa_node, pcie_id=root_complex, bus_id=bus_id)


def _unhealthy(fault: Fault, now: str) -> StandardCondition:
    return _condition("False", fault.code, fault.message, now)


def _condition(status: str, reason: str, message: str, now: str) -> StandardCondition:
    return StandardCondition(
        type=HEALTHY_CONDITION, status=status, reason=reason, message=message, last_transition_time=now
    )


def _with_old_time(new: StandardCondition, old: StandardCondition | None) -> StandardCondition:
    if old is None or old.status != new.status:
        return new
    return msgspec.structs.replace(new, last_transition_time=old.last_transition_time)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(text: str) -> int:
    """Return a number as small daemons write it; 0 for anything else."""
    try:
        return scalars.parse_int(text.strip(), 32)
    except scalars.ScalarError:
        return 0
