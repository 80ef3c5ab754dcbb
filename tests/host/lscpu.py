"""What `lscpu` says about a machine: the independent look at it with which ours is compared."""

from koordinator.host.cgroup_values import count
from koordinator.host.errors import ContentError
from koordinator.host.sysfs import NO_CACHE, CacheIDs, HostCPUTopology, Processor, topology_of

LSCPU = ("lscpu", "-e=CPU,NODE,SOCKET,CORE,CACHE,ONLINE")
_COLUMNS = 6
_L1_L2_L3_PARTS = 4


def parse_lscpu(text: str, *, accepts_no_cache: bool = True) -> HostCPUTopology:
    """The topology that `LSCPU` prints; lines that do not fit are left out, the header among them.

    Some virtual machines show `-` as cache. The reference accepts that on arm64 only and sees no CPU elsewhere.
    Raises: ContentError when no line fits.
    """
    rows = (_processor(line.split(), accepts_no_cache) for line in text.splitlines())
    found = topology_of(row for row in rows if row is not None)
    if not found.processors:
        raise ContentError("lscpu", "no usable line")
    return found


def parse_cache(text: str, *, accepts_no_cache: bool = True) -> CacheIDs:
    """Ids in a CACHE column: `l1d:l1i:l2:l3`, or without the last part.

    Raises: ContentError.
    """
    text = text.strip()
    if text == "-" and accepts_no_cache:
        return NO_CACHE
    parts = text.split(":")
    if len(parts) < _L1_L2_L3_PARTS - 1:
        raise ContentError("lscpu", f"{text[:40]!r} does not list caches")
    l3 = count("lscpu l3", parts[3]) if len(parts) >= _L1_L2_L3_PARTS else NO_CACHE.l3
    return CacheIDs(parts[0], l3)


def _processor(columns: list[str], accepts_no_cache: bool) -> Processor | None:
    if len(columns) < _COLUMNS:
        return None
    cpu, node, socket, core, cache, online = columns[:_COLUMNS]
    try:
        caches = parse_cache(cache, accepts_no_cache=accepts_no_cache)
        return Processor(
            node=count("lscpu", node) if node.isascii() and node.isdigit() else 0,
            socket=count("lscpu", socket),
            core=count("lscpu", core),
            cpu=count("lscpu", cpu),
            l1l2=caches.l1l2,
            l3=caches.l3,
            online=online,
        )
    except ContentError:
        return None
