"""Parse `/sys`: NUMA nodes, huge pages and the CPU, as pure functions of text.

Source: behaviour/koordlet-observe 4.1.
"""

import re
from collections.abc import Collection, Mapping

from koordinator.api import cpuset
from koordinator.api.annotations.topology import CPUBasicInfo
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.host import procfs
from koordinator.host.errors import ContentError
from koordinator.host.procfs import KIB

HUGE_PAGES_KIB = (1_048_576, 2_048)
"""Sizes of huge pages that are reported."""

_CACHE_KEYS = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
_NODE_PREFIX = "node"
_LEADING_NUMBER = re.compile(r"[ \t]*\+?([0-9]+)")


def id_list(text: str) -> CPUSet:
    """Ids such as `1,3-5`, of NUMA nodes or CPUs.

    Raises: ContentError.
    """
    try:
        return cpuset.parse(text.strip())
    except CPUSetError as error:
        raise ContentError("id list", str(error)) from error


def numa_meminfo_kib(text: str) -> dict[str, int]:
    """`Node N Key: value kB` lines of a NUMA node's meminfo in KiB."""
    lines = (line.split(maxsplit=2) for line in text.splitlines())
    return procfs.meminfo_kib("\n".join(words[2] for words in lines if len(words) == 3))


def numa_usage_bytes(meminfo_kib: Mapping[str, int]) -> int:
    """Used memory of a NUMA node without its page cache; there is no MemAvailable per node."""
    not_used = sum(meminfo_kib.get(key, 0) for key in _CACHE_KEYS)
    return max(meminfo_kib.get("MemTotal", 0) - not_used, 0) * KIB


def numa_nodes(
    meminfo_by_dir: Mapping[str, str | None], generic: Collection[int]
) -> dict[int, dict[str, int]]:
    """Meminfo in KiB by NUMA node, from directory name → text (None when unreadable).

    Nodes in `generic` hold accelerators without memory and are left out.
    Raises: ContentError when the ids left are not 0 to their maximum.
    """
    found = {}
    for name, text in meminfo_by_dir.items():
        digits = name.removeprefix(_NODE_PREFIX)
        if not name.startswith(_NODE_PREFIX) or not (digits.isascii() and digits.isdigit()):
            continue
        if text is not None and int(digits) not in generic:
            found[int(digits)] = numa_meminfo_kib(text)
    if not found or sorted(found) != list(range(len(found))):
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
