"""NVIDIA GPUs through NVML, where its Python package and the driver are there. Source: behaviour/koordlet-observe 10.1.

The library is loaded on demand only, so that nodes without GPUs pay nothing.
"""

import importlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.host import sysfs
from koordinator.host.cgroups import KernelSupport
from koordinator.host.errors import ContentError
from koordinator.host.files import Files, HostRoots

log = logging.getLogger(__name__)

_EVENTS_PER_POLL_MAX = 64
_LIBRARY = "pynvml"


class GPUDevice(msgspec.Struct, frozen=True):
    """A GPU as the driver describes it."""

    uuid: str
    minor: int
    name: str
    memory_bytes: int
    bus_id: str = ""
    numa_node: int = 0
    root_complex: str = ""


class ProcessUse(msgspec.Struct, frozen=True):
    """The use that a process makes of a card: compute in percent, memory in bytes."""

    core_percent: int
    memory_bytes: int


class XidEvent(msgspec.Struct, frozen=True):
    """A critical error that the driver told; an empty uuid means all cards."""

    uuid: str
    xid: int


class GPUs:
    """The GPUs found at start. Use `open_gpus`."""

    def __init__(self, nvml: Any, devices: list[tuple[Any, GPUDevice]], driver_version: str) -> None:
        self._nvml = nvml
        self._handles = devices
        self.driver_version = driver_version
        self.without_health: frozenset[str] = frozenset()
        """Cards that do not tell of errors."""
        self._events = self._registered()
        self._seen_us: dict[int, int] = {}

    @property
    def devices(self) -> list[GPUDevice]:
        """Return all cards, by minor."""
        return [device for _, device in self._handles]

    def processes(self) -> dict[int, dict[int, ProcessUse]]:
        """Process id → card (minor) → use, since the last call. Processes that only hold memory count, too."""
        found: dict[int, dict[int, ProcessUse]] = {}
        for handle, device in self._handles:
            cores = self._core_percent(handle, device.minor)
            for pid, memory_bytes in self._memory(handle).items():
                found.setdefault(pid, {})[device.minor] = ProcessUse(cores.get(pid, 0), memory_bytes)
        return found

    def errors(self) -> list[XidEvent]:
        """Critical errors since the last call; never waits."""
        found: list[XidEvent] = []
        while self._events is not None and len(found) < _EVENTS_PER_POLL_MAX:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                break  # none is waiting
            found.append(XidEvent(self._uuid(event.device), int(event.eventData)))
        return found

    def close(self) -> None:
        """Let go of the driver."""
        try:
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            log.debug("GPU library not closed", extra={"problem": str(error)})

    def _registered(self) -> Any | None:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            self.without_health = frozenset(device.uuid for _, device in self._handles)
            return None
        for handle, device in self._handles:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                self.without_health |= {device.uuid}
        return events

    def _memory(self, handle: Any) -> Mapping[int, int]:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return {}
        return {each.pid: each.usedGpuMemory or 0 for each in running}

    def _core_percent(self, handle: Any, minor: int) -> Mapping[int, int]:
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us.get(minor, 0))
        except self._nvml.NVMLError:
            return {}  # no sample since the last call
        latest: dict[int, Any] = {}
        for sample in samples:
            known = latest.get(sample.pid)
            if known is None or sample.timeStamp > known.timeStamp:
                latest[sample.pid] = sample
            self._seen_us[minor] = max(self._seen_us.get(minor, 0), sample.timeStamp)
        return {pid: int(sample.smUtil) for pid, sample in latest.items()}

    def _uuid(self, handle: Any) -> str:
        try:
            return _text(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError:
            return ""


def open_gpus(files: Files, roots: HostRoots) -> tuple[GPUs | None, KernelSupport]:
    """Return the GPUs of this host; None with the reason, which is logged once, where there are none."""
    gpus, reason = _opened(files, roots)
    if gpus is None:
        log.info("GPU collection is off", extra={"reason": reason})
        return None, KernelSupport(False, reason)
    return gpus, KernelSupport(True, reason)


def _opened(files: Files, roots: HostRoots) -> tuple[GPUs | None, str]:
    try:
        nvml: Any = importlib.import_module(_LIBRARY)
    except ImportError:
        return None, "the Python package nvidia-ml-py is not installed (extra `gpu`)"
    try:
        nvml.nvmlInit()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        devices = [(handle, _device(nvml, handle, files, roots)) for handle in handles]
    except (nvml.NVMLError, ContentError) as error:
        return None, f"NVML: {error}"
    devices.sort(key=lambda each: each[1].minor)
    return GPUs(nvml, devices, driver), f"{len(devices)} cards, driver {driver}"


def _device(nvml: Any, handle: Any, files: Files, roots: HostRoots) -> GPUDevice:
    bus_id = sysfs.bus_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    where = f"{roots.sys}/bus/pci/devices/{bus_id}"
    return GPUDevice(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        bus_id=bus_id,
        numa_node=sysfs.numa_node(files.read(f"{where}/numa_node") or "-1"),
        root_complex=sysfs.root_complex(files.link(where) or ""),
    )


def _text(value: Any) -> str:
    """Older libraries answer bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
