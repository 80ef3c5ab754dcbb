"""One host: everything below its roots, and the system calls that files cannot replace."""

from koordinator.host import cgroups, cold_pages, core_sched, machine, processes, resctrl
from koordinator.host.files import DESCRIPTORS_SPARED, Files, raise_open_files_limit
from koordinator.host.roots import HostRoots
from koordinator.host.syscalls import LinuxSyscalls, NoSyscalls, Syscalls
from koordinator.host.tree import TreeFiles


class Host:
    """The access through which components read and write a node; `open_host` and `tree_host` make one."""

    def __init__(self, roots: HostRoots, files: Files, syscalls: Syscalls) -> None:
        self.roots = roots
        self.files = files
        self.syscalls = syscalls
        self.cgroups = cgroups.Cgroups(files, cgroups.detect(files, roots))
        self.machine = machine.Machine(files, roots)
        self.processes = processes.Processes(files, roots.proc)
        self.resctrl = resctrl.ResctrlFs(files, syscalls, roots)
        self.core_sched = core_sched.CoreSchedCookies(syscalls)
        self.kidled = cold_pages.Kidled(files, roots)
        self.damon = cold_pages.Damon(files, roots)

    def close(self) -> None:
        """Close all files that are kept open."""
        self.files.close()


def open_host(roots: HostRoots, hot_files_max: int) -> Host:
    """Return the host that we run on; keeps at most so many files open, fewer where the process may not open as
    many.
    """
    limit = raise_open_files_limit(hot_files_max + DESCRIPTORS_SPARED)
    kept = max(min(hot_files_max, limit - DESCRIPTORS_SPARED), 0)
    return Host(roots, Files(kept), LinuxSyscalls())


def tree_host(root: str, syscalls: Syscalls | None = None) -> Host:
    """Return a directory tree in place of a host (`tree.TreeFiles`), without system calls unless given."""
    return Host(HostRoots.below(root), TreeFiles(), syscalls if syscalls is not None else NoSyscalls())
