"""All QoS strategies."""

from koordinator.koordlet.parts import Shared, Strategy
from koordinator.koordlet.qos.cpu_evict_run import CPUEvict
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_evict_run import MemoryEvict


def strategies(shared: Shared) -> list[Strategy]:
    """One of each, in the order in which they are started; intervals are those of the configuration."""
    evictor = Evictor(shared)
    return [CPUEvict(shared, evictor), MemoryEvict(shared, evictor)]
