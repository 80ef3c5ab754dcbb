"""The isolation probe on real groups: what works is proven, what has no effect is found, nothing stays behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from koordinator.clock import FixedClock
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import HostRoots
from koordinator.host.host import Host, open_host
from koordinator.host.syscalls import LinuxSyscalls, ThreadSlices
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.isolation import measure
from koordinator.koordlet.isolation.measure import GROUP, IsolationMeasurement, Measured
from koordinator.koordlet.isolation.verdicts import Mechanism, MechanismVerdict, Works
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from tests.kernel.conftest import make

HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids")
Found = dict[Mechanism, MechanismVerdict]
TRIES = 10
"""Of what a busy machine hides."""


@pytest.fixture
def host() -> Iterator[Host]:
    opened = open_host(HostRoots.below(""), 100)
    yield opened
    opened.close()


def measurement(host: Host, parent: str, scratch: Path) -> IsolationMeasurement:
    return IsolationMeasurement(host, executor(host), parent, str(scratch), pause_s=0.0)


def executor(host: Host, journal: str = "") -> Executor:
    clock = FixedClock()
    return Executor(host.cgroups, clock, AuditLog(clock), RestoreLog(journal))


async def probed(host: Host, parent: str, scratch: Path) -> Found:
    return await measurement(host, parent, scratch).run()


def is_gone(real: Cgroups, parent: str) -> bool:
    names = HIERARCHIES if real.version == V1 else ("cpu",)
    return not any(real.exists(f"{parent}/{GROUP}", name) for name in names)


async def test_what_this_kernel_has_is_proven_and_nothing_stays_behind(
    host: Host, real: Cgroups, group: str, tmp_path: Path
) -> None:
    before = os.times()
    found = await probed(host, group, tmp_path)
    after = os.times()

    assert [name for name, each in found.items() if each.works is Works.NO] == [], found
    if len(os.sched_getaffinity(0)) > 1:
        assert found[Mechanism.CPUSET].works is Works.YES
    assert found[Mechanism.MEMORY_LIMIT].works is Works.YES
    assert found[Mechanism.KILL].works is Works.YES
    assert is_gone(real, group) and not list(tmp_path.iterdir())
    if real.version == V1:  # an emulated machine takes ten times as long
        children_s = (after.children_user - before.children_user) + (
            after.children_system - before.children_system
        )
        assert children_s < 2, "bounded"


@contextlib.contextmanager
def shadowed(real: Cgroups, parent: str, names: tuple[str, ...]) -> Iterator[None]:
    """Ordinary files lie over the probe's groups: they take every write, and no kernel hears of it."""
    mounted = []
    try:
        for subsystem in HIERARCHIES if real.version == V1 else ("cpu",):
            over = real.directory(parent, subsystem)
            if not os.path.isdir(over):
                continue
            subprocess.run(["mount", "-t", "tmpfs", "koordinator-test", over], check=True)
            mounted.append(over)
            for name in names:
                _plain_group(real, f"{over}/{GROUP}/{name}")
        yield
    finally:
        for over in mounted:
            subprocess.run(["umount", "-l", over], check=True)


def _plain_group(real: Cgroups, directory: str) -> None:
    knobs = (
        Knob.CPU_QUOTA,
        Knob.CPU_PERIOD,
        Knob.CPU_SHARES,
        Knob.CPU_IDLE,
        Knob.CPUSET,
        Knob.MEMORY_LIMIT,
        Knob.MEMORY_HIGH,
        Knob.IO_MAX if real.version == V2 else Knob.BLKIO_READ_BPS,
    )
    os.makedirs(directory)
    files = {
        os.path.basename(real.path(knob, "x"))
        for knob in knobs
        if knob is not Knob.MEMORY_HIGH or real.version == V2
    }
    for each in (directory, os.path.dirname(directory)):
        for name in (*files, "cgroup.procs", "cgroup.subtree_control", "cpuset.mems"):
            Path(each, name).touch()


async def test_files_that_shadow_those_of_the_kernel_are_found(
    host: Host, real: Cgroups, group: str, tmp_path: Path
) -> None:
    names = ("quota", "a", "b", "cpuset", "memory", "high", "io", "kill")
    with shadowed(real, group, names):
        found = await probed(host, group, tmp_path)

    assert found[Mechanism.MEMORY_LIMIT].works is Works.NO, found
    if len(os.sched_getaffinity(0)) > 1:
        assert found[Mechanism.CPUSET].works is Works.NO, found
    for name in (Mechanism.CPU_QUOTA, Mechanism.CPU_WEIGHT, Mechanism.CPU_IDLE, Mechanism.IO_LIMIT):
        assert found[name].works is not Works.YES, (name, found[name])


