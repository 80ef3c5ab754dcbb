"""GPUs that are linked and given out together. Source: behaviour/devices 6.3."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from koordinator.api import labels, quantity
from koordinator.api.annotations import device as annotation
from koordinator.api.annotations.device import (
    GPUPartition,
    GPUPartitionSpec,
    NodePartitionPolicy,
    PartitionPolicy,
)
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.device_share.inventory import NodeDevices

Table = Mapping[int, Sequence[GPUPartition]]
"""Number of GPUs → partitions of that size."""

MISSING_TABLE = unresolvable("node(s) missing GPU Partition Table")
UNSUPPORTED_COUNT = unresolvable("node(s) Unsupported number of GPU requests")
NONE_FREE = unschedulable("Insufficient Partitioned GPU Devices")

_HOPPER_MODELS = frozenset(("H100", "H800", "H20"))
_HOPPER: Table = {
    size: [
        GPUPartition(minors=list(range(first, first + size)), gpu_link_type="NVLink", allocation_score=1)
        for first in range(0, 8, size)
    ]
    for size in (1, 2, 4, 8)
}
_PACKING_WEIGHTS = {8: 10_000, 4: 100, 2: 1}
"""A larger partition that stays whole outweighs any number of smaller ones."""


class PartitionDecision(msgspec.Struct, frozen=True):
    """The minors of the partition that was chosen."""

    minors: tuple[int, ...] = ()
    status: Status = SUCCESS


class NodePartitions(msgspec.Struct, frozen=True):
    """A node's table, if it has one, and whether pods must keep to it."""

    table: Table | None
    is_binding: bool


def partitions_of(node: NodeDevices) -> NodePartitions:
    """The table that the node agent reported, else the one built in for the model.

    Raises: ProtocolError when the reported table is malformed.
    """
    table = annotation.GPU_PARTITIONS.read(node.annotations)
    if table is not None:
        policy = annotation.node_partition_policy(node.labels)
        return NodePartitions(table, policy is NodePartitionPolicy.HONOR)
    is_binding = annotation.node_partition_policy(node.node_labels) is NodePartitionPolicy.HONOR
    is_hopper = node.node_labels.get(labels.GPU_MODEL) in _HOPPER_MODELS
    is_hopper = is_hopper and node.node_labels.get(labels.GPU_VENDOR, "") in ("", "nvidia")
    return NodePartitions(_HOPPER if is_hopper else None, is_binding)


def choose(
    table: Table | None,
    count: int,
    used: Collection[int],
    healthy: Collection[int],
    spec: GPUPartitionSpec | None = None,
) -> PartitionDecision:
    """A free partition of `count` GPUs that leaves the larger ones whole.

    Groups of lower allocation score come first, as users know it.
    """
    if table is None:
        return PartitionDecision(status=MISSING_TABLE)
    if count not in table:
        return PartitionDecision(status=UNSUPPORTED_COUNT)
    spec = spec or GPUPartitionSpec()
    groups = _groups(table[count])
    if spec.allocate_policy == PartitionPolicy.RESTRICTED:
        groups = groups[:1]
    taken = frozenset(used)
    for group in groups:
        free = [p for p in group if _is_free(p, taken, frozenset(healthy)) and _is_fast(p, spec)]
        if free:
            best = max(free, key=lambda p: _packing(table, count, taken | frozenset(p.minors)))
            return PartitionDecision(tuple(sorted(best.minors)))
    return PartitionDecision(status=NONE_FREE)


def _groups(partitions: Sequence[GPUPartition]) -> list[list[GPUPartition]]:
    scores = sorted({partition.allocation_score for partition in partitions})
    return [[p for p in partitions if p.allocation_score == score] for score in scores]


def _is_free(partition: GPUPartition, taken: frozenset[int], healthy: frozenset[int]) -> bool:
    return taken.isdisjoint(partition.minors) and healthy.issuperset(partition.minors)


def _is_fast(partition: GPUPartition, spec: GPUPartitionSpec) -> bool:
    if spec.ring_bus_bandwidth is None:
        return True
    stated = partition.ring_bus_bandwidth
    return stated is not None and quantity.of(stated) >= quantity.of(spec.ring_bus_bandwidth)


def _packing(table: Table, count: int, taken: frozenset[int]) -> int:
    """Return how much of the larger partitions is still whole."""
    total = 0
    for size, weight in _PACKING_WEIGHTS.items():
        if size < count or not table.get(size):
            continue
        first = _groups(table[size])[0]
        total += sum(weight * p.allocation_score for p in first if taken.isdisjoint(p.minors))
    return total
