"""One host: everything below its roots, and the system calls that files cannot replace.

`tree_host` is a directory tree in place of a host, for tests and simulations of what a machine lacks: what is written
to its files ends up there as the kernel would show it. Only the rules that callers can see are kept: which lists take
one more entry, which lines are merged, which writes the kernel refuses.

`probe_features` finds out what this host can do, feature by feature, and why not: asked once, reported to people. Knobs
of groups are looked for in the group of all pods, as the strategies will write them there.
"""

import enum
import errno
import os
from collections.abc import Mapping

from koordinator.api import cpuset
from koordinator.api.cpuset import CPUSetError
from koordinator.host import cgroup_knobs, cgroups, cold_pages, machine, perf_events, resctrl
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import KernelSupport
from koordinator.host.files import (
    DESCRIPTORS_SPARED,
    FileFailure,
    FileProblem,
    Files,
    HostRoots,
    raise_open_files_limit,
)
from koordinator.host.syscalls import CoreSchedCookies, LinuxSyscalls, NoSyscalls, Syscalls, ThreadSlices

_EFFECTIVE = "cpuset.cpus.effective"
_WEIGHTS = (("cpu.shares", "3", "1024"), ("cpu.weight", "0", "100"))
"""Files of a group's weight, what they say while it is idle, and what afterwards."""
_WEIGHT_NAMES = frozenset(name for name, _, _ in _WEIGHTS)
_MEMBERS = frozenset(("tasks", "cgroup.procs", "cgroup.threads"))
_FEATURES = frozenset(("features", "sched_features"))
_KEYED_BY_DISK = ("blkio.throttle.", "blkio.cost.", "io.max", "io.weight", "io.cost.")


class TreeFiles(Files):
    """Ordinary files: nothing is kept open, since a descriptor would go on showing what was replaced."""

    def __init__(self) -> None:
        super().__init__(descriptors_max=0)
        self.written: list[tuple[str, str]] = []
        """All writes that were accepted, in order."""
        self.refusals: dict[str, list[FileProblem]] = {}
        """Path → problems that its next writes meet, one each: faults to be injected."""

    def write(self, path: str, text: str) -> FileProblem | None:
        if self.refusals.get(path):
            return self.refusals[path].pop(0)
        content = self._writable(path)
        if content is None:
            return self.why(path) or FileProblem(path, FileFailure.GONE, errno.ENOENT)
        after = self._after(path, content.rstrip("\n"), text.strip())
        if after is None:
            return FileProblem(path, FileFailure.INVALID, errno.EINVAL)
        if os.path.basename(path) == "tasks":
            self._leave_others(path, text.strip())
        problem = self._put(path, after)
        if problem is None:
            self._narrow(path, after)
            if os.path.basename(path) == "cpu.idle" and after != content.strip():
                self._weigh_idle(os.path.dirname(path), is_idle=after == "1")
            self.written.append((path, text))
        return problem

    def _writable(self, path: str) -> str | None:
        """Return what a file says before it is written; None when it cannot be."""
        return self.read(path)

    def _put(self, path: str, text: str) -> FileProblem | None:
        """Make a file say this."""
        return super().write(path, text + "\n" if text else "")

    def _weigh_idle(self, directory: str, *, is_idle: bool) -> None:
        """Give a group the weight of idle groups, or afterwards the kernel's default, not what it had."""
        for name, of_idle, default in _WEIGHTS:
            if self.exists(f"{directory}/{name}"):
                self._put(f"{directory}/{name}", of_idle if is_idle else default)

    def _narrow(self, path: str, cpus: str) -> None:
        """On v2 another file says which CPUs a group has in the end."""
        directory = os.path.dirname(path)
        effective = f"{directory}/{_EFFECTIVE}"
        above = self.read(f"{os.path.dirname(directory)}/{_EFFECTIVE}")
        if os.path.basename(path) != "cpuset.cpus" or above is None or not self.exists(effective):
            return
        outer = cpuset.parse(above.strip())
        self._put(effective, cpuset.text_of((cpuset.parse(cpus) & outer) or outer))

    def make_directory(self, path: str) -> FileProblem | None:
        """Make a directory as the kernel makes a group of resctrl: it may use everything and has no threads yet."""
        root = os.path.dirname(path)
        is_new = self.is_resctrl(root) and not self.exists(path)
        problem = super().make_directory(path)
        if problem is None and is_new:
            for name, text in (("schemata", self.read(f"{root}/schemata") or ""), ("tasks", "")):
                with open(f"{path}/{name}", "w") as file:
                    file.write(text)
        return problem

    def is_resctrl(self, path: str) -> bool:
        """Return whether a directory is the root of resctrl."""
        return self.exists(f"{path}/info") and self.exists(f"{path}/schemata")

    def remove_directory(self, path: str) -> FileProblem | None:
        """Remove a directory as the kernel removes a group: with its files, if no directory is left in it."""
        root = os.path.dirname(path)
        if self.is_resctrl(root):
            for thread in (self.read(f"{path}/tasks") or "").split():
                self.write(f"{root}/tasks", thread)
        if self.directories(path):
            return FileProblem(path, FileFailure.BUSY, errno.EBUSY)
        for name in self.names(path) or ():
            os.remove(f"{path}/{name}")
        return super().remove_directory(path)

    def _after(self, path: str, content: str, text: str) -> str | None:
        """Return what the file will say; None when the kernel would refuse the text."""
        name = os.path.basename(path)
        if name in _MEMBERS:
            members = content.split()
            return "\n".join(members if text in members else [*members, text]) if text.isdigit() else None
        if name == "cpu.max" and " " not in text:
            return f"{text} {(content.split() or ['', '100000'])[-1]}"
        if name in _WEIGHT_NAMES and (self.read(f"{os.path.dirname(path)}/cpu.idle") or "").strip() == "1":
            return None
        if name == "cpuset.cpus":
            return self._cpus(path, text)
        if name == "schemata":
            return _schemata(content, text)
        if name in _FEATURES:
            words = content.split()
            other = text.removeprefix("NO_") if text.startswith("NO_") else f"NO_{text}"
            return (
                " ".join(text if word == other else word for word in words)
                if {text, other} & set(words)
                else None
            )
        if name.startswith(_KEYED_BY_DISK):
            disk, _, value = text.partition(" ")
            others = [line for line in content.splitlines() if line.split()[:1] != [disk]]
            return "\n".join(others if cgroup_knobs.is_unset(value) else [*others, text])
        return text

    def _leave_others(self, path: str, thread: str) -> None:
        """Remove a thread from all other groups of resctrl: the kernel keeps it in one only."""
        directory = os.path.dirname(path)
        root = directory if self.is_resctrl(directory) else os.path.dirname(directory)
        if not self.is_resctrl(root):
            return
        for group in (root, *(f"{root}/{name}" for name in self.directories(root) or ())):
            members = (self.read(f"{group}/tasks") or "").split()
            if group != directory and thread in members:
                members.remove(thread)
                self._put(f"{group}/tasks", "\n".join(members))

    def _cpus(self, path: str, text: str) -> str | None:
        """Return a list of CPUs within the parent's and around the children's, as v1 demands it."""
        try:
            wanted = cpuset.parse(text)
        except CPUSetError:
            return None
        directory, name = os.path.split(path)
        if self.exists(f"{directory}/{_EFFECTIVE}"):
            return cpuset.text_of(wanted)  # v2 has no such rule
        parent = self.read(f"{os.path.dirname(directory)}/{name}")
        if parent is not None and not wanted <= cpuset.parse(parent.strip()):
            return None
        for child in self.directories(directory) or ():
            if not cpuset.parse((self.read(f"{directory}/{child}/{name}") or "").strip()) <= wanted:
                return None
        return cpuset.text_of(wanted)


