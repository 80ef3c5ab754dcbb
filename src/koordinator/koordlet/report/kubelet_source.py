"""Ask the kubelet about its CPU manager, over HTTP and in its state file. Source: behaviour/koordlet-observe 9.3."""

import msgspec

from koordinator.host import kubelet_files
from koordinator.host.kubelet import KubeletError
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report.outage import Outage
from koordinator.koordlet.report.reserved_cpus import KubeletConfig
from koordinator.koordlet.report.topology_object import KubeletFacts

CONFIG_S = 60.0
"""How often the configuration is read again: it only changes when the kubelet is restarted."""


class KubeletSource:
    """Asks as seldom as it may; what is not answered keeps its last value."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._outage = Outage("reading the kubelet's configuration")
        self._config: KubeletConfig | None = None
        self._read_s: float | None = None

    async def facts(self) -> KubeletFacts | None:
        """Return what is known now; None where the kubelet is not to be asked."""
        if self._shared.config.kubelet.no_config:
            return None
        now_s = self._shared.clock.now()
        is_fresh = self._read_s is not None and self._read_s <= now_s < self._read_s + CONFIG_S
        if not is_fresh and self._outage.is_due(now_s):
            await self._read(now_s)
        host = self._shared.host
        return KubeletFacts(self._config, kubelet_files.cpu_manager_state(host.files, host.roots))

    async def _read(self, now_s: float) -> None:
        if self._shared.kubelet is None:
            return
        try:
            raw = await self._shared.kubelet.config()
            self._config = msgspec.convert(_without_nulls(raw), KubeletConfig)
        except (KubeletError, msgspec.ValidationError) as error:
            self._outage.failed(error, now_s)
            return
        self._read_s = now_s
        self._outage.ended()


def _without_nulls(raw: dict[str, object]) -> dict[str, object]:
    """The kubelet writes null where nothing is set."""
    return {key: value for key, value in raw.items() if value is not None}
