"""Evicts for memory: reads what was measured, asks `memory_evict`, hands the tasks to the evictor."""

import asyncio
import functools

from koordinator.api import resources
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import allocatable, eviction_settings, memory_evict
from koordinator.koordlet.qos.allocatable import Lent
from koordinator.koordlet.qos.cool_down import CoolDown
from koordinator.koordlet.qos.eviction import EvictionTask
from koordinator.koordlet.qos.eviction_settings import Feature
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.measured import PlausibleUsage, plausible
from koordinator.koordlet.qos.memory_evict import MemoryState
from koordinator.koordlet.view import Topic

FEATURES = (Feature.BE_MEMORY, Feature.MEMORY_ALLOCATABLE, Feature.MEMORY)
_USED = frozenset((Feature.BE_MEMORY, Feature.MEMORY))


class MemoryEvict:
    """The three tasks that evict for memory."""

    name = "MemoryEvict"
    gates = tuple(map(str, FEATURES))
    after = Topic.USAGE

    def __init__(self, shared: Shared, evictor: Evictor) -> None:
        config = shared.config.qos
        self.interval_s = config.memory_evict_interval_s
        self._shared = shared
        self._evictor = evictor
        self._features = frozenset(feature for feature in FEATURES if shared.gates.is_on(feature))
        self._lent = Lent((resources.BATCH_MEMORY, resources.MID_MEMORY))
        self._cool_down = CoolDown(config.memory_evict_cool_s)

    async def run(self) -> None:
        """One round."""
        now_s = asyncio.get_running_loop().time()
        tasks = self._tasks(now_s)
        if tasks and self._cool_down.is_over(now_s) and await self._evictor.carry_out(tasks):
            self._cool_down.begin(asyncio.get_running_loop().time())

    def disable(self) -> None:
        """Nothing to put back: who was evicted stays so."""

    def _tasks(self, now_s: float) -> list[EvictionTask]:
        view, readings = self._shared.view, self._shared.readings
        strategy = view.slo.resource_used_threshold_with_be if view.slo is not None else None
        capacity = allocatable.capacity(view.node, resources.MEMORY)
        if strategy is None or eviction_settings.activity(strategy) or view.node is None or capacity <= 0:
            return []
        used = readings.latest(kinds.NODE_MEMORY) if self._features & _USED else None
        state = MemoryState(
            capacity_bytes=capacity,
            node_bytes=plausible(used, capacity),
            pods_bytes=PlausibleUsage(functools.partial(readings.pods, kinds.POD_MEMORY), capacity),
        )
        facts = view.pods, view.node, strategy
        features = self._features
        if self._lent.is_known_to_fit(*facts):
            features -= {Feature.MEMORY_ALLOCATABLE}
        lent = self._lent.amounts(view.node, now_s)
        pods = [record.pod for record in view.pods.values() if record.is_active]
        tasks = memory_evict.tasks(features, strategy, state, lent, pods)
        if all(task.feature is not Feature.MEMORY_ALLOCATABLE for task in tasks):
            self._lent.found_to_fit(*facts)
        return tasks
