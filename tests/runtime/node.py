"""A node in namespaces of its own: its /sys/fs/cgroup begins at a group of the test's, its /run is a folder.

containerd, koordlet and the proxy run in it with their usual paths (/run/containerd/containerd.sock, /run/nri/nri.sock,
`kubepods` in the root group), and cannot touch anything else of this machine. Its /run is visible outside,
too, so tests connect to its sockets there. All processes are in the test's groups, also those that containerd leaves
behind: they are killed with the groups.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.runtime import binaries, image
from tests.runtime.cri import CRIClient

CGROUPS = Path("/sys/fs/cgroup")
IMAGE = "koordinator.test/probe:1"
WAIT_S = 60.0
"""Only what fails waits so long; the machine may be busy."""
_REMOVAL_TRIES = 200
_PREFIX = "koordinator-runtime-"
_COPIED = ("cpuset.cpus", "cpuset.mems")
"""Files that a new v1 group of the cpuset controller needs before processes enter."""

# restrict_oom_score_adj: without CAP_SYS_RESOURCE no OOM score can be lowered; sandboxes then get containerd's own.
_CONFIG = """version = 3
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.nri.v1.nri"]
disable = {nri_disabled}
socket_path = "/var/run/nri/nri.sock"
plugin_path = "{folder}/nri-plugins"
plugin_config_path = "{folder}/nri-config"
plugin_registration_timeout = "5s"
plugin_request_timeout = "2s"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{folder}/cni/bin"]
conf_dir = "{folder}/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{programs}/runc"
"""

_SET_UP = """set -e
mount --make-rshared /
mount --bind {folder}/run /run
umount -R /sys/fs/cgroup
mount -t tmpfs none /sys/fs/cgroup
{mounts}
echo ready
exec sleep infinity
"""


class RuntimeNode:
    """The node; `close` ends and removes everything. Raises: binaries.Missing."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
        """Short, since paths of sockets have 107 characters at most."""
        self.programs = binaries.cache_folder()
        self.name = self.folder.name
        self._children: list[subprocess.Popen[bytes]] = []
        self._hierarchies = _hierarchies()
        for each in ("run/lock", "log", "containerd", "nri-plugins", "nri-config", "cni/bin", "cni/net.d"):
            (self.folder / each).mkdir(parents=True)
        for hierarchy in self._hierarchies:
            make_group(CGROUPS / hierarchy / self.name)
            for kubelets in ("kubepods", "kubepods/besteffort", "kubepods/burstable"):
                make_group(CGROUPS / hierarchy / self.name / kubelets)
        self._init = self._started_init()
        self.containerd: subprocess.Popen[bytes] | None = None
        self._said = 0
        """Characters that containerds before this one logged."""
        self.cri: CRIClient = CRIClient(str(self.run / "containerd/containerd.sock"))

    @property
    def run(self) -> Path:
        """The node's /run, as others see it."""
        return self.folder / "run"

    def group(self, controller: str, path: str) -> Path:
        """The directory of a group of the node (`kubepods/besteffort`), as others see it."""
        return CGROUPS / controller / self.name / path.strip("/")

    def processes(self) -> list[int]:
        """All processes of the node."""
        found: set[int] = set()
        for procs in (CGROUPS / self._hierarchies[0] / self.name).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in procs.read_text().split())
        return sorted(found)

    # Programs

    def spawn(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A program on the node; what it prints goes to `log/<name>`. Its pid is the child's own."""
        enter = ["nsenter", f"--target={self._init.pid}", "--mount", "--cgroup", "--", *command]
        with (self.folder / "log" / name).open("ab") as log:
            child = subprocess.Popen(
                ["sh", "-c", f'{self._joining()} exec "$@"', "sh", *enter],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def log(self, name: str) -> str:
        """What a program said so far."""
        path = self.folder / "log" / name
        return path.read_text(errors="replace") if path.is_file() else ""

    def start_containerd(self, *, nri: bool = True) -> None:
        """Start it, or start it again; its containers, images and sandboxes are those of before."""
        config = self.folder / "containerd.toml"
        config.write_text(
            _CONFIG.format(
                folder=self.folder, image=IMAGE, programs=self.programs, nri_disabled=str(not nri).lower()
            )
        )
        path = {"PATH": f"{self.programs}:{os.environ['PATH']}"}
        command = [str(self.programs / "containerd"), "--config", str(config)]
        self._said = len(self.log("containerd"))
        self.containerd = self.spawn("containerd", command, path)
        self.until(self._is_serving, "containerd")

    def stop_containerd(self, number: int = signal.SIGKILL) -> None:
        """End it; containers go on."""
        assert self.containerd is not None
        self.containerd.send_signal(number)
        self.containerd.wait(WAIT_S)
        self.containerd = None

    def import_image(
        self, name: str = IMAGE, files: Mapping[str, bytes] | None = None, entry: str = "probe"
    ) -> None:
        """An image of static programs, there at once; the probe without others."""
        content = files if files is not None else {"probe": (self.programs / binaries.PROBE).read_bytes()}
        archive = self.folder / "image.tar"
        image.write_archive(archive, name, content, [f"/{entry}"])
        self.import_archive(archive)
        archive.unlink()

    def import_archive(self, archive: Path, architecture: str = "amd64") -> None:
        """An image in a file."""
        platform = f"--platform=linux/{architecture}"
        self.ctr("images", "import", "--local", "--snapshotter=native", platform, str(archive))

    def ctr(self, *arguments: str) -> str:
        """containerd's own command."""
        socket = str(self.run / "containerd/containerd.sock")
        done = subprocess.run(
            [str(self.programs / "ctr"), "-a", socket, "-n", "k8s.io", *arguments],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def until(self, holds: Callable[[], bool], log: str = "") -> None:
        """Wait for something; a failure tells what a program said last."""
        end_s = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > end_s:
                raise AssertionError(f"not within {WAIT_S:.0f} s; {log} said:\n{self.log(log)[-4000:]}")
            time.sleep(0.01)

    def close(self) -> None:
        """End all processes, remove groups and folder."""
        self.cri.close()
        for hierarchy in self._hierarchies:
            _remove_group(CGROUPS / hierarchy / self.name)
        for child in self._children:
            child.wait(WAIT_S)
        shutil.rmtree(self.folder)

    # Making it

    def _is_serving(self) -> bool:
        assert self.containerd is not None
        assert self.containerd.poll() is None, self.log("containerd")[-4000:]
        return "containerd successfully booted" in self.log("containerd")[self._said :]

    def _joining(self) -> str:
        directories = (CGROUPS / hierarchy / self.name for hierarchy in self._hierarchies)
        return " ".join(f"echo $$ > {each}/cgroup.procs;" for each in directories)

    def _started_init(self) -> subprocess.Popen[bytes]:
        """The process that holds the namespaces."""
        mounts = [f"mkdir /sys/fs/cgroup/{each}; {_mount(each)}" for each in self._hierarchies]
        script = _SET_UP.format(folder=self.folder, mounts="\n".join(mounts))
        unshare = 'exec unshare --mount --cgroup --propagation=private sh -c "$1"'
        init = subprocess.Popen(
            ["sh", "-c", f"{self._joining()} {unshare}", "sh", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._children.append(init)
        assert init.stdout is not None
        said = init.stdout.readline()
        assert said == b"ready\n", said + init.stdout.read()
        return init


def why_not() -> str:
    """Empty where such a node can be made; else why not, in one line."""
    if os.geteuid() != 0:
        return "needs root: containers are run"
    if not (CGROUPS / "cpuset/cpuset.cpus").exists():
        return f"needs cgroup v1 hierarchies below {CGROUPS}; on v2 see tests/kernel/vm.py"
    missing = [each for each in ("unshare", "nsenter") if shutil.which(each) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: util-linux)"
    return binaries.why_missing()


@contextlib.contextmanager
def running_node(*, nri: bool = True) -> Iterator[RuntimeNode]:
    """A node with containerd and the probe's image."""
    with bare_node() as node:
        node.start_containerd(nri=nri)
        node.import_image()
        yield node


@contextlib.contextmanager
def bare_node() -> Iterator[RuntimeNode]:
    """A node without a container runtime."""
    _remove_left_overs()
    node = RuntimeNode()
    try:
        yield node
    finally:
        node.close()


def _hierarchies() -> list[str]:
    """Folders below /sys/fs/cgroup that are hierarchies of their own, the unified one among them."""
    return sorted(each.name for each in CGROUPS.iterdir() if each.is_dir() and os.path.ismount(each))


def _mount(hierarchy: str) -> str:
    target = f"/sys/fs/cgroup/{hierarchy}"
    if hierarchy == "unified":
        return f"mount -t cgroup2 none {target}"
    options = "none,name=systemd" if hierarchy == "systemd" else hierarchy
    return f"mount -t cgroup -o {options} cgroup {target}"


def make_group(path: Path) -> None:
    """A v1 group that processes may enter."""
    path.mkdir(exist_ok=True)
    for name in _COPIED:
        if (path / name).exists():
            (path / name).write_text((path.parent / name).read_text())


def _remove_group(path: Path) -> None:
    """Kill what runs in a group and below, then remove it from the leaves up."""
    for _ in range(_REMOVAL_TRIES):
        for procs in path.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                for pid in procs.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
        below = sorted((each for each in path.rglob("*") if each.is_dir()), key=lambda p: -len(p.parts))
        with contextlib.suppress(OSError):
            for each in (*below, path):
                each.rmdir()
        if not path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"left behind: {path}")


def _remove_left_overs() -> None:
    """Groups and folders of test runs that were killed."""
    for folder in Path("/tmp").glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            for hierarchy in _hierarchies():
                _remove_group(CGROUPS / hierarchy / folder.name)
            shutil.rmtree(folder)
