"""Files, mounts, groups and hot counters over trees."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_counters, cgroup_layout, cgroup_values, cgroups, mounts
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import ContentError, UnsupportedError
from koordinator.host.files import FileFailure, FileProblem, Files, HostRoots
from koordinator.host.host import TreeFiles
from tests.host import host_tree

HYBRID = """\
23 27 0:22 / /sys rw - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "30 23 0:26 / /host-cgroup rw,nosuid master:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def groups(root: Path) -> Cgroups:
    files = TreeFiles()
    return Cgroups(files, cgroups.detect(files, HostRoots.below(str(root))))


@pytest.mark.parametrize("text", [HYBRID, UNIFIED])
def test_groups_can_be_named_from_a_group_of_the_kubelet(text: str) -> None:
    point = "/sys/fs/cgroup" if text is HYBRID else "/host-cgroup"
    where = mounts.cgroup_mounts(mounts.parse(text), point)
    assert where is not None

    found = mounts.below(where, "/apps/")

    assert found.directory("cpu") == f"{where.directory('cpu')}/apps"
    assert found.directory("memory") == f"{where.directory('memory')}/apps"
    assert found.version == where.version
    assert mounts.below(where, "") == where


def test_hierarchies_mounted_together_are_found_under_each_name() -> None:
    where = mounts.cgroup_mounts(mounts.parse(HYBRID), "/sys/fs/cgroup/")

    assert where is not None
    assert where.version == V1
    assert where.directory("cpu") == where.directory("cpuacct") == "/sys/fs/cgroup/cpu,cpuacct"
    assert where.directory("blkio") == "/sys/fs/cgroup/blkio"
    assert where.unified == "/sys/fs/cgroup/unified"


def test_a_root_that_is_cgroup2_itself_is_v2() -> None:
    where = mounts.cgroup_mounts(mounts.parse(UNIFIED), "/host-cgroup")

    assert where == mounts.CgroupMounts(V2, "/host-cgroup", {}, "/host-cgroup")


def test_mount_points_with_spaces_are_read() -> None:
    (mount,) = mounts.parse("1 2 0:1 / /a\\040b rw - resctrl none rw\nbroken line\n")

    assert mount.point == "/a b"
    assert mounts.is_resctrl([mount], "/a b/")


@pytest.mark.parametrize("version", host_tree.VERSIONS)
def test_values_of_a_tree_are_read_in_v1_terms(tmp_path: Path, version: int) -> None:
    if version == V2:
        host_tree.group(tmp_path, version, "")
    host_tree.group(tmp_path, version, "kubepods")
    found = groups(tmp_path)

    assert found.version == version
    assert found.driver() is Driver.CGROUPFS
    assert found.quota_us("kubepods") == -1
    assert found.period_us("kubepods") == 100_000
    assert found.memory_limit_bytes("kubepods") == -1
    assert found.cpus("kubepods") == frozenset(range(4))
    assert found.read(Knob.CPUSET, "kubepods") == "0-3"
    assert found.cpu_usage_ns("kubepods") == 0
    assert found.cpu_usage_ns("kubepods/none") is None
    assert found.procs("kubepods") == []


def test_the_tree_is_walked_from_parents_to_children(tmp_path: Path) -> None:
    for name in ("kubepods", "kubepods/b", "kubepods/a", "kubepods/a/c", "kubepods/a/c/d"):
        host_tree.group(tmp_path, V1, name)

    assert groups(tmp_path).walk("kubepods", 2) == ["kubepods", "kubepods/a", "kubepods/a/c", "kubepods/b"]
    assert groups(tmp_path).walk("none", 2) == []
    assert groups(tmp_path).children("none") is None


def test_support_tells_what_is_missing(tmp_path: Path) -> None:
    host_tree.group(tmp_path, V1, "kubepods")
    found = groups(tmp_path)

    assert found.support(Knob.CPU_SHARES, "kubepods").is_supported
    missing = found.support(Knob.CPU_BVT, "kubepods")
    assert (missing.is_supported, "cpu.bvt_warp_ns" in missing.reason) == (False, True)
    nowhere = found.support(Knob.CPU_BVT, "none")
    assert "is not there to look in" in nowhere.reason
    with pytest.raises(UnsupportedError):
        found.path(Knob.CPUSET_EFFECTIVE, "kubepods")


def test_a_host_application_dir_of_systemd_is_detected(tmp_path: Path) -> None:
    host_tree.group(tmp_path, V1, cgroup_layout.class_dir(Driver.SYSTEMD, KubeQoS.GUARANTEED))

    assert groups(tmp_path).driver() is Driver.SYSTEMD


def test_writing_makes_no_files(tmp_path: Path) -> None:
    problem = Files().write(str(tmp_path / "none"), "1")

    assert problem is not None
    assert problem.failure is FileFailure.GONE
    assert list(tmp_path.iterdir()) == []


