"""Find where the kernel's file systems are mounted, from `/proc/self/mountinfo`: pure functions of its text."""

import re
from collections.abc import Iterable

import msgspec

from koordinator.host.cgroup_knobs import V1, V2

_ESCAPE = re.compile(r"\\([0-7]{3})")
_V1_TYPE, _V2_TYPE, _RESCTRL_TYPE = "cgroup", "cgroup2", "resctrl"
_MBPS_OPTION = "mba_MBps"
SUBSYSTEMS = frozenset(
    (
        *("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "perf_event"),
        *("net_cls", "net_prio", "hugetlb", "devices", "freezer", "rdma", "misc"),
    )
)


class Mount(msgspec.Struct, frozen=True):
    """A mounted file system; `options` are those of the file system itself."""

    point: str
    fs_type: str
    options: frozenset[str] = frozenset()
    source: str = ""


class CgroupMounts(msgspec.Struct, frozen=True):
    """The mounts of groups: the version that holds the controllers, its directories, all absolute."""

    version: int
    root: str
    subsystems: dict[str, str] = {}
    """v1 only: subsystem → directory of its root group, where that is not `<root>/<subsystem>`, too."""
    unified: str = ""
    """The v2 hierarchy; on v1 it may stand beside without controllers, empty without."""

    def directory(self, subsystem: str) -> str:
        """Root group of a subsystem; on v2 the same for all."""
        if self.version == V2:
            return self.root
        return self.subsystems.get(subsystem) or f"{self.root}/{subsystem}"


def below(where: CgroupMounts, group: str) -> CgroupMounts:
    """Return the same hierarchies seen from a group: what is named relative to it is found below it."""
    group = group.strip("/")
    if not group:
        return where
    roots = {name: f"{where.directory(name)}/{group}" for name in SUBSYSTEMS | where.subsystems.keys()}
    return CgroupMounts(
        where.version,
        f"{where.root}/{group}" if where.version == V2 else where.root,
        roots if where.version == V1 else {},
        f"{where.unified}/{group}" if where.unified else "",
    )


def parse(mountinfo: str) -> list[Mount]:
    """Return all mounts; lines that do not fit are left out."""
    found = []
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        words, kind = head.split(" "), tail.split(" ")
        if separator and len(words) >= 6 and len(kind) >= 3:
            found.append(
                Mount(_unescaped(words[4]), kind[0], frozenset(kind[2].split(",")), _unescaped(kind[1]))
            )
    return found


def cgroup_mounts(mounts: Iterable[Mount], root: str) -> CgroupMounts | None:
    """Return the cgroup file systems at and below a directory; None when there are none.

    The version is 2 when the directory itself is of that kind (behaviour/koordlet-observe 3.1). Later mounts hide
    earlier.
    """
    root = root.rstrip("/") or "/"
    subsystems: dict[str, str] = {}
    unified = ""
    for mount in mounts:
        if mount.fs_type == _V2_TYPE and mount.point == root:
            return CgroupMounts(V2, root, {}, root)
        if not mount.point.startswith(root.rstrip("/") + "/"):
            continue
        if mount.fs_type == _V2_TYPE:
            unified = mount.point
        elif mount.fs_type == _V1_TYPE:
            subsystems.update(dict.fromkeys(mount.options & SUBSYSTEMS, mount.point))
    return CgroupMounts(V1, root, subsystems, unified) if subsystems else None


def is_resctrl(mounts: Iterable[Mount], point: str) -> bool:
    """Return whether resctrl is mounted there."""
    return any(each.fs_type == _RESCTRL_TYPE and each.point == point.rstrip("/") for each in mounts)


def counts_bandwidth_in_mbps(mounts: Iterable[Mount]) -> bool:
    """Return whether resctrl takes bandwidth in MB/s instead of percent; all its mounts are of one file system."""
    return any(each.fs_type == _RESCTRL_TYPE and _MBPS_OPTION in each.options for each in mounts)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
