"""Measure the mechanisms in groups of the probe's own, below the best-effort tree: bounded, spread out, removed after.

The group has the least weight that there is, a run uses about 1.5 s of CPU over half a minute, and what a process
had is asked of the process, not of files that may be somebody else's.
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import cpuset
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_layout, kill_group
from koordinator.host.cgroup_knobs import CFS_PERIOD_US, SHARES_MIN, UNLIMITED, V1, V2, Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.errors import ContentError, HostError
from koordinator.host.host import Host
from koordinator.host.syscalls import LONGEST_SLICE_NS
from koordinator.koordlet.isolation import verdicts, worker
from koordinator.koordlet.isolation.verdicts import Mechanism, MechanismVerdict, Spun
from koordinator.koordlet.writing.executor import Executor

log = logging.getLogger(__name__)

GROUP = "koordinator-probe"
OWNER = "IsolationProbe"
"""The name under which the journal has the notes of the probe."""
ANSWER_S_MAX = 10.0
PAUSE_S = 2.0
"""Between two mechanisms."""
BEGIN_S = 0.05
FREE_S, LIMITED_S, SHARED_S = 0.1, 0.5, 0.25
USUAL_S, LONG_S, ALONE_S = 0.08, 0.12, 0.08
MEBI = 1 << 20
MEMORY_SMALL, MEMORY_LIMIT, MEMORY_WANTED = 20 * MEBI, 32 * MEBI, 64 * MEBI
HIGH, CACHED = 12 * MEBI, 24 * MEBI
IO_BYTES, IO_BYTES_PER_S = MEBI, MEBI
_CONTROLLERS = ("cpu", "cpuset", "memory", "io")
_HANDED_OUT = "cgroup.subtree_control"
_DEPTH_MAX = 3
_REMOVE_TRIES, _REMOVE_PAUSE_S = 10, 0.05
Measured = Callable[[], Awaitable[MechanismVerdict]]


class Worker:
    """A process in a group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def ask(self, *words: object) -> Any:
        """Return the answer; None when the process ended instead. Raises: HostError for what it could not do."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        async with asyncio.timeout(ANSWER_S_MAX):
            with contextlib.suppress(ConnectionError):
                await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        if not line:
            return None
        found = msgspec.json.decode(line)
        if isinstance(found, dict):
            raise HostError(f"the probe's process: {found.get('error')}")
        return found


class IsolationMeasurement:
    """One run on one host. `parent` is the group below which the probe has its own."""

    def __init__(
        self, host: Host, executor: Executor, parent: str, scratch: str, pause_s: float = PAUSE_S
    ) -> None:
        self._host = host
        self._executor = executor
        self._cgroups = host.cgroups
        self._top = cgroup_layout.join(parent, GROUP)
        self._scratch = f"{scratch}/{GROUP}.{os.getpid()}"
        self._pause_s = pause_s
        self._is_stuck = False
        """Groups could not be removed, so each try would only take its time."""

    async def run(self) -> dict[Mechanism, MechanismVerdict]:
        """Measure all; whatever happens, nothing is left behind. Raises: HostError when there can be no group."""
        found: dict[Mechanism, MechanismVerdict] = {}
        try:
            self._make(self._top)
            self._cgroups.write(Knob.CPU_SHARES, self._top, str(SHARES_MIN))  # whether it counts is measured
            for mechanism, measure in self._all().items():
                found[mechanism] = await self._measured(measure)
                await asyncio.sleep(self._pause_s)
        finally:
            await asyncio.shield(clean(self._host, self._top))
            take_back_controllers(self._host, self._executor)
            with contextlib.suppress(OSError):
                os.unlink(self._scratch)
        return found

    def _all(self) -> Mapping[Mechanism, Measured]:
        return {
            Mechanism.CPU_QUOTA: self._quota,
            Mechanism.CPU_WEIGHT: self._weight,
            Mechanism.CPU_IDLE: self._idle,
            Mechanism.TIME_SLICE: self._time_slice,
            Mechanism.CPUSET: self._cpuset,
            Mechanism.MEMORY_LIMIT: self._memory_limit,
            Mechanism.MEMORY_HIGH: self._memory_high,
            Mechanism.IO_LIMIT: self._io_limit,
            Mechanism.RESCTRL: self._resctrl,
            Mechanism.KILL: self._kill,
        }

    async def _measured(self, measure: Measured) -> MechanismVerdict:
        """Measure; what seems to be broken is measured once more."""
        found = await self._once(measure)
        return await self._once(measure) if found.works is verdicts.Works.NO else found

    async def _once(self, measure: Measured) -> MechanismVerdict:
        try:
            return await measure()
        except TimeoutError:
            return verdicts.unknown(f"no answer of the probe's process within {ANSWER_S_MAX:g} s")
        except (HostError, ContentError, OSError) as error:
            return MechanismVerdict(verdicts.Works.NO, str(error))
        finally:
            if not self._is_stuck:
                self._is_stuck = not await clean(self._host, self._top, keep_top=True)

    # CPU

    async def _quota(self) -> MechanismVerdict:
        async with self._worker("quota") as one:
            before = self._throttled_above()
            (free,) = await _spin(FREE_S, -1, one)
            above = self._throttled_above() - before
            self._put(Knob.CPU_QUOTA, self._group("quota"), str(int(verdicts.QUOTA_RATIO * CFS_PERIOD_US)))
            (limited,) = await _spin(LIMITED_S, -1, one)
            self._put(Knob.CPU_QUOTA, self._group("quota"), str(UNLIMITED))
        return verdicts.quota(free.cpu_s / FREE_S, limited.cpu_s / LIMITED_S, above)

    def _throttled_above(self) -> int:
        """Return how often groups above the one with the probe's own quota were throttled, as far as files say so."""
        counted, group = 0, self._top
        while group:
            with contextlib.suppress(ContentError):
                found = self._cgroups.throttling(group)
                counted += found.throttled if found is not None else 0
            group = os.path.dirname(group)
        return counted

    async def _weight(self) -> MechanismVerdict:
        heavy, light = await self._side_by_side(Knob.CPU_SHARES, str(int(1024 * verdicts.WEIGHTS)), "1024")
        return verdicts.weight(heavy, light)

    async def _idle(self) -> MechanismVerdict:
        if not self._host.files.exists(self._cgroups.path(Knob.CPU_IDLE, self._top)):
            return verdicts.unknown("this kernel has no cpu.idle")
        return verdicts.idle(*await self._side_by_side(Knob.CPU_IDLE, "0", "1"))

    async def _side_by_side(self, knob: Knob, first: str, second: str) -> tuple[float, float]:
        """Return CPU seconds of two groups that want the same CPU at the same time."""
        async with self._pair() as (one, other, cpu):
            self._put(knob, self._group("a"), first)
            self._put(knob, self._group("b"), second)
            had = await _spin(SHARED_S, cpu, one, other)
        return had[0].cpu_s, had[1].cpu_s

    async def _time_slice(self) -> MechanismVerdict:
        slices = self._host.slices
        if not (support := slices.support()).is_supported:
            return verdicts.unknown(support.reason)
        async with self._pair() as (one, other, cpu):
            others = await self._used_by_others([cpu])
            usual = await _spin(USUAL_S, cpu, one, other)
            for each in (one, other):
                if (problem := slices.give(each.pid, LONGEST_SLICE_NS)) is not None:
                    raise HostError(str(problem))
            long = await _spin(LONG_S, cpu, one, other)
            (alone,) = await _spin(ALONE_S, cpu, one)
            others += await self._used_by_others([cpu])
        return verdicts.time_slice(usual, long, alone, max(others))

    async def _used_by_others(self, cpus: Sequence[int]) -> list[float]:
        """Return the shares of CPUs that are used while the probe's processes wait; 1 where that cannot be told."""
        machine = self._host.machine
        before = machine.cpu_ticks()
        await asyncio.sleep(ALONE_S)
        after = machine.cpu_ticks()
        if before is None or after is None:
            return [1.0] * len(cpus)
        ticks = [after.by_cpu.get(cpu, math.inf) - before.by_cpu.get(cpu, 0) for cpu in cpus]
        return [each / machine.clock_ticks_per_s / ALONE_S for each in ticks]

    async def _cpuset(self) -> MechanismVerdict:
        async with self._worker("cpuset") as one:
            allowed = await one.ask("affinity")
            if len(allowed) < 2:
                return verdicts.unknown("there is only one CPU to be had")
            chosen = allowed[-1:]
            self._put(Knob.CPUSET, self._group("cpuset"), cpuset.text_of(chosen))
            return verdicts.confined(chosen, await one.ask("affinity"))

    # Memory, disks, processes

    async def _memory_limit(self) -> MechanismVerdict:
        async with self._worker("memory") as one:
            self._put(Knob.MEMORY_LIMIT, self._group("memory"), str(MEMORY_LIMIT))
            if await one.ask("touch", MEMORY_SMALL) is None:
                return MechanismVerdict(
                    verdicts.Works.NO, "a group above allows less than the probe's own limit"
                )
            return verdicts.memory_limit(MEMORY_LIMIT, await one.ask("touch", MEMORY_WANTED))

    async def _memory_high(self) -> MechanismVerdict:
        if self._cgroups.version == V1:
            return verdicts.unknown("cgroup v1 has no memory.high")
        if (device := self._disk()) is None:
            return verdicts.unknown(f"{os.path.dirname(self._scratch)} is on no disk: nothing to reclaim")
        group = self._group("high")
        async with self._worker("high") as one:
            self._put(Knob.MEMORY_HIGH, group, str(HIGH))
            await one.ask("fill", self._scratch, CACHED)
            usage = self._cgroups.number(Knob.MEMORY_USAGE, group) or 0
            events = self._host.files.read(f"{self._cgroups.directory(group)}/memory.events") or ""
        reached = dict(line.split() for line in events.splitlines()).get("high", "0")
        log.debug("memory.high was tried on", extra={"disk": device})
        return verdicts.memory_high(HIGH, usage, int(reached))

    async def _io_limit(self) -> MechanismVerdict:
        if (device := self._disk()) is None:
            return verdicts.unknown(f"{os.path.dirname(self._scratch)} is on no disk that can be limited")
        group = self._group("io")
        async with self._worker("io") as one:
            await one.ask("fill", self._scratch, IO_BYTES)
            free_s = await one.ask("direct", self._scratch, IO_BYTES)
            if self._cgroups.version == V2:
                self._put(Knob.IO_MAX, group, f"{device} rbps={IO_BYTES_PER_S}")
            else:
                self._put(Knob.BLKIO_READ_BPS, group, f"{device} {IO_BYTES_PER_S}")
            limited_s = await one.ask("direct", self._scratch, IO_BYTES)
        if limited_s is None or free_s is None:
            return verdicts.unknown("the probe's process ended")
        return verdicts.io_limit(IO_BYTES, IO_BYTES_PER_S, free_s, limited_s)

    def _disk(self) -> str | None:
        """Return the number of the whole disk that the scratch file is on, None for none."""
        number = os.stat(os.path.dirname(self._scratch)).st_dev
        base = f"{self._host.roots.sys}/dev/block/{os.major(number)}:{os.minor(number)}"
        path = self._host.files.link(base)
        if path is None:
            return None
        if self._host.files.exists(f"{path}/partition"):
            path = os.path.dirname(path)
        text = self._host.files.read(f"{path}/dev")
        return text.strip() if text else None

    async def _resctrl(self) -> MechanismVerdict:
        found = self._host.resctrl.support()
        if not found.is_supported:
            return verdicts.unknown(found.reason)
        return verdicts.unknown("its effect is not measured")

    async def _kill(self) -> MechanismVerdict:
        async with self._worker("kill"):
            problem = await kill_group.kill_group(self._host, self._group("kill"))
            left = kill_group.members(self._host, self._group("kill"))
        if problem or left:
            return MechanismVerdict(verdicts.Works.NO, problem or f"{len(left)} processes outlive it")
        return MechanismVerdict(verdicts.Works.YES, "all processes of a group ended at once")

    # Groups

    def _group(self, name: str) -> str:
        return f"{self._top}/{name}"

    def _make(self, group: str) -> None:
        """Make a group that processes may enter. Raises: HostError."""
        problem = self._cgroups.create(group)
        if problem is not None:
            raise HostError(f"the probe's group cannot be made: {problem}")
        parent = os.path.dirname(group)
        if self._cgroups.version == V2:
            path = f"{self._cgroups.directory(parent)}/{_HANDED_OUT}"
            before = (self._host.files.read(path) or "").split()
            new = [each for each in _CONTROLLERS if each not in before]
            if new and group == self._top:
                self._executor.note(path, " ".join(new), owner=OWNER, group=parent)
            for controller in new:
                self._host.files.write(path, f"+{controller}")
        else:
            for name in ("cpuset.mems", "cpuset.cpus"):
                text = self._host.files.read(f"{self._cgroups.directory(parent, 'cpuset')}/{name}")
                if text is not None:
                    own = f"{self._cgroups.directory(group, 'cpuset')}/{name}"
                    self._host.files.write(own, text.strip())

    def _put(self, knob: Knob, group: str, value: str) -> None:
        """Write a value. Raises: HostError when the kernel refuses it: then the mechanism is not there."""
        problem = self._cgroups.write(knob, group, value)
        if problem is not None:
            raise HostError(str(problem))

    @contextlib.asynccontextmanager
    async def _pair(self) -> AsyncIterator[tuple[Worker, Worker, int]]:
        """Run processes in the groups `a` and `b`; the number is that of the CPU that others use least. Raises:
        HostError."""
        async with self._worker("a") as one, self._worker("b") as other:
            cpus = await one.ask("affinity")
            await other.ask("affinity")  # it has started
            _, cpu = min(zip(await self._used_by_others(cpus), cpus, strict=True))
            yield one, other, cpu

    @contextlib.asynccontextmanager
    async def _worker(self, name: str) -> AsyncIterator[Worker]:
        """Run a process in a group of this name. Raises: HostError."""
        group = self._group(name)
        self._make(group)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", worker.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            problem = self._cgroups.move(process.pid, group)
            if problem is not None:
                raise HostError(f"no process can enter the probe's group: {problem}")
            yield Worker(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # not process.kill(), which would reap it beside asyncio
            await process.wait()


async def _spin(seconds: float, cpu: int, *workers: Worker) -> list[Spun]:
    """Return what workers had that want a CPU (any for -1) at the very same time."""
    begin_s = time.monotonic() + BEGIN_S
    found = await asyncio.gather(*(each.ask("spin", begin_s, begin_s + seconds, cpu) for each in workers))
    return [Spun(*each) for each in found]


def parent_group(host: Host, driver: Driver) -> str:
    """Return the group below which the probe works: that of best-effort pods, where there is one."""
    group = cgroup_layout.class_dir(driver, KubeQoS.BEST_EFFORT)
    return group if host.cgroups.exists(group) else ""


def take_back_controllers(host: Host, executor: Executor) -> None:
    """Take from the group above what it did not hand out before a run (v2), also one of an agent that was killed."""
    for record in executor.changed_by(OWNER):
        for controller in record.wrote.split():
            host.files.write(record.path, f"-{controller}")
        executor.unnote(record.path, owner=OWNER)


async def clean(host: Host, top: str, *, keep_top: bool = False) -> bool:
    """End all processes of the probe's groups and remove them, also those of an agent that was killed; return whether
    they are gone."""
    hierarchies = (
        ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids") if host.cgroups.version == V1 else ("cpu",)
    )
    for _ in range(_REMOVE_TRIES):
        found = {each for name in hierarchies for each in host.cgroups.walk(top, _DEPTH_MAX, name)}
        groups = sorted(found - ({top} if keep_top else set()), key=lambda each: -each.count("/"))
        if not groups:
            return True
        if kill_group.members(host, top):
            await kill_group.kill_group(host, top)
        if all(host.cgroups.remove(each) is None for each in groups):
            return True
        await asyncio.sleep(_REMOVE_PAUSE_S)
    log.warning("groups of the isolation probe are left behind", extra={"group": top})
    return False
