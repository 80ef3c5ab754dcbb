"""What most machines lack, over trees in the documented formats: resctrl, kidled, cards, big topologies."""

import shutil
from pathlib import Path

import pytest

from koordinator.host import network, perf_events, storage
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.errors import ContentError
from koordinator.host.files import FileFailure, FileProblem, HostRoots
from koordinator.host.host import Feature, probe_features, tree_host
from koordinator.host.resctrl import CacheMonitor, parse_schemata, schemata_needs_write
from koordinator.koordlet.qos import resctrl as qos_resctrl
from tests.host import host_tree
from tests.host.cookie_kernel import CookieKernel

# resctrl


def test_a_mounted_resctrl_tells_masks_caches_and_monitors(tmp_path: Path) -> None:
    host_tree.resctrl(tmp_path, caches=2, mask="7ff")
    resctrl = tree_host(str(tmp_path)).resctrl

    assert resctrl.support().is_supported
    assert resctrl.mount() is None
    assert qos_resctrl.full_mask_of(resctrl.full_mask() or "") == 0x7FF
    assert resctrl.cache_ids() == (0, 1)
    assert resctrl.monitors("") == {0: CacheMonitor(1000, 2000, 3000), 1: CacheMonitor(2000, 4000, 6000)}
    assert resctrl.groups() == []
    assert resctrl.monitors("BE") is None


def test_monitors_without_a_count_are_none_and_others_stay(tmp_path: Path) -> None:
    host_tree.resctrl(tmp_path, caches=1)
    host_tree.write(tmp_path, {"sys/fs/resctrl/mon_data/mon_L3_00/mbm_local_bytes": "Unavailable"})
    (tmp_path / "sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes").unlink()

    assert tree_host(str(tmp_path)).resctrl.monitors("") == {0: CacheMonitor(1000, None, None)}


def test_groups_get_lines_and_tasks_one_by_one(tmp_path: Path) -> None:
    host_tree.resctrl(tmp_path, caches=2)
    host = tree_host(str(tmp_path))
    assert host.resctrl.create("BE") is None
    host_tree.resctrl_group(tmp_path, "BE", caches=2)

    line = qos_resctrl.l3_line({0: 0x3F, 1: 0x3F})
    assert host.files.write(host.resctrl.schemata_path("BE"), line) is None
    assert host.files.write(host.resctrl.schemata_path("BE").replace("schemata", "tasks"), "7") is None

    text = host.resctrl.schemata("BE") or ""
    assert not schemata_needs_write(text, line)
    assert parse_schemata(text).mb == {0: 100, 1: 100}, "lines that were not written stay"
    assert host.resctrl.tasks("BE") == [7]
    assert host.resctrl.groups() == ["BE"]


def test_a_cache_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    host_tree.resctrl(tmp_path, caches=1)
    host = tree_host(str(tmp_path))

    problem = host.files.write(host.resctrl.schemata_path(""), "L3:5=f\n")

    assert problem is not None
    assert problem.failure is FileFailure.INVALID


@pytest.mark.parametrize("name", ["info", "a/b", ".."])
def test_names_that_are_no_groups_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ContentError):
        tree_host(str(tmp_path)).resctrl.create(name)


def test_without_resctrl_the_reason_is_reported_and_mounting_fails_politely(tmp_path: Path) -> None:
    resctrl = tree_host(str(tmp_path)).resctrl

    assert "kernel or CPU without resctrl" in resctrl.support().reason
    problem = resctrl.mount()
    assert problem is not None
    assert problem.failure is FileFailure.UNSUPPORTED
    (tmp_path / "sys/fs/resctrl").mkdir(parents=True)
    assert "not mounted" in resctrl.support().reason


# Cold pages


def test_kidled_is_started_and_its_pages_are_read(tmp_path: Path) -> None:
    host_tree.kidled(tmp_path)
    host_tree.group(tmp_path, V1, "kubepods")
    stats = host_tree.idle_page_stats(4096)
    host_tree.write(tmp_path, {"sys/fs/cgroup/memory/kubepods/memory.idle_page_stats": stats})
    host = tree_host(str(tmp_path))
    assert host.kidled.support().is_supported
    assert not host.kidled.is_scanning()

    for path, text in host.kidled.wanted().items():
        assert host.files.write(path, text) is None

    assert host.kidled.is_scanning()
    pages = host.cgroups.idle_pages("kubepods")
    assert pages is not None
    assert pages.cold_bytes() == 4096


# CPUs and NUMA nodes


def test_cores_are_numbered_over_the_whole_machine(tmp_path: Path) -> None:
    places = [(0, 0, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)] * 2  # two sockets, hyper-threads in the second half
    host_tree.cpus(tmp_path, places)

    topology = tree_host(str(tmp_path)).machine.cpu_topology()

    assert topology.by("core") == {0: [0, 4], 1: [1, 5], 2: [2, 6], 3: [3, 7]}
    assert (
        topology.by("node")
        == topology.by("socket")
        == topology.by("l3")
        == {0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}
    )
    info = tree_host(str(tmp_path)).machine.cpu_basic_info()
    assert info.hyper_thread_enabled


def test_a_machine_without_numa_is_one_node(tmp_path: Path) -> None:
    host_tree.cpus(tmp_path, [(0, 0, 0), (0, 0, 1)])
    shutil.rmtree(tmp_path / "sys/devices/system/node")

    assert tree_host(str(tmp_path)).machine.cpu_topology().by("node") == {0: [0, 1]}


def test_numa_nodes_are_read_and_generic_initiators_left_out(tmp_path: Path) -> None:
    host_tree.cpus(tmp_path, [(0, 0, 0), (1, 1, 0), (2, 1, 1)])
    host_tree.write(tmp_path, {"sys/devices/system/node/has_generic_initiator": "2"})

    assert {
        node: kib["MemTotal"] for node, kib in tree_host(str(tmp_path)).machine.numa_meminfo_kib().items()
    } == {
        0: 1000,
        1: 1000,
    }


