"""The machine as a whole: CPU time, memory, NUMA nodes, disks and network counters, CPU model and topology; and its
processes.

Reading answers None when a file cannot be read, or a process has ended; content that does not fit raises ContentError.
"""

import os
from collections.abc import Callable
from typing import TypeVar

from koordinator.api.annotations.node import CPUBasicInfo
from koordinator.api.cpuset import CPUSet
from koordinator.host import procfs, sysfs
from koordinator.host.errors import ContentError
from koordinator.host.files import FileProblem, Files, HostRoots
from koordinator.host.procfs import CPUModel, CPUTicks, Memory
from koordinator.host.sysfs import HostCPUTopology


class Processes:
    """Processes below a proc file system."""

    def __init__(self, files: Files, proc: str) -> None:
        self._files = files
        self._proc = proc

    def pids(self) -> list[int]:
        """Ids of all processes, ascending."""
        return sorted(int(name) for name in self._files.names(self._proc) or () if name.isdigit())

    def start_ticks(self, pid: int) -> int | None:
        """Return when a process started: ids are used again, the pair of both is not."""
        text = self._files.read(f"{self._proc}/{pid}/stat")
        try:
            return None if text is None else procfs.start_ticks(text)
        except ContentError:
            return None

    def command(self, pid: int) -> list[str] | None:
        """Return the command line in words; empty for threads of the kernel."""
        text = self._files.read(f"{self._proc}/{pid}/cmdline")
        return None if text is None else text.rstrip("\0").split("\0") if text else []

    def name(self, pid: int) -> str | None:
        """Return the short name of a process."""
        text = self._files.read(f"{self._proc}/{pid}/comm")
        return None if text is None else text.rstrip("\n")

    def oom_score_adj(self, pid: int) -> int | None:
        """Return the process's `oom_score_adj`, -1000 to 1000; the larger it is, the sooner the kernel kills the
        process."""
        text = self._files.read(self.oom_score_adj_path(pid))
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def oom_score_adj_path(self, pid: int) -> str:
        """Return the file of the same, to be written by the executor."""
        return f"{self._proc}/{pid}/oom_score_adj"

    def set_oom_score_adj(self, pid: int, score: int) -> FileProblem | None:
        """Write the same at once."""
        return self._files.write(self.oom_score_adj_path(pid), str(score))


T = TypeVar("T")


