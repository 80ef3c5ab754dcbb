"""Annotations that the device plugins of vendors expect beside ours, and the lock that two of them want on the
node (gate DevicePluginAdaption). Source: behaviour/devices 12."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from koordinator import clock
from koordinator.api import labels, quantity, resources
from koordinator.api.annotations.device import (
    HAMI_CORE,
    METAX_GPU_DEVICES,
    DeviceAllocation,
    DeviceAllocations,
    DeviceType,
    MetaxDevice,
)
from koordinator.api.core import Node, Pod
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugin.status import SUCCESS, PodPatch, Status, error, unschedulable
from koordinator.scheduler.table.pod_info import PodInfo

GATE = "DevicePluginAdaption"
ASCEND_310P_DUO = "Ascend-310P3-300I-DUO"
CAMBRICON_MEMORY_UNIT = 256 << 20
MIB = 1 << 20
NS_PER_S = 1_000_000_000
LOCK_S_MAX = 300.0
"""A lock older than this was forgotten."""
_LOCK_ATTEMPTS_MAX = 3


class Adaption(msgspec.Struct, frozen=True):
    """Annotations and labels for the pod; `node_lock` is the annotation by which the node is locked, empty for none."""

    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    node_lock: str = ""
    status: Status = SUCCESS


def adapted(
    allocations: DeviceAllocations,
    pod_labels: Mapping[str, str],
    device_labels: Mapping[str, str],
    node_name: str,
    now_s: float,
) -> Adaption:
    """Return what the plugin of the cards' vendor (a label of the Device) expects of a pod with these devices."""
    now_ns = str(int(now_s * NS_PER_S))
    written = {labels.BIND_TIMESTAMP: now_ns}
    gpus = allocations.get(DeviceType.GPU, [])
    if not gpus:
        return Adaption(written)
    minors = ",".join(str(gpu.minor) for gpu in gpus)
    written[labels.GPU_MINORS] = minors
    own: dict[str, str] = {}
    if pod_labels.get(labels.GPU_ISOLATION_PROVIDER) == HAMI_CORE:
        own[labels.HAMI_VGPU_NODE] = node_name
    lock, status = "", SUCCESS
    match device_labels.get(labels.GPU_VENDOR):
        case "huawei":
            written |= {labels.PREDICATE_TIME: now_ns}
            written |= _huawei(gpus, minors, device_labels.get(labels.GPU_MODEL, ""))
        case "cambricon":
            profile, status = _cambricon(gpus)
            written |= {labels.CAMBRICON_DSMLU_ASSIGNED: "false", labels.CAMBRICON_DSMLU_PROFILE: profile}
            lock = labels.CAMBRICON_DSMLU_LOCK
        case "metax":
            cards, status = _metax(gpus)
            written[labels.METAX_GPU_DEVICES_ALLOCATED] = METAX_GPU_DEVICES.encode([cards])
            lock = labels.HAMI_MUTEX_LOCK
    return Adaption(written, own, lock) if status.is_success else Adaption(status=status)


def _huawei(gpus: Sequence[DeviceAllocation], minors: str, model: str) -> dict[str, str]:
    if model == ASCEND_310P_DUO:
        return {labels.HUAWEI_ASCEND_310P: ",".join(f"Ascend310P-{gpu.minor}" for gpu in gpus)}
    templates = [gpu.extension.gpu_shared_resource_template for gpu in gpus if gpu.extension is not None]
    template = next(filter(None, templates), "")
    return {labels.HUAWEI_NPU_CORE: f"{gpus[0].minor}-{template}" if template else minors}


def _cambricon(gpus: Sequence[DeviceAllocation]) -> tuple[str, Status]:
    if len(gpus) > 1:
        return "", unschedulable("a pod can have one Cambricon card only")
    core, memory_bytes = _amount(gpus[0], resources.GPU_CORE), _amount(gpus[0], resources.GPU_MEMORY)
    units = memory_bytes // CAMBRICON_MEMORY_UNIT
    if not core or not units:
        return "", unschedulable("a Cambricon card is given with gpu-core and at least 256Mi of gpu-memory")
    return f"{gpus[0].minor}_{core}_{units}", SUCCESS


def _metax(gpus: Sequence[DeviceAllocation]) -> tuple[list[MetaxDevice], Status]:
    cards = [
        MetaxDevice(
            uuid=gpu.id,
            compute=_amount(gpu, resources.GPU_CORE),
            v_ram=_amount(gpu, resources.GPU_MEMORY) // MIB,
        )
        for gpu in gpus
    ]
    if not all(card.compute and card.v_ram for card in cards):
        return [], unschedulable("a MetaX card is given with gpu-core and at least 1Mi of gpu-memory")
    return cards, SUCCESS


def _amount(gpu: DeviceAllocation, name: str) -> int:
    return quantity.value(gpu.resources.get(name, 0))


def lock_holder(text: str | None, now_s: float) -> tuple[str, str] | None:
    """Return namespace and name of the pod that holds a node's lock; None when it is free, forgotten or unreadable."""
    parts = (text or "").split(",")
    if len(parts) != 3:
        return None
    taken_s = clock.parse_rfc3339_or(parts[0], -math.inf)
    return (parts[1], parts[2]) if now_s - taken_s <= LOCK_S_MAX else None


async def write(
    handle: Handle,
    patch: PodPatch,
    pod: PodInfo,
    node_name: str,
    allocations: DeviceAllocations,
    device_labels: Mapping[str, str],
) -> Status:
    """Add what `adapted` says to the patch of a pod that is about to be bound, and lock its node. Raises: ApiError when
    the node cannot be locked."""
    now_s, own = handle.clock.now(), pod.pod.metadata.labels
    wanted = adapted(allocations, own, device_labels, node_name, now_s)
    status = wanted.status
    if status.is_success and wanted.node_lock:
        status = await _lock(handle.cluster, node_name, wanted.node_lock, pod.pod, now_s)
    if status.is_success:
        patch.annotations.update(wanted.annotations)
        patch.labels.update(wanted.labels)
    return status


async def _lock(cluster: Cluster, node_name: str, key: str, pod: Pod, now_s: float) -> Status:
    """Write the pod into the node's annotation, unless another has it; the vendor's plugin takes it away."""
    own = pod.metadata.namespace, pod.metadata.name
    value = ",".join((clock.rfc3339(now_s), *own))
    for _ in range(_LOCK_ATTEMPTS_MAX):
        meta = (await cluster.get(Node, node_name)).metadata
        holder = lock_holder(meta.annotations.get(key), now_s)
        if holder is not None and holder != own and await _exists(cluster, *holder):
            return error(f"node {node_name} is locked ({key}) by pod {'/'.join(holder)}")
        body = {"annotations": {key: value}, "resourceVersion": meta.resource_version}
        try:
            await cluster.patch(Node, node_name, {"metadata": body})
        except errors.Conflict:
            continue
        return SUCCESS
    return error(f"node {node_name} changed too often to be locked ({key})")


async def _exists(cluster: Cluster, namespace: str, name: str) -> bool:
    try:
        await cluster.get(Pod, name, namespace)
    except errors.NotFound:
        return False
    return True
