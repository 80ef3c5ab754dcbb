"""Builders of file trees in the formats that kernels document."""

import os
from collections.abc import Mapping
from pathlib import Path

from koordinator.host.cgroup_knobs import V1, V2

GROUP_V1: dict[str, dict[str, str]] = {
    "cpu": {
        "cpu.shares": "1024",
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_burst_us": "0",
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0",
        "cgroup.procs": "",
        "tasks": "",
    },
    "cpuacct": {"cpuacct.usage": "0", "cgroup.procs": ""},
    "cpuset": {"cpuset.cpus": "0-3", "cgroup.procs": ""},
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.usage_in_bytes": "0",
        "memory.stat": "".join(
            f"{prefix}{name} 0\n"
            for prefix in ("", "total_")
            for name in [
                "cache",
                "rss",
                "inactive_anon",
                "active_anon",
                "inactive_file",
                "active_file",
                "unevictable",
            ]
        ),
        "cgroup.procs": "",
    },
    "blkio": {
        f"blkio.throttle.{way}_{unit}_device": "" for way in ("read", "write") for unit in ("iops", "bps")
    }
    | {"cgroup.procs": ""},
}
GROUP_V2 = {
    "cgroup.controllers": "cpuset cpu io memory",
    "cgroup.procs": "",
    "cgroup.threads": "",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpu.stat": "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0",
    "cpuset.cpus": "",
    "cpuset.cpus.effective": "0-3",
    "memory.max": "max",
    "memory.current": "0",
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "memory.stat": "".join(
        f"{name} 0\n"
        for name in [
            "anon",
            "file",
            "inactive_anon",
            "active_anon",
            "inactive_file",
            "active_file",
            "unevictable",
        ]
    ),
}
VENDOR_KNOBS = {
    "cpu": {"cpu.bvt_warp_ns": "0", "cpu.idle": "0"},
    "memory": {
        "memory.min": "0",
        "memory.low": "0",
        "memory.high": "9223372036854771712",
        "memory.wmark_ratio": "0",
        "memory.wmark_scale_factor": "50",
        "memory.wmark_min_adj": "0",
        "memory.priority": "0",
        "memory.use_priority_oom": "0",
        "memory.oom.group": "0",
    },
    "blkio": {"blkio.cost.weight": "", "blkio.cost.qos": "", "blkio.cost.model": ""},
    "net_cls": {"net_cls.classid": "0"},
}
"""What a vendor's v1 kernel has on top."""


def write(root: Path, files: Mapping[str, str]) -> None:
    """Path below the root → text, each ended with a newline unless empty."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if not text or text.endswith("\n") else text + "\n")


def group(
    root: Path, version: int, name: str, values: Mapping[str, str] | None = None, *, vendor: bool = False
) -> None:
    """A group with its files, and those of `values` (by file name) saying something else."""
    values = values or {}
    cgroup = root / "sys/fs/cgroup"
    if version == V2:
        write(cgroup / name, GROUP_V2 | dict(values))
        return
    subsystems = {each: dict(files) for each, files in GROUP_V1.items()}
    for subsystem, files in VENDOR_KNOBS.items() if vendor else ():
        subsystems.setdefault(subsystem, {}).update(files)
    for subsystem, files in subsystems.items():
        write(cgroup / subsystem / name, files | {each: values[each] for each in values if each in files})


def remove_group(root: Path, version: int, name: str) -> None:
    """The group goes with its files, as in the kernel."""
    cgroup = root / "sys/fs/cgroup"
    for base in [cgroup] if version == V2 else sorted(each for each in cgroup.iterdir() if each.is_dir()):
        directory = base / name
        if directory.is_dir():
            for each in directory.iterdir():
                each.unlink()
            directory.rmdir()


def resctrl(root: Path, *, caches: int = 2, mask: str = "fffff", monitors: bool = True) -> None:
    """`/sys/fs/resctrl` of a CPU with that many third-level caches (Documentation/filesystems/resctrl.rst)."""
    base = root / "sys/fs/resctrl"
    l3 = ";".join(f"{cache}={mask}" for cache in range(caches))
    mb = ";".join(f"{cache}=100" for cache in range(caches))
    files = {
        "info/L3/cbm_mask": mask,
        "info/L3/min_cbm_bits": "1",
        "info/L3/num_closids": "16",
        "info/MB/bandwidth_gran": "10",
        "info/MB/min_bandwidth": "10",
        "schemata": f"    MB:{mb}\n    L3:{l3}\n",
        "tasks": "1\n2\n",
        "cpus": "f",
    }
    for cache in range(caches) if monitors else ():
        directory = f"mon_data/mon_L3_{cache:02}"
        files |= {
            f"{directory}/llc_occupancy": str(1000 * (cache + 1)),
            f"{directory}/mbm_local_bytes": str(2000 * (cache + 1)),
            f"{directory}/mbm_total_bytes": str(3000 * (cache + 1)),
        }
    write(base, files)
    write(root, {"proc/self/mountinfo": f"40 22 0:41 / {base} rw,relatime - resctrl resctrl rw\n"})


def resctrl_group(root: Path, name: str, *, caches: int = 2, mask: str = "fffff") -> None:
    """What the kernel puts into a new group's directory."""
    base = root / "sys/fs/resctrl" / name
    l3 = ";".join(f"{cache}={mask}" for cache in range(caches))
    mb = ";".join(f"{cache}=100" for cache in range(caches))
    write(base, {"schemata": f"    MB:{mb}\n    L3:{l3}\n", "tasks": "", "cpus": "0"})
    for cache in range(caches):
        directory = f"mon_data/mon_L3_{cache:02}"
        write(
            base,
            {f"{directory}/{name}": "5" for name in ("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes")},
        )