def test_reading_in_vain_tells_why_until_it_succeeds(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "value"
    assert files.hot_many([str(path)]) == [None]
    assert str(files.why(str(path))).endswith("(No such file or directory)")

    path.write_text("1\n")

    assert files.hot(str(path)) == b"1\n"
    assert files.why(str(path)) is None
    files.close()


def test_long_files_are_read_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"0123456789" * 10_000)
    files = Files()

    assert files.hot(str(path)) == files.hot(str(path)) == path.read_bytes()
    assert len(files.hot("/proc/cpuinfo") or b"") == len(Path("/proc/cpuinfo").read_bytes())
    files.close()


def test_files_that_nobody_reads_any_more_are_closed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    files = Files()
    files.hot_many([str(tmp_path / name) for name in "ab"])

    files.sweep()
    files.hot(str(tmp_path / "a"))
    assert files.sweep() == 1
    assert files.kept_count == 1
    files.forget(str(tmp_path))
    assert files.kept_count == 0


def test_more_files_than_descriptors_close_the_least_used(tmp_path: Path) -> None:
    files = Files(descriptors_max=16)
    paths = []
    for number in range(64):
        (tmp_path / str(number)).write_text(str(number))
        paths.append(str(tmp_path / str(number)))

    assert [int(data or b"") for data in files.hot_many(paths)] == list(range(64))
    assert files.kept_count <= 16
    assert len([name for name in os.listdir("/proc/self/fd") if name]) < 100
    files.close()


def test_never_are_more_files_open_than_there_may_be(tmp_path: Path) -> None:
    files = Files(descriptors_max=4)
    counts = []
    for number in range(12):
        (tmp_path / str(number)).write_text(str(number))
        assert files.hot(str(tmp_path / str(number))) == str(number).encode()
        counts.append(files.kept_count)

    assert counts == [1, 2, 3] + [4] * 9
    files.close()


NUMBERS = st.integers(0, 2**63 - 1)
V1_STAT = ["cache", "rss", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"]
V2_STAT = ["anon", "file", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"]


@given(
    st.lists(NUMBERS, min_size=7, max_size=7),
    st.sampled_from([V1, V2]),
    st.permutations(range(7)),
    st.booleans(),
)
def test_hot_memory_is_what_the_careful_parser_says(
    numbers: list[int], version: int, order: list[int], in_order: bool
) -> None:
    names = V1_STAT if version == V1 else V2_STAT
    text = "".join(f"{name} 1\n" for name in names) if version == V1 else ""
    prefix = "total_" if version == V1 else ""
    lines = [f"{prefix}{name} {number}\n" for name, number in zip(names, numbers, strict=True)]
    text += "".join(lines if in_order else [lines[index] for index in order])

    careful = cgroup_values.memory_stat(version, text)
    found = cgroup_counters.memory_bytes(version, text.encode())

    assert found is not None
    assert found[0] == careful.usage_bytes
    assert sum(found) == careful.usage_with_page_cache_bytes


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans())
def test_hot_cpu_counters_are_what_the_careful_parser_says(
    usage: int, periods: int, throttled: int, time: int, newline_ends: bool
) -> None:
    end = "\n" if newline_ends else ""
    v1 = f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time {time}{end}"
    v2 = f"usage_usec {usage}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {time}{end}"

    assert cgroup_counters.throttling(V1, v1.encode()) == cgroup_values.throttling(V1, v1)
    assert cgroup_counters.throttling(V2, v2.encode()) == cgroup_values.throttling(V2, v2)
    assert cgroup_counters.cpu_usage_ns(V2, v2.encode()) == cgroup_values.cpu_usage_ns(V2, v2)
    assert cgroup_counters.cpu_usage_ns(V1, f"{usage}\n".encode()) == usage


@given(st.binary(max_size=200))
def test_hot_parsers_answer_none_to_nonsense_and_never_fail(data: bytes) -> None:
    for version in (V1, V2):
        for parse in (
            cgroup_counters.cpu_usage_ns,
            cgroup_counters.throttling,
            cgroup_counters.memory_bytes,
        ):
            parse(version, data)


def test_a_cpuset_that_does_not_parse_is_bad_content(tmp_path: Path) -> None:
    host_tree.group(tmp_path, V1, "kubepods", {"cpuset.cpus": "zero"})

    with pytest.raises(ContentError):
        groups(tmp_path).cpus("kubepods")


def test_problems_of_what_has_ended_are_not_kept_for_ever(tmp_path: Path) -> None:
    files = Files()
    gone = str(tmp_path / "kubepods/podx/cpu.stat")
    assert files.read(gone) is None
    assert files.why(gone) is not None

    files.sweep()

    assert files.why(gone) is None


@pytest.mark.parametrize(
    ("errno_", "text"), [(None, "f: the kernel is busy with it"), (16, "f: the kernel is busy with it (")]
)
def test_a_problem_names_the_error_of_the_system_where_there_is_one(errno_: int | None, text: str) -> None:
    how = {} if errno_ is None else {"errno": errno_}
    reported = str(FileProblem("f", FileFailure.BUSY, **how))
    assert reported.startswith(text) and reported.endswith(")") is (errno_ is not None)
