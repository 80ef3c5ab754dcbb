"""Whether the settings of an eviction feature make sense. Source: behaviour/koordlet-act 6 and 7."""

import enum

import msgspec

from koordinator.api import slo
from koordinator.api.feature_gates import NodeSwitch, node_switch
from koordinator.api.slo import ResourceThresholdStrategy

PRIORITY_MAX = 7_999
"""Pods above the mid class never run on allocatable that shrinks."""
SATISFACTION_LOWER_MAX = 60
SATISFACTION_UPPER_MAX = 99


class Feature(enum.StrEnum):
    """Feature gates of eviction, as pods name them in their eviction policy."""

    BE_CPU = "BECPUEvict"
    CPU_ALLOCATABLE = "CPUAllocatableEvict"
    CPU = "CPUEvict"
    BE_MEMORY = "BEMemoryEvict"
    MEMORY_ALLOCATABLE = "MemoryAllocatableEvict"
    MEMORY = "MemoryEvict"


class Problem(enum.Enum):
    """Why a feature does nothing."""

    NOT_CONFIGURED = "not-configured"
    DISABLED = "disabled"
    PERCENT_MISSING = "percent-missing"
    LOWER_OUT_OF_RANGE = "lower-out-of-range"
    UPPER_OUT_OF_RANGE = "upper-out-of-range"
    UPPER_BELOW_LOWER = "upper-below-lower"
    THRESHOLD_MISSING = "threshold-missing"
    THRESHOLD_NEGATIVE = "threshold-negative"
    LOWER_MISSING = "lower-missing"
    LOWER_NOT_BELOW = "lower-not-below-threshold"
    PRIORITY_MISSING = "priority-threshold-missing"
    PRIORITY_TOO_HIGH = "priority-threshold-too-high"


_WHY_NOT = {
    NodeSwitch.ON: None,
    NodeSwitch.OFF: Problem.DISABLED,
    NodeSwitch.UNKNOWN: Problem.NOT_CONFIGURED,
}
"""All eviction features share one switch."""


class Marks(msgspec.Struct, frozen=True):
    """Eviction begins at `threshold_percent`, ends below `lower_percent`, spares pods above `priority`.

    `priority` is None for features that only look at pods labelled BE.
    """

    threshold_percent: int
    lower_percent: int
    priority: int | None


def activity(strategy: ResourceThresholdStrategy | None) -> Problem | None:
    """Why no eviction runs at all; None when it does."""
    return _WHY_NOT[node_switch(Feature.BE_CPU, strategy.enable if strategy is not None else None)]


def satisfaction_problem(strategy: ResourceThresholdStrategy | None) -> Problem | None:
    """What is wrong with the settings of `BECPUEvict`."""
    if strategy is None:
        return Problem.NOT_CONFIGURED
    lower = strategy.cpu_evict_be_satisfaction_lower_percent
    upper = strategy.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None:
        return Problem.PERCENT_MISSING
    if not 0 < lower <= SATISFACTION_LOWER_MAX:
        return Problem.LOWER_OUT_OF_RANGE
    if not 0 < upper <= SATISFACTION_UPPER_MAX:
        return Problem.UPPER_OUT_OF_RANGE
    return Problem.UPPER_BELOW_LOWER if upper < lower else None


def marks_of(feature: Feature, strategy: ResourceThresholdStrategy | None) -> Marks | Problem:
    """The marks of any feature but `BECPUEvict`, or what is wrong with them."""
    if strategy is None:
        return Problem.NOT_CONFIGURED
    match feature:
        case Feature.CPU_ALLOCATABLE:
            return _allocatable_marks(
                strategy,
                strategy.cpu_allocatable_evict_threshold_percent,
                strategy.cpu_allocatable_evict_lower_percent,
            )
        case Feature.MEMORY_ALLOCATABLE:
            return _allocatable_marks(
                strategy,
                strategy.memory_allocatable_evict_threshold_percent,
                strategy.memory_allocatable_evict_lower_percent,
            )
        case Feature.CPU:
            found = _used_marks(
                strategy.cpu_evict_threshold_percent,
                strategy.cpu_evict_lower_percent,
                slo.CPU_EVICT_LOWER_GAP_PERCENT,
            )
        case Feature.BE_MEMORY | Feature.MEMORY:
            found = _used_marks(
                strategy.memory_evict_threshold_percent,
                strategy.memory_evict_lower_percent,
                slo.MEMORY_EVICT_LOWER_GAP_PERCENT,
            )
        case Feature.BE_CPU:
            raise AssertionError("BECPUEvict has no marks, but satisfaction_problem")
    if isinstance(found, Problem) or feature is Feature.BE_MEMORY:
        return found
    if strategy.evict_enabled_priority_threshold is None:
        return Problem.PRIORITY_MISSING
    return msgspec.structs.replace(found, priority=strategy.evict_enabled_priority_threshold)


def _used_marks(threshold: int | None, lower: int | None, gap: int) -> Marks | Problem:
    if threshold is None:
        return Problem.THRESHOLD_MISSING
    if threshold < 0:
        return Problem.THRESHOLD_NEGATIVE
    lower = threshold - gap if lower is None else lower
    return Problem.LOWER_NOT_BELOW if lower >= threshold else Marks(threshold, lower, None)


def _allocatable_marks(
    strategy: ResourceThresholdStrategy, threshold: int | None, lower: int | None
) -> Marks | Problem:
    if threshold is None:
        return Problem.THRESHOLD_MISSING
    if threshold < 0:
        return Problem.THRESHOLD_NEGATIVE
    if lower is None:
        return Problem.LOWER_MISSING
    if lower >= threshold:
        return Problem.LOWER_NOT_BELOW
    limit = strategy.allocatable_evict_priority_threshold
    if limit is None:
        return Problem.PRIORITY_MISSING
    return Problem.PRIORITY_TOO_HIGH if limit > PRIORITY_MAX else Marks(threshold, lower, limit)