class Machine:
    """Reads `/proc` and `/sys` below their roots."""

    def __init__(self, files: Files, roots: HostRoots) -> None:
        self._files = files
        self._proc = roots.proc
        self._sys = roots.sys
        self._sys_fs = roots.sys_fs

    # CPU

    @property
    def clock_ticks_per_s(self) -> int:
        """Unit of CPU times in `/proc`."""
        try:
            return os.sysconf("SC_CLK_TCK")
        except (ValueError, OSError):
            return procfs.CLOCK_TICKS_PER_S

    def cpu_ticks(self) -> CPUTicks | None:
        """Return how long all CPUs together were busy, and each."""
        return self._hot("stat", procfs.cpu_ticks)

    def uptime_s(self) -> float | None:
        """Return the time since the machine was started, from which `start_ticks` of processes count."""
        words = (self._files.read(f"{self._proc}/uptime") or "").split()
        try:
            return float(words[0]) if words else None
        except ValueError:
            return None

    def boot_id(self) -> str:
        """Return a name for this boot, the same until the next; empty where the kernel has none."""
        return (self._files.read(f"{self._proc}/sys/kernel/random/boot_id") or "").strip()

    def cpu_model(self) -> CPUModel:
        """Return what kind of CPU the first one is."""
        return procfs.cpu_model(self._files.read(f"{self._proc}/cpuinfo") or "")

    def cpu_basic_info(self) -> CPUBasicInfo:
        """Return what is reported of the CPU. The topology tells of hyper-threads where the kernel has no file."""
        active = self._files.read(f"{self._sys}/devices/system/cpu/smt/active")
        threads = ""
        if active is None and (topology := self.cpu_topology_or_none()) is not None:
            most = max(map(len, topology.by("core").values()), default=1)
            threads = f"Thread(s) per core: {most}"
        return sysfs.cpu_basic_info(
            self._files.read(f"{self._proc}/cpuinfo") or "",
            smt_active=active,
            no_turbo=self._files.read(f"{self._sys}/devices/system/cpu/intel_pstate/no_turbo"),
            l3_cbm_mask=self._files.read(f"{self._sys_fs}/resctrl/info/L3/cbm_mask"),
            lscpu_y=threads,
        )

    def cpu_topology(self) -> HostCPUTopology:
        """Return all CPUs that are online. Raises: ContentError when the kernel does not say."""
        return sysfs.topology(self._files, self._sys)

    def cpu_topology_or_none(self) -> HostCPUTopology | None:
        """Return the same, None when the kernel does not say."""
        try:
            return self.cpu_topology()
        except ContentError:
            return None

    def online_cpus(self) -> CPUSet:
        """Return CPUs that can run something. Raises: ContentError."""
        return sysfs.id_list(self._files.read(f"{self._sys}/devices/system/cpu/online") or "")

    # Memory

    def memory(self) -> Memory | None:
        """Memory of the machine."""
        return self._hot("meminfo", procfs.memory)

    def numa_meminfo_kib(self) -> dict[int, dict[str, int]]:
        """Meminfo by NUMA node. Raises: ContentError when none can be read, or they are not 0 to their maximum."""
        base = f"{self._sys}/bus/node/devices"
        names = [name for name in self._files.names(base) or () if name.startswith("node")]
        generic = self._files.read(f"{self._sys}/devices/system/node/has_generic_initiator") or ""
        texts = {name: self._hot_text(f"{base}/{name}/meminfo") for name in names}
        found = sysfs.numa_nodes(texts, sysfs.id_list(generic))
        if not found:
            raise ContentError("NUMA nodes", "none can be read")
        return found

    def numa_usage_bytes(self, numa_node: int) -> int | None:
        """Used memory of a NUMA node without its page cache; None when it is gone."""
        text = self._hot_text(f"{self._sys}/bus/node/devices/node{numa_node}/meminfo")
        return None if text is None else sysfs.numa_usage_bytes(text)

    def huge_pages(self, numa_node: int) -> dict[int, int]:
        """Huge pages of a NUMA node by their size in KiB."""
        base = f"{self._sys}/bus/node/devices/node{numa_node}/hugepages"
        sizes = self._files.names(base) or ()
        counts = {name: self._files.read(f"{base}/{name}/nr_hugepages") for name in sizes}
        return sysfs.huge_pages({name: text for name, text in counts.items() if text is not None})

    def default_interface(self) -> str:
        """Interface of the default route; empty without."""
        first = self._files.read(f"{self._proc}/1/net/route")
        text = first if first is not None else self._files.read(f"{self._proc}/net/route") or ""
        return procfs.default_interface(text)

    # Settings

    def sysctl_path(self, name: str) -> str:
        """File of a kernel setting such as `vm/min_free_kbytes`."""
        return f"{self._proc}/sys/{name}"

    def mm_path(self, name: str) -> str:
        """File of a memory-management setting of vendor kernels such as `memcg_reaper/reap_background`."""
        return f"{self._sys}/kernel/mm/{name}"

    def sched_features_path(self) -> str | None:
        """File of the scheduler's features, where debugfs is mounted; it moved in Linux 5.13."""
        debug = f"{self._sys}/kernel/debug"
        places = (f"{debug}/sched/features", f"{debug}/sched_features")
        return next((path for path in places if self._files.exists(path)), None)

    def _hot(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self._hot_text(f"{self._proc}/{name}")
        return None if text is None else parse(text)

    def _hot_text(self, path: str) -> str | None:
        data = self._files.hot(path)
        return None if data is None else data.decode(errors="replace")
