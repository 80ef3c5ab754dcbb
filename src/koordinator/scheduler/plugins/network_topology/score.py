"""Score which node suits a single pod that other pods attract. Source: behaviour/gangs 16."""

from collections.abc import Callable

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.topology_tree import Indices, TopologyTree
from koordinator.scheduler.plugins.network_topology.placement import Offers, TopologyRequirement

SCORE_MAX = 100


def scores(tree: TopologyTree, leaves: Indices, name_of: Callable[[int], str], existing: I64) -> I64:
    """Scores of feasible nodes: 100 for the one nearest to the pods that attract, 0 for the last.

    Shapes: `leaves` (feasible nodes,), where each is in the tree, -1 for nowhere: such nodes come last, by name
    (`name_of` a position). `existing` (nodes of the tree,): how many pods attract. Returns (feasible nodes,).
    """
    inside = np.flatnonzero(leaves >= 0)
    outside = sorted(np.flatnonzero(leaves < 0).tolist(), key=name_of)
    position_of = np.empty(len(tree.levels[-1]), np.intp)
    position_of[leaves[inside]] = inside
    ranked = position_of[_ranked(tree, leaves[inside], existing)]
    found = np.empty(leaves.size, np.int64)
    found[np.concatenate([ranked, np.array(outside, np.intp)])] = by_rank(leaves.size)
    return found


def _ranked(tree: TopologyTree, feasible: Indices, existing: I64) -> Indices:
    """Feasible nodes of the tree, the best first: each of them has room for one."""
    slots = np.zeros(len(tree.levels[-1]), np.int64)
    slots[feasible] = 1
    return Offers(tree, TopologyRequirement(), slots, existing).sorted(tree.depth, feasible)


def by_rank(count: int) -> I64:
    """100 for the first, 0 for the last."""
    if count < 2:
        return np.full(count, SCORE_MAX, np.int64)
    return SCORE_MAX - SCORE_MAX * np.arange(count) // (count - 1)
