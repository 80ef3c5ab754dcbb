"""Descriptors that are kept open tell the truth while groups and processes come and go."""

import os
import subprocess

from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import FileFailure, Files
from tests.kernel.conftest import Spawn, make


def test_a_kept_file_shows_new_values(real: Cgroups, group: str) -> None:
    path = real.path(Knob.CPU_QUOTA, group)
    first = real.files.hot(path)

    real.write(Knob.CPU_QUOTA, group, "70000")

    assert real.files.hot(path) != first
    assert b"70000" in (real.files.hot(path) or b"")
    assert real.files.kept_count == 1


def test_a_vanished_group_is_none_and_its_descriptors_are_closed(real: Cgroups, group: str) -> None:
    pod = f"{group}/pod"
    make(real, pod)
    paths = [real.path(Knob.CPU_STAT, pod), real.path(Knob.CPU_STAT, group)]
    assert None not in real.files.hot_many(paths)

    assert real.remove(pod) is None
    contents = real.files.hot_many(paths)

    assert contents[0] is None
    assert contents[1] is not None
    problem = real.files.why(paths[0])
    assert problem is not None
    assert problem.failure is FileFailure.GONE
    assert real.files.kept_count == 1


def test_a_group_removed_behind_our_back_is_noticed_by_the_kept_file(real: Cgroups, group: str) -> None:
    pod = f"{group}/pod"
    make(real, pod)
    path = real.path(Knob.CPU_STAT, pod)
    assert real.files.hot(path) is not None

    other = Cgroups(Files(), real.where)
    assert other.remove(pod) is None

    assert real.files.hot(path) is None
    assert real.files.kept_count == 0


def test_a_group_of_the_same_name_is_another_one(real: Cgroups, group: str) -> None:
    pod = f"{group}/pod"
    make(real, pod)
    path = real.path(Knob.CPU_STAT, pod)
    real.files.hot(path)
    first_file, first_group = real.files.identity(path), real.identity(pod)

    other = Cgroups(Files(), real.where)
    assert other.remove(pod) is None
    make(other, pod)

    assert real.files.hot(path) is not None
    assert real.files.identity(path) != first_file
    assert real.identity(pod) != first_group


def test_processes_that_end_leave_the_list_of_their_group(real: Cgroups, group: str, spawn: Spawn) -> None:
    path = real.path(Knob.PROCS, group)
    child = subprocess.Popen(["sleep", "20"])
    try:
        assert real.move(child.pid, group) is None
        assert real.procs(group) == [child.pid]
        stat = f"/proc/{child.pid}/stat"
        assert real.files.hot(stat) is not None
    finally:
        child.kill()
        child.wait()

    assert real.procs(group) == []
    assert real.files.hot(stat) is None
    assert real.files.read(path) == ""


def test_descriptors_stay_bounded(real: Cgroups, group: str) -> None:
    bounded = Files(descriptors_max=8)
    groups = [f"{group}/{number}" for number in range(12)]
    for each in groups:
        make(real, each)
    paths = [real.path(Knob.CPU_STAT, each) for each in groups]

    for _ in range(3):
        assert None not in bounded.hot_many(paths)
        assert bounded.kept_count <= 8
    bounded.close()
    assert bounded.kept_count == 0
    assert len(os.listdir("/proc/self/fd")) < 200
