"""The part of the node agents: CPU suppression and eviction thresholds of all nodes, pool by pool."""

from collections.abc import Sequence

import numpy as np

from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.qos import memory_evict, threshold_eviction
from koordinator.koordlet.qos.memory_evict import BE_MEMORY
from koordinator.koordlet.qos.threshold_eviction import Marks
from koordinator.local.nodes.cpu_qos import Suppression
from koordinator.local.nodes.usage import F64, Index
from koordinator.manager.config import node_slo_spec
from koordinator.manager.noderesource.batch import CPU
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.strategy import WhatIfStrategy

Pools = Sequence[tuple[Index, ResourceThresholdStrategy]]


def pools(cluster: WhatIfCluster, strategy: WhatIfStrategy) -> Pools:
    """Return which rows follow which section of their NodeSLO: nodes alike are one pool."""
    found: dict[ResourceThresholdStrategy, list[int]] = {}
    for row, node in enumerate(cluster.nodes.objects):
        thresholds = node_slo_spec.wanted_spec(strategy.slo, node).resource_used_threshold_with_be
        assert thresholds is not None, "the manager writes every section"
        found.setdefault(thresholds, []).append(row)
    return [(np.array(rows, np.int64), each) for each, rows in found.items()]


class SuppressedTiers:
    """Says how much the best-effort pods of each node may have."""

    def __init__(self, cluster: WhatIfCluster, of_pools: Pools) -> None:
        nodes = cluster.nodes
        reserved = nodes.reserved[:, CPU]
        capacity = nodes.capacity[:, CPU]
        self._pools = [(rows, Suppression(each, capacity[rows], reserved[rows])) for rows, each in of_pools]
        self._limit = np.full(capacity.size, np.inf)

    def run(self, services_milli: F64, system_milli: F64, elapsed_s: float) -> F64:
        """Carry out a round per second; return the limits, (nodes,) as the arguments."""
        for rows, suppression in self._pools:
            suppression.run(services_milli[rows], system_milli[rows], max(int(elapsed_s), 1))
            self._limit[rows] = suppression.limit_milli()
        return self._limit


def memory_release(of_pools: Pools, capacity_bytes: F64, used_bytes: F64) -> Index:
    """Return the bytes that best-effort pods have to give back on each node, (nodes,) as the arguments."""
    release = np.zeros(capacity_bytes.size, np.int64)
    for rows, thresholds in of_pools:
        marks = memory_evict.marks_of(BE_MEMORY, thresholds)
        if threshold_eviction.activity(thresholds) is None and isinstance(marks, Marks):
            capacity, used = (each[rows].astype(np.int64) for each in (capacity_bytes, used_bytes))
            release[rows] = threshold_eviction.above_lower(np.maximum(capacity, 1), used, marks)
    return release
