"""Evicting for CPU: starved best-effort pods, a node too busy, requests above what is allocatable.

Source: behaviour/koordlet-act 6.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.api import pod_resources, resources, slo
from koordinator.api.core import Pod
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos import eviction, threshold_eviction
from koordinator.koordlet.qos.eviction import Amounts, EvictionTask, ReleaseTarget, Used
from koordinator.koordlet.qos.eviction_strategy import Flag, PlausibleUsage, plausible
from koordinator.koordlet.qos.threshold_eviction import Marks, ThresholdEviction, ThresholdProblem

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

BE_CPU, CPU_ALLOCATABLE, CPU = "BECPUEvict", "CPUAllocatableEvict", "CPUEvict"
BE_USAGE_THRESHOLD_PERCENT = 90
SATISFACTION_LOWER_MAX = 60
SATISFACTION_UPPER_MAX = 99
BY_ALLOCATABLE = "evictByAllocatable"
WINDOW_PARTS = 3
"""Samples must cover one part of the window, in whole seconds."""

_SMALL_LIMIT_MILLI = 1_000  # so little that usage cannot be told from noise
_MILLI = 1_000
_ALLOCATIONS = (kinds.BE_USAGE, kinds.BE_REQUEST, kinds.BE_REAL_LIMIT)


class BESample(msgspec.Struct, frozen=True):
    """Best-effort pods together, in milli-cores: average or latest, from `count` points."""

    count: int
    usage: float
    request: float
    limit: float


class CPUState(msgspec.Struct, frozen=True):
    """The measurements; samples of best-effort pods are None where there are none."""

    capacity_milli: int
    node_cores: float | None
    pods_cores: Used
    be_average: BESample | None
    be_latest: BESample | None
    collect_interval_s: float


class CPUEvict(ThresholdEviction):
    """The three features that evict for CPU, in their order."""

    name = "CPUEvict"
    gates = (BE_CPU, CPU_ALLOCATABLE, CPU)
    interval = Flag("cpu-evict-interval-seconds", 1, "Loop of eviction by CPU; 0: off.")
    cool_down = Flag("cpu-evict-cool-time-seconds", 20, "Pause after an eviction by CPU.")
    rests_first = True
    resource = resources.CPU
    lent = (resources.BATCH_CPU, resources.MID_CPU)
    by_allocatable = CPU_ALLOCATABLE

    def _wanted(
        self,
        features: Collection[str],
        strategy: ResourceThresholdStrategy,
        capacity: int,
        lent: Amounts,
        pods: Sequence[Pod],
    ) -> list[EvictionTask]:
        return tasks(features, strategy, self._state(strategy, capacity), lent, pods)

    def _state(self, strategy: ResourceThresholdStrategy, capacity_milli: int) -> CPUState:
        """Return what was measured; an average counts only while there are new samples."""
        readings, cores = self._shared.readings, capacity_milli / _MILLI
        covered_s = window_s(strategy, readings.collect_interval_s)
        node_cores = None
        if CPU in self._features and plausible(readings.latest(kinds.NODE_CPU), cores) is not None:
            node_cores = plausible(readings.average(kinds.NODE_CPU, covered_s).value, cores)
        state = CPUState(
            capacity_milli=capacity_milli,
            node_cores=node_cores,
            pods_cores=PlausibleUsage(self.used_cores, cores),
            be_average=None,
            be_latest=None,
            collect_interval_s=readings.collect_interval_s,
        )
        if BE_CPU not in self._features:
            return state
        latest = self._best_effort(None, capacity_milli)
        average = self._best_effort(covered_s, capacity_milli) if latest is not None else None
        return msgspec.structs.replace(state, be_average=average, be_latest=latest)

    def _best_effort(self, window_s: float | None, capacity_milli: int) -> BESample | None:
        """Best-effort pods over a window, or now; None when a part is missing or cannot be true."""
        readings = self._shared.readings
        values, counts = [], []
        for allocation in _ALLOCATIONS:
            properties = {kinds.BE_RESOURCE: resources.CPU, kinds.BE_ALLOCATION: allocation}
            if window_s is None:
                value, count = readings.latest(kinds.NODE_BE, properties), 1
            else:
                average = readings.average(kinds.NODE_BE, window_s, properties)
                value, count = average.value, average.count
            if value is None or value < 0:
                return None
            values.append(value)
            counts.append(count)
        usage, request, limit = values
        if plausible(usage, capacity_milli) is None or plausible(limit, capacity_milli) is None:
            return None
        return BESample(min(counts), usage, request, limit)


def tasks(
    features: Collection[str],
    strategy: ResourceThresholdStrategy | None,
    state: CPUState,
    allocatable: Amounts,
    pods: Sequence[Pod],
) -> list[EvictionTask]:
    """Return what the enabled features want; nothing unless NodeSLO switches eviction on."""
    if strategy is None or threshold_eviction.activity(strategy) or state.capacity_milli <= 0:
        return []
    starved = _satisfaction_task(strategy, state, allocatable, pods) if BE_CPU in features else None
    found = threshold_eviction.tasks_of(
        resources.CPU,
        CPU_ALLOCATABLE,
        {each: marks_of(each, strategy) for each in (CPU_ALLOCATABLE, CPU) if each in features},
        state.capacity_milli,
        state.node_cores,
        state.pods_cores,
        allocatable,
        pods,
        unit=_MILLI,
    )
    return found if starved is None else [starved, *found]


def marks_of(feature: str, strategy: ResourceThresholdStrategy | None) -> Marks | ThresholdProblem:
    """Return the marks of a feature, or what is wrong with them; `BECPUEvict` has `satisfaction_problem`."""
    if strategy is None:
        return ThresholdProblem.NOT_CONFIGURED
    if feature == CPU_ALLOCATABLE:
        return threshold_eviction.allocatable_marks(
            strategy,
            strategy.cpu_allocatable_evict_threshold_percent,
            strategy.cpu_allocatable_evict_lower_percent,
        )
    found = threshold_eviction.used_marks(
        strategy.cpu_evict_threshold_percent,
        strategy.cpu_evict_lower_percent,
        slo.CPU_EVICT_LOWER_GAP_PERCENT,
    )
    return threshold_eviction.up_to_priority(found, strategy)


def satisfaction_problem(strategy: ResourceThresholdStrategy | None) -> ThresholdProblem | None:
    """Return what is wrong with the settings of `BECPUEvict`."""
    if strategy is None:
        return ThresholdProblem.NOT_CONFIGURED
    lower = strategy.cpu_evict_be_satisfaction_lower_percent
    upper = strategy.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None:
        return ThresholdProblem.PERCENT_MISSING
    if not 0 < lower <= SATISFACTION_LOWER_MAX:
        return ThresholdProblem.LOWER_OUT_OF_RANGE
    if not 0 < upper <= SATISFACTION_UPPER_MAX:
        return ThresholdProblem.UPPER_OUT_OF_RANGE
    return ThresholdProblem.UPPER_BELOW_LOWER if upper < lower else None


def window_s(strategy: ResourceThresholdStrategy, collect_interval_s: float) -> float:
    """Return the time over which CPU is averaged."""
    return max(collect_interval_s, strategy.cpu_evict_time_window_seconds or 0)


def satisfaction_release_milli(
    strategy: ResourceThresholdStrategy,
    average: BESample | None,
    latest: BESample | None,
    collect_interval_s: float,
    batch_allocatable_milli: int | None,
) -> int:
    """Batch CPU to give back so that the rest gets what it asked for; the settings are valid.

    Pods must be starved both on average and now, while they use nearly all of what they get.
    """
    if average is None or latest is None:
        return 0
    covered_s = average.count * collect_interval_s
    if covered_s < max(window_s(strategy, collect_interval_s) // WINDOW_PARTS, collect_interval_s):
        return 0
    if strategy.cpu_evict_policy == BY_ALLOCATABLE:
        limit = _allocatable_limit(batch_allocatable_milli)
        average, latest = (msgspec.structs.replace(each, limit=limit) for each in (average, latest))
    both = (average, latest)
    if not all(is_starved(strategy, each.usage, each.request, each.limit) for each in both):
        return 0
    return min(_release(strategy, each) for each in both)


def is_starved(
    strategy: ResourceThresholdStrategy,
    usage_milli: float | F64,
    request_milli: float | F64,
    limit_milli: float | F64,
) -> Mask:
    """Return whether best-effort pods get less than the lower mark of what they asked for, while they use nearly all of
    it; the settings are valid. Elementwise: all of one node, or (nodes,)."""
    lower = strategy.cpu_evict_be_satisfaction_lower_percent
    used = strategy.cpu_evict_be_usage_threshold_percent
    assert lower is not None
    used = BE_USAGE_THRESHOLD_PERCENT if used is None else used
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        is_unsatisfied = np.greater(request_milli, 0) & (np.divide(limit_milli, request_milli) <= lower / 100)
        is_small = np.less(limit_milli, _SMALL_LIMIT_MILLI)
        is_used = is_small | (np.divide(usage_milli, limit_milli) >= used / 100)
    found: Mask = is_unsatisfied & is_used & np.greater(limit_milli, 0)
    return found


def starved_first(pods: Iterable[Pod], pods_cores: Used) -> list[Pod]:
    """Candidates of `BECPUEvict`: after priority those that use most of what they requested."""

    def ratio(pod: Pod) -> float:
        requested = pod_resources.batch(pod).request_cpu_milli
        return pods_cores.get(pod.metadata.uid, 0.0) * _MILLI / requested if requested > 0 else 0.0

    def order(one: Pod, other: Pod) -> int:
        return (ratio(one) < ratio(other)) - (ratio(one) > ratio(other))

    return eviction.best_effort(BE_CPU, pods, order)


def _satisfaction_task(
    strategy: ResourceThresholdStrategy, state: CPUState, allocatable: Amounts, pods: Sequence[Pod]
) -> EvictionTask | None:
    if satisfaction_problem(strategy) is not None:
        return None
    batch_milli = allocatable.get(resources.BATCH_CPU)
    release = satisfaction_release_milli(
        strategy, state.be_average, state.be_latest, state.collect_interval_s, batch_milli
    )
    if release <= 0:
        return None
    candidates = starved_first(pods, state.pods_cores)
    gives = {
        pod.metadata.uid: {resources.BATCH_CPU: pod_resources.batch(pod).request_cpu_milli}
        for pod in candidates
    }
    wanted = {resources.BATCH_CPU: release}
    return EvictionTask(BE_CPU, ReleaseTarget.REQUEST, wanted, eviction.uids(candidates), gives)


def _allocatable_limit(milli: int | None) -> int:
    if milli is None or milli < 0:
        return -1
    return max(milli, 1)


def _release(strategy: ResourceThresholdStrategy, sample: BESample) -> int:
    upper = strategy.cpu_evict_be_satisfaction_upper_percent
    assert upper is not None
    return int(sample.request * max(upper / 100 - sample.limit / sample.request, 0))
