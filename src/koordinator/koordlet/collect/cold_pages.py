"""Memory that nobody has touched for long, and the rest, on kernels that scan for it.

Source: behaviour/koordlet-observe 5.10.
"""

import logging

from koordinator.host import cgroup_layout
from koordinator.host.errors import ContentError, LayoutError, UnsupportedError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import rates
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)

OWNER = "ColdPageCollector"
"""Name, in the executor's records, of the one that switched the scanner on."""


class ColdPages:
    """Switches kidled on and reads what it finds; does nothing where the kernel cannot tell it by group."""

    name = OWNER

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.cold_page_interval_s
        self._reported = ""

    def collect(self) -> bool:
        view = self._shared.view
        reason = self._obstacle()
        view.has_cold_pages = not reason
        if reason:
            if reason != self._reported:
                log.warning("cold pages not collected", extra={"reason": reason})
            self._reported = reason
            return True
        if not view.has_pods:
            return False
        at_ms = int(self._shared.clock.now() * 1000)
        is_node = self._node(at_ms)
        for pod in view.pods.values():
            self._group(kinds.POD_MEMORY_HOT_PAGE, kinds.POD_UID, pod.uid, pod.group)
        for application in view.host_applications:
            try:
                group = cgroup_layout.host_application_dir(view.driver, application)
            except LayoutError:
                continue
            self._group(kinds.HOST_APP_MEMORY_HOT_PAGE, kinds.HOST_APP_NAME, application.name, group)
        return is_node

    def _obstacle(self) -> str:
        """Return why there is nothing to read; empty when the scanner runs."""
        host = self._shared.host
        support = host.kidled.support()
        if not support.is_supported:
            return support.reason
        try:
            if host.cgroups.idle_pages("") is None:
                return "no memory.idle_page_stats in the root group"
        except UnsupportedError as error:
            return str(error)
        except ContentError:
            pass  # nothing was scanned yet
        if not host.kidled.is_scanning():
            for path, text in host.kidled.wanted().items():
                problem = self._shared.executor.write_file(
                    path, text, owner=OWNER, reason="scan for cold pages"
                )
                if problem is not None:
                    return str(problem)
        return "" if host.kidled.is_scanning() else "kidled does not start"

    def _node(self, at_ms: int) -> bool:
        host, store = self._shared.host, self._shared.store
        try:
            pages, memory = host.cgroups.idle_pages(""), host.machine.memory()
        except ContentError:
            return False
        if pages is None or memory is None:
            return False
        free_bytes = memory.total_bytes - memory.usage_with_page_cache_bytes
        hot_bytes = rates.node_hot_bytes(memory.total_bytes, free_bytes, pages.cold_bytes())
        store.ring(kinds.NODE_MEMORY_HOT_PAGE).append(at_ms, hot_bytes)
        return True

    def _group(self, kind: str, name: str, value: str, group: str) -> None:
        """Store the memory in use of one group; left out when it cannot be read."""
        cgroups, store = self._shared.host.cgroups, self._shared.store
        try:
            pages, stat = cgroups.idle_pages(group), cgroups.memory_stat(group)
        except ContentError:
            return
        if pages is None or stat is None:
            return
        hot_bytes = rates.cgroup_hot_bytes(stat, pages.cold_bytes())
        store.ring(kind, {name: value}).append(int(self._shared.clock.now() * 1000), hot_bytes)
