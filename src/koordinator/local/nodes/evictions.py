"""Evictions of all nodes: whom the node agents evict for CPU and memory, and in which order.

Array operations find the nodes that want anything; those few go through the very tasks and the arbitration of the
agent (`koordlet.qos.cpu_evict`, `memory_evict`, `eviction`). Source: behaviour/koordlet-act 5 to 7.
"""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from koordinator.api.core import Pod
from koordinator.host.cgroup_layout import Driver
from koordinator.koordlet import node_pods
from koordinator.koordlet.gpu_shares import BATCH_GPU
from koordinator.koordlet.qos import cpu_evict, eviction, memory_evict, threshold_eviction
from koordinator.koordlet.qos.batch_gpu_evict import BatchGPUEvict
from koordinator.koordlet.qos.cpu_evict import BE_CPU, CPU, BESample, CPUEvict, CPUState
from koordinator.koordlet.qos.eviction import Arbitration, EvictionTask, EvictionVictim, Victims
from koordinator.koordlet.qos.eviction_strategy import CoolDown, EvictionStrategy
from koordinator.koordlet.qos.memory_evict import BE_MEMORY, MEMORY, MemoryEvict, MemoryState
from koordinator.koordlet.qos.threshold_eviction import Marks
from koordinator.koordlet.series import Aggregation
from koordinator.local.nodes import samples
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.lent_gpus import LentGPUs
from koordinator.local.nodes.usage import F64, Index, Mask

CPU_FEATURES = frozenset((BE_CPU, CPU))
MEMORY_FEATURES = frozenset((BE_MEMORY, MEMORY))
PLAYED = CPU_FEATURES | MEMORY_FEATURES | {BATCH_GPU}
"""Features of hollow nodes; those that look at allocatable need the manager's view of the node, and are left out."""