async def test_hierarchies_that_are_mounted_elsewhere_are_found(
    host: Host, real: Cgroups, group: str, tmp_path: Path
) -> None:
    if real.version == V1:
        swapped = {"cpu": real.where.directory("pids"), "memory": real.where.directory("cpuset")}
        subsystems = {**{name: real.where.directory(name) for name in HIERARCHIES}, **swapped}
        host.cgroups.where = msgspec.structs.replace(real.where, subsystems=subsystems)
    else:
        plain = tmp_path / "cgroup"
        (plain / group).mkdir(parents=True)
        host.cgroups.where = msgspec.structs.replace(real.where, root=str(plain))

    try:
        found = await probed(host, group, tmp_path)
    finally:
        host.cgroups.where = real.where
    states = {
        name: found[name].works
        for name in (Mechanism.CPU_QUOTA, Mechanism.CPU_WEIGHT, Mechanism.MEMORY_LIMIT)
    }
    assert set(states.values()) == {Works.NO}, found
    await measure.clean(host, f"{group}/{GROUP}")
    assert is_gone(real, group)


async def test_groups_above_with_tighter_limits_are_found(
    host: Host, real: Cgroups, group: str, tmp_path: Path
) -> None:
    inner = f"{group}/inner"
    make(real, inner)
    assert real.write(Knob.CPU_QUOTA, inner, "5000") is None
    assert real.write(Knob.MEMORY_LIMIT, inner, str(8 << 20)) is None

    found = await probed(host, inner, tmp_path)

    assert found[Mechanism.CPU_QUOTA].works is not Works.YES, found
    assert found[Mechanism.MEMORY_LIMIT].works is not Works.YES, found
    assert is_gone(real, inner)


class Ignored(LinuxSyscalls):
    """A kernel that answers as if it had given a slice, and has not."""

    def sched_setattr(self, tid: int, attributes: bytes) -> None:
        pass


class SlicesOnly(IsolationMeasurement):
    def _all(self) -> Mapping[Mechanism, Measured]:
        return {Mechanism.TIME_SLICE: self._time_slice}


@pytest.mark.parametrize("has_effect", [True, False])
async def test_time_slices_that_are_taken_but_not_kept_are_found(
    host: Host, real: Cgroups, group: str, tmp_path: Path, has_effect: bool
) -> None:
    if not host.slices.support().is_supported:
        pytest.skip(host.slices.support().reason)
    if not has_effect:
        host.slices = ThreadSlices(Ignored())

    for _ in range(TRIES):
        probe = SlicesOnly(host, executor(host), group, str(tmp_path), pause_s=0.0)
        found = (await probe.run())[Mechanism.TIME_SLICE]
        assert found.works is not (Works.NO if has_effect else Works.YES), found
        assert is_gone(real, group)
        if found.works is not Works.UNKNOWN:
            return
    pytest.skip(f"in {TRIES} tries {found.why}")


KILLED = """
import asyncio, sys
from koordinator.clock import FixedClock
from koordinator.host.files import HostRoots
from koordinator.host.host import open_host
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.isolation.measure import IsolationMeasurement
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
group, scratch, journal = sys.argv[1:]
host, clock = open_host(HostRoots.below(""), 100), FixedClock()
executor = Executor(host.cgroups, clock, AuditLog(clock), RestoreLog(journal))
asyncio.run(IsolationMeasurement(host, executor, group, scratch, pause_s=0.0).run())
"""


async def test_an_agent_that_is_killed_leaves_nothing_that_the_next_start_does_not_remove(
    host: Host, real: Cgroups, group: str, tmp_path: Path
) -> None:
    handed_out, journal = f"{real.directory(group)}/cgroup.subtree_control", str(tmp_path / "restore.jsonl")
    if real.version == V2:
        host.files.write(handed_out, "-cpu")
    arguments = [group, str(tmp_path), journal]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])  # noqa: ASYNC220
    try:
        async with asyncio.timeout(150):  # an emulated machine takes long to start a program
            while not real.exists(f"{group}/{GROUP}/quota"):
                assert process.poll() is None
                await asyncio.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not is_gone(real, group)

    await measure.clean(host, f"{group}/{GROUP}")
    measure.take_back_controllers(host, executor(host, journal))

    assert is_gone(real, group)
    if real.version == V2:
        assert "cpu" not in (host.files.read(handed_out) or "").split(), "nobody handed it out before"
