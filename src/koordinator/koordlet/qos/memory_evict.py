"""Evicting for memory: a node too full, requests above what is allocatable. Source: behaviour/koordlet-act 7."""

from collections.abc import Collection, Sequence

import msgspec

from koordinator.api import resources, slo
from koordinator.api.core import Pod
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos import threshold_eviction
from koordinator.koordlet.qos.eviction import Amounts, EvictionTask, Used
from koordinator.koordlet.qos.eviction_strategy import Flag, PlausibleUsage, plausible
from koordinator.koordlet.qos.threshold_eviction import Marks, ThresholdEviction, ThresholdProblem

BE_MEMORY, MEMORY_ALLOCATABLE, MEMORY = "BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"


class MemoryState(msgspec.Struct, frozen=True):
    """The last measurements; `node_bytes` is None without sample."""

    capacity_bytes: int
    node_bytes: float | None
    pods_bytes: Used


class MemoryEvict(ThresholdEviction):
    """The three features that evict for memory, in their order."""

    name = "MemoryEvict"
    gates = (BE_MEMORY, MEMORY_ALLOCATABLE, MEMORY)
    interval = Flag("memory-evict-interval-seconds", 1, "Loop of eviction by memory; 0: off.")
    cool_down = Flag("memory-evict-cool-time-seconds", 4, "Pause after an eviction by memory.")
    resource = resources.MEMORY
    lent = (resources.BATCH_MEMORY, resources.MID_MEMORY)
    by_allocatable = MEMORY_ALLOCATABLE

    def _wanted(
        self,
        features: Collection[str],
        strategy: ResourceThresholdStrategy,
        capacity: int,
        lent: Amounts,
        pods: Sequence[Pod],
    ) -> list[EvictionTask]:
        readings = self._shared.readings
        used = readings.latest(kinds.NODE_MEMORY) if self._features & {BE_MEMORY, MEMORY} else None
        state = MemoryState(
            capacity_bytes=capacity,
            node_bytes=plausible(used, capacity),
            pods_bytes=PlausibleUsage(self.used_bytes, capacity),
        )
        return tasks(features, strategy, state, lent, pods)


def tasks(
    features: Collection[str],
    strategy: ResourceThresholdStrategy | None,
    state: MemoryState,
    allocatable: Amounts,
    pods: Sequence[Pod],
) -> list[EvictionTask]:
    """Return what the enabled features want; nothing unless NodeSLO switches eviction on."""
    if strategy is None or threshold_eviction.activity(strategy) or state.capacity_bytes <= 0:
        return []
    return threshold_eviction.tasks_of(
        resources.MEMORY,
        MEMORY_ALLOCATABLE,
        {each: marks_of(each, strategy) for each in MemoryEvict.gates if each in features},
        state.capacity_bytes,
        state.node_bytes,
        state.pods_bytes,
        allocatable,
        pods,
    )


def marks_of(feature: str, strategy: ResourceThresholdStrategy | None) -> Marks | ThresholdProblem:
    """Return the marks of a feature, or what is wrong with them."""
    if strategy is None:
        return ThresholdProblem.NOT_CONFIGURED
    if feature == MEMORY_ALLOCATABLE:
        return threshold_eviction.allocatable_marks(
            strategy,
            strategy.memory_allocatable_evict_threshold_percent,
            strategy.memory_allocatable_evict_lower_percent,
        )
    found = threshold_eviction.used_marks(
        strategy.memory_evict_threshold_percent,
        strategy.memory_evict_lower_percent,
        slo.MEMORY_EVICT_LOWER_GAP_PERCENT,
    )
    return found if feature == BE_MEMORY else threshold_eviction.up_to_priority(found, strategy)