class Evictions:
    """The evicting strategies of all nodes."""

    def __init__(self, fleet: HollowFleet, pods_on: Callable[[int], list[Pod]], lent: LentGPUs) -> None:
        unknown = fleet.policy.evictions - PLAYED
        assert not unknown, f"hollow nodes do not play {sorted(unknown)}"
        self._fleet = fleet
        self._pods_on = pods_on
        config = fleet.policy.qos
        self._lent = lent
        strategies: tuple[type[EvictionStrategy], ...] = (CPUEvict, MemoryEvict, BatchGPUEvict)
        self._cool_s = {each: each.cool_down.of(config) for each in strategies}
        self._began_s: float | None = None
        self._rests_of: dict[tuple[int, type[EvictionStrategy]], CoolDown] = {}
        self._victims: dict[int, Victims] = {}

    async def run(self, now_s: float, evict: Callable[[int, EvictionVictim], Awaitable[bool]]) -> None:
        """One round of all nodes; `evict` tells whether a pod of a row went."""
        if self._began_s is None:
            self._began_s = now_s
        cpu, memory = self._may_want_cpu(now_s), self._may_want_memory()
        for row in np.flatnonzero(cpu | memory).tolist():
            if cpu[row] and not self._rests(row, CPUEvict, now_s):
                await self._run(row, CPUEvict, self.cpu_tasks(row, now_s), now_s, evict)
            if memory[row] and not self._rests(row, MemoryEvict, now_s):
                await self._run(row, MemoryEvict, self.memory_tasks(row), now_s, evict)
        for row in self._lent.unsettled_rows():
            tasks = self._lent.tasks(row, self._active(row))
            if not tasks:
                self._lent.settled(row)
            await self._run(row, BatchGPUEvict, tasks, now_s, evict)

    def _rests(self, row: int, strategy: type[EvictionStrategy], now_s: float) -> bool:
        """Return whether the node has evicted of late: what it wants now need not be worked out."""
        rest = self._rests_of.get((row, strategy))
        return rest is not None and not rest.is_over(now_s)

    async def _run(
        self,
        row: int,
        strategy: type[EvictionStrategy],
        tasks: Sequence[EvictionTask],
        now_s: float,
        evict: Callable[[int, EvictionVictim], Awaitable[bool]],
    ) -> None:
        """Do one round of a strategy on a node, unless it rests."""
        if not tasks:
            return
        rest = self._rests_of.get((row, strategy))
        if rest is None:
            since_s = self._began_s if strategy.rests_first else None
            rest = self._rests_of[row, strategy] = CoolDown(self._cool_s[strategy], since_s)
        if rest.is_over(now_s) and await self._round(row, tasks, now_s, evict):
            rest.begin(now_s)

    async def _round(
        self,
        row: int,
        tasks: Sequence[EvictionTask],
        now_s: float,
        evict: Callable[[int, EvictionVictim], Awaitable[bool]],
    ) -> bool:
        """Carry out one round; return whether anybody was evicted."""
        victims = self._victims.setdefault(row, Victims())
        records = {pod.metadata.uid: node_pods.record(pod, Driver.CGROUPFS) for pod in self._pods_on(row)}
        standing = victims.look(records, now_s)
        narrowed = eviction.narrowed(tasks, standing.leaving, standing.spared)
        arbitration = Arbitration(narrowed, standing.leaving)
        while (victim := arbitration.next_victim()) is not None:
            if is_gone := await evict(row, victim):
                victims.evicted(victim.uid, now_s)
            else:
                victims.refused(victim.uid, now_s)
            arbitration.settle(victim, is_gone)
        return bool(arbitration.evicted)

    def cpu_tasks(self, row: int, now_s: float) -> list[EvictionTask]:
        """Return what the CPU features want on a node now."""
        features = self._fleet.policy.evictions & CPU_FEATURES
        if not features:
            return []
        return cpu_evict.tasks(
            features, self._fleet.policy.strategy, self._cpu_state(row, now_s), {}, self._active(row)
        )

    def memory_tasks(self, row: int) -> list[EvictionTask]:
        """Return what the memory features want on a node now."""
        fleet = self._fleet
        features = fleet.policy.evictions & MEMORY_FEATURES
        state = MemoryState(
            capacity_bytes=int(fleet.capacity_bytes[row]),
            node_bytes=float(fleet.used_bytes[row]),
            pods_bytes={
                fleet.shape_of[slot].uid: float(fleet.memory[slot])
                for slot in fleet.pods_on[row]
                if fleet.running[slot]
            },
        )
        return memory_evict.tasks(features, fleet.policy.strategy, state, {}, self._active(row))

    # Which nodes may want anything, (nodes,): more than really do, never fewer, since a node alone costs far more.

    def _may_want_memory(self) -> Mask:
        fleet, policy = self._fleet, self._fleet.policy
        wants: Mask = np.zeros(fleet.capacity.size, np.bool_)
        if threshold_eviction.activity(policy.strategy) is not None:
            return wants
        for feature in policy.evictions & MEMORY_FEATURES:
            marks = memory_evict.marks_of(feature, policy.strategy)
            if isinstance(marks, Marks):
                used, capacity = (each.astype(np.int64) for each in (fleet.used_bytes, fleet.capacity_bytes))
                wants |= threshold_eviction.above_lower(capacity, used, marks) > 0
        return wants

    def _may_want_cpu(self, now_s: float) -> Mask:
        fleet, policy = self._fleet, self._fleet.policy
        wants: Mask = np.zeros(fleet.capacity.size, np.bool_)
        if threshold_eviction.activity(policy.strategy) is not None:
            return wants
        if CPU in policy.evictions:
            marks = cpu_evict.marks_of(CPU, policy.strategy)
            if isinstance(marks, Marks):
                wants |= fleet.used * 100 >= fleet.capacity * marks.lower_percent
        is_set = cpu_evict.satisfaction_problem(policy.strategy) is None
        if BE_CPU in policy.evictions and is_set and fleet.samples.nodes:
            # Of pods that the last sample does not show as starved, the mean need not be asked for.
            latest = [amounts * 1000 for amounts in _best_effort(fleet.samples.nodes[-1])]
            rows = np.flatnonzero(cpu_evict.is_starved(policy.strategy, *latest))
            if rows.size:
                means = self._best_effort_means(rows, now_s)
                wants[rows] |= cpu_evict.is_starved(policy.strategy, *(mean * 1000 for mean in means))
        return wants

    def _best_effort_means(self, rows: Index, now_s: float) -> list[F64]:
        """Return usage, requests and limit of best-effort pods, (n,) cores each, as `_cpu_state` averages them."""
        samples_of, policy = self._fleet.samples, self._fleet.policy
        window_s = cpu_evict.window_s(policy.strategy, policy.sample_s)
        points = [_best_effort(each) for each in samples_of.of_nodes(int(now_s * 1000), window_s)]
        if not points:
            return [np.zeros(rows.size)] * 3
        # Each node's points in a row: they add up in the order of a node alone, to the same digit.
        return [
            np.ascontiguousarray(np.stack([each[rows] for each in column], axis=1)).mean(axis=1)
            for column in zip(*points, strict=True)
        ]

    def _cpu_state(self, row: int, now_s: float) -> CPUState:
        fleet = self._fleet
        now_ms, every_s = int(now_s * 1000), fleet.policy.sample_s
        window_s = cpu_evict.window_s(fleet.policy.strategy, every_s)
        points = fleet.samples.of_nodes(now_ms, window_s)
        node_cores, best_effort = None, None
        if points:
            names = (
                "cores",
                "best_effort_cores",
                "best_effort_request_cores",
                "best_effort_limit_cores",
            )
            means = [
                float(
                    samples.aggregated(
                        np.array([[getattr(point, name)[row]] for point in points]), Aggregation.AVG
                    )[0]
                )
                for name in names
            ]
            node_cores = means[0]
            best_effort = BESample(len(points), *(mean * 1000 for mean in means[1:]))
        return CPUState(
            capacity_milli=int(fleet.capacity[row]),
            node_cores=node_cores,
            pods_cores={
                fleet.shape_of[slot].uid: float(fleet.granted[slot]) / 1000
                for slot in fleet.pods_on[row]
                if fleet.running[slot]
            },
            be_average=best_effort,
            be_latest=_latest(points[-1], row) if points else None,
            collect_interval_s=every_s,
        )

    def _active(self, row: int) -> list[Pod]:
        return [pod for pod in self._pods_on(row) if pod.status.phase in ("Pending", "Running")]


def _latest(point: samples.NodeSample, row: int) -> BESample:
    return BESample(1, *(float(cores[row]) * 1000 for cores in _best_effort(point)))


def _best_effort(point: samples.NodeSample) -> tuple[F64, F64, F64]:
    """Return the usage, requests and limit of best-effort pods, (nodes,) cores each."""
    return point.best_effort_cores, point.best_effort_request_cores, point.best_effort_limit_cores