def _schemata(content: str, text: str) -> str | None:
    """Return the lines with those values replaced that the text names; each resource and domain must exist."""
    lines = dict(line.strip().partition(":")[::2] for line in content.splitlines())
    for line in text.splitlines():
        resource, _, parts = line.strip().partition(":")
        if resource not in lines:
            return None
        domains = dict(part.partition("=")[::2] for part in lines[resource].split(";") if part)
        for part in parts.split(";"):
            domain, separator, value = part.partition("=")
            if part and (not separator or domain not in domains):
                return None
            if part:
                domains[domain] = value
        lines[resource] = ";".join(f"{domain}={value}" for domain, value in domains.items())
    width = max((len(name) for name in lines), default=0)
    return "\n".join(f"{name.rjust(width)}:{parts}" for name, parts in lines.items())


class Host:
    """The access through which components read and write a node; `open_host` and `tree_host` make one."""

    def __init__(self, roots: HostRoots, files: Files, syscalls: Syscalls) -> None:
        self.roots = roots
        self.files = files
        self.syscalls = syscalls
        self.cgroups = cgroups.Cgroups(files, cgroups.detect(files, roots))
        self.machine = machine.Machine(files, roots)
        self.processes = machine.Processes(files, roots.proc)
        self.resctrl = resctrl.ResctrlFs(files, syscalls, roots)
        self.core_sched = CoreSchedCookies(syscalls)
        self.slices = ThreadSlices(syscalls)
        self.kidled = cold_pages.Kidled(files, roots)

    def close(self) -> None:
        """Close all files that are kept open."""
        self.files.close()


def open_host(roots: HostRoots, hot_files_max: int) -> Host:
    """Return the host that we run on; keeps at most so many files open, fewer where the process may not open as
    many."""
    limit = raise_open_files_limit(hot_files_max + DESCRIPTORS_SPARED)
    kept = max(min(hot_files_max, limit - DESCRIPTORS_SPARED), 0)
    return Host(roots, Files(kept), LinuxSyscalls())


