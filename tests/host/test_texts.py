"""Texts of the host that vectors do not cover: pressure, NUMA totals, processes, disks, roots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host import cgroup_values, procfs, sysfs
from koordinator.host.cgroup_knobs import V1, V2
from koordinator.host.errors import ContentError, HostError
from koordinator.host.files import HOST_MODE, HostRoots
from tests.host import lscpu, storage_tools

SOME = "some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\n"
FULL = "full avg10=0.50 avg60=0.05 avg300=0.00 total=99\n"


def test_pressure_tells_some_and_full() -> None:
    stall = cgroup_values.pressure(SOME + FULL)

    assert (stall.some.avg10, stall.some.total_us, stall.full.avg60) == (1.5, 1234, 0.05)
    assert stall.is_full_supported


def test_a_kernel_without_full_cpu_pressure_reports_none() -> None:
    stall = cgroup_values.pressure(SOME)

    assert not stall.is_full_supported
    assert stall.full == cgroup_values.Pressure()


def test_an_empty_pressure_file_is_an_error_and_no_crash() -> None:
    with pytest.raises(ContentError):
        cgroup_values.pressure("")


def test_numa_pages_of_a_parent_include_its_children_where_the_kernel_tells() -> None:
    text = "total=0 N0=0\nfile=0 N0=0\nhierarchical_total=7 N0=7\n"

    assert cgroup_values.numa_pages(V1, text) == {0: 0}
    assert cgroup_values.numa_pages(V1, text, hierarchical=True) == {0: 7}


@pytest.mark.parametrize(
    ("version", "text"),
    [(V1, "total\n"), (V1, "total=7\n"), (V2, "anon\nfile\n"), (V2, "anon N1=1 N0=1\nfile N1=1 N0=1\n")],
)
def test_numa_pages_without_nodes_or_out_of_order_are_an_error(version: int, text: str) -> None:
    with pytest.raises(ContentError):
        cgroup_values.numa_pages(version, text)


@pytest.mark.parametrize(("count", "pages"), [("12\n", 12), ("", 0), ("many", 0), ("-3", 0), ("7 of 9", 7)])
def test_a_count_of_huge_pages_that_is_none_is_zero(count: str, pages: int) -> None:
    assert sysfs.huge_pages({"hugepages-2048kB": count}) == {2048: pages, 1_048_576: 0}


@pytest.mark.parametrize("state", ["SS", "Sleeping"])
def test_a_process_state_is_one_letter(state: str) -> None:
    with pytest.raises(ContentError, match="state"):
        procfs.process_stat(f"7 (sh) {state} 1 7 7")


def test_process_groups_are_ascending() -> None:
    stats = {pid: f"{pid} (sh) S 1 {pid} 1" for pid in (30, 10, 20)}

    assert procfs.process_groups((30, 10, 20), stats) == [10, 20, 30]


def test_a_meminfo_key_without_value_counts_zero() -> None:
    assert procfs.meminfo_kib("MemTotal:\nMemFree: 12 kB\nnothing\n") == {"MemTotal": 0, "MemFree": 12}


def test_numa_nodes_with_a_gap_are_refused_and_generic_ones_left_out() -> None:
    node = "Node 0 MemTotal: 8 kB\n"

    with pytest.raises(ContentError):
        sysfs.numa_nodes({"node0": node, "node2": node}, [])
    assert sysfs.numa_nodes({"node0": node, "node1": node, "power": node}, [1]) == {0: {"MemTotal": 8}}


def test_cpu_kind_comes_from_the_kernel_before_lscpu() -> None:
    cpuinfo = "vendor_id : GenuineIntel\nmodel name : Fast\nflags : cat_l3 mba\nmodel name : Other\n"
    info = sysfs.cpu_basic_info(cpuinfo, smt_active="0\n", no_turbo="0\n", lscpu_y="Thread(s) per core: 2\n")

    assert (info.cpu_model, info.vendor_id) == ("Fast", "GenuineIntel")
    assert (info.hyper_thread_enabled, info.turbo_enabled) == (False, True)
    assert sysfs.cpu_basic_info(cpuinfo, lscpu_y="Thread(s) per core: 2\n").hyper_thread_enabled
    assert procfs.cpu_model(cpuinfo).flags == {"cat_l3", "mba"}


def test_machines_without_cache_ids_still_have_cpus() -> None:
    topology = lscpu.parse_lscpu("CPU NODE SOCKET CORE CACHE ONLINE\n1 0 0 1 - yes\n0 0 0 0 - yes\n")

    assert [processor.cpu for processor in topology.processors] == [0, 1]
    assert topology.cpus == {0, 1}


def test_disks_are_found_below_partitions_and_logical_volumes() -> None:
    found = storage_tools.parse(
        'NAME="sda" TYPE="disk" MAJ:MIN="8:0"\nNAME="sda2" TYPE="part" MAJ:MIN="8:2"',
        "vg 1 /dev/sda2",
        "data-x vg",
        "",
    )

    for device in ("/dev/sda", "/dev/sda2", "/dev/mapper/vg-data--x"):
        assert found.disk_of(device) == "/dev/sda"
    assert found.disk_of("/dev/sdb") == ""


def test_a_host_below_another_root_keeps_all_its_places_there() -> None:
    roots = HostRoots.below("/mnt/host/")

    places = [name for name in roots.__struct_fields__ if name != "kubepods_below"]
    assert all(getattr(roots, name).startswith("/mnt/host/") for name in places)
    assert HostRoots.of_mode(HOST_MODE).cgroup == "/sys/fs/cgroup"
    assert HostRoots.of_mode("").cgroup == "/host-cgroup"


READERS = [
    lambda text: cgroup_values.throttling(2, text),
    lambda text: cgroup_values.cpu_usage_ns(1, text),
    lambda text: cgroup_values.quota_us(2, text),
    lambda text: cgroup_values.memory_stat(1, text),
    lambda text: cgroup_values.memory_limit_bytes(1, text),
    lambda text: cgroup_values.numa_pages(1, text),
    lambda text: cgroup_values.numa_pages(2, text),
    lambda text: cgroup_values.ids("tasks", text),
    cgroup_values.pressure,
    cgroup_values.idle_pages,
    procfs.busy_ticks,
    procfs.busy_ticks_by_cpu,
    procfs.memory,
    procfs.process_stat,
    sysfs.numa_meminfo_kib,
    sysfs.id_list,
    lscpu.parse_lscpu,
    lambda text: storage_tools.parse(text, text, text, text),
]
WORDS = st.sampled_from(
    ["cpu", "cpu0", "max", "-1", "12", "N0=4", "N1", "total", "anon", "file", "usage_usec", "(", ")", "#",
     "nr_periods", "some", "avg10=1.0", "99999999999999999999999", "٣", "Node", "MemTotal:", 'NAME="a"', ":"]
)  # fmt: skip
TEXTS = st.lists(st.lists(WORDS, max_size=9).map(" ".join), max_size=6).map("\n".join)


@given(st.one_of(TEXTS, st.text(max_size=60)), st.sampled_from(READERS))
def test_any_text_gives_a_value_or_an_error_that_names_its_source(text: str, read: object) -> None:
    assert callable(read)
    try:
        read(text)
    except HostError as error:
        assert str(error)


def test_ticks_of_each_cpu_are_all_known_or_none() -> None:
    good = "cpu0 1 1 1 0 0 1 1\n"

    assert procfs.busy_ticks_by_cpu(f"cpu 9 9 9 9 9 9 9\n{good}cpufreq 1\n") == {0: 5}
    with pytest.raises(ContentError):
        procfs.busy_ticks_by_cpu(good + "cpu1 1 x 1 0 0 1 1\n")


def test_what_a_hypervisor_took_is_the_eighth_time_of_all_cpus() -> None:
    assert procfs.cpu_ticks("cpu 1 2 3 4 5 6 7 8 9\ncpu0 1 2 3 4 5 6 7 80 9\nintr 5\n").stolen == 8
    assert procfs.cpu_ticks("cpu 1 2 3 4 5 6 7\ncpu0 1 2 3 4 5 6 7\n").stolen == 0


def test_a_process_is_named_for_good_by_its_id_and_when_it_started() -> None:
    fields = [str(number) for number in range(3, 53)]  # as in proc(5): the state is field 3
    assert procfs.start_ticks(f"7 (a) b) {' '.join(fields)}") == 22
    assert procfs.start_ticks(f"7 (sh) {' '.join(fields[:20])}") == 22
    with pytest.raises(ContentError, match="19 fields after the command, expected 20"):
        procfs.start_ticks(f"7 (sh) {' '.join(fields[:19])}")
