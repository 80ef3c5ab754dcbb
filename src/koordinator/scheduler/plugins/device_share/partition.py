"""GPUs that are linked and given out together, or close to each other: the smallest scope that fits, in use rather than
idle. Source: behaviour/devices 6.3 and 6.4."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from koordinator.api import labels, quantity
from koordinator.api.annotations import device as annotation
from koordinator.api.annotations.device import (
    TOPOLOGY_SCOPE_LEVELS,
    GPUPartition,
    GPUPartitionSpec,
    NodePartitionPolicy,
    PartitionPolicy,
    TopologyScope,
)
from koordinator.api.errors import ProtocolError
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.device_share.inventory import DeviceEntry, NodeDevices, View, VisibleDevice

Scorer = Callable[[VisibleDevice], int]


class GPURequest(msgspec.Struct, frozen=True):
    """The number of GPUs, and how much each must have left; `level` is the widest scope that will do (see the
    annotation)."""

    count: int
    amounts: dict[str, int]
    is_shared: bool
    level: int = 0
    must: frozenset[int] = frozenset()
    """Cards that have to be among them."""


class _Found(msgspec.Struct, frozen=True):
    minors: tuple[int, ...]
    depth: int
    in_use: int
    score: int = 0


class _Scope(msgspec.Struct, frozen=True):
    level: int
    cards: Sequence[DeviceEntry]
    """By ascending minor, also those that the pod does not see."""
    children: Sequence["_Scope"] = ()

    @property
    def minors(self) -> Iterable[int]:
        return (card.minor for card in self.cards)


class _Search(msgspec.Struct, frozen=True):
    view: View
    wanted: GPURequest
    used: Collection[int]
    score: Scorer | None


def closest(
    cards: Iterable[DeviceEntry],
    view: View,
    wanted: GPURequest,
    used: Collection[int],
    score: Scorer | None = None,
) -> tuple[int, ...]:
    """Return the minors in the smallest scope with enough of them that the pod sees; empty when no scope will do.
    `used` cards count where they are, whether the pod sees them or not."""
    found = _search(_tree(cards), _Search(view, wanted, used, score), 0, 0)
    return found.minors if found is not None else ()


def _tree(entries: Iterable[DeviceEntry]) -> _Scope:
    cards = sorted(entries, key=lambda card: card.minor)
    numa_nodes = []
    for numa in sorted({card.numa_node for card in cards}):
        near = [card for card in cards if card.numa_node == numa]
        switches = [
            _Scope(TOPOLOGY_SCOPE_LEVELS[TopologyScope.PCIE], [card for card in near if card.pcie == pcie])
            for pcie in sorted({card.pcie for card in near})
        ]
        numa_nodes.append(_Scope(TOPOLOGY_SCOPE_LEVELS[TopologyScope.NUMA_NODE], near, switches))
    return _Scope(TOPOLOGY_SCOPE_LEVELS[TopologyScope.NODE], cards, numa_nodes)


def _search(scope: _Scope, search: _Search, depth: int, in_use: int) -> _Found | None:
    must = search.wanted.must
    if len(scope.cards) < search.wanted.count or (must and not must.issubset(scope.minors)):
        return None
    depth += 1
    in_use += any(card.minor in search.used for card in scope.cards)
    best: _Found | None = None
    for child in scope.children:
        found = _search(child, search, depth, in_use)
        if found is not None and (best is None or _rank(found) > _rank(best)):
            best = found
    if best is not None or search.wanted.level > scope.level:
        return best
    return _take(scope, search, depth, in_use)


def _rank(found: _Found) -> tuple[int, int, int]:
    return found.depth, found.in_use, found.score


def _take(scope: _Scope, search: _Search, depth: int, in_use: int) -> _Found | None:
    wanted = search.wanted
    seen = [search.view[card.minor] for card in scope.cards if card.minor in search.view]
    fitting = [device for device in seen if device.is_healthy and device.fits(wanted.amounts)]
    if wanted.must:
        fitting.sort(key=lambda device: device.minor not in wanted.must)
    if len(fitting) < wanted.count:
        return None
    if not wanted.is_shared:
        return _Found(tuple(device.minor for device in fitting[: wanted.count]), depth, in_use)
    points = {device.minor: search.score(device) if search.score else 0 for device in fitting}
    best = max(fitting, key=lambda device: points[device.minor])
    return _Found((best.minor,), depth, in_use, points[best.minor])


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
    """Return the table that the node agent reported, else the one built in for the model. Raises: ProtocolError when
    the reported table is malformed and pods must keep to it; otherwise it is as if there were none."""
    must_keep = annotation.node_partition_policy(node.labels) is NodePartitionPolicy.HONOR
    try:
        table = annotation.GPU_PARTITIONS.read(node.annotations)
    except ProtocolError:
        if must_keep:
            raise
        table = None  # told when the Device was read
    if table is not None:
        return NodePartitions(_usable(table), must_keep)
    is_binding = annotation.node_partition_policy(node.node_labels) is NodePartitionPolicy.HONOR
    is_hopper = node.node_labels.get(labels.GPU_MODEL) in _HOPPER_MODELS
    is_hopper = is_hopper and node.node_labels.get(labels.GPU_VENDOR, "") in ("", "nvidia")
    return NodePartitions(_HOPPER if is_hopper else None, is_binding)


def _usable(table: Table) -> Table:
    """Return a table without the partitions that have more or fewer GPUs than they are listed for, and without sizes of
    which nothing is left: a pod must not start with other cards than it asked for."""
    kept = {
        size: [each for each in partitions if len(set(each.minors)) == len(each.minors) == size]
        for size, partitions in table.items()
    }
    return {size: partitions for size, partitions in kept.items() if partitions}


def choose(
    table: Table | None,
    count: int,
    used: Collection[int],
    healthy: Collection[int],
    spec: GPUPartitionSpec | None = None,
    must: frozenset[int] = frozenset(),
) -> PartitionDecision:
    """Return a free partition of `count` GPUs, `must` among them, that leaves the larger ones whole.

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
        if must:
            free = [p for p in free if must.issubset(p.minors)]
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
