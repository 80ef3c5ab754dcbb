"""A planner that tries everything, for small trees and members that are alike."""

import itertools

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.topology_tree import TopologyTree
from koordinator.scheduler.plugins.network_topology.placement import TopologyRequirement


def lowest_depth(tree: TopologyTree, demand: TopologyRequirement, slots: I64, wanted: int) -> int | None:
    """The depth of the deepest place that can hold all members by the rules; None when no place can."""
    must = tree.depth_of(demand.must_layer) if demand.must_layer else 0
    if must is None:
        return None
    best: int | None = None
    for shares in itertools.product(*(range(min(int(most), wanted) + 1) for most in slots)):
        if sum(shares) != wanted:
            continue
        sums = tree.sums(np.array(shares, np.int64))
        if any(
            (sums[depth] % demand.multiples.get(level.layer, 1)).any()
            for depth, level in enumerate(tree.levels)
        ):
            continue
        depth = max(depth for depth in range(len(sums)) if (sums[depth] == wanted).any())
        if depth >= must and (best is None or depth > best):
            best = depth
    return best
