"""Groups of processes on this host: their files read as values, written as values, and what is below them.

Groups are directories as `cgroup_layout` names them. Reading answers None when the group or its file is gone, so
callers need no exception for containers that end. Source: behaviour/koordlet-observe 3.3; behaviour/koordlet-act 3.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from koordinator.api import cpuset
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.qos import KubeQoS
from koordinator.host import cgroup_knobs, cgroup_layout, cgroup_values, mounts
from koordinator.host.cgroup_knobs import V1, V2, Knob, Presence
from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroup_values import IdlePages, MemoryStat, PressureStall, Throttling
from koordinator.host.errors import ContentError, UnsupportedError
from koordinator.host.files import FileProblem, Files, HostRoots, Identity
from koordinator.host.mounts import CgroupMounts

V1_SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "perf_event", "net_cls", "hugetlb")
"""Hierarchies in which the kubelet makes the group of a pod."""
_V2_MARK = "cgroup.controllers"

T = TypeVar("T")


class KernelSupport(msgspec.Struct, frozen=True):
    """The kernel's support for something; `reason` tells why it is missing, or what was found."""

    is_supported: bool
    reason: str = ""


def detect(files: Files, roots: HostRoots) -> CgroupMounts:
    """Return where groups are: as mounted below the cgroup root, or as the directories of a tree look like."""
    return mounts.below(_detect(files, roots), roots.kubepods_below)


def _detect(files: Files, roots: HostRoots) -> CgroupMounts:
    found = mounts.cgroup_mounts(mounts.parse(files.read(f"{roots.proc}/self/mountinfo") or ""), roots.cgroup)
    if found is not None:
        return found
    if files.exists(f"{roots.cgroup}/{_V2_MARK}"):
        return CgroupMounts(V2, roots.cgroup, {}, roots.cgroup)
    unified = f"{roots.cgroup}/unified"
    return CgroupMounts(V1, roots.cgroup, {}, unified if files.exists(f"{unified}/{_V2_MARK}") else "")


