"""How: NVML's real Python package on a library that is compiled here, in a process of its own, as the loader looks for
libraries where the environment said when a process began."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = shutil.which("cc")
PROGRAM = """
import sys
import msgspec
from koordinator.host.gpu import open_gpus
from koordinator.host.host import tree_host

host = tree_host(sys.argv[1])
gpus, support = open_gpus(host.files, host.roots)
assert gpus is not None, support.reason
found = {
    "reason": support.reason,
    "devices": gpus.devices,
    "silent": sorted(gpus.without_health),
    "errors": [gpus.errors(), gpus.errors()],
    "processes": gpus.processes(),
}
gpus.close()
print(msgspec.json.encode(found).decode())
"""


@pytest.mark.skipif(
    COMPILER is None or importlib.util.find_spec("pynvml") is None,
    reason="needs a C compiler and nvidia-ml-py (extra `gpu`)",
)
def test_cards_errors_and_processes_are_read_through_the_real_package(tmp_path: Path) -> None:
    source, library = Path(__file__).with_name("nvml.c"), tmp_path / "libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "tree")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert found["reason"] == "2 cards, driver 550.54.15"
    known = [(one["uuid"], one["name"], one["bus_id"], one["memory_bytes"] >> 30) for one in found["devices"]]
    assert known == [
        ("GPU-0", "NVIDIA H100", "0000:1a:00.0", 80),
        ("GPU-1", "NVIDIA H100", "0000:1b:00.0", 80),
    ]
    assert found["silent"] == ["GPU-1"]
    assert found["errors"] == [[{"uuid": "GPU-0", "xid": 79}], []]
    assert found["processes"] == {"42": {"0": {"core_percent": 60, "memory_bytes": 1 << 30}}}
