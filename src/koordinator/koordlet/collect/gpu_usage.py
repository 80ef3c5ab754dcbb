"""Collect what nodes and pods use of their GPUs. Source: behaviour/koordlet-observe 10.1."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from koordinator.host.errors import ContentError
from koordinator.host.gpu import GPUDevice, GPUs
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared


class GPUUsage(msgspec.Struct, frozen=True):
    """Compute in percent of a card, and its memory."""

    core_percent: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "GPUUsage") -> "GPUUsage":
        return GPUUsage(self.core_percent + other.core_percent, self.memory_bytes + other.memory_bytes)


Processes = Mapping[int, Mapping[int, GPUUsage]]
"""Process id → card (minor) → what it uses there."""


def node_usage(minors: Iterable[int], processes: Processes) -> dict[int, GPUUsage]:
    """Return what all processes use of each card; idle cards, too."""
    return {minor: GPUUsage() for minor in minors} | group_usage(processes, processes.keys())


def group_usage(processes: Processes, pids: Collection[int]) -> dict[int, GPUUsage]:
    """Return what the processes of a pod use, of the cards that they touch."""
    sums: dict[int, GPUUsage] = {}
    for pid in pids:
        for minor, usage in processes.get(pid, {}).items():
            sums[minor] = sums.get(minor, GPUUsage()) + usage
    return sums


class GPUUsageCollector:
    """Asks the driver for its processes, once for all. A container that has ended costs its pod nothing but itself."""

    name = "GPUDeviceCollector"

    def __init__(self, shared: Shared, gpus: GPUs) -> None:
        self._shared = shared
        self._gpus = gpus
        self.interval_s = shared.config.collect.used_interval_s

    def collect(self) -> bool:
        if not self._shared.view.has_pods:
            return False
        at_ms = int(self._shared.clock.now() * 1000)
        devices = {device.minor: device for device in self._gpus.devices}
        processes = {
            pid: {
                minor: GPUUsage(use.core_percent, use.memory_bytes)
                for minor, use in cards.items()
                if minor in devices
            }
            for pid, cards in self._gpus.processes().items()
        }
        self._node(devices, processes, at_ms)
        if processes:
            for pod in self._shared.view.pods.values():
                self._pod(pod, devices, processes, at_ms)
        return True

    def _node(self, devices: Mapping[int, GPUDevice], processes: Processes, at_ms: int) -> None:
        store = self._shared.store
        for minor, usage in node_usage(devices, processes).items():
            names = _names(devices[minor])
            store.ring(kinds.NODE_GPU_CORE, names).append(at_ms, usage.core_percent)
            store.ring(kinds.NODE_GPU_MEMORY, names).append(at_ms, usage.memory_bytes)

    def _pod(
        self, pod: PodRecord, devices: Mapping[int, GPUDevice], processes: Processes, at_ms: int
    ) -> None:
        pids = [pid for each in pod.containers if each.is_running for pid in self._pids(each.group)]
        store = self._shared.store
        for minor, usage in group_usage(processes, pids).items():
            names = {kinds.POD_UID: pod.uid, **_names(devices[minor])}
            store.ring(kinds.POD_GPU_CORE, names).append(at_ms, usage.core_percent)
            store.ring(kinds.POD_GPU_MEMORY, names).append(at_ms, usage.memory_bytes)

    def _pids(self, group: str) -> list[int]:
        try:
            return self._shared.host.cgroups.procs(group) or []
        except ContentError:
            return []


def _names(device: GPUDevice) -> dict[str, str]:
    return {kinds.GPU_MINOR: str(device.minor), kinds.GPU_UUID: device.uuid}
