"""Evicting for memory: a node too full, requests above what is allocatable. Source: behaviour/koordlet-act 7."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from koordinator.api import resources
from koordinator.api.core import Pod
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.qos import eviction, eviction_settings
from koordinator.koordlet.qos.eviction import Amounts, EvictionTask, Target, Used
from koordinator.koordlet.qos.eviction_settings import Feature, Marks


class MemoryState(msgspec.Struct, frozen=True):
    """What was measured last; `node_bytes` is None without sample."""

    capacity_bytes: int
    node_bytes: float | None
    pods_bytes: Used


def tasks(
    features: Collection[Feature],
    strategy: ResourceThresholdStrategy | None,
    state: MemoryState,
    allocatable: Amounts,
    pods: Sequence[Pod],
) -> list[EvictionTask]:
    """What the enabled features want, in their fixed order; nothing unless NodeSLO switches eviction on."""
    if strategy is None or eviction_settings.activity(strategy) or state.capacity_bytes <= 0:
        return []
    found = []
    if Feature.BE_MEMORY in features:
        found.append(_used_task(Feature.BE_MEMORY, strategy, state, pods))
    if Feature.MEMORY_ALLOCATABLE in features:
        found.append(
            eviction.allocatable_task(
                Feature.MEMORY_ALLOCATABLE,
                strategy,
                pods,
                state.pods_bytes,
                lambda marks: allocatable_release(pods, allocatable, marks),
            )
        )
    if Feature.MEMORY in features:
        found.append(_used_task(Feature.MEMORY, strategy, state, pods))
    return [task for task in found if task is not None]


def used_release_bytes(capacity_bytes: int, node_bytes: float, marks: Marks) -> int:
    """Memory to give back so that the node is no longer too full."""
    return int(eviction.above_lower(capacity_bytes, int(node_bytes), marks))


def allocatable_release(pods: Iterable[Pod], allocatable: Amounts, marks: Marks) -> dict[str, int]:
    """Batch and mid memory to give back because the node has less of it than was requested."""
    requested = eviction.lent_requests(pods, resources.MEMORY, marks.priority or 0)
    return eviction.above_allocatable(
        requested,
        allocatable,
        marks.threshold_percent,
        lambda amount, available: int((amount / available - marks.lower_percent / 100) * available),
    )


def largest_first(pods: Iterable[Pod], pods_bytes: Used) -> list[Pod]:
    """Candidates of `BEMemoryEvict`: after priority those that use most; without usage last, names descending."""

    def order(one: Pod, other: Pod) -> int:
        first, second = (max(pods_bytes.get(pod.metadata.uid, 0.0), 0.0) for pod in (one, other))
        if first != second:
            return -1 if first > second else 1
        if first:
            return 0  # who comes first of those that use the same does not matter
        return (one.metadata.name < other.metadata.name) - (one.metadata.name > other.metadata.name)

    return eviction.best_effort(Feature.BE_MEMORY, pods, order)


def _used_task(
    feature: Feature, strategy: ResourceThresholdStrategy, state: MemoryState, pods: Sequence[Pod]
) -> EvictionTask | None:
    marks = eviction_settings.marks_of(feature, strategy)
    if not isinstance(marks, Marks) or state.node_bytes is None:
        return None
    release = used_release_bytes(state.capacity_bytes, state.node_bytes, marks)
    if release <= 0:
        return None
    if marks.priority is None:
        candidates = largest_first(pods, state.pods_bytes)
    else:
        candidates = eviction.by_priority(feature, pods, state.pods_bytes, marks.priority)
    gives = {uid: {resources.MEMORY: int(used)} for uid, used in state.pods_bytes.items()}
    wanted = {resources.MEMORY: release}
    return EvictionTask(feature, Target.USED, wanted, eviction.uids(candidates), gives)
