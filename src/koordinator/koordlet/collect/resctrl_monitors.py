"""Cache and memory bandwidth in use by the groups of the QoS classes. Source: behaviour/koordlet-observe 5.12."""

import logging

from koordinator.host.errors import ContentError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)

GROUPS = ("LSR", "LS", "BE")
CPU_FLAGS = frozenset(("cat_l3", "mba", "cqm_llc", "cqm_occup_llc", "cqm_mbm_total", "cqm_mbm_local"))
_VENDORS = frozenset(("GenuineIntel", "AuthenticAMD"))


class ResctrlMonitors:
    """Does nothing where CPU or kernel do not count, or while resctrl is not mounted."""

    name = "resctrlCollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.resctrl_interval_s
        self._reported = ""

    def collect(self) -> bool:
        reason = self._obstacle()
        if reason != self._reported:
            self._reported = reason
            if reason:
                log.warning("resctrl not collected", extra={"reason": reason})
        if reason:
            return True
        metrics, store = self._shared.metrics, self._shared.store
        at_ms = int(self._shared.clock.now() * 1000)
        metrics.llc_occupancy.reset()
        metrics.memory_bandwidth.reset()
        for group in GROUPS:
            try:
                monitors = self._shared.host.resctrl.monitors(group)
            except ContentError as error:
                log.debug("resctrl group left out", extra={"group": group, "problem": str(error)})
                continue
            for cache, counted in (monitors or {}).items():
                names = {"qos": group, "cache_id": str(cache)}
                if counted.occupancy_bytes is not None:
                    store.ring(kinds.RESCTRL_LLC, names).append(at_ms, counted.occupancy_bytes)
                    metrics.llc_occupancy.set(counted.occupancy_bytes, str(cache), group)
                traffic = (("mbm_local_bytes", counted.local_bytes), ("mbm_total_bytes", counted.total_bytes))
                for kind, moved_bytes in traffic:
                    if moved_bytes is not None:
                        own = {**names, "resctrl_mb_type": kind}
                        store.ring(kinds.RESCTRL_MB, own).append(at_ms, moved_bytes)
                        metrics.memory_bandwidth.set(moved_bytes, str(cache), group, kind)
        return True

    def _obstacle(self) -> str:
        """Return why there is nothing to read; empty when there is."""
        host = self._shared.host
        support = host.resctrl.support()
        if not support.is_supported:
            return support.reason
        model = host.machine.cpu_model()
        if model.vendor not in _VENDORS:
            return f"CPU of vendor {model.vendor}"
        missing = CPU_FLAGS - model.flags
        return f"CPU without {', '.join(sorted(missing))}" if missing else ""
