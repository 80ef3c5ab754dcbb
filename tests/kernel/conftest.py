"""Groups of their own below this machine's hierarchies, with real processes in them, removed whatever happens."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from koordinator.host import cgroups
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files, HostRoots

ROOTS = HostRoots.below("")
PROCESSES_MAX = 8
_PREFIX = "koordinator-test-"
LIFE_S = 100
_REMOVAL_TRIES = 50
_WAIT = "import sys; sys.stdin.read()\n"
_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "io")

Spawn = Callable[..., int]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/kernel/" in item.nodeid:
            item.add_marker(pytest.mark.kernel)


@pytest.fixture
def files() -> Iterator[Files]:
    opened = Files()
    yield opened
    opened.close()


@pytest.fixture
def real(files: Files) -> Cgroups:
    """The groups of this machine; skips where they cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root: real groups are made and written")
    found = Cgroups(files, cgroups.detect(files, ROOTS))
    if found.version == V1 and not files.exists(found.directory("", "cpu")):
        pytest.skip(f"no cgroup file system with a cpu controller at {ROOTS.cgroup}")
    return found


@pytest.fixture
def group(real: Cgroups) -> Iterator[str]:
    """A group of our own; everything in and below it is killed and removed at the end."""
    _remove_left_overs(real)
    name = f"{_PREFIX}{os.getpid()}"
    try:
        make(real, name)
        yield name
    finally:
        remove(real, name)


def _remove_left_overs(real: Cgroups) -> None:
    """Groups of test runs that were killed."""
    for name in real.children("") or ():
        pid = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            remove(real, name)


def make(real: Cgroups, name: str) -> None:
    """A group that processes may enter: v1 wants CPUs and memory nodes first, v2 controllers from its parent.

    On v2 a group that hands out controllers holds no processes, so only a parent of groups gets them to hand out.
    """
    problem = real.create(name)
    if problem is not None:
        pytest.skip(f"groups cannot be made here: {problem}")
    if real.version == V2:
        for controller in _V2_CONTROLLERS:
            parent = real.directory(os.path.dirname(name))
            real.files.write(f"{parent}/cgroup.subtree_control", f"+{controller}")
    elif real.files.exists(real.directory(name, "cpuset")):
        parent = os.path.dirname(real.directory(name, "cpuset"))
        for file in ("cpuset.cpus", "cpuset.mems"):
            text = real.files.read(f"{parent}/{file}") or ""
            real.files.write(f"{real.directory(name, 'cpuset')}/{file}", text.strip())


def remove(real: Cgroups, name: str) -> None:
    """Kill what runs in the group and below, then remove it from the leaves up."""
    hierarchies = ("cpu", "memory", "cpuset", "cpuacct", "blkio", "pids") if real.version == V1 else ("cpu",)
    below = {each: None for subsystem in hierarchies for each in real.walk(name, 8, subsystem)}
    ordered = sorted(below, key=lambda each: -each.count("/"))
    for _ in range(_REMOVAL_TRIES):
        for each in ordered:
            for pid in real.procs(each) or ():
                if pid > 0 and pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
        problems = [problem for each in ordered if (problem := real.remove(each)) is not None]
        if not problems:
            return
        time.sleep(0.02)
    raise AssertionError(f"left behind: {problems}")


@pytest.fixture
def spawn(real: Cgroups) -> Iterator[Spawn]:
    """Starts a process that sleeps, or runs code once it is in its group, as what it forks must be; all are ended and
    waited for at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, code: str = "") -> int:
        assert len(started) < PROCESSES_MAX
        command = [sys.executable, "-c", _WAIT + code] if code else ["sleep", str(LIFE_S)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        started.append(process)
        problem = real.move(process.pid, name)
        assert problem is None, problem
        assert process.stdin is not None
        process.stdin.close()
        return process.pid

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


def has(real: Cgroups, knob: Knob, name: str) -> bool:
    """Whether a group has the file of a knob."""
    return real.support(knob, name).is_supported and real.files.exists(real.path(knob, name))