class Cgroups:
    """The groups of one host."""

    def __init__(self, files: Files, where: CgroupMounts) -> None:
        self.files = files
        self.where = where
        self.version = where.version
        self._supports: dict[tuple[Knob, str], KernelSupport] = {}

    # Paths

    def path(self, knob: Knob, group: str) -> str:
        """Absolute path of a knob. Raises: UnsupportedError when this version has no such file."""
        return self.absolute(cgroup_knobs.path(knob, self.version, group))

    def absolute(self, relative: str) -> str:
        """Absolute path of what `cgroup_knobs.path` names relative to the cgroup root."""
        if self.version == V1:
            subsystem, _, rest = relative.partition("/")
            return f"{self.where.directory(subsystem)}/{rest}"
        return f"{self.where.root}/{relative}"

    def directory(self, group: str, subsystem: str = "cpu") -> str:
        """Absolute directory of a group, on v1 in the hierarchy of a subsystem."""
        base = self.where.directory(subsystem)
        return f"{base}/{group}" if group else base

    # Existence

    def exists(self, group: str, subsystem: str = "cpu") -> bool:
        """Return whether there is such a group."""
        return self.files.exists(self.directory(group, subsystem))

    def identity(self, group: str) -> Identity | None:
        """Return what tells a group from a later one of the same path; None when it is gone."""
        return self.files.identity(self.directory(group))

    def children(self, group: str, subsystem: str = "cpu") -> list[str] | None:
        """Groups directly below a group, by path; None when it is gone."""
        names = self.files.directories(self.directory(group, subsystem))
        return None if names is None else [cgroup_layout.join(group, name) for name in names]

    def walk(self, group: str, depth_max: int, subsystem: str = "cpu") -> list[str]:
        """Return a group and those up to `depth_max` levels below, parents before children; empty when it is gone."""
        if (children := self.children(group, subsystem)) is None:
            return []
        found = [group]
        if depth_max > 0:
            for child in children:
                found += self.walk(child, depth_max - 1, subsystem)
        return found

    def forget(self, group: str) -> None:
        """Close the files of a group that has ended."""
        self.files.forget(*self._directories(group))

    def create(self, group: str) -> FileProblem | None:
        """Make a group (in each mounted hierarchy on v1), its parent being there; the first problem, if any."""
        for directory in self._directories(group):
            if (problem := self.files.make_directory(directory)) is not None:
                return problem
        return None

    def remove(self, group: str) -> FileProblem | None:
        """Remove a group without processes from all hierarchies; the first problem, if any."""
        problems = [self.files.remove_directory(directory) for directory in self._directories(group)]
        return next((problem for problem in problems if problem is not None), None)

    def driver(self) -> Driver | None:
        """Return how the kubelet names groups, from its directories; None when there is none yet."""
        if self.exists(cgroup_layout.class_dir(Driver.SYSTEMD, KubeQoS.GUARANTEED)):
            return Driver.SYSTEMD
        if self.exists(cgroup_layout.class_dir(Driver.CGROUPFS, KubeQoS.GUARANTEED)):
            return Driver.CGROUPFS
        return None

    def support(self, knob: Knob, group: str = "") -> KernelSupport:
        """Return whether this kernel has a knob, asked of a group as the knob's `Presence` says; remembered once
        true.

        `group` is the group of all pods for knobs that exist there, or the group itself.
        """
        kept = self._supports.get((knob, group))
        if kept is not None and kept.is_supported:
            return kept
        try:
            path = self.path(knob, "" if cgroup_knobs.presence(knob) is Presence.ROOT_FILE else group)
        except UnsupportedError as error:
            return KernelSupport(False, str(error))
        needs_file = cgroup_knobs.presence(knob) is not Presence.ALWAYS
        if needs_file and not self.files.exists(path):
            where = "" if self.exists(group) else f": group {group or '/'} is not there to look in"
            return KernelSupport(False, f"no file {path}{where}")
        support = self._supports[knob, group] = KernelSupport(True, path)
        return support

    # Reading

    def read(self, knob: Knob, group: str) -> str | None:
        """Return text of a knob without the trailing newline; None when it is gone.

        An empty CPU list of v2 is that of the parent: then the effective one is answered.
        Raises: UnsupportedError when this version has no such file.
        """
        text = self.files.read(self.path(knob, group))
        if text is None:
            return None
        if knob is Knob.CPUSET and self.version == V2 and not text.strip():
            text = self.files.read(self.path(Knob.CPUSET_EFFECTIVE, group)) or ""
        return text.rstrip("\n")

    def cpu_usage_ns(self, group: str) -> int | None:
        """CPU time since the group was made. Raises: ContentError (so do all below)."""
        return self._versioned(Knob.CPU_USAGE, group, cgroup_values.cpu_usage_ns)

    def throttling(self, group: str) -> Throttling | None:
        """Quota periods."""
        return self._versioned(Knob.CPU_STAT, group, cgroup_values.throttling)

    def quota_us(self, group: str) -> int | None:
        """CFS quota, `cgroup_knobs.UNLIMITED` without."""
        return self._versioned(Knob.CPU_QUOTA, group, cgroup_values.quota_us)

    def period_us(self, group: str) -> int | None:
        """CFS period."""
        return self._versioned(Knob.CPU_PERIOD, group, cgroup_values.period_us)

    def shares(self, group: str) -> int | None:
        """CPU shares, in v1 terms."""
        return self._versioned(Knob.CPU_SHARES, group, cgroup_values.shares)

    def memory_limit_bytes(self, group: str) -> int | None:
        """Memory limit, `cgroup_knobs.UNLIMITED` without."""
        return self._versioned(Knob.MEMORY_LIMIT, group, cgroup_values.memory_limit_bytes)

    def memory_stat(self, group: str) -> MemoryStat | None:
        """Memory of the group and all below it."""
        return self._versioned(Knob.MEMORY_STAT, group, cgroup_values.memory_stat)

    def numa_pages(self, group: str) -> dict[int, int] | None:
        """Pages of 4 KiB by NUMA node, of the group and all below it."""
        return self._versioned(
            Knob.MEMORY_NUMA_STAT, group, lambda v, text: cgroup_values.numa_pages(v, text, hierarchical=True)
        )

    def number(self, knob: Knob, group: str) -> int | None:
        """Return a knob that holds one number."""
        text = self.read(knob, group)
        return None if text is None else cgroup_values.signed(knob, text)

    def cpus(self, group: str) -> CPUSet | None:
        """Return the CPUs that the group may run on (v2: the effective ones). Raises: ContentError when the file holds
        no CPU list."""
        knob = Knob.CPUSET if self.version == V1 else Knob.CPUSET_EFFECTIVE
        text = self.read(knob, group)
        if text is None:
            return None
        try:
            return cpuset.parse(text.strip())
        except CPUSetError as error:
            raise ContentError(knob, str(error)) from error

    def pressure(self, knob: Knob, group: str) -> PressureStall | None:
        """Return what one of the pressure files says."""
        text = self.read(knob, group)
        return None if text is None else cgroup_values.pressure(text)

    def idle_pages(self, group: str) -> IdlePages | None:
        """Pages by age, on kernels with kidled."""
        text = self.read(Knob.MEMORY_IDLE_PAGES, group)
        return None if text is None else cgroup_values.idle_pages(text)

    def procs(self, group: str, subsystem: str = "cpu") -> list[int] | None:
        """Process ids of a group itself, without those of groups below."""
        return self._ids(Knob.PROCS, group, subsystem)

    def tasks(self, group: str) -> list[int] | None:
        """Thread ids of a group itself."""
        return self._ids(Knob.TASKS, group, "cpu")

    # Writing

    def write(self, knob: Knob, group: str, value: str) -> FileProblem | None:
        """Write a value in v1 terms, at once and without cache or audit: strategies use the executor.

        Raises: KnobValueError, UnsupportedError.
        """
        return self.files.write(self.path(knob, group), cgroup_knobs.encode(knob, self.version, value))

    def move(self, pid: int, group: str) -> FileProblem | None:
        """Move a process to a group, on v1 in each mounted hierarchy; the first problem, if any."""
        for directory in self._directories(group):
            if (problem := self.files.write(f"{directory}/{Knob.PROCS}", str(pid))) is not None:
                return problem
        return None

    def _directories(self, group: str) -> list[str]:
        """Directories of a group, one per mounted hierarchy that has one for pods."""
        if self.version == V2:
            return [self.directory(group)]
        bases = {self.where.directory(each): None for each in V1_SUBSYSTEMS}
        return [f"{base}/{group}" for base in bases if self.files.exists(base)]

    def _ids(self, knob: Knob, group: str, subsystem: str) -> list[int] | None:
        path = self.path(knob, group)
        if self.version == V1 and subsystem != "cpu":
            path = f"{self.directory(group, subsystem)}/{knob}"
        text = self.files.read(path)
        return None if text is None else cgroup_values.ids(knob, text)

    def _versioned(self, knob: Knob, group: str, parse: Callable[[int, str], T]) -> T | None:
        text = self.read(knob, group)
        return None if text is None else parse(self.version, text)


def paths(cgroups: Cgroups, groups: Sequence[str], knobs: Sequence[Knob]) -> list[str]:
    """Paths of all knobs of all groups, group by group, for `Files.hot_many`. Raises: UnsupportedError."""
    return [cgroups.path(knob, group) for group in groups for knob in knobs]
