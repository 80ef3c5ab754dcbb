"""A real dockerd on the test node: Debian's, on the machine or unpacked once into a folder of the user's cache.

python -m tests.runtime.docker    # unpack what is missing; prints where it is
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import go_programs
from tests.go_programs import Missing
from tests.runtime.node import RuntimeNode

LOG, SOCKET = "dockerd", "docker.sock"
_PACKAGES = ("docker.io", "containerd", "runc", "tini", "libdevmapper1.02.1")
_PROGRAMS = ("dockerd", "containerd", "runc", "docker-init")


def why_missing() -> str:
    """Empty where dockerd can be started; else a line that names what helps."""
    found = [shutil.which(each, path=_path()) for each in _PROGRAMS]
    missing = [name for name, path in zip(_PROGRAMS, found, strict=True) if path is None]
    if not missing:
        return ""
    return f"no {', '.join(missing)}: `make test-runtime` unpacks Debian's docker.io, or install it"


def provide() -> None:
    """Unpack Debian's packages where programs are missing; nothing is installed. Raises: Missing."""
    if not why_missing():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Missing(why_missing())
    folder = _cache()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as packages:
            _run(["apt-get", "download", *_PACKAGES], packages)
            for package in Path(packages).glob("*.deb"):
                _run(["dpkg", "-x", str(package), str(folder)], packages)
    except subprocess.CalledProcessError as error:
        raise Missing(f"docker.io could not be unpacked: {go_programs.last_line(error)}") from error


def start(node: RuntimeNode) -> None:
    """Start it on a node, without networks, with its containers' groups where a kubelet wants them."""
    arguments = (
        *(f"--data-root={node.folder}/docker", "--exec-root=/run/docker", "--pidfile=/run/docker.pid"),
        *(f"--host=unix:///run/{SOCKET}", "--storage-driver=vfs", "--exec-opt=native.cgroupdriver=cgroupfs"),
        *("--bridge=none", "--iptables=false", "--ip6tables=false"),
    )
    libraries = ":".join(str(each) for each in _cache().glob("**/x86_64-linux-gnu"))
    node.spawn(LOG, ["dockerd", *arguments], {"PATH": _path(), "LD_LIBRARY_PATH": libraries})
    node.until(lambda: "API listen on" in node.log(LOG), LOG)


def _cache() -> Path:
    return go_programs.cache_folder("runtime") / "docker"


def _path() -> str:
    """The machine's programs first: what is unpacked stands in for what is missing."""
    unpacked = (_cache() / "usr/sbin", _cache() / "usr/bin")
    return ":".join((os.environ["PATH"], *map(str, unpacked)))


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


def main() -> int:
    """Provide it."""
    try:
        provide()
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    print(f"dockerd: {shutil.which('dockerd', path=_path())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
