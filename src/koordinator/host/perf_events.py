"""Cycles and instructions of groups of processes, counted by the CPU: one pair of events per group and CPU.

Both counters of a pair are scheduled onto the CPU together, so their ratio holds even when the hardware has too few
counters and the kernel takes turns; the counts are scaled by enabled/running time. Source: behaviour/koordlet-observe
5.9.
"""

import contextlib
import fcntl
import os
import struct
from collections.abc import Collection, Iterable
from typing import Self

import msgspec

from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1
from koordinator.host.cgroups import Cgroups, KernelSupport
from koordinator.host.files import FileProblem, problem_of
from koordinator.host.syscalls import Syscalls

_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
_READING = struct.Struct("=QQQQQ")  # count, enabled ns, running ns, leader, follower
_ENABLED, _RUNNING, _GROUP = 1, 2, 8
_DISABLED = 1
_OF_GROUP, _CLOSE_ON_EXEC = 1 << 2, 1 << 3
_IOC_ENABLE, _WHOLE_GROUP = 0x2400, 1


class EventKind(msgspec.Struct, frozen=True):
    """A counter as `perf_event_open(2)` names it."""

    type: int
    config: int


class EventPair(msgspec.Struct, frozen=True):
    """Two counters that are read together."""

    leader: EventKind
    follower: EventKind


CYCLES_AND_INSTRUCTIONS = EventPair(EventKind(0, 0), EventKind(0, 1))
CPU_TIME_AND_SWITCHES = EventPair(EventKind(1, 0), EventKind(1, 3))
"""Counted by the kernel, without hardware: nanoseconds on the CPU, and context switches."""


class Counts(msgspec.Struct, frozen=True):
    """The events of a group while it was watched, summed over CPUs: cycles and instructions, usually."""

    leader: float
    follower: float

    @property
    def ratio(self) -> float | None:
        """Leader per follower (cycles per instruction); None while nothing ran."""
        return self.leader / self.follower if self.follower else None


class PerfWatch:
    """Open counters of some groups; close it, best with `with`. `problems` tells of groups that have none."""

    def __init__(self) -> None:
        self._leaders: dict[str, list[int]] = {}
        self._followers: list[int] = []
        self.problems: dict[str, FileProblem] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> dict[str, Counts]:
        """Counts by group since the watch began; groups that vanished keep theirs."""
        return {group: _sum(fds) for group, fds in self._leaders.items()}

    def close(self) -> None:
        """Give the counters back."""
        for fd in (*self._followers, *(fd for fds in self._leaders.values() for fd in fds)):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._leaders.clear()
        self._followers.clear()

    def _add(
        self, syscalls: Syscalls, group: str, directory: str, cpus: Collection[int], pair: EventPair
    ) -> None:
        try:
            directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.problems[group] = problem_of(directory, error)
            return
        leaders: list[int] = []
        try:
            for cpu in cpus:
                leader = _open(syscalls, pair.leader, directory_fd, cpu, -1, _OF_GROUP)
                leaders.append(leader)
                follower = _open(syscalls, pair.follower, directory_fd, cpu, leader, _OF_GROUP)
                self._followers.append(follower)
                fcntl.ioctl(leader, _IOC_ENABLE, _WHOLE_GROUP)
        except OSError as error:
            self.problems[group] = problem_of(directory, error)
            for fd in leaders:
                os.close(fd)
            return
        finally:
            os.close(directory_fd)
        self._leaders[group] = leaders


def watch(
    cgroups: Cgroups,
    syscalls: Syscalls,
    groups: Iterable[str],
    cpus: Collection[int],
    pair: EventPair = CYCLES_AND_INSTRUCTIONS,
) -> PerfWatch:
    """Begin to count; costs two descriptors per group and CPU until closed."""
    begun = PerfWatch()
    for group in groups:
        begun._add(syscalls, group, directory(cgroups, group), cpus, pair)
    return begun


def directory(cgroups: Cgroups, group: str) -> str:
    """Return what stands for a group towards perf: on v1 its own hierarchy, or v2's where that one holds perf."""
    own = cgroups.absolute(cgroup_knobs.perf_dir(cgroups.version, group))
    unified = cgroups.where.unified
    is_in_v2 = (
        cgroups.version == V1 and unified and not cgroups.files.exists(cgroups.where.directory("perf_event"))
    )
    return f"{unified}/{group}".rstrip("/") if is_in_v2 else own


def support(syscalls: Syscalls, pair: EventPair = CYCLES_AND_INSTRUCTIONS) -> KernelSupport:
    """Return whether this machine counts these events, asked with our own process."""
    try:
        os.close(_open(syscalls, pair.leader, 0, -1, -1, 0))
    except OSError as error:
        return KernelSupport(
            False, f"perf_event_open: {error.strerror}: no such counter on this machine, or not for us"
        )
    return KernelSupport(True)


def _open(syscalls: Syscalls, kind: EventKind, pid: int, cpu: int, leader: int, flags: int) -> int:
    read_format = _ENABLED | _RUNNING | _GROUP
    state = _DISABLED if leader < 0 else 0
    attributes = _ATTRIBUTES.pack(kind.type, _ATTRIBUTES.size, kind.config, 0, 0, read_format, state, 0, 0, 0)
    return syscalls.perf_event_open(attributes, pid, cpu, leader, flags | _CLOSE_ON_EXEC)


def _sum(leaders: list[int]) -> Counts:
    total_leader = total_follower = 0.0
    for fd in leaders:
        data = os.read(fd, _READING.size)
        if len(data) == _READING.size:
            _, enabled, running, leader, follower = _READING.unpack(data)
            total_leader += scaled(leader, enabled, running)
            total_follower += scaled(follower, enabled, running)
    return Counts(total_leader, total_follower)


def scaled(value: int, enabled: int, running: int) -> float:
    """Return the count scaled to the whole time, not rounded; the value itself when either time is 0."""
    return value * enabled / running if enabled and running else value
