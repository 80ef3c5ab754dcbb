"""Which sets of NUMA nodes can hold a pod, and how well. Source: behaviour/numa-cpu 7.2."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.scheduler.plugins.node_numa_resource import allocate, score, zones
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    NOTHING_GIVEN_BACK,
    AllocationRequest,
    GivenBack,
    NodeState,
    NUMAMask,
)
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import Hint
from koordinator.scheduler.plugins.node_numa_resource.score import ScoringStrategy
from koordinator.scheduler.plugins.node_numa_resource.zones import Zones

ALL_SUBSETS_NODES_MAX = 8
"""Up to here all sets of NUMA nodes are tried (255); beyond, single ones, pairs and all together.

The kubelet refuses NUMA policies on larger machines.
"""

Trial = Callable[[NUMAMask], bool]


def generate(
    node: NodeState,
    request: AllocationRequest,
    policy: NUMATopologyPolicy,
    strategy: ScoringStrategy | None = None,
    given_back: GivenBack = NOTHING_GIVEN_BACK,
    trial: Trial | None = None,
    sizes_max: int | None = None,
) -> dict[str, list[Hint]]:
    """Hints per requested resource that any zone offers, smaller sets first; an empty list means impossible.

    `trial` tells whether the pod can be put on NUMA nodes; by default it is put on the node itself, and
    reservations are the caller's. Without a `strategy`, hints score 0. `sizes_max` leaves larger sets out.
    """

    room = allocate.room_of(node, request, given_back)
    available = room.available

    def try_node(numa_nodes: NUMAMask) -> bool:
        return allocate.fits_in(room, node, request, numa_nodes)

    trial = trial or try_node
    lacking = _lacking(node.zones, available)
    demand = score.demand(request.amounts, node.cpu_ratio, binds_cpus=request.binds_cpus)
    known: dict[str, list[tuple[NUMAMask, int]]] = {}
    smallest = dict.fromkeys(request.amounts, len(node.zones))
    for subset in _subsets(node.zones, sizes_max):
        total = zones.total(node.zones[numa] for numa in subset)
        for name in request.amounts.keys() & total.keys():
            known.setdefault(name, [])
        mask = sum(1 << numa for numa in subset)
        if not trial(mask):
            continue
        left = zones.total(available.get(numa, {}) for numa in subset)
        points = score.score(strategy, zones.less(total, left), total, demand) if strategy else 0
        for name, hints in known.items():
            if not mask & lacking.get(name, 0):
                smallest[name] = min(smallest[name], len(subset))
                hints.append((mask, points))
    is_restricted = policy is NUMATopologyPolicy.RESTRICTED
    return {
        name: [
            Hint(mask, is_restricted or mask.bit_count() == smallest[name], points) for mask, points in hints
        ]
        for name, hints in sorted(known.items())
    }


def _subsets(numa_nodes: Iterable[int], sizes_max: int | None) -> Iterator[tuple[int, ...]]:
    ids = sorted(numa_nodes)
    sizes: Iterable[int] = range(1, len(ids) + 1)
    if len(ids) > ALL_SUBSETS_NODES_MAX:
        sizes = (1, 2, len(ids))
    if sizes_max is not None:
        sizes = [size for size in sizes if size <= sizes_max]
    return itertools.chain.from_iterable(itertools.combinations(ids, size) for size in sizes)


def _lacking(offered: Zones, available: Mapping[int, Mapping[str, int]]) -> dict[str, NUMAMask]:
    """NUMA nodes where nothing is left, per resource that any zone offers."""
    names = {name for zone in offered.values() for name in zone}
    return {
        name: sum(1 << numa for numa in offered if available.get(numa, {}).get(name, 0) <= 0)
        for name in names
    }
