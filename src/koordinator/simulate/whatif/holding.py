"""The part of the node agents: CPU suppression and eviction thresholds of all nodes, pool by pool."""

from collections.abc import Sequence

import numpy as np

from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.interference import control
from koordinator.koordlet.qos import memory_evict, threshold_eviction
from koordinator.koordlet.qos.cpu_suppress import Integers
from koordinator.koordlet.qos.memory_evict import BE_MEMORY
from koordinator.koordlet.qos.threshold_eviction import Marks
from koordinator.local.nodes import contention
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.cpu_qos import Suppression
from koordinator.local.nodes.usage import F64, Index
from koordinator.manager.config import node_slo_spec
from koordinator.manager.noderesource.batch import CPU
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.strategy import SlackObjective, WhatIfStrategy

Pools = Sequence[tuple[Index, ResourceThresholdStrategy]]


def pools(cluster: WhatIfCluster, strategy: WhatIfStrategy) -> Pools:
    """Return which rows follow which section of their NodeSLO: nodes alike are one pool."""
    found: dict[ResourceThresholdStrategy, list[int]] = {}
    for row, node in enumerate(cluster.nodes.objects):
        thresholds = node_slo_spec.wanted_spec(strategy.slo, node).resource_used_threshold_with_be
        assert thresholds is not None, "the manager writes every section"
        found.setdefault(thresholds, []).append(row)
    return [(np.array(rows, np.int64), each) for each, rows in found.items()]


STEP_S = 5.0
"""Time between two looks of the controller by slack: it grows by no more than what it watched."""


class SlackController:
    """Sets the ceiling of each node by the slack of its services, as `koordlet.interference.control` decides.

    Batch lengthens p99 of all services of a node by the same factor, so slack against an objective relative to p99
    without batch is one number per node.
    """

    def __init__(
        self, capacity_milli: F64, reserved_milli: F64, objective: SlackObjective, protection: Protection
    ) -> None:
        self._capacity, self._reserved = capacity_milli, reserved_milli
        self._objective, self._protection = objective, protection
        self._state = control.initial(capacity_milli.size, objective)

    def ceilings(
        self, services_milli: F64, system_milli: F64, wanted_milli: F64, elapsed_s: float
    ) -> Integers:
        """Return the percent of each node that services and batch may use together, (nodes,) as the arguments, after
        `elapsed_s` seconds in which batch wanted so much."""
        capacity, nodes = self._capacity, self._capacity.size
        own = services_milli + system_milli
        load = own / capacity
        held = services_milli + np.maximum(system_milli, self._reserved)
        zeros = np.zeros(nodes)
        for _ in range(max(round(elapsed_s / STEP_S), 1)):
            ceiling = self._state.ceiling[:, control.Resource.CPU]
            batch = np.clip(capacity * ceiling / 100 - held, 0.0, wanted_milli)
            growth = contention.slowdown(load, batch / capacity, self._protection)
            measured = control.Inputs(
                slack=1 - growth / self._objective.objective_ratio,
                slack_age_s=zeros,
                present_slack=np.full(nodes, np.nan),
                pressure_slack=np.full(nodes, np.nan),
                pressure_age_s=zeros,
                resource=np.zeros(nodes, np.int64),
                has_culprit=np.zeros(nodes, np.bool_),
                victim=np.zeros(nodes, np.int64),
                others_percent=100 * load,
                batch_percent=100 * batch / capacity,
            )
            self._state = control.advance(self._state, measured, STEP_S, self._objective)
        found: Integers = self._state.ceiling[:, control.Resource.CPU].astype(np.int64)
        return found


class SuppressedTiers:
    """Says how much the best-effort pods of each node may have."""

    def __init__(self, cluster: WhatIfCluster, of_pools: Pools, strategy: WhatIfStrategy) -> None:
        nodes = cluster.nodes
        self._controller = (
            None
            if strategy.control is None
            else SlackController(
                nodes.cpu_milli,
                nodes.reserved[:, CPU].astype(np.float64),
                strategy.control,
                strategy.protection,
            )
        )
        reserved = nodes.reserved[:, CPU]
        capacity = nodes.capacity[:, CPU]
        self._pools = [(rows, Suppression(each, capacity[rows], reserved[rows])) for rows, each in of_pools]
        self._limit = np.full(capacity.size, np.inf)

    def run(self, services_milli: F64, system_milli: F64, wanted_milli: F64, elapsed_s: float) -> F64:
        """Carry out a round per second, in which batch wants so much; return the limits, (nodes,) as the arguments."""
        ceilings = None
        if self._controller is not None:
            ceilings = self._controller.ceilings(services_milli, system_milli, wanted_milli, elapsed_s)
        for rows, suppression in self._pools:
            threshold = None if ceilings is None else ceilings[rows]
            suppression.run(services_milli[rows], system_milli[rows], max(int(elapsed_s), 1), threshold)
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