def kidled(root: Path) -> None:
    """A kernel with kidled: its switches, and the idle pages of the root group."""
    write(root / "sys/kernel/mm/kidled", {"scan_period_in_seconds": "0", "use_hierarchy": "0"})


def idle_page_stats(cold_bytes: int) -> str:
    """`memory.idle_page_stats` with so many cold bytes of clean file pages, in its 31 lines."""
    header = [
        "# version: 1.0",
        "# page_scans: 24",
        "# slab_scans: 24",
        "# scan_period_in_seconds: 5",
        "# use_hierarchy: 1",
        "# buckets: 1,2,5,15,30,60,120,240",
        "#",
        *["#   _-----=> clean/dirty"] * 6,
        "#   idle_cat        [1,2)       [2,5)",
    ]
    names = [
        f"{dirty}{unevictable}{kind}{state}"
        for dirty in "cd"
        for unevictable in "fs"
        for kind in "eu"
        for state in "ia"
    ]
    names += ["slab"]
    rows = [f"  {name} 0 0 0 0 0 {cold_bytes if name == 'cfei' else 0} 0 0" for name in names]
    return "\n".join([*header, *rows])


def disks(root: Path) -> None:
    """An NVMe disk with a partition that a logical volume lies on, and a loop device."""
    block = "sys/block"
    write(
        root,
        {
            f"{block}/nvme0n1/dev": "259:0",
            f"{block}/nvme0n1/nvme0n1p1/partition": "1",
            f"{block}/nvme0n1/nvme0n1p1/dev": "259:1",
            f"{block}/loop0/dev": "7:0",
            f"{block}/dm-0/dev": "253:0",
            f"{block}/dm-0/dm/uuid": "LVM-abc",
            f"{block}/dm-0/dm/name": "my--data-pv--1",
            f"{block}/dm-0/slaves/nvme0n1p1/dev": "259:1",
            "proc/self/mountinfo": "36 35 253:0 / /var/lib/x rw - ext4 /dev/mapper/my--data-pv--1 rw\n",
        },
    )


def rdma_cards(root: Path) -> None:
    """A network card with RDMA, and a virtual function of it."""
    card = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    function = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2"
    write(
        root,
        {
            f"{card}/class": "0x020000",
            f"{card}/numa_node": "1",
            f"{card}/sriov_numvfs": "1",
            f"{card}/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            f"{card}/infiniband_verbs/uverbs0/dev": "231:192",
            f"{function}/class": "0x020000",
            f"{function}/infiniband/mlx5_2/ports/1/state": "1: DOWN",
        },
    )
    sys = root / "sys"
    os.symlink(root / function, root / card / "virtfn0")
    os.symlink(root / card, root / function / "physfn")
    (sys / "class/infiniband").mkdir(parents=True)
    (sys / "bus/pci/devices").mkdir(parents=True)
    for device, name in ((card, "mlx5_0"), (function, "mlx5_2")):
        os.symlink(root / device, root / device / "infiniband" / name / "device")
        os.symlink(root / device / "infiniband" / name, sys / "class/infiniband" / name)
    os.symlink(root / card, sys / "bus/pci/devices/0000:3b:00.0")


def cpus(root: Path, places: list[tuple[int, int, int]], *, l3_per_socket: bool = True) -> None:
    """`/sys/devices/system/cpu`: one (node, socket, core id within the socket) per CPU, in order of their ids."""
    base = root / "sys/devices/system"
    for cpu, (node, socket, core) in enumerate(places):
        siblings = [other for other, place in enumerate(places) if place[1:] == (socket, core)]
        same_socket = [other for other, place in enumerate(places) if place[1] == socket]
        files = {
            "topology/core_id": str(core),
            "topology/physical_package_id": str(socket),
            "topology/thread_siblings_list": ",".join(map(str, siblings)),
        }
        for index, (level, kind) in enumerate(
            [(1, "Data"), (1, "Instruction"), (2, "Unified"), (3, "Unified")]
        ):
            shared = same_socket if level == 3 and l3_per_socket else siblings
            files |= {
                f"cache/index{index}/level": str(level),
                f"cache/index{index}/type": kind,
                f"cache/index{index}/shared_cpu_list": ",".join(map(str, shared)),
            }
        write(base / f"cpu/cpu{cpu}", files)
        (base / f"node/node{node}").mkdir(parents=True, exist_ok=True)
    write(base, {"cpu/online": f"0-{len(places) - 1}"})
    nodes = sorted({place[0] for place in places})
    for node in nodes:
        members = [cpu for cpu, place in enumerate(places) if place[0] == node]
        meminfo = "".join(
            f"Node {node} {key}: {kib} kB\n"
            for key, kib in {
                "MemTotal": 1000,
                "MemFree": 600,
                "Active(file)": 50,
                "Inactive(file)": 50,
            }.items()
        )
        write(base / f"node/node{node}", {"cpulist": ",".join(map(str, members)), "meminfo": meminfo})
    devices = root / "sys/bus/node/devices"
    devices.mkdir(parents=True, exist_ok=True)
    for node in nodes:
        if not (devices / f"node{node}").exists():
            os.symlink(base / f"node/node{node}", devices / f"node{node}")


VERSIONS = (V1, V2)
