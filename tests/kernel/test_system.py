"""The machine itself: what its kernel tells of groups, counters, CPUs and features."""

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from koordinator.host import perf_events, storage
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import FileProblem
from koordinator.host.host import Feature, Host, open_host, probe_features
from koordinator.host.inotify import DirectoryEvent, GroupChange, Inotify
from koordinator.host.syscalls import LinuxSyscalls
from tests.host import lscpu, storage_tools
from tests.kernel.conftest import ROOTS, Spawn, make, remove


@pytest.fixture
def host():  # type: ignore[no-untyped-def]
    opened = open_host(ROOTS, 512)
    yield opened
    opened.close()


async def events_of(inotify: Inotify, count: int) -> list[DirectoryEvent]:
    found: list[DirectoryEvent] = []
    while len(found) < count:
        found += await asyncio.wait_for(inotify.next(), 5)
    return found


async def test_groups_are_seen_to_come_and_go(real: Cgroups, group: str) -> None:
    directory = real.directory(group)
    with Inotify(LinuxSyscalls()) as inotify:
        assert inotify.watch(directory) is None

        make(real, f"{group}/pod1")
        assert real.remove(f"{group}/pod1") is None

        assert await events_of(inotify, 2) == [
            DirectoryEvent(GroupChange.CREATED, directory, "pod1", True),
            DirectoryEvent(GroupChange.REMOVED, directory, "pod1", True),
        ]


async def test_a_watched_group_that_goes_is_watched_no_more(real: Cgroups, group: str) -> None:
    parent, pod = real.directory(group), real.directory(f"{group}/pod1")
    make(real, f"{group}/pod1")
    with Inotify(LinuxSyscalls()) as inotify:
        assert inotify.watch(parent) is None
        assert inotify.watch(pod) is None
        assert real.remove(f"{group}/pod1") is None

        assert await events_of(inotify, 1) == [DirectoryEvent(GroupChange.REMOVED, parent, "pod1", True)]
        assert inotify.directories == {parent}
        assert isinstance(inotify.watch(pod), FileProblem)
        make(real, f"{group}/pod1")
        assert inotify.watch(pod) is None
        make(real, f"{group}/pod1/container")
        events = await events_of(inotify, 2)
        assert DirectoryEvent(GroupChange.CREATED, pod, "container", True) in events


async def test_a_plain_directory_that_goes_tells_so_itself(tmp_path: Path) -> None:
    directory = tmp_path / "watched"
    directory.mkdir()
    with Inotify(LinuxSyscalls()) as inotify:
        assert inotify.watch(str(directory)) is None
        directory.rmdir()

        assert await events_of(inotify, 1) == [DirectoryEvent(GroupChange.ENDED, str(directory))]
        assert inotify.directories == frozenset()


async def test_hundreds_of_pods_in_one_go_are_all_told_or_the_loss_is(real: Cgroups, group: str) -> None:
    directory = real.directory(group)
    with Inotify(LinuxSyscalls()) as inotify:
        assert inotify.watch(directory) is None
        names = [f"pod{number}" for number in range(300)]
        for name in names:
            os.mkdir(f"{directory}/{name}")
        try:
            events = await events_of(inotify, len(names))
        finally:
            for name in names:
                os.rmdir(f"{directory}/{name}")

        assert [event.name for event in events] == names


def test_events_of_a_group_are_counted_by_the_kernel(host: Host, group: str, spawn: Spawn) -> None:
    pair = perf_events.CPU_TIME_AND_SWITCHES
    support = perf_events.support(host.syscalls, pair)
    directory = perf_events.directory(host.cgroups, group)
    if not support.is_supported:
        pytest.skip(support.reason)
    base = os.path.dirname(directory)
    if not os.path.isdir(base):
        pytest.skip(f"no hierarchy holds perf events: {base} is missing")
    os.makedirs(directory, exist_ok=True)
    child = subprocess.Popen(["sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; sleep 20"])
    cpus = sorted(os.sched_getaffinity(0))
    try:
        Path(directory, "cgroup.procs").write_text(str(child.pid))
        with perf_events.watch(host.cgroups, host.syscalls, [group, f"{group}/none"], cpus, pair) as watched:
            deadline = time.monotonic() + 5
            while watched.read()[group].leader < 20_000_000 and time.monotonic() < deadline:
                time.sleep(0.05)
            counts = watched.read()
            assert list(counts) == [group]
            assert list(watched.problems) == [f"{group}/none"]
            assert 20_000_000 <= counts[group].leader < 60_000_000_000
    finally:
        child.kill()
        child.wait()
        for _ in range(50):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)