def test_numa_nodes_that_nobody_can_read_are_not_taken_for_none(tmp_path: Path) -> None:
    host_tree.write(tmp_path, {"sys/bus/node/devices/node0/other": ""})

    with pytest.raises(ContentError):
        tree_host(str(tmp_path)).machine.numa_meminfo_kib()


def test_a_machine_that_says_nothing_of_its_cpus_is_bad_content(tmp_path: Path) -> None:
    with pytest.raises(ContentError):
        tree_host(str(tmp_path)).machine.cpu_topology()
    assert tree_host(str(tmp_path)).machine.cpu_topology_or_none() is None


# Core scheduling


def test_cookies_are_handed_on_and_our_own_thread_keeps_none(tmp_path: Path) -> None:
    kernel = CookieKernel()
    core_sched = tree_host(str(tmp_path), kernel).core_sched
    assert core_sched.support().is_supported

    assert core_sched.create(10) is None
    problems = core_sched.assign(10, [11, 99])

    assert core_sched.cookie(11) == core_sched.cookie(10) == 1008
    assert kernel.cookies[0] == 0
    assert [problem.failure for problem in problems.values()] == [FileFailure.GONE]
    assert isinstance(core_sched.cookie(99), FileProblem)
    assert core_sched.assign(99, [11]).keys() == {99}
    assert core_sched.clear([10, 11]) == {}
    assert kernel.cookies == {0: 0, 2: 0, 10: 0, 11: 0}


def test_a_thread_that_cannot_lose_its_cookie_again_is_a_problem(tmp_path: Path) -> None:
    kernel = CookieKernel()
    kernel.cookies[2] = 7
    kernel.cookies[10] = 5

    assert 10 in tree_host(str(tmp_path), kernel).core_sched.assign(10, [11])


# Everything at once


def test_a_vendor_kernel_supports_what_a_bare_one_does_not(tmp_path: Path) -> None:
    host_tree.group(tmp_path / "bare", V1, "kubepods")
    host_tree.group(tmp_path / "vendor", V1, "kubepods", vendor=True)
    host_tree.group(tmp_path / "vendor", V1, "", vendor=True)

    bare = probe_features(tree_host(str(tmp_path / "bare")), "kubepods")
    vendor = probe_features(tree_host(str(tmp_path / "vendor")), "kubepods")

    gained = {each for each in Feature if vendor[each].is_supported and not bare[each].is_supported}
    assert gained == {
        Feature.CPU_IDLE,
        Feature.GROUP_IDENTITY,
        Feature.MEMORY_PROTECTION,
        Feature.MEMORY_WATERMARKS,
        Feature.MEMORY_PRIORITY,
        Feature.OOM_GROUP,
        Feature.BLKIO_COST,
        Feature.NET_CLASS,
    }
    assert bare[Feature.CPU_BURST].is_supported
    assert "perf_event_open" in bare[Feature.CPI].reason


def test_perf_events_of_a_host_without_them_are_problems(tmp_path: Path) -> None:
    host_tree.group(tmp_path, V1, "kubepods")
    (tmp_path / "sys/fs/cgroup/perf_event/kubepods").mkdir(parents=True)
    host = tree_host(str(tmp_path))

    with perf_events.watch(host.cgroups, host.syscalls, ["kubepods", "gone"], [0, 1]) as watched:
        assert watched.read() == {}
        assert {group: problem.failure for group, problem in watched.problems.items()} == {
            "kubepods": FileFailure.UNSUPPORTED,
            "gone": FileFailure.GONE,
        }


# Disks and cards


def test_volumes_lead_to_their_disk_also_on_nvme(tmp_path: Path) -> None:
    host_tree.disks(tmp_path)
    host = tree_host(str(tmp_path))

    found = storage.local_storage(host.files, host.roots)

    assert found.numbers == {"/dev/nvme0n1": "259:0"}
    assert found.partitions == {"/dev/nvme0n1p1": "/dev/nvme0n1"}
    assert found.logical_volumes == {"/dev/mapper/my--data-pv--1": "my-data"}
    assert found.disk_of(found.mounts["/var/lib/x"]) == "/dev/nvme0n1"


def test_a_host_without_block_devices_is_bad_content(tmp_path: Path) -> None:
    host = tree_host(str(tmp_path))

    with pytest.raises(ContentError):
        storage.local_storage(host.files, host.roots)


def test_rdma_cards_are_found_with_their_functions(tmp_path: Path) -> None:
    host_tree.rdma_cards(tmp_path)
    host = tree_host(str(tmp_path))

    (device,) = network.rdma_devices(host.files, host.roots)

    assert device == network.RDMADevice(
        id="0000:3b:00.0",
        minor=0,
        is_healthy=True,
        bus_id="0000:3b:00.0",
        numa_node=1,
        root_complex="pci0000:3a",
        virtual_functions=("0000:3b:00.2",),
    )
    assert network.verbs_device(host.files, host.roots, "0000:3b:00.0") == "uverbs0"
    assert network.verbs_device(host.files, HostRoots.below("/nowhere"), "0000:3b:00.0") is None


def test_a_group_that_vanishes_from_a_tree_is_none_at_once(tmp_path: Path) -> None:
    host_tree.group(tmp_path, V1, "kubepods")
    host = tree_host(str(tmp_path))
    path = host.cgroups.path(Knob.CPU_STAT, "kubepods")
    assert host.files.hot(path) is not None

    host_tree.remove_group(tmp_path, V1, "kubepods")

    assert host.files.hot(path) is None
    assert host.files.kept_count == 0
