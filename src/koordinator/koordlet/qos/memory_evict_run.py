"""Evicts for memory: reads what was measured, asks `memory_evict`, hands the tasks to the evictor."""

import functools
from collections.abc import Collection, Sequence

from koordinator.api import resources
from koordinator.api.core import Pod
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import memory_evict
from koordinator.koordlet.qos.evict_rounds import EvictRounds
from koordinator.koordlet.qos.eviction import Amounts, EvictionTask
from koordinator.koordlet.qos.eviction_settings import Feature
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.measured import PlausibleUsage, plausible
from koordinator.koordlet.qos.memory_evict import MemoryState

FEATURES = (Feature.BE_MEMORY, Feature.MEMORY_ALLOCATABLE, Feature.MEMORY)
_USED = frozenset((Feature.BE_MEMORY, Feature.MEMORY))


class MemoryEvict(EvictRounds):
    """The three tasks that evict for memory."""

    name = "MemoryEvict"
    gates = tuple(map(str, FEATURES))

    def __init__(self, shared: Shared, evictor: Evictor) -> None:
        config = shared.config.qos
        self.interval_s = config.memory_evict_interval_s
        super().__init__(
            shared,
            evictor,
            features=FEATURES,
            resource=resources.MEMORY,
            lent=(resources.BATCH_MEMORY, resources.MID_MEMORY),
            by_allocatable=Feature.MEMORY_ALLOCATABLE,
            cool_s=config.memory_evict_cool_s,
        )

    def _wanted(
        self,
        features: Collection[Feature],
        strategy: ResourceThresholdStrategy,
        capacity: int,
        lent: Amounts,
        pods: Sequence[Pod],
    ) -> list[EvictionTask]:
        readings = self._shared.readings
        used = readings.latest(kinds.NODE_MEMORY) if self._features & _USED else None
        state = MemoryState(
            capacity_bytes=capacity,
            node_bytes=plausible(used, capacity),
            pods_bytes=PlausibleUsage(functools.partial(readings.pods, kinds.POD_MEMORY), capacity),
        )
        return memory_evict.tasks(features, strategy, state, lent, pods)
