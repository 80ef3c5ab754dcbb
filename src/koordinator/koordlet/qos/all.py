"""All QoS strategies."""

from functools import partial

from koordinator.koordlet.parts import Shared, Strategy
from koordinator.koordlet.qos import evictions, shadow
from koordinator.koordlet.qos.blkio import BlkIO
from koordinator.koordlet.qos.cpu_burst_run import CPUBurst
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress, CPUSurge, ServiceUsage
from koordinator.koordlet.qos.eviction_strategy import EvictionStrategy
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_qos import MemoryQoS
from koordinator.koordlet.qos.resctrl import ResctrlStrategy
from koordinator.koordlet.qos.shadow import Shadowed, ShadowEvictor, ShadowMode
from koordinator.koordlet.qos.system_config import SystemConfigStrategy


def live_evictor(shared: Shared, mode: ShadowMode) -> Evictor:
    """Return the evictor of all who evict on the node, so that none counts on what another has just evicted."""
    names = {gate: strategy.name for strategy in evictions.STRATEGIES for gate in strategy.gates}
    return Evictor(shared, on_evicted=partial(mode.bill_eviction, names, is_shadow=False))


def strategies(shared: Shared, mode: ShadowMode, evictor: Evictor) -> list[Strategy]:
    """One of each, in the order in which they are started; intervals are those of the configuration. Those that `mode`
    knows act, or only decide."""
    suppression = Shadowed(CPUSuppress.name, mode, shared, _suppression, shadow.suppression_cost)
    burst = Shadowed(CPUBurst.name, mode, shared, lambda given: [CPUBurst(given)], shadow.burst_cost)
    return [
        *suppression.parts(),
        *burst.parts(),
        MemoryQoS(shared),
        *_evictions(shared, mode, evictor),
        ResctrlStrategy(shared),
        BlkIO(shared),
        SystemConfigStrategy(shared),
    ]


def _suppression(shared: Shared) -> list[Strategy]:
    services = ServiceUsage(shared.host, shared.view, shared.clock)
    suppress = CPUSuppress(shared, services)
    return [suppress, CPUSurge(shared, suppress, services)]


def _evictions(shared: Shared, mode: ShadowMode, live: Evictor) -> list[Strategy]:
    """Strategies share the live evictor; those in shadow have one of their own."""
    names = {gate: strategy.name for strategy in evictions.STRATEGIES for gate in strategy.gates}
    double = ShadowEvictor(
        mode.shared_in_shadow(), on_evicted=partial(mode.bill_eviction, names, is_shadow=True)
    )

    def make(strategy: type[EvictionStrategy], given: Shared) -> list[Strategy]:
        return [strategy(given, live if given is shared else double)]

    found: list[Strategy] = []
    for strategy in evictions.STRATEGIES:
        found += Shadowed(strategy.name, mode, shared, partial(make, strategy)).parts()
    return found
