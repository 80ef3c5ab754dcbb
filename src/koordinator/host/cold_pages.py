"""Find memory that nobody has touched for long: pages by age from kidled. Source: behaviour/koordlet-observe 5.10."""

from koordinator.host.cgroups import KernelSupport
from koordinator.host.files import Files, HostRoots

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