def test_cycles_are_counted_or_politely_refused(host: Host, group: str) -> None:
    support = perf_events.support(host.syscalls)
    watched = perf_events.watch(host.cgroups, host.syscalls, [group], [0])
    try:
        assert support.is_supported == (group in watched.read()) or watched.problems
        assert support.is_supported or "perf_event_open" in support.reason
    finally:
        watched.close()


def test_every_feature_is_answered_with_a_reason(host: Host, group: str) -> None:
    found = probe_features(host, group)

    assert list(found) == list(Feature)
    assert all(support.is_supported or support.reason for support in found.values())
    burst = host.files.exists(f"{host.cgroups.directory(group)}/cpu.cfs_burst_us")
    assert host.cgroups.version != 1 or found[Feature.CPU_BURST].is_supported == burst


def test_cookies_are_set_or_politely_refused(host: Host, group: str, spawn: Spawn) -> None:
    support = host.core_sched.support()
    pids = [spawn(group), spawn(group)]
    if not support.is_supported:
        assert "core scheduling" in support.reason
        assert isinstance(host.core_sched.create(pids[0]), FileProblem)
        return
    assert host.core_sched.create(pids[0]) is None
    assert host.core_sched.assign(pids[0], pids[1:]) == {}
    assert host.core_sched.cookie(pids[1]) == host.core_sched.cookie(pids[0]) != 0
    assert host.core_sched.cookie(0) == 0
    assert host.core_sched.clear(pids) == {}
    assert host.core_sched.cookie(pids[0]) == 0


def test_the_machine_tells_of_itself(host: Host) -> None:
    machine = host.machine
    memory = machine.memory()
    assert memory is not None
    assert 0 < memory.usage_bytes < memory.total_bytes
    ticks = machine.cpu_ticks()
    assert ticks is not None
    assert sum(ticks.by_cpu.values()) <= ticks.total + 1_000
    assert len(machine.boot_id()) == 36
    assert machine.cpu_model().vendor
    assert machine.numa_meminfo_kib()[0]["MemTotal"] > 0


def test_a_process_is_known_by_id_and_start(host: Host, group: str, spawn: Spawn) -> None:
    pid = spawn(group)
    processes = host.processes

    deadline = time.monotonic() + 5
    while processes.command(pid) != ["sleep", "20"] and time.monotonic() < deadline:
        time.sleep(0.01)  # the arguments are set a moment after the program is replaced

    assert processes.command(pid) == ["sleep", "20"]
    assert processes.name(pid) == "sleep"
    assert (processes.start_ticks(pid) or 0) > 0
    assert processes.set_oom_score_adj(pid, 500) is None
    assert processes.oom_score_adj(pid) == 500
    assert processes.start_ticks(2**22 + 1) is None


def test_cpus_are_as_lscpu_tells_them(host: Host) -> None:
    if shutil.which("lscpu") is None:
        pytest.skip("no lscpu to compare with")
    reported = subprocess.run(lscpu.LSCPU, capture_output=True, text=True, check=True).stdout

    assert host.machine.cpu_topology() == lscpu.parse_lscpu(reported)


def test_disks_are_as_lsblk_tells_them(host: Host) -> None:
    if shutil.which("lsblk") is None:
        pytest.skip("no lsblk to compare with")
    reported = subprocess.run(storage_tools.LSBLK, capture_output=True, text=True, check=True).stdout
    parsed = storage_tools.parse(reported, "", "", "")

    found = storage.local_storage(host.files, ROOTS)

    assert found.numbers == parsed.numbers
    assert found.partitions.keys() == parsed.partitions.keys()
    assert found.mounts["/"]


def test_nothing_is_left_behind(real: Cgroups, group: str, spawn: Spawn) -> None:
    make(real, f"{group}/a")
    make(real, f"{group}/a/b")
    spawn(f"{group}/a/b")

    remove(real, group)

    assert not real.exists(group)
    assert not real.exists(group, "memory")
