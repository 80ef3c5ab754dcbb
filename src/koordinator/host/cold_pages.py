"""Find memory that nobody has touched for long: pages by age from kidled, regions by age from DAMON.

Source: behaviour/koordlet-observe 5.10; Documentation/admin-guide/mm/damon/usage.rst.
"""

import msgspec

from koordinator.host.cgroup_values import count
from koordinator.host.cgroups import KernelSupport
from koordinator.host.files import FileProblem, Files, HostRoots

SCAN_PERIOD_S = 5
USE_HIERARCHY = 1


class Kidled:
    """Switches of a vendor kernel's scanner; what it finds is in `memory.idle_page_stats` of each group."""

    def __init__(self, files: Files, roots: HostRoots) -> None:
        self._files = files
        base = f"{roots.sys}/kernel/mm/kidled"
        self.scan_period_path = f"{base}/scan_period_in_seconds"
        self.use_hierarchy_path = f"{base}/use_hierarchy"

    def support(self) -> KernelSupport:
        """Return whether this kernel has kidled."""
        for path in (self.scan_period_path, self.use_hierarchy_path):
            if not self._files.exists(path):
                return KernelSupport(False, f"no file {path}")
        return KernelSupport(True)

    def wanted(self) -> dict[str, str]:
        """Path → text that starts it, to be written (and put back) by the executor."""
        return {self.scan_period_path: str(SCAN_PERIOD_S), self.use_hierarchy_path: str(USE_HIERARCHY)}

    def is_scanning(self) -> bool:
        """Return whether it scans, and counts groups with all below them."""
        period = (self._files.read(self.scan_period_path) or "0").strip()
        hierarchy = (self._files.read(self.use_hierarchy_path) or "0").strip()
        return period.isdigit() and int(period) > 0 and hierarchy == str(USE_HIERARCHY)


class Scheme(msgspec.Struct, frozen=True):
    """A DAMON scheme: what it does to regions, and how many bytes it found and changed so far."""

    kdamond: int
    context: int
    scheme: int
    action: str
    tried_bytes: int
    applied_bytes: int


class Damon:
    """Reads what somebody set DAMON up for; it is not set up here, since a machine has only few."""

    def __init__(self, files: Files, roots: HostRoots) -> None:
        self._files = files
        self._base = f"{roots.sys}/kernel/mm/damon/admin/kdamonds"

    def support(self) -> KernelSupport:
        """Return whether this kernel has DAMON with its sysfs interface, and whether one runs."""
        if not self._files.exists(f"{self._base}/nr_kdamonds"):
            return KernelSupport(False, f"no file {self._base}/nr_kdamonds")
        running = [number for number in self._numbers(self._base) if self.is_running(number)]
        return KernelSupport(True, f"{len(running)} running")

    def is_running(self, kdamond: int) -> bool:
        """Return whether one of its threads observes something."""
        return (self._files.read(f"{self._base}/{kdamond}/state") or "").strip() == "on"

    def refresh(self, kdamond: int) -> FileProblem | None:
        """Ask a running thread to bring the counts of its schemes up to date."""
        return self._files.write(f"{self._base}/{kdamond}/state", "update_schemes_stats")

    def schemes(self) -> list[Scheme]:
        """Return all schemes with their counts. Raises: ContentError."""
        found = []
        for kdamond in self._numbers(self._base):
            contexts = f"{self._base}/{kdamond}/contexts"
            for context in self._numbers(contexts):
                schemes = f"{contexts}/{context}/schemes"
                found += [self._scheme(kdamond, context, each, schemes) for each in self._numbers(schemes)]
        return found

    def _scheme(self, kdamond: int, context: int, scheme: int, schemes: str) -> Scheme:
        base = f"{schemes}/{scheme}"
        return Scheme(
            kdamond,
            context,
            scheme,
            action=(self._files.read(f"{base}/action") or "").strip(),
            tried_bytes=count("sz_tried", self._files.read(f"{base}/stats/sz_tried") or "0"),
            applied_bytes=count("sz_applied", self._files.read(f"{base}/stats/sz_applied") or "0"),
        )

    def _numbers(self, path: str) -> list[int]:
        return sorted(int(name) for name in self._files.directories(path) or () if name.isdigit())
