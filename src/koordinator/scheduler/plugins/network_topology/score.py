"""Which node suits a single pod that other pods attract. Source: spec 05, section 16."""

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.network_topology.placement import Demand, Offers
from koordinator.scheduler.plugins.network_topology.tree import Indices, TopologyTree

SCORE_MAX = 100


def rank(tree: TopologyTree, feasible: Indices, existing: I64) -> Indices:
    """Feasible nodes of the tree, nearest to the pods that attract first; `existing` (nodes of the tree,)."""
    slots = np.zeros(len(tree.levels[-1]), np.int64)
    slots[feasible] = 1
    return Offers(tree, Demand(), slots, existing).sorted(tree.depth, feasible)


def scores(count: int) -> I64:
    """Scores by rank: 100 for the first, 0 for the last."""
    if count < 2:
        return np.full(count, SCORE_MAX, np.int64)
    return SCORE_MAX - SCORE_MAX * np.arange(count) // (count - 1)
