"""The kernel tests once more in a small virtual machine: cgroup v2, 4 CPUs, 2 NUMA nodes, a disk.

    python -m tests.kernel.vm [pytest arguments]
    python -m tests.kernel.vm demo-node [arguments of koordinator demo-node]

Boots a Debian kernel on this machine's own file system by virtme-ng, under software emulation (hardware virtualisation
is not needed). What is missing is installed by apt and pip; where that cannot be done, the reason is told and nothing
runs.
The kernel is unpacked below `~/.cache/koordinator-vm`, or KOORDINATOR_VM_CACHE.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

KERNEL = re.compile(r"linux-image-(6\.1\.\d+-\d+-amd64)$")
CACHE = Path(os.environ.get("KOORDINATOR_VM_CACHE") or Path.home() / ".cache/koordinator-vm")
PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 2_400
INSTALL_TIMEOUT_S = 300
TEST_TIMEOUT_S = 300
"""Of one test: emulation is some ten times slower than the machine."""
DEFAULT = ["tests/kernel", "--ignore=tests/kernel/test_node_demo.py"]
"""The demonstration measures a machine, and an emulated one is none."""
DEMO_NODE = "demo-node"
DEMO_DEFAULT = ["--load", "40", "--hogs", "cpu", "--repeats", "1", "--busy"]
"""Shows that it runs on cgroup v2: its CPU times are true, its latencies are those of the emulator."""
_STATUS = "exit status of the tests:"
_MACHINE = ("--cpus", "4", "--memory", "2G", "--numa", "1G,cpus=0-1", "--numa", "1G,cpus=2-3")
_EMULATED = ("--disable-kvm", "--disable-microvm", "--force-9p", "--append", "no_timer_check")
"""no_timer_check: on a busy machine the emulated timer misses the ticks that Linux counts at boot, and Linux panics."""
_DISK_GIB = 2
_MOUNT_DISK = "modprobe -a virtio_blk ext4 && mount /dev/vda /var/tmp && export TMPDIR=/var/tmp"
"""Files of tests lie on a disk: a file in memory can neither be reclaimed nor read slowly."""
_QEMU = "qemu-system-x86_64"
_UDEV, _UDEV_PATH = "systemd-udevd", "/usr/lib/systemd:/lib/systemd:/lib/udev"


class Missing(Exception):
    """Why the machine cannot be had here."""


def main(arguments: list[str]) -> int:
    try:
        image = prepared()
    except Missing as missing:
        print(f"SKIPPED: kernel tests on cgroup v2: {missing}")
        return 0
    return run(image, arguments or DEFAULT)


def prepared() -> Path:
    """The kernel image, everything else being installed. Raises: Missing."""
    if os.geteuid() != 0:
        raise Missing("needs root")
    if os.uname().machine != "x86_64":
        raise Missing(f"there is no kernel for {os.uname().machine} here, only for x86_64")
    packages = []
    if shutil.which(_QEMU) is None:
        packages.append("qemu-system-x86")
    if shutil.which("mkfs.ext4") is None:
        packages.append("e2fsprogs")
    if shutil.which("depmod") is None:
        packages.append("kmod")
    if shutil.which("busybox") is None:
        packages.append("busybox-static")  # of the initramfs
    if shutil.which(_UDEV, path=_UDEV_PATH) is None:
        packages.append("udev")  # names the ports by which the guest's output comes out
    if packages:
        _install(packages)
    if shutil.which("vng", path=_path()) is None:
        _call([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "virtme-ng"])
    return _image()


def run(image: Path, arguments: list[str]) -> int:
    """Boot, run pytest or the demonstration in it, and tell its exit status."""
    version = image.name.removeprefix("vmlinuz-")
    disk = _disk()
    command = (
        f"{_MOUNT_DISK}; cd {shlex.quote(str(PROJECT))}; export PYTHONPATH=src:. HOME=/tmp "
        f"PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1; {_inside(arguments)}; echo {shlex.quote(_STATUS)} $?"
    )
    print(f"booting Linux {version} with cgroup v2 under emulation; this takes a minute or two", flush=True)
    started_s = time.monotonic()
    vng = shutil.which("vng", path=_path())
    assert vng is not None
    boot = [
        vng,
        "--run",
        str(image),
        *_EMULATED,
        *_MACHINE,
        "--disk",
        str(disk),
        "--user",
        "root",
        "--",
        command,
    ]
    process = subprocess.Popen(
        boot,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PATH": _path()},
        start_new_session=True,
    )
    guard = threading.Timer(TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))  # the emulator, too
    guard.start()
    status = ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the machine ends with this
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_STATUS):
                status = line.removeprefix(_STATUS).strip()
            else:
                print(line, end="", flush=True)
    finally:
        guard.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    took_s = time.monotonic() - started_s
    print(f"cgroup v2 in a virtual machine: {took_s:.0f} s")
    if not status.isdigit():
        print(f"the machine ended before the tests said how they ended; it may take {TIMEOUT_S} s")
        return 1
    return int(status)


def _disk() -> Path:
    """An empty file system, made anew for each boot. Raises: Missing."""
    path = CACHE / "disk.ext4"
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(_DISK_GIB << 30)
    _call(["mkfs.ext4", "-q", str(path)])
    return path


def _inside(arguments: list[str]) -> str:
    if arguments[:1] == [DEMO_NODE]:
        report = ["--report", "/tmp/report-node.html"]  # nothing else can be written in there
        chosen = [*report, *(arguments[1:] or DEMO_DEFAULT)]
        return shlex.join([sys.executable, "-m", "koordinator.cli.main", DEMO_NODE, *chosen])
    options = ["-m", "kernel", "-p", "no:cacheprovider", "-v", "-rs", "--timeout", str(TEST_TIMEOUT_S)]
    return shlex.join([sys.executable, "-m", "pytest", *options, *arguments])


def _image() -> Path:
    found = sorted(CACHE.glob("root/boot/vmlinuz-*"))
    if not found:
        _fetch()
        found = sorted(CACHE.glob("root/boot/vmlinuz-*"))
    if not found:
        raise Missing("the kernel package held no kernel")
    version = found[-1].name.removeprefix("vmlinuz-")
    modules = CACHE / "root/lib/modules" / version
    # virtme-ng looks for modules where the system has them.
    place = Path("/lib/modules") / version
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(modules)
    if not (modules / "modules.dep").exists():
        _call(["depmod", "-b", str(CACHE / "root"), version])
    return found[-1]


def _fetch() -> None:
    names = subprocess.run(
        ["apt-cache", "search", "--names-only", "^linux-image-6.1"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    packages = [line.split()[0] for line in names.splitlines() if KERNEL.match(line.split()[0])]
    if not packages:
        raise Missing("apt offers no linux-image-6.1.*-amd64 (apt-get update?)")
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"fetching {packages[-1]}", flush=True)
    _call(["apt-get", "download", packages[-1]], cwd=CACHE)
    (package,) = CACHE.glob(f"{packages[-1]}_*.deb")
    _call(["dpkg", "-x", str(package), str(CACHE / "root")])
    package.unlink()


def _install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise Missing(f"install {', '.join(packages)}")
    print(f"installing {', '.join(packages)}", flush=True)
    _call(["apt-get", "update", "-qq"])
    _call(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )


def _call(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{shlex.join(command)}: {error}") from error
    if done.returncode != 0:
        raise Missing(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")


def _path() -> str:
    """Programs of this virtual environment first: virtme-ng calls others of its own."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
