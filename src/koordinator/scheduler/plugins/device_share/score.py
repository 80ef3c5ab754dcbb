"""Score how well a device or a node suits a request for devices. Source: behaviour/devices 7."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from koordinator.api import resources
from koordinator.scheduler.plugins.device_share.request import Amounts

SCORE_MAX = 100


class ScoredDeviceResource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource that counts in a score."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


_SCORED = (resources.GPU_MEMORY_RATIO, resources.GPU_MEMORY, resources.RDMA, resources.FPGA)


class DeviceScoringStrategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choice whether devices in use (MostAllocated) or idle ones are preferred, and by which resources."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    resources: tuple[ScoredDeviceResource, ...] = tuple(ScoredDeviceResource(name) for name in _SCORED)


def device_score(
    strategy: DeviceScoringStrategy,
    request: Mapping[str, int],
    total: Mapping[str, int],
    free: Mapping[str, int],
) -> int:
    """Weighted mean, cut off, over the resources that the device has; 0 when none counts."""
    points = weights = 0
    for resource in strategy.resources:
        capacity = total.get(resource.name, 0)
        if capacity <= 0:
            continue
        left = free.get(resource.name, 0)
        used = capacity if left > capacity else capacity - left + request.get(resource.name, 0)
        points += resource.weight * _resource_score(strategy, used, capacity)
        weights += resource.weight
    return points // weights if weights else 0


def _resource_score(strategy: DeviceScoringStrategy, used: int, capacity: int) -> int:
    if strategy.type == "MostAllocated":
        return min(used, capacity) * SCORE_MAX // capacity
    return max(0, capacity - used) * SCORE_MAX // capacity


def type_score(
    strategy: DeviceScoringStrategy, request: Mapping[str, int], devices: Iterable[tuple[Amounts, Amounts]]
) -> int:
    """Score of all devices of a type on a node, each as (total, free), with one device's request added."""
    total: Amounts = {}
    free: Amounts = {}
    for device_total, device_free in devices:
        for summed, amounts in ((total, device_total), (free, device_free)):
            for name, amount in amounts.items():
                summed[name] = summed.get(name, 0) + amount
    return device_score(strategy, request, total, free)


def normalise(scores: Mapping[str, int]) -> dict[str, int]:
    """Scores of nodes so that the best has 100; all 0 when the best has."""
    best = max(scores.values(), default=0)
    return {node: score * SCORE_MAX // best if best > 0 else 0 for node, score in scores.items()}
