"""GPUs through a library that answers as NVML does."""

import logging
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from koordinator.host.gpu import ProcessUse, XidEvent, open_gpus
from koordinator.host.host import tree_host
from tests.host import host_tree


class NVMLError(Exception):
    pass


class Library(types.ModuleType):
    """Two cards; the second does not tell of errors."""

    NVMLError = NVMLError
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.samples = {0: [(10, 40, 100), (10, 60, 200)], 1: []}
        self.events: list[SimpleNamespace] = []
        self.is_open = False
        self.asked_us: list[int] = []

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.54"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return 1 - index  # the library's order is not that of the minors

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA Test"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=1 << 30)

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0".upper())

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        assert events == "set"

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:
        if handle == 1:
            raise NVMLError("not supported")

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        if not self.events:
            raise NVMLError("timeout")
        return self.events.pop()

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=10, usedGpuMemory=500), SimpleNamespace(pid=11, usedGpuMemory=None)]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since_us: int) -> list[SimpleNamespace]:
        self.asked_us.append(since_us)
        found = [each for each in self.samples[handle] if each[2] > since_us]
        if not found:
            raise NVMLError("not found")
        return [SimpleNamespace(pid=pid, smUtil=core, timeStamp=at) for pid, core, at in found]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_cards_are_described_by_minor_with_their_place(tmp_path: Path, library: Library) -> None:
    host_tree.write(tmp_path, {"sys/bus/pci/devices/0000:01:00.0/numa_node": "1"})
    host = tree_host(str(tmp_path))

    gpus, support = open_gpus(host.files, host.roots)

    assert gpus is not None
    assert support.reason == "2 cards, driver 550.54"
    assert [(each.minor, each.uuid, each.bus_id, each.numa_node) for each in gpus.devices] == [
        (0, "GPU-0", "0000:00:00.0", 0),
        (1, "GPU-1", "0000:01:00.0", 1),
    ]
    assert gpus.without_health == {"GPU-1"}
    gpus.close()
    assert not library.is_open


def test_processes_have_their_newest_sample_and_keep_their_memory_without_one(
    tmp_path: Path, library: Library
) -> None:
    host = tree_host(str(tmp_path))
    gpus, _ = open_gpus(host.files, host.roots)
    assert gpus is not None

    assert gpus.processes() == {
        10: {0: ProcessUse(60, 500), 1: ProcessUse(0, 500)},
        11: {0: ProcessUse(0, 0), 1: ProcessUse(0, 0)},
    }
    assert gpus.processes()[10][0] == ProcessUse(0, 500), "the same sample does not count twice"
    assert library.asked_us == [0, 0, 200, 0]


def test_errors_are_told_once(tmp_path: Path, library: Library) -> None:
    host = tree_host(str(tmp_path))
    gpus, _ = open_gpus(host.files, host.roots)
    assert gpus is not None
    library.events.append(SimpleNamespace(device=0, eventData=79))

    assert gpus.errors() == [XidEvent("GPU-0", 79)]
    assert gpus.errors() == []


def test_without_the_package_one_line_tells_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    host = tree_host(str(tmp_path))

    with caplog.at_level(logging.INFO):
        gpus, support = open_gpus(host.files, host.roots)

    assert gpus is None
    assert "nvidia-ml-py" in support.reason
    assert [record.message for record in caplog.records] == ["GPU collection is off"]


def test_a_library_without_driver_is_a_reason(
    tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(library, "nvmlInit", fail)
    host = tree_host(str(tmp_path))

    assert open_gpus(host.files, host.roots)[1].reason == "NVML: Driver Not Loaded"