def tree_host(root: str, syscalls: Syscalls | None = None) -> Host:
    """Return a directory tree in place of a host (`TreeFiles`), without system calls unless given."""
    return Host(HostRoots.below(root), TreeFiles(), syscalls if syscalls is not None else NoSyscalls())


class Feature(enum.StrEnum):
    """Names for reports."""

    CPU_BURST = "cpu-burst"
    CPU_IDLE = "cpu-idle"
    GROUP_IDENTITY = "group-identity"
    CORE_SCHED = "core-scheduling"
    TIME_SLICE = "time-slice"
    MEMORY_PROTECTION = "memory-protection"
    MEMORY_WATERMARKS = "memory-watermarks"
    MEMORY_PRIORITY = "memory-priority"
    OOM_GROUP = "oom-group"
    PAGE_CACHE_LIMIT = "page-cache-limit"
    BLKIO_THROTTLE = "blkio-throttle"
    BLKIO_COST = "blkio-cost"
    NET_CLASS = "net-class"
    PRESSURE = "pressure"
    CPI = "cpi"
    RESCTRL = "resctrl"
    KIDLED = "kidled"


_KNOBS = {
    Feature.CPU_BURST: (Knob.CPU_BURST,),
    Feature.CPU_IDLE: (Knob.CPU_IDLE,),
    Feature.GROUP_IDENTITY: (Knob.CPU_BVT,),
    Feature.MEMORY_PROTECTION: (Knob.MEMORY_MIN, Knob.MEMORY_LOW, Knob.MEMORY_HIGH),
    Feature.MEMORY_WATERMARKS: (
        Knob.MEMORY_WMARK_RATIO,
        Knob.MEMORY_WMARK_SCALE,
        Knob.MEMORY_WMARK_MIN_ADJ,
    ),
    Feature.MEMORY_PRIORITY: (Knob.MEMORY_PRIORITY, Knob.MEMORY_USE_PRIORITY_OOM),
    Feature.OOM_GROUP: (Knob.MEMORY_OOM_GROUP,),
    Feature.PAGE_CACHE_LIMIT: (Knob.PAGE_CACHE_ENABLE, Knob.PAGE_CACHE_SIZE, Knob.PAGE_CACHE_SYNC),
    Feature.BLKIO_THROTTLE: (Knob.BLKIO_READ_BPS, Knob.BLKIO_WRITE_BPS),
    Feature.BLKIO_COST: (Knob.BLKIO_WEIGHT, Knob.BLKIO_QOS, Knob.BLKIO_MODEL),
    Feature.NET_CLASS: (Knob.NET_CLASS,),
    Feature.PRESSURE: (Knob.CPU_PRESSURE, Knob.MEMORY_PRESSURE, Knob.IO_PRESSURE),
}
_KNOBS_V2 = {
    Feature.BLKIO_THROTTLE: (Knob.IO_MAX,),
    Feature.BLKIO_COST: (Knob.IO_WEIGHT, Knob.BLKIO_QOS, Knob.BLKIO_MODEL),
}
"""Their knobs on cgroup v2, where those differ."""


def probe_features(host: Host, kubepods: str) -> Mapping[Feature, KernelSupport]:
    """Return each feature with the answer of this host; `kubepods` is the group of all pods."""
    features = _KNOBS if host.cgroups.version == V1 else _KNOBS | _KNOBS_V2
    found = {feature: _knobs(host, kubepods, knobs) for feature, knobs in features.items()}
    found[Feature.CORE_SCHED] = host.core_sched.support()
    found[Feature.TIME_SLICE] = host.slices.support()
    found[Feature.CPI] = _cpi(host)
    found[Feature.RESCTRL] = host.resctrl.support()
    found[Feature.KIDLED] = host.kidled.support()
    return {feature: found[feature] for feature in Feature}


def _knobs(host: Host, group: str, knobs: tuple[Knob, ...]) -> KernelSupport:
    """Supported when all its knobs are."""
    for knob in knobs:
        if not (support := host.cgroups.support(knob, group)).is_supported:
            return support
        path = host.cgroups.path(knob, group)
        # Some knobs count as present everywhere; a kernel built without them has no file all the same.
        if not host.files.exists(path) and host.cgroups.exists(group):
            return KernelSupport(False, f"no file {path}")
    return KernelSupport(True)


def _cpi(host: Host) -> KernelSupport:
    counted = perf_events.support(host.syscalls)
    if not counted.is_supported:
        return counted
    root = perf_events.directory(host.cgroups, "")
    if not host.files.exists(root):
        version = "perf_event controller" if host.cgroups.version == V1 else "cgroup2"
        return KernelSupport(False, f"no directory {root}: {version} is not mounted")
    return KernelSupport(True)
