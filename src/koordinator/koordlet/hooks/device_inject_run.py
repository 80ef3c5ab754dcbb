"""What a container gets of the devices that the scheduler allocated: environment, mounts, device files.

Only a container runtime can hand these on, so they are answers to `PreCreateContainer` and nothing is reconciled.
Source: behaviour/koordlet-act 20.
"""

import os
from collections.abc import Iterable

from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceAllocation, DeviceType
from koordinator.host import network
from koordinator.host.errors import ContentError
from koordinator.koordlet.hooks import gpu
from koordinator.koordlet.hooks.contexts import ContainerContext, Device, Mount, Response, Stage
from koordinator.koordlet.hooks.hook import Hook
from koordinator.koordlet.hooks.registry import Registry

LOCK = "/tmp/vgpulock"
RDMA_CM = "rdma_cm"
_DEVICES = "/dev/infiniband"


class GPUEnvInject(Hook):
    """A container sees its GPUs, and no more of a shared one than it was given."""

    name = "GPUEnvInject"
    needs_runtime = True

    def register(self, registry: Registry) -> None:
        registry.at_stage(Stage.PRE_CREATE_CONTAINER, self.name, self.of_container)

    def of_container(self, container: ContainerContext) -> Response:
        """Environment, and mounts of the isolation library. Raises: ProtocolError."""
        pod, library = container.pod, self.shared.config.hooks.hami_core_library
        environment = gpu.environment(pod.labels, pod.annotations, library, container.obj)
        if "LD_PRELOAD" not in environment:
            return Response(environment=environment)
        mounts = [Mount(library, library), Mount(LOCK, LOCK)]
        directories: tuple[str, ...] = ()
        if self.shared.gates.is_on("HamiCoreVGPUMonitor"):
            base, own = os.path.dirname(library), f"{pod.uid}_{container.name}"
            directories = (f"{base}/containers/{own}",)
            environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{base}/{own}.cache"
            mounts.append(Mount(directories[0], base))
        return Response(environment=environment, mounts=tuple(mounts), directories=directories)


class RDMADeviceInject(Hook):
    """A container gets the device files of its network cards with RDMA."""

    name = "RDMADeviceInject"
    needs_runtime = True

    def register(self, registry: Registry) -> None:
        registry.at_stage(Stage.PRE_CREATE_CONTAINER, self.name, self.of_container)

    def of_container(self, container: ContainerContext) -> Response:
        """Device files, none for pods without RDMA. Raises: ProtocolError, ContentError."""
        allocated = DEVICE_ALLOCATED.read(container.pod.annotations, container.obj) or {}
        cards = allocated.get(DeviceType.RDMA)
        if not cards:
            return Response()
        names = [self._verbs(bus_id) for bus_id in _bus_ids(cards)]
        found = [self._device(RDMA_CM, f"class/misc/{RDMA_CM}/dev")]
        found += [self._device(name, f"class/infiniband_verbs/{name}/dev") for name in names]
        return Response(devices=tuple(found))

    def _verbs(self, bus_id: str) -> str:
        host = self.shared.host
        name = network.verbs_device(host.files, host.roots, bus_id) if "/" not in bus_id else None
        if name is None:
            raise ContentError(
                f"PCI device {bus_id}", "has no infiniband_verbs: not an RDMA card, or its driver is off"
            )
        return name

    def _device(self, name: str, file: str) -> Device:
        """A character device with the numbers that the kernel gave it."""
        text = (self.shared.host.files.read(f"{self.shared.host.roots.sys}/{file}") or "").strip()
        major, _, minor = text.partition(":")
        if not (major.isdigit() and minor.isdigit()):
            raise ContentError(f"/sys/{file}", f"{text[:40]!r} does not name a device")
        return Device(f"{_DEVICES}/{name}", int(major), int(minor))


def _bus_ids(cards: Iterable[DeviceAllocation]) -> list[str]:
    """Bus ids of virtual functions where there are any, else of the cards."""
    found: list[str] = []
    for card in cards:
        functions = card.extension.vfs if card.extension is not None else []
        found += [each.bus_id for each in functions] or [card.id]
    return found
