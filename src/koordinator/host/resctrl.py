"""The resctrl file system: groups, their schemata (shares of caches and of memory bandwidth by cache id), tasks and
monitors.

Source: behaviour/koordlet-observe 5.12; behaviour/koordlet-act 10; Documentation/filesystems/resctrl.rst. Others decide
what goes into schemata, and the executor writes it. The group of the empty name is the root group.
"""

import os

import msgspec

from koordinator.host import mounts
from koordinator.host.cgroup_values import count, ids
from koordinator.host.cgroups import KernelSupport
from koordinator.host.errors import ContentError
from koordinator.host.files import FileProblem, Files, HostRoots, problem_of
from koordinator.host.syscalls import Syscalls

_L3_MONITOR = "mon_L3_"
_OWN_DIRECTORIES = frozenset(("info", "mon_data", "mon_groups"))
_NO_COUNT = ("Unavailable", "Error", "Unassigned")
"""Contents of monitors while the hardware has no count for them."""


class Schemata(msgspec.Struct, frozen=True):
    """The content of a schemata file, by cache id."""

    l3: dict[int, int]
    mb: dict[int, int]


def parse_schemata(content: str) -> Schemata:
    """Return what a schemata file says; unknown lines and malformed parts are left out."""
    found = Schemata({}, {})
    for line in content.splitlines():
        kind, _, parts = line.strip().partition(":")
        if kind == "L3":
            found.l3.update(_shares(parts, 16))
        elif kind == "MB":
            found.mb.update(_shares(parts, 10))
    return found


def schemata_needs_write(content: str, line: str) -> bool:
    """Return whether a schemata file with this content must be written for the line to hold: real ids are compared."""
    have, want = parse_schemata(content), parse_schemata(line)
    return any(have.l3.get(cache) != mask for cache, mask in want.l3.items()) or any(
        have.mb.get(cache) != value for cache, value in want.mb.items()
    )


def _shares(parts: str, base: int) -> dict[int, int]:
    found = {}
    for part in parts.split(";"):
        cache, separator, value = (word.strip() for word in part.partition("="))
        if separator and cache.isdigit() and value.isalnum() and value.isascii():
            try:
                found[int(cache)] = int(value, base)
            except ValueError:
                continue
    return found


class CacheMonitor(msgspec.Struct, frozen=True):
    """The use that a group makes of one third-level cache; None where the hardware does not count it (now)."""

    occupancy_bytes: int | None
    local_bytes: int | None
    total_bytes: int | None


class ResctrlFs:
    """The resctrl file system of a host."""

    def __init__(self, files: Files, syscalls: Syscalls, roots: HostRoots) -> None:
        self._files = files
        self._syscalls = syscalls
        self._proc = roots.proc
        self.root = f"{roots.sys_fs}/resctrl"

    def support(self) -> KernelSupport:
        """Return whether it can be used now, and why not."""
        if self.is_mounted():
            return KernelSupport(True, self.root)
        if not self._files.exists(self.root):
            return KernelSupport(False, f"no {self.root}: kernel or CPU without resctrl")
        return KernelSupport(False, f"resctrl is not mounted at {self.root}")

    def is_mounted(self) -> bool:
        """Return whether the file system is there."""
        if self._files.exists(f"{self.root}/info"):
            return True
        return mounts.is_resctrl(self._mounts(), self.root)

    def counts_bandwidth_in_mbps(self) -> bool:
        """Return whether bandwidth is given in MB/s: a percentage would be taken for so many MB/s."""
        return mounts.counts_bandwidth_in_mbps(self._mounts())

    def mount(self) -> FileProblem | None:
        """Mount it, where the kernel has it."""
        if self.is_mounted():
            return None
        try:
            self._syscalls.mount("resctrl", self.root, "resctrl")
        except OSError as error:
            return problem_of(self.root, error)
        return None

    # What the CPU offers

    def full_mask(self) -> str | None:
        """Return all ways of the cache, as hexadecimal text."""
        text = self._files.read(f"{self.root}/info/L3/cbm_mask")
        return None if text is None else text.strip()

    def ways_min(self) -> int:
        """Return the number of ways that a mask must have at least."""
        text = (self._files.read(f"{self.root}/info/L3/min_cbm_bits") or "").strip()
        return max(int(text), 1) if text.isdecimal() else 1

    def cache_ids(self) -> tuple[int, ...]:
        """Ids of the third-level caches, as the root schemata lists them; empty without."""
        return tuple(sorted(parse_schemata(self.schemata("") or "").l3))

    def bandwidth_ids(self) -> tuple[int, ...]:
        """Ids of what bandwidth can be divided by percent for, as the root schemata lists them; empty without."""
        if self.counts_bandwidth_in_mbps():
            return ()
        return tuple(sorted(parse_schemata(self.schemata("") or "").mb))

    # Groups

    def groups(self) -> list[str] | None:
        """Return names of all groups but the root group; None when it is not mounted."""
        names = self._files.directories(self.root)
        return None if names is None else [name for name in names if name not in _OWN_DIRECTORIES]

    def create(self, group: str) -> FileProblem | None:
        """Make a group; one that exists is fine. The kernel has only few, then the failure is FULL."""
        return self._files.make_directory(self._path(group))

    def schemata_path(self, group: str) -> str:
        """File of the schemata, to be written by the executor a line at a time."""
        return f"{self._path(group)}/schemata"

    def schemata(self, group: str) -> str | None:
        """Return what a group may use."""
        return self._files.read(self.schemata_path(group))

    def last_error(self) -> str:
        """Return why the kernel refused the last change, in its words."""
        return (self._files.read(f"{self.root}/info/last_cmd_status") or "").strip()

    def tasks(self, group: str) -> list[int] | None:
        """Threads in a group. Raises: ContentError."""
        text = self._files.read(f"{self._path(group)}/tasks")
        return None if text is None else ids("resctrl tasks", text)

    # Monitors

    def monitors(self, group: str) -> dict[int, CacheMonitor] | None:
        """Return what a group uses, by cache; parts of a cache (sub-NUMA clusters) are added up. None when it is
        gone.

        Raises: ContentError.
        """
        base = f"{self._path(group)}/mon_data"
        names = self._files.directories(base)
        if names is None:
            return None
        found = {}
        for name in names:
            digits = name.removeprefix(_L3_MONITOR)
            if name.startswith(_L3_MONITOR) and digits.isdigit():
                counts = (self._count(f"{base}/{name}/{file}") for file in _MONITOR_FILES)
                found[int(digits)] = CacheMonitor(*counts)
        return found

    def _mounts(self) -> list[mounts.Mount]:
        return mounts.parse(self._files.read(f"{self._proc}/self/mountinfo") or "")

    def _count(self, path: str) -> int | None:
        text = self._files.read(path)
        if text is None or text.strip() in _NO_COUNT:
            return None
        return count(os.path.basename(path), text)

    def _path(self, group: str) -> str:
        if "/" in group or group in _OWN_DIRECTORIES or group in (".", ".."):
            raise ContentError("resctrl group", f"{group[:80]!r} cannot be the name of a group")
        return f"{self.root}/{group}" if group else self.root


_MONITOR_FILES = ("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes")
