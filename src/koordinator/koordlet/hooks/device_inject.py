"""Decide what a container must see of its GPUs: environment, and the limits of a shared card.

Source: behaviour/koordlet-act 20.
"""

import os
from collections.abc import Iterable, Mapping

from koordinator.api import labels, quantity, resources
from koordinator.api.annotations.device import DEVICE_ALLOCATED, HAMI_CORE, DeviceAllocation, DeviceType
from koordinator.api.errors import ProtocolError
from koordinator.host import network
from koordinator.host.errors import ContentError
from koordinator.koordlet.hooks.contexts import (
    BindMount,
    ContainerContext,
    DeviceNode,
    HookResponse,
    HookStage,
)
from koordinator.koordlet.hooks.hook import Hook, HookRegistry

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
    lent = {name for name in resources.BATCH_GPU_NAMES if name in gpu.resources}
    if not lent and _amount(gpu, resources.GPU_MEMORY_RATIO, obj) >= _WHOLE_PERCENT:
        return {}
    core, memory = resources.BATCH_GPU_RESOURCES if lent else (resources.GPU_CORE, resources.GPU_MEMORY)
    variables = {"CUDA_DEVICE_MEMORY_LIMIT": str(_amount(gpu, memory, obj))}
    if core in gpu.resources:
        variables["CUDA_DEVICE_SM_LIMIT"] = str(_amount(gpu, core, obj))
    return {**variables, "LD_PRELOAD": library}


def _amount(gpu: DeviceAllocation, name: str, obj: str) -> int:
    if name not in gpu.resources:
        raise ProtocolError(obj, labels.DEVICE_ALLOCATED, f"GPU {gpu.minor} has no {name}")
    return quantity.value(gpu.resources[name])


LOCK = "/tmp/vgpulock"
RDMA_CM = "rdma_cm"
_DEVICES = "/dev/infiniband"


class GPUEnvInject(Hook):
    """A container sees its GPUs, and no more of a shared one than it was given."""

    name = "GPUEnvInject"
    needs_runtime = True

    def register(self, registry: HookRegistry) -> None:
        registry.at_stage(HookStage.PRE_CREATE_CONTAINER, self.name, self.of_container)

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Environment, and mounts of the isolation library. Raises: ProtocolError."""
        pod, library = container.pod, self.shared.config.hooks.hami_core_library
        variables = environment(pod.labels, pod.annotations, library, container.obj)
        if "LD_PRELOAD" not in variables:
            return HookResponse(environment=variables)
        mounts = [BindMount(library, library), BindMount(LOCK, LOCK)]
        directories: tuple[str, ...] = ()
        if self.shared.gates.is_on("HamiCoreVGPUMonitor"):
            base, own = os.path.dirname(library), f"{pod.uid}_{container.name}"
            directories = (f"{base}/containers/{own}",)
            variables["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{base}/{own}.cache"
            mounts.append(BindMount(directories[0], base))
        return HookResponse(environment=variables, mounts=tuple(mounts), directories=directories)


class RDMADeviceInject(Hook):
    """A container gets the device files of its network cards with RDMA."""

    name = "RDMADeviceInject"
    needs_runtime = True

    def register(self, registry: HookRegistry) -> None:
        registry.at_stage(HookStage.PRE_CREATE_CONTAINER, self.name, self.of_container)

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Device files, none for pods without RDMA. Raises: ProtocolError, ContentError."""
        allocated = DEVICE_ALLOCATED.read(container.pod.annotations, container.obj) or {}
        cards = allocated.get(DeviceType.RDMA)
        if not cards:
            return HookResponse()
        names = [self._verbs(bus_id) for bus_id in _bus_ids(cards)]
        found = [self._device(RDMA_CM, f"class/misc/{RDMA_CM}/dev")]
        found += [self._device(name, f"class/infiniband_verbs/{name}/dev") for name in names]
        return HookResponse(devices=tuple(found))

    def _verbs(self, bus_id: str) -> str:
        host = self.shared.host
        name = network.verbs_device(host.files, host.roots, bus_id) if "/" not in bus_id else None
        if name is None:
            raise ContentError(
                f"PCI device {bus_id}", "has no infiniband_verbs: not an RDMA card, or its driver is off"
            )
        return name

    def _device(self, name: str, file: str) -> DeviceNode:
        """Return a character device with the numbers that the kernel gave it."""
        text = (self.shared.host.files.read(f"{self.shared.host.roots.sys}/{file}") or "").strip()
        major, _, minor = text.partition(":")
        if not (major.isdigit() and minor.isdigit()):
            raise ContentError(f"/sys/{file}", f"{text[:40]!r} does not name a device")
        return DeviceNode(f"{_DEVICES}/{name}", int(major), int(minor))


def _bus_ids(cards: Iterable[DeviceAllocation]) -> list[str]:
    """Bus ids of virtual functions where there are any, else of the cards."""
    found: list[str] = []
    for card in cards:
        functions = card.extension.vfs if card.extension is not None else []
        found += [each.bus_id for each in functions] or [card.id]
    return found
