"""Observe what the machine and the groups on it did between two moments, and whether it is quiet enough to measure
on."""

import asyncio
import os
import time
from pathlib import Path

import msgspec
import numpy as np

from koordinator.host.cgroups import Cgroups
from koordinator.node_demo.plan import DemoError

_NS_PER_S = 1e9
_STEAL, _IDLE, _IOWAIT = 7, 3, 4
_TICKS = 8  # user nice system idle iowait irq softirq steal: guest times are part of user and nice


class Moment(msgspec.Struct, frozen=True):
    """Counters at one moment; CPU times in seconds since some beginning."""

    at_s: float
    busy_s: float
    idle_s: float
    steal_s: float
    service_s: float
    batch_s: float
    agent_s: float
    own_s: float
    awake_s: float
    work_units: int


class Use(msgspec.Struct, frozen=True, rename="camel"):
    """CPU time of a run, as shares of what all CPUs of the machine had (without what the hypervisor took away).

    What only keeps CPUs awake counts as idle.
    `client_ratio` is of what stands for other machines: the load generator, the control plane and this measuring.
    """

    cpus: int
    wall_s: float
    total_ratio: float
    service_ratio: float
    batch_ratio: float
    agent_ratio: float
    client_ratio: float
    other_ratio: float
    steal_ratio: float
    work_per_s: float


# When the machine does other things meanwhile, figures of single runs mean little.
OTHER_RATIO_MAX = 0.05
STEAL_RATIO_MAX = 0.02


def disturbance(use: Use) -> float:
    """Return how much others disturbed a run: above 1, more than figures of it bear."""
    return max(use.other_ratio / OTHER_RATIO_MAX, use.steal_ratio / STEAL_RATIO_MAX)


def cpu_times(text: str) -> tuple[float, float, float]:
    """Busy, idle and stolen CPU seconds of all CPUs by `/proc/stat`. Raises: DemoError."""
    words = text.split("\n", 1)[0].split()
    if len(words) <= _TICKS or words[0] != "cpu" or not all(word.isdigit() for word in words[1:]):
        raise DemoError(f"/proc/stat begins with {' '.join(words[:3])!r}, expected the times of all CPUs")
    ticks = [int(word) for word in words[1 : _TICKS + 1]]
    per_s = os.sysconf("SC_CLK_TCK")
    idle = ticks[_IDLE] + ticks[_IOWAIT]
    return (sum(ticks) - idle - ticks[_STEAL]) / per_s, idle / per_s, ticks[_STEAL] / per_s


def look(
    cgroups: Cgroups,
    service: str,
    batch: list[str],
    counters: list[Path],
    agents: list[int],
    awake: list[int],
) -> Moment:
    """Counters now. `agents` are the processes of the node agent, `awake` those that keep CPUs from idling."""
    busy_s, idle_s, steal_s = cpu_times(Path("/proc/stat").read_text(encoding="utf-8"))
    return Moment(
        at_s=asyncio.get_running_loop().time(),
        busy_s=busy_s,
        idle_s=idle_s,
        steal_s=steal_s,
        service_s=_group_s(cgroups, service),
        batch_s=sum(_group_s(cgroups, group) for group in batch),
        agent_s=sum(process_s(pid) for pid in agents),
        own_s=time.process_time(),
        awake_s=sum(process_s(pid) for pid in awake),
        work_units=sum(work_units(path) for path in counters),
    )


def use(before: Moment, after: Moment, cpus: int, generator_s: float) -> Use:
    """Return what happened between two moments; the load generator used `generator_s` of CPU."""
    had_s = max((after.busy_s - before.busy_s) + (after.idle_s - before.idle_s), 1e-9)
    wall_s = after.at_s - before.at_s
    stolen_s = after.steal_s - before.steal_s
    busy = (after.busy_s - before.busy_s - (after.awake_s - before.awake_s)) / had_s
    service = (after.service_s - before.service_s) / had_s
    batch = (after.batch_s - before.batch_s) / had_s
    agent = (after.agent_s - before.agent_s) / had_s
    client = (after.own_s - before.own_s + generator_s) / had_s
    return Use(
        cpus=cpus,
        wall_s=wall_s,
        total_ratio=busy,
        service_ratio=service,
        batch_ratio=batch,
        agent_ratio=agent,
        client_ratio=client,
        other_ratio=max(busy - service - batch - agent - client, 0.0),
        steal_ratio=stolen_s / (had_s + stolen_s),
        work_per_s=(after.work_units - before.work_units) / wall_s,
    )


def work_units(path: Path) -> int:
    """Return what a hog has done so far; 0 before it has started."""
    try:
        return int(np.fromfile(path, dtype=np.uint64).sum())
    except FileNotFoundError:
        return 0


def _group_s(cgroups: Cgroups, group: str) -> float:
    used_ns = cgroups.cpu_usage_ns(group)
    if used_ns is None:
        raise DemoError(f"group {group} vanished while it was measured")
    return used_ns / _NS_PER_S


def process_s(pid: int) -> float:
    """Return user and system time of a process. Raises: DemoError when it has ended, for then the run means nothing."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError as error:
        raise DemoError(f"process {pid} ended while it was measured: {error}") from error
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


SAMPLE_S = 2.0
BUSY_RATIO_MAX = 0.10
"""Share of all CPUs. What others use beyond that is larger than most of the differences that are to be shown."""


def check_quiet() -> None:
    """Look for two seconds. Raises: DemoError, which says how busy the machine is and what to do."""
    before = _times()
    time.sleep(SAMPLE_S)
    if trouble := trouble_of(before, _times(), os.cpu_count() or 1):
        raise DemoError(trouble)


def trouble_of(before: tuple[float, float, float], after: tuple[float, float, float], cpus: int) -> str:
    """Return why not to measure now; empty when the machine is quiet. Both are busy, idle and stolen CPU seconds."""
    busy, idle, stolen = (later - earlier for later, earlier in zip(after, before, strict=True))
    taken = (busy + stolen) / max(busy + idle + stolen, 1e-9)
    if taken <= BUSY_RATIO_MAX:
        return ""
    who = "other machines on the same host" if stolen > busy else "other processes"
    return (
        f"{who} use {taken * cpus:.1f} of {cpus} CPUs now: latencies would tell of them. Stop them (`top` shows "
        "who), or measure all the same with --busy"
    )


def _times() -> tuple[float, float, float]:
    return cpu_times(Path("/proc/stat").read_text(encoding="utf-8"))
