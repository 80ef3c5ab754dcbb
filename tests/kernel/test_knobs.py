"""Every knob that this kernel has is written through the executor and read back, with processes in the group."""

import os
import time
from pathlib import Path

import pytest

from koordinator.clock import FixedClock
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import UnsupportedError
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.koordlet.writing.update_plan import Update, WriteOutcome
from tests.kernel.conftest import Spawn, has, make

MIB = 1024 * 1024


def executor(real: Cgroups, records: RestoreLog | None = None) -> Executor:
    clock = FixedClock()
    return Executor(real, clock, AuditLog(clock), records or RestoreLog())


def value_of(knob: Knob) -> str:
    """A value that differs from the kernel's own."""
    if knob is Knob.CPUSET:
        return str(min(os.sched_getaffinity(0)))
    disk = next(
        (name for name in sorted(os.listdir("/sys/block")) if name.startswith(("vd", "sd", "nvme"))), ""
    )
    if knob.startswith("blkio.throttle"):
        number = (Path("/sys/block") / disk / "dev").read_text().strip()
        return f"{number} {50 * MIB}"
    if knob is Knob.BLKIO_WEIGHT:
        pytest.skip("weights of disks need a kernel with blkio.cost")
    return {
        Knob.CPU_SHARES: "2",
        Knob.CPU_QUOTA: "50000",
        Knob.CPU_PERIOD: "50000",
        Knob.CPU_BURST: "20000",
        Knob.CPU_IDLE: "1",
        Knob.CPU_BVT: "-1",
        Knob.MEMORY_LIMIT: str(64 * MIB + 123),
        Knob.MEMORY_MIN: str(MIB),
        Knob.MEMORY_LOW: str(MIB),
        Knob.MEMORY_OOM_GROUP: "1",
        Knob.MEMORY_WMARK_RATIO: "95",
        Knob.MEMORY_WMARK_SCALE: "20",
        Knob.MEMORY_WMARK_MIN_ADJ: "-25",
        Knob.NET_CLASS: "65538",
    }.get(knob, "1")


WRITTEN = [
    Knob.CPU_SHARES,
    Knob.CPU_QUOTA,
    Knob.CPU_PERIOD,
    Knob.CPU_BURST,
    Knob.CPU_BVT,
    Knob.CPU_IDLE,
    Knob.CPUSET,
    Knob.MEMORY_LIMIT,
    Knob.MEMORY_MIN,
    Knob.MEMORY_LOW,
    Knob.MEMORY_HIGH,
    Knob.MEMORY_WMARK_RATIO,
    Knob.MEMORY_WMARK_SCALE,
    Knob.MEMORY_WMARK_MIN_ADJ,
    Knob.MEMORY_PRIORITY,
    Knob.MEMORY_USE_PRIORITY_OOM,
    Knob.MEMORY_OOM_GROUP,
    Knob.PAGE_CACHE_ENABLE,
    Knob.PAGE_CACHE_SIZE,
    Knob.PAGE_CACHE_SYNC,
    Knob.BLKIO_READ_IOPS,
    Knob.BLKIO_WRITE_IOPS,
    Knob.BLKIO_READ_BPS,
    Knob.BLKIO_WRITE_BPS,
    Knob.BLKIO_WEIGHT,
    Knob.NET_CLASS,
]


@pytest.mark.parametrize("knob", WRITTEN, ids=str)
def test_a_knob_takes_a_value_and_is_put_back(real: Cgroups, group: str, spawn: Spawn, knob: Knob) -> None:
    try:
        is_there = has(real, knob, group)
    except UnsupportedError as error:
        pytest.skip(str(error))
    if not is_there:
        pytest.skip(f"this kernel has no {knob}: {real.support(knob, group).reason}")
    spawn(group)
    writer = executor(real)
    path = real.path(knob, group)
    before = real.files.read(path)
    quota_first = [Update(group, Knob.CPU_QUOTA, "50000")] if knob is Knob.CPU_BURST else []

    results = writer.update([*quota_first, Update(group, knob, value_of(knob))], owner="test")

    assert [result.outcome for result in results] == [WriteOutcome.WRITTEN] * len(results), results
    assert real.files.read(path) != before
    back = writer.restore("test")
    assert {each.outcome for each in back} <= {WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED}, back
    if knob is Knob.CPUSET and before is not None and not before.strip():
        assert real.cpus(group) == real.cpus(
            ""
        )  # not every v2 kernel clears the list of a group with processes
    else:
        assert real.files.read(path) == before
    assert writer.owners() == []


READ = [
    Knob.CPU_STAT,
    Knob.CPU_USAGE,
    Knob.CPUACCT_STAT,
    Knob.MEMORY_USAGE,
    Knob.MEMORY_STAT,
    Knob.MEMORY_NUMA_STAT,
    Knob.TASKS,
    Knob.PROCS,
]


@pytest.mark.parametrize("knob", READ, ids=str)
def test_a_knob_that_is_only_read_says_something(real: Cgroups, group: str, spawn: Spawn, knob: Knob) -> None:
    spawn(group)

    assert real.read(knob, group)


