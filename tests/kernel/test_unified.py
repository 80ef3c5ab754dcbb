"""The v2 hierarchy, also where it stands beside v1 without controllers: CPU time, pressure, threads, events."""

import os
import time
from collections.abc import Iterator

import pytest

from koordinator.host.cgroup_knobs import V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.mounts import CgroupMounts
from tests.kernel.conftest import Spawn, make, remove


@pytest.fixture
def unified(real: Cgroups) -> Cgroups:
    if not real.where.unified:
        pytest.skip("no cgroup2 file system is mounted")
    return Cgroups(real.files, CgroupMounts(V2, real.where.unified, {}, real.where.unified))


@pytest.fixture
def busy(unified: Cgroups, group: str, spawn: Spawn) -> Iterator[int]:
    """A process of the group that burns CPU for a moment; the group exists in the v2 hierarchy, too."""
    assert unified.create(group) is None
    try:
        code = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\ntime.sleep(20)"
        pid = spawn(group, code)
        assert unified.move(pid, group) is None
        yield pid
    finally:
        remove(unified, group)


def test_cpu_time_of_a_group_is_reported_in_nanoseconds(unified: Cgroups, group: str, busy: int) -> None:
    deadline = time.monotonic() + 10
    while (unified.cpu_usage_ns(group) or 0) < 50_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)

    assert 50_000_000 <= (unified.cpu_usage_ns(group) or 0) < 10_000_000_000
    assert unified.procs(group) == unified.tasks(group) == [busy]


@pytest.mark.parametrize("knob", [Knob.CPU_PRESSURE, Knob.MEMORY_PRESSURE, Knob.IO_PRESSURE], ids=str)
def test_pressure_of_a_group_is_read(unified: Cgroups, group: str, busy: int, knob: Knob) -> None:
    support = unified.support(knob, group)
    if not unified.files.exists(unified.path(knob, group)):
        pytest.skip(f"this kernel has no {knob}: {support.reason}")

    stall = unified.pressure(knob, group)

    assert stall is not None
    assert 0 <= stall.some.avg10 <= 100
    assert stall.full.total_us <= stall.some.total_us
    assert unified.pressure(knob, f"{group}/none") is None


def test_open_files_stay_flat_while_pods_come_and_go(real: Cgroups, group: str) -> None:
    knobs = (Knob.CPU_USAGE, Knob.CPU_STAT, Knob.MEMORY_STAT)
    before = len(os.listdir("/proc/self/fd"))

    for number in range(150):
        pod = f"{group}/pod{number}"
        make(real, pod)
        contents = real.files.hot_many(real.path(knob, pod) for knob in knobs)
        assert None not in contents
        if number % 2:
            real.forget(pod)  # the agent was told
        problem = real.remove(pod)
        assert problem is None
        if number % 2 == 0:
            assert real.files.hot_many(real.path(knob, pod) for knob in knobs) == [None] * 3

    assert real.files.kept_count == 0
    assert len(os.listdir("/proc/self/fd")) == before
