"""All QoS strategies."""

from koordinator.koordlet.parts import Shared, Strategy
from koordinator.koordlet.qos import evictions
from koordinator.koordlet.qos.blkio import BlkIO
from koordinator.koordlet.qos.cpu_burst_run import CPUBurst
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress, CPUSurge, ServiceUsage
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_qos import MemoryQoS
from koordinator.koordlet.qos.resctrl import ResctrlStrategy
from koordinator.koordlet.qos.system_config import SystemConfigStrategy


def strategies(shared: Shared) -> list[Strategy]:
    """One of each, in the order in which they are started; intervals are those of the configuration."""
    evictor = Evictor(shared)
    services = ServiceUsage(shared.host, shared.view, shared.clock)
    suppress = CPUSuppress(shared, services)
    return [
        suppress,
        CPUSurge(shared, suppress, services),
        CPUBurst(shared),
        MemoryQoS(shared),
        *(strategy(shared, evictor) for strategy in evictions.STRATEGIES),
        ResctrlStrategy(shared),
        BlkIO(shared),
        SystemConfigStrategy(shared),
    ]