def test_values_of_a_busy_group_are_read_in_their_units(real: Cgroups, group: str, spawn: Spawn) -> None:
    burn = (
        "import time\nend = time.process_time() + 0.15\nwhile time.process_time() < end: pass\ntime.sleep(20)"
    )
    pid = spawn(group, burn)
    deadline = time.monotonic() + 10
    while (real.cpu_usage_ns(group) or 0) < 100_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)

    usage_ns, memory = real.cpu_usage_ns(group), real.memory_stat(group)
    assert usage_ns is not None
    assert 100_000_000 <= usage_ns < 10_000_000_000
    assert memory is not None
    assert memory.usage_bytes >= 0
    assert real.procs(group) == [pid]
    assert real.tasks(group) == [pid]
    assert real.quota_us(group) == -1
    assert real.period_us(group) == 100_000
    assert real.memory_limit_bytes(group) == -1
    assert real.cpus(group)


def test_a_throttled_group_counts_its_periods(real: Cgroups, group: str, spawn: Spawn) -> None:
    executor(real).update([Update(group, Knob.CPU_QUOTA, "5000")], owner="test")
    spawn(group, "import time\nend = time.process_time() + 0.06\nwhile time.process_time() < end: pass")
    deadline = time.monotonic() + 10

    while time.monotonic() < deadline:
        counters = real.throttling(group)
        assert counters is not None
        if counters.throttled > 0 and counters.throttled_ns > 0:
            break
        time.sleep(0.05)

    assert counters.periods >= counters.throttled > 0


def test_parents_are_narrowed_after_and_widened_before_their_children(
    real: Cgroups, group: str, spawn: Spawn
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2 or not has(real, Knob.CPUSET, group):
        pytest.skip("needs two CPUs and the cpuset controller")
    child = f"{group}/pod"
    make(real, child)
    spawn(child)
    writer = executor(real)
    both = f"{cpus[0]},{cpus[1]}"

    for wanted in (str(cpus[0]), str(cpus[1]), both, str(cpus[0])):
        levels = [[Update(group, Knob.CPUSET, wanted)], [Update(child, Knob.CPUSET, wanted)]]
        results = writer.update_leveled(levels, owner="suppress")
        assert {result.outcome for result in results} <= {WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED}, (
            results
        )
        assert real.cpus(group) == real.cpus(child) == frozenset(int(each) for each in wanted.split(","))
    for wanted in (30_000, 90_000, 20_000, -1):
        levels = [[Update(each, Knob.CPU_QUOTA, str(wanted))] for each in (group, child)]
        results = writer.update_leveled(levels, owner="suppress")
        assert {result.outcome for result in results} <= {WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED}, (
            results
        )
        assert real.quota_us(group) == real.quota_us(child) == wanted


@pytest.mark.parametrize("writes_until_kill", range(5))
def test_an_agent_killed_within_a_change_puts_all_back_after_its_restart(
    real: Cgroups, group: str, spawn: Spawn, tmp_path: Path, writes_until_kill: int
) -> None:
    child = f"{group}/pod"
    make(real, child)
    spawn(child)
    journal = str(tmp_path / "restore.jsonl")
    before = [real.files.read(real.path(knob, each)) for each in (group, child) for knob in CHANGED]
    pid = os.fork()
    if pid == 0:
        _change_and_die(real, group, child, journal, writes_until_kill)
    os.waitpid(pid, 0)

    restored = executor(real, RestoreLog(journal, "boot")).restore("suppress")

    after = [real.files.read(real.path(knob, each)) for each in (group, child) for knob in CHANGED]
    assert after == before, restored


CHANGED = [Knob.CPU_QUOTA, Knob.CPU_SHARES]


def _change_and_die(real: Cgroups, group: str, child: str, journal: str, writes: int) -> None:
    """In the forked child: kill ourselves before write number `writes`."""
    original = real.files.write
    count = 0

    def write(path: str, text: str):  # type: ignore[no-untyped-def]
        nonlocal count
        if count == writes:
            os.kill(os.getpid(), 9)
        count += 1
        return original(path, text)

    real.files.write = write  # type: ignore[method-assign]
    levels = [
        [Update(each, Knob.CPU_QUOTA, "40000"), Update(each, Knob.CPU_SHARES, "64")]
        for each in (group, child)
    ]
    executor(real, RestoreLog(journal, "boot")).update_leveled(levels, owner="suppress")
    os._exit(0)


def test_a_value_that_the_kernel_refuses_is_a_reason_and_no_crash(real: Cgroups, group: str) -> None:
    if real.version != V1 or not has(real, Knob.CPUSET, group):
        pytest.skip("v1 refuses CPUs that the parent does not have; v2 takes them")
    child = f"{group}/pod"
    make(real, child)
    first = str(min(os.sched_getaffinity(0)))
    writer = executor(real)
    writer.update_leveled(
        [[Update(group, Knob.CPUSET, first)], [Update(child, Knob.CPUSET, first)]], owner="a"
    )

    (result,) = writer.update([Update(child, Knob.CPUSET, "0-1")], owner="a")

    assert result.outcome is WriteOutcome.FAILED
    assert "cpuset.cpus" in result.problem
