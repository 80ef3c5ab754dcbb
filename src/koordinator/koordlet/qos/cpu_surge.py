"""Between two rounds of suppression: when services suddenly use much more, best-effort CPU is taken back at once.

Samples are means over a collect interval, so a round sees a jump whole only after one to two of them. Two counters of
the kernel, read a few times per second, tell of it within a fraction of that. CPU is only ever taken here; giving it
back is up to the rounds.
"""

from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import cpu_suppress
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress
from koordinator.koordlet.qos.service_usage import ServiceUsage

LOOKS_PER_ROUND = 4


class CPUSurge:
    """Watches services for `suppress`, to which all writes belong."""

    name = "CPUSurge"
    gates: tuple[str, ...] = (cpu_suppress.GATE,)

    def __init__(self, shared: Shared, suppress: CPUSuppress, services: ServiceUsage) -> None:
        self.interval_s = shared.config.qos.suppress_interval_s / LOOKS_PER_ROUND
        self._suppress = suppress
        self._services = services

    def run(self) -> None:
        """One look."""
        cores = self._services.since("look")
        if cores is not None:
            self._suppress.surged(cores)

    def disable(self) -> None:
        """Nothing: what was written is the suppression's to put back."""
