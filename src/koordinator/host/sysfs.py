"""Parse `/sys`: NUMA nodes, huge pages, the CPU, devices on the PCI bus and RDMA cards, as pure functions of names and
text; and the CPU topology as `lscpu` would tell it: no process to start, no output to parse.

Source: behaviour/koordlet-observe 4.1, 4.2 and 10: cores are numbered over the whole machine in the order in which they
are met, since the kernel's own `core_id` repeats with each socket.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from koordinator.api import cpuset
from koordinator.api.annotations.node import CPUBasicInfo
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.host import procfs
from koordinator.host.cgroup_values import signed
from koordinator.host.errors import ContentError
from koordinator.host.files import Files
from koordinator.host.procfs import KIB

HUGE_PAGES_KIB = (1_048_576, 2_048)
"""Sizes of huge pages that are reported."""

_CACHE_KEYS = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
_NODE_PREFIX = "node"
_LEADING_NUMBER = re.compile(r"[ \t]*\+?([0-9]+)")


def id_list(text: str) -> CPUSet:
    """Ids such as `1,3-5`, of NUMA nodes or CPUs. Raises: ContentError."""
    try:
        return cpuset.parse(text.strip())
    except CPUSetError as error:
        raise ContentError("id list", str(error)) from error


def numa_meminfo_kib(text: str) -> dict[str, int]:
    """`Node N Key: value kB` lines of a NUMA node's meminfo in KiB."""
    lines = (line.split(maxsplit=2) for line in text.splitlines())
    return procfs.meminfo_kib("\n".join(words[2] for words in lines if len(words) == 3))


def numa_usage_bytes(text: str) -> int:
    """Used memory of a NUMA node without its page cache, from its meminfo; there is no MemAvailable per node."""
    not_used = sum(procfs.kib_of(text, key) for key in _CACHE_KEYS)
    return max(procfs.kib_of(text, "MemTotal") - not_used, 0) * KIB


def numa_nodes(
    meminfo_by_dir: Mapping[str, str | None], generic: Collection[int]
) -> dict[int, dict[str, int]]:
    """Meminfo in KiB by NUMA node, from directory name → text (None when unreadable).

    Nodes in `generic` hold accelerators without memory and are left out.
    Raises: ContentError when there are no directories, or the ids left are not 0 to their maximum.
    """
    found = {}
    for name, text in meminfo_by_dir.items():
        digits = name.removeprefix(_NODE_PREFIX)
        if not name.startswith(_NODE_PREFIX) or not (digits.isascii() and digits.isdigit()):
            continue
        if text is not None and int(digits) not in generic:
            found[int(digits)] = numa_meminfo_kib(text)
    if not meminfo_by_dir or sorted(found) != list(range(len(found))):
        raise ContentError("NUMA nodes", f"ids {sorted(found)} are not 0 to their maximum")
    return dict(sorted(found.items()))


def huge_pages(counts_by_dir: Mapping[str, str]) -> dict[int, int]:
    """Return number of huge pages by their size in KiB, from directory name → `nr_hugepages`; other sizes are
    ignored.

    A count that is none is 0, as of a size that the kernel does not have.
    """
    texts = {kib: counts_by_dir.get(f"hugepages-{kib}kB", "") for kib in HUGE_PAGES_KIB}
    return {
        kib: int(found[1]) if (found := _LEADING_NUMBER.match(text)) else 0 for kib, text in texts.items()
    }


def cpu_basic_info(
    cpuinfo: str,
    *,
    smt_active: str | None = None,
    no_turbo: str | None = None,
    l3_cbm_mask: str | None = None,
    lscpu_y: str = "",
) -> CPUBasicInfo:
    """Return what kind of CPU the node has; None where a file does not exist.

    `lscpu_y` (output of `lscpu -y`) tells of hyper-threads where the kernel has no file for them.
    """
    model = procfs.cpu_model(cpuinfo)
    if smt_active is not None:
        hyper_thread = smt_active.strip() == "1"
    else:
        hyper_thread = _threads_per_core(lscpu_y) > 1
    return CPUBasicInfo(
        cpu_model=model.model,
        hyper_thread_enabled=hyper_thread,
        turbo_enabled=no_turbo is not None and no_turbo.strip() == "0",
        cat_l3_cbm_mask=(l3_cbm_mask or "").strip(),
        vendor_id=model.vendor,
    )


def _threads_per_core(lscpu_y: str) -> int:
    for line in lscpu_y.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Thread(s) per core" and value.strip().isdigit():
            return int(value)
    return 1


class CacheIDs(NamedTuple):
    """Ids of the caches of a CPU: first level as text, third as a number."""

    l1l2: str
    l3: int


NO_CACHE = CacheIDs("0", 0)


class Processor(msgspec.Struct, frozen=True, order=True):
    """A logical CPU; `core` is unique on the machine. Ordered by place."""

    node: int
    socket: int
    core: int
    cpu: int
    l1l2: str = NO_CACHE.l1l2
    l3: int = NO_CACHE.l3
    online: str = "yes"


class HostCPUTopology(msgspec.Struct, frozen=True):
    """All usable CPUs, ordered by NUMA node, socket, core, id."""

    processors: tuple[Processor, ...]

    @property
    def cpus(self) -> frozenset[int]:
        """Ids of all CPUs."""
        return frozenset(processor.cpu for processor in self.processors)

    def by(self, level: str) -> dict[int, list[int]]:
        """Sorted CPU ids by id of `core`, `node`, `socket` or `l3`."""
        groups: dict[int, list[int]] = {}
        for processor in sorted(self.processors, key=lambda p: p.cpu):
            groups.setdefault(getattr(processor, level), []).append(processor.cpu)
        return groups


