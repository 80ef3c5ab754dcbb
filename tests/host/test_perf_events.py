"""Counters of groups, on a kernel that notes what it is asked: its structures are those of `perf_event_open(2)`."""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host import perf_events
from koordinator.host.cgroup_knobs import V1
from koordinator.host.host import tree_host
from koordinator.host.perf_events import Counts
from koordinator.host.syscalls import NoSyscalls
from tests.host import host_tree

READING = struct.Struct("=QQQQQ")
HALF_THE_TIME = (2_000, 1_000)  # enabled ns, running ns


class CountingKernel(NoSyscalls):
    """Gives out counters, each a pipe; on the CPU that is `missing` there are none left."""

    def __init__(self, missing: int = -1) -> None:
        self.missing = missing
        self.begun: list[tuple[int, int, bool, bool]] = []
        self.enabled: list[int] = []
        self._writing: dict[int, int] = {}

    def perf_event_open(self, attributes: bytes, pid: int, cpu: int, group_fd: int, flags: int) -> int:
        if cpu == self.missing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        kind, size, config, *sampling, read_format, state = struct.unpack_from("=IIQQQQQ", attributes)
        assert (kind, size, read_format) == (0, len(attributes), 1 | 2 | 8)  # with times, as a group
        assert not any(sampling) and not any(attributes[48:]), "it counts and samples nothing"
        reading, writing = os.pipe()
        self._writing[reading] = writing
        self.begun.append((config, cpu, bool(state & 1), group_fd in self._writing))
        return reading

    def ioctl(self, fd: int, request: int, argument: int) -> int:
        assert (request, argument) == (0x2400, 1)  # PERF_EVENT_IOC_ENABLE of the whole group
        self.enabled.append(fd)
        return 0

    def count(self, fd: int, leader: int, follower: int, times: tuple[int, int]) -> None:
        os.write(self._writing[fd], READING.pack(2, *times, leader, follower))

    def open_count(self) -> int:
        """Counters that were not given back."""
        found = 0
        for reading, writing in self._writing.items():
            try:
                os.fstat(reading)
                found += 1
            except OSError:
                pass
            os.close(writing)
        return found


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    host_tree.group(tmp_path, V1, "kubepods")
    (tmp_path / "sys/fs/cgroup/perf_event/kubepods").mkdir(parents=True)
    yield tmp_path


def test_a_pair_counts_on_each_cpu_from_one_moment_on_and_is_scaled_to_the_whole_time(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = CountingKernel()
    monkeypatch.setattr(fcntl, "ioctl", kernel.ioctl)
    cgroups = tree_host(str(group), kernel).cgroups

    with perf_events.watch(cgroups, kernel, ["kubepods"], [0, 1]) as watched:
        # cycles wait for being enabled, instructions for cycles
        assert kernel.begun == [
            (0, 0, True, False),
            (1, 0, False, True),
            (0, 1, True, False),
            (1, 1, False, True),
        ]
        first, second = kernel.enabled
        kernel.count(first, 300, 100, HALF_THE_TIME)
        kernel.count(second, 50, 25, (0, 0))
        counts = watched.read()

    assert counts == {"kubepods": Counts(650, 225)}
    assert watched.problems == {}
    assert kernel.open_count() == 0


def test_a_group_without_counters_on_one_cpu_has_none_and_says_so(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = CountingKernel(missing=1)
    monkeypatch.setattr(fcntl, "ioctl", kernel.ioctl)
    cgroups = tree_host(str(group), kernel).cgroups

    with perf_events.watch(cgroups, kernel, ["kubepods"], [0, 1]) as watched:
        assert watched.read() == {}
        assert {name: problem.errno for name, problem in watched.problems.items()} == {
            "kubepods": errno.EMFILE
        }

    assert kernel.open_count() == 0
