"""Evicting for CPU: starved best-effort pods, a node too busy, requests above what is allocatable.

Source: behaviour/koordlet-act 6.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from koordinator.api import pod_resources, resources
from koordinator.api.core import Pod
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.qos import eviction, eviction_settings
from koordinator.koordlet.qos.eviction import Amounts, EvictionTask, Target, Used
from koordinator.koordlet.qos.eviction_settings import Feature, Marks

BE_USAGE_THRESHOLD_PERCENT = 90
BY_ALLOCATABLE = "evictByAllocatable"
WINDOW_SHARE_MIN = 1 / 3
"""How much of the window must be covered by samples."""

_SMALL_LIMIT_MILLI = 1_000  # so little that usage cannot be told from noise
_MILLI = 1000


class BESample(msgspec.Struct, frozen=True):
    """Best-effort pods together, in milli-cores: average or latest, from `count` points."""

    count: int
    usage: float
    request: float
    limit: float


class CPUState(msgspec.Struct, frozen=True):
    """What was measured; samples of best-effort pods are None where there are none."""

    capacity_milli: int
    node_cores: float | None
    pods_cores: Used
    be_average: BESample | None
    be_latest: BESample | None
    collect_interval_s: float


def tasks(
    features: Collection[Feature],
    strategy: ResourceThresholdStrategy | None,
    state: CPUState,
    allocatable: Amounts,
    pods: Sequence[Pod],
) -> list[EvictionTask]:
    """What the enabled features want, in their fixed order; nothing unless NodeSLO switches eviction on."""
    if strategy is None or eviction_settings.activity(strategy) or state.capacity_milli <= 0:
        return []
    found = []
    if Feature.BE_CPU in features:
        found.append(_satisfaction_task(strategy, state, allocatable, pods))
    if Feature.CPU_ALLOCATABLE in features:
        found.append(
            eviction.allocatable_task(
                Feature.CPU_ALLOCATABLE,
                strategy,
                pods,
                state.pods_cores,
                lambda marks: allocatable_release(pods, allocatable, marks),
            )
        )
    if Feature.CPU in features:
        found.append(_used_task(strategy, state, pods))
    return [task for task in found if task is not None]


def window_s(strategy: ResourceThresholdStrategy, collect_interval_s: float) -> float:
    """The time over which CPU is averaged."""
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
    if covered_s < window_s(strategy, collect_interval_s) * WINDOW_SHARE_MIN:
        return 0
    if strategy.cpu_evict_policy == BY_ALLOCATABLE:
        limit = _allocatable_limit(batch_allocatable_milli)
        average, latest = (msgspec.structs.replace(each, limit=limit) for each in (average, latest))
    by_average = _release(strategy, average)
    if by_average <= 0 or not _is_usage_high(strategy, average) or not _is_usage_high(strategy, latest):
        return 0
    if (latest.request, latest.limit) == (average.request, average.limit):
        return by_average
    return max(min(by_average, _release(strategy, latest)), 0)


def used_release_milli(capacity_milli: int, node_cores: float, marks: Marks) -> int:
    """CPU to give back so that the node is no longer too busy."""
    return int(eviction.above_lower(capacity_milli, int(node_cores * _MILLI), marks))


def allocatable_release(pods: Iterable[Pod], allocatable: Amounts, marks: Marks) -> dict[str, int]:
    """Batch and mid CPU to give back because the node has less of it than was requested."""
    requested = eviction.lent_requests(pods, resources.CPU, marks.priority or 0)
    return eviction.above_allocatable(
        requested,
        allocatable,
        marks.threshold_percent,
        lambda amount, available: int(amount - marks.lower_percent / 100 * available),
    )


def starved_first(pods: Iterable[Pod], pods_cores: Used) -> list[Pod]:
    """Candidates of `BECPUEvict`: after priority those that use most of what they requested."""

    def ratio(pod: Pod) -> float:
        requested = pod_resources.batch(pod).request_cpu_milli
        return pods_cores.get(pod.metadata.uid, 0.0) * _MILLI / requested if requested > 0 else 0.0

    def order(one: Pod, other: Pod) -> int:
        return (ratio(one) < ratio(other)) - (ratio(one) > ratio(other))

    return eviction.best_effort(Feature.BE_CPU, pods, order)


def _satisfaction_task(
    strategy: ResourceThresholdStrategy, state: CPUState, allocatable: Amounts, pods: Sequence[Pod]
) -> EvictionTask | None:
    if eviction_settings.satisfaction_problem(strategy) is not None:
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
    return EvictionTask(Feature.BE_CPU, Target.REQUEST, wanted, eviction.uids(candidates), gives)


def _used_task(
    strategy: ResourceThresholdStrategy, state: CPUState, pods: Sequence[Pod]
) -> EvictionTask | None:
    marks = eviction_settings.marks_of(Feature.CPU, strategy)
    if not isinstance(marks, Marks) or marks.priority is None or state.node_cores is None:
        return None
    release = used_release_milli(state.capacity_milli, state.node_cores, marks)
    if release <= 0:
        return None
    candidates = eviction.by_priority(Feature.CPU, pods, state.pods_cores, marks.priority)
    gives = {uid: {resources.CPU: int(cores * _MILLI)} for uid, cores in state.pods_cores.items()}
    return EvictionTask(Feature.CPU, Target.USED, {resources.CPU: release}, eviction.uids(candidates), gives)


def _allocatable_limit(milli: int | None) -> int:
    if milli is None or milli < 0:
        return -1
    return max(milli, 1)


def _is_usage_high(strategy: ResourceThresholdStrategy, sample: BESample) -> bool:
    if sample.limit <= 0:
        return False
    threshold = strategy.cpu_evict_be_usage_threshold_percent
    percent = BE_USAGE_THRESHOLD_PERCENT if threshold is None else threshold
    return sample.limit < _SMALL_LIMIT_MILLI or sample.usage / sample.limit >= percent / 100


def _release(strategy: ResourceThresholdStrategy, sample: BESample) -> int:
    lower = strategy.cpu_evict_be_satisfaction_lower_percent
    upper = strategy.cpu_evict_be_satisfaction_upper_percent
    if sample.request <= 0 or lower is None or upper is None:
        return 0
    satisfaction = sample.limit / sample.request
    if satisfaction > lower / 100:
        return 0
    return int(sample.request * max(upper / 100 - satisfaction, 0))