def topology_of(processors: Iterable[Processor]) -> HostCPUTopology:
    """Return the topology of these CPUs, in order."""
    return HostCPUTopology(tuple(sorted(processors)))


_L1, _L3 = "1", "3"


class _Numbers:
    """Numbers for sets of CPUs: what the kernel says at the first CPU of one, else the order in which they are met."""

    def __init__(self) -> None:
        self._known: dict[CPUSet, int] = {}

    def of(self, cpus: CPUSet, number: int | None = None) -> int:
        return self._known.setdefault(cpus, len(self._known) if number is None else number)


def topology(files: Files, sys: str) -> HostCPUTopology:
    """Return all CPUs that are online. Raises: ContentError when there are none, or one is not described."""
    base = f"{sys}/devices/system/cpu"
    online = id_list(files.read(f"{base}/online") or "")
    if not online:
        raise ContentError("cpu/online", "no CPU")
    node_of = _numa_nodes(files, sys)
    cores, l1s, l3s = _Numbers(), _Numbers(), _Numbers()
    sockets: dict[int, int] = {}
    processors = []
    for cpu in sorted(online):
        where = f"{base}/cpu{cpu}"
        siblings = _cpus(files, f"{where}/topology/thread_siblings_list", cpu)
        socket = _number(files.read(f"{where}/topology/physical_package_id"))
        caches = _shared_caches(files, where, cpu)
        processors.append(
            Processor(
                node=node_of.get(cpu, 0),
                socket=sockets.setdefault(socket, len(sockets)),
                core=cores.of(siblings),
                cpu=cpu,
                l1l2=str(l1s.of(*caches[_L1])) if _L1 in caches else NO_CACHE.l1l2,
                l3=l3s.of(*caches[_L3]) if _L3 in caches else NO_CACHE.l3,
            )
        )
    return topology_of(processors)


def _numa_nodes(files: Files, sys: str) -> dict[int, int]:
    """NUMA node by CPU; none on kernels without NUMA."""
    base = f"{sys}/devices/system/node"
    found = {}
    for name in files.names(base) or ():
        digits = name.removeprefix("node")
        if name.startswith("node") and digits.isdigit():
            for cpu in id_list(files.read(f"{base}/{name}/cpulist") or ""):
                found[cpu] = int(digits)
    return found


def _shared_caches(files: Files, where: str, cpu: int) -> dict[str, tuple[CPUSet, int | None]]:
    """Return the caches of this CPU by level, the data cache where a level has two: the CPUs that share one, and the
    kernel's id for it where it has one (resctrl knows caches by that)."""
    found: dict[str, tuple[CPUSet, int | None]] = {}
    for name in files.names(f"{where}/cache") or ():
        if not name.startswith("index"):
            continue
        level = (files.read(f"{where}/cache/{name}/level") or "").strip()
        kind = (files.read(f"{where}/cache/{name}/type") or "").strip()
        if kind != "Instruction":
            own = (files.read(f"{where}/cache/{name}/id") or "").strip()
            cpus = _cpus(files, f"{where}/cache/{name}/shared_cpu_list", cpu)
            found[level] = cpus, int(own) if own.isdigit() else None
    return found


def _cpus(files: Files, path: str, cpu: int) -> CPUSet:
    """Return a list of CPUs; the one alone where the kernel does not say."""
    return id_list(files.read(path) or "") or frozenset((cpu,))


def _number(text: str | None) -> int:
    """Return a socket; some virtual machines say -1."""
    digits = (text or "").strip()
    return int(digits) if digits.isdigit() else 0


_BUS_ID = re.compile(r"(?:(?:1?[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
_RDMA_NAME = re.compile(r"mlx[0-9]+_([0-9]+)")
_ACTIVE = "ACTIVE"


def bus_ids(entries: Iterable[str]) -> list[str]:
    """Entries of a driver's directory that are PCI addresses, in lower case."""
    return [name for name in (entry.lower() for entry in entries) if _BUS_ID.fullmatch(name)]


def bus_id(text: str) -> str:
    """Return a PCI address as the kernel writes it, in lower case and with four digits of the domain; tools have
    eight."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest.count(":") == 1 else text.lower()


def numa_node(text: str) -> int:
    """NUMA node of a device; 0 where the machine does not say. Raises: ContentError."""
    return max(signed("numa_node", text), 0)


def root_complex(device_path: str) -> str:
    """Root complex in the resolved path of a device, empty without."""
    return next((part for part in device_path.split("/") if _ROOT_COMPLEX.fullmatch(part)), "")


def rdma_minor(device: str) -> int:
    """Minor number of an RDMA device, from its name. Raises: ContentError for names that have none."""
    form = _RDMA_NAME.fullmatch(device)
    if form is None:
        raise ContentError("RDMA device", f"{device[:40]!r} is not named like mlx5_0")
    return int(form[1])


def is_rdma_healthy(port_states: Iterable[str]) -> bool:
    """Return whether an RDMA device has ports, and all of them are up."""
    states = list(port_states)
    return bool(states) and all(_ACTIVE in state for state in states)
