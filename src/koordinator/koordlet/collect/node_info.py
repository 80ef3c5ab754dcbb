"""Collect what the machine is made of: CPUs, NUMA nodes, huge pages, and which disk a mount or volume leads to (for
block I/O control). Source: behaviour/koordlet-observe 5.7 and 5.11.
"""

import logging
from collections.abc import Callable

from koordinator.host.errors import ContentError
from koordinator.host.storage import local_storage, signature
from koordinator.koordlet.metrics import FAILED, SUCCEEDED, status_of
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)


class NodeInfo:
    """Fills the view; what cannot be read keeps its last value."""

    name = "NodeInfoCollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.node_info_interval_s
        self._reported: dict[str, str] = {}

    def collect(self) -> bool:
        is_cpu = self._part("cpu", self._cpu)
        is_numa = self._part("numa", self._numa)
        metrics = self._shared.metrics
        metrics.node_cpu_info.inc(status_of(is_cpu))
        metrics.node_numa_info.inc(status_of(is_numa))
        return is_cpu and is_numa

    def _part(self, name: str, read: Callable[[], None]) -> bool:
        try:
            read()
        except ContentError as error:
            if self._reported.get(name) != str(error):
                log.warning("%s info not collected", name, extra={"problem": str(error)})
            self._reported[name] = str(error)
            return False
        self._reported.pop(name, None)
        return True

    def _cpu(self) -> None:
        machine, view = self._shared.host.machine, self._shared.view
        topology = machine.cpu_topology()
        if topology != view.cpu:
            view.cpu = topology
        view.cpu_info = machine.cpu_basic_info()

    def _numa(self) -> None:
        machine, view = self._shared.host.machine, self._shared.view
        meminfo = machine.numa_meminfo_kib()
        if self._shared.gates.is_on("HugePageReport"):
            view.huge_pages = {numa: machine.huge_pages(numa) for numa in meminfo}
        view.numa_meminfo_kib = meminfo


class StorageInfo:
    """Looks for changes of mounts and block devices, and works all out anew when there are any."""

    name = "NodeStorageInfoCollector"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.interval_s = shared.config.collect.storage_interval_s
        self._seen: object = None
        self._reported = ""

    def collect(self) -> bool:
        host, counter = self._shared.host, self._shared.metrics.node_storage_info
        seen = signature(host.files, host.roots)
        if seen == self._seen and self._shared.view.storage is not None:
            return True
        try:
            found = local_storage(host.files, host.roots)
        except ContentError as error:
            if str(error) != self._reported:
                log.warning("storage info not collected", extra={"problem": str(error)})
            self._reported = str(error)
            counter.inc(FAILED)
            return False
        self._reported = ""
        self._seen = seen
        self._shared.view.storage = found
        counter.inc(SUCCEEDED)
        return True
