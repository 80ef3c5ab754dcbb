"""CPU topology from `/sys`, as `lscpu` would tell it: no process to start, no output to parse.

Source: behaviour/koordlet-observe 4.2: cores are numbered over the whole machine in the order in which they are met,
since the kernel's own `core_id` repeats with each socket.
"""

import msgspec

from koordinator.api.cpuset import CPUSet
from koordinator.host import sysfs
from koordinator.host.cpu_topology import NO_CACHE, HostCPUTopology, Processor, topology_of
from koordinator.host.errors import ContentError
from koordinator.host.files import Files

_L1, _L3 = "1", "3"


class _Numbers:
    """Numbers for sets of CPUs in the order in which they are met."""

    def __init__(self) -> None:
        self._known: dict[CPUSet, int] = {}

    def of(self, cpus: CPUSet) -> int:
        return self._known.setdefault(cpus, len(self._known))


class _Cache(msgspec.Struct, frozen=True):
    """CPUs that share it, and the kernel's id for it where it has one (resctrl knows caches by that)."""

    cpus: CPUSet
    id: int | None


class _CacheNumbers:
    """Ids of caches: what the kernel says at the first CPU that shares one, else in the order in which they are met."""

    def __init__(self) -> None:
        self._known: dict[CPUSet, int] = {}

    def of(self, cache: _Cache) -> int:
        number = cache.id if cache.id is not None else len(self._known)
        return self._known.setdefault(cache.cpus, number)


def topology(files: Files, sys: str) -> HostCPUTopology:
    """Return all CPUs that are online. Raises: ContentError when there are none, or one is not described."""
    base = f"{sys}/devices/system/cpu"
    online = sysfs.id_list(files.read(f"{base}/online") or "")
    if not online:
        raise ContentError("cpu/online", "no CPU")
    node_of = _numa_nodes(files, sys)
    cores, l1s, l3s = _Numbers(), _CacheNumbers(), _CacheNumbers()
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
                l1l2=str(l1s.of(caches[_L1])) if _L1 in caches else NO_CACHE.l1l2,
                l3=l3s.of(caches[_L3]) if _L3 in caches else NO_CACHE.l3,
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
            for cpu in sysfs.id_list(files.read(f"{base}/{name}/cpulist") or ""):
                found[cpu] = int(digits)
    return found


def _shared_caches(files: Files, where: str, cpu: int) -> dict[str, _Cache]:
    """Return the caches of this CPU by level; the data cache where a level has two."""
    found: dict[str, _Cache] = {}
    for name in files.names(f"{where}/cache") or ():
        if not name.startswith("index"):
            continue
        level = (files.read(f"{where}/cache/{name}/level") or "").strip()
        kind = (files.read(f"{where}/cache/{name}/type") or "").strip()
        if kind != "Instruction":
            own = (files.read(f"{where}/cache/{name}/id") or "").strip()
            cpus = _cpus(files, f"{where}/cache/{name}/shared_cpu_list", cpu)
            found[level] = _Cache(cpus, int(own) if own.isdigit() else None)
    return found


def _cpus(files: Files, path: str, cpu: int) -> CPUSet:
    """Return a list of CPUs; the one alone where the kernel does not say."""
    return sysfs.id_list(files.read(path) or "") or frozenset((cpu,))


def _number(text: str | None) -> int:
    """Return a socket; some virtual machines say -1."""
    digits = (text or "").strip()
    return int(digits) if digits.isdigit() else 0
