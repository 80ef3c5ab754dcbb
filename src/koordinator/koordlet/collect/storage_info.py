"""Find which disk a mount or volume leads to, for block I/O control. Source: behaviour/koordlet-observe 5.11."""

import logging

from koordinator.host import disks
from koordinator.host.errors import ContentError
from koordinator.koordlet.metrics import FAILED, SUCCEEDED
from koordinator.koordlet.parts import Shared

log = logging.getLogger(__name__)


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
        seen = disks.signature(host.files, host.roots)
        if seen == self._seen and self._shared.view.storage is not None:
            return True
        try:
            found = disks.local_storage(host.files, host.roots)
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
