"""The eviction strategies of the agent: a new one is a file of its own and a line here (docs/first-changes.md)."""

from koordinator.koordlet.qos.batch_gpu_evict import BatchGPUEvict
from koordinator.koordlet.qos.cpu_evict import CPUEvict
from koordinator.koordlet.qos.eviction_strategy import EvictionStrategy, Flag
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from koordinator.koordlet.qos.psi_evict import PSIEvict

STRATEGIES: tuple[type[EvictionStrategy], ...] = (
    CPUEvict,
    MemoryEvict,
    PSIEvict,
    BatchGPUEvict,
)


def flags() -> list[Flag]:
    """Return the flags of all strategies."""
    return [flag for strategy in STRATEGIES for flag in (strategy.interval, strategy.cool_down)]
