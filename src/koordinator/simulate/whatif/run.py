"""One strategy against a cluster's history: services as they were, batch as it would have run beside them.

Nothing is an object here: every decision is a live component's function over arrays. The manager decides what is lent
from the means of the step before, as it does from reports; the scheduler's rules place tasks; the node agent holds them
back and evicts; `local.nodes.contention` says who gets which CPU, and what that does to response times.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from koordinator.host.cgroup_knobs import shares_of_milli
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.memory_evict import BE_MEMORY
from koordinator.local.nodes import contention
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.fleet import FleetPolicy
from koordinator.local.nodes.usage import F64, Index, per_node
from koordinator.manager.noderesource.batch import CPU, MEMORY
from koordinator.scheduler.plugins.load_aware.args import LoadAwareArgs, LoadAwarePolicy
from koordinator.scheduler.plugins.load_aware.judgement import NodeLoadRulesTable
from koordinator.simulate.whatif import demand, holding, placement
from koordinator.simulate.whatif.batch_queue import BatchQueue
from koordinator.simulate.whatif.cluster import WhatIfCluster
from koordinator.simulate.whatif.history import StepUse, UsageHistory
from koordinator.simulate.whatif.holding import SuppressedTiers
from koordinator.simulate.whatif.lending import Lending, UseReport, takes_batch
from koordinator.simulate.whatif.outcome import Adder, LatencyFigures, StepFigures
from koordinator.simulate.whatif.placement import NodeRoom
from koordinator.simulate.whatif.strategy import WhatIfStrategy
from koordinator.simulate.whatif.tasks import RunningTasks

ROUND_S = 60.0
"""Tasks end and begin between two changes of use, too: so often is looked."""
UNLIMITED = 1 << 60
LOAD_UNAWARE = LoadAwareArgs()
_LOAD_COLUMNS = {"cpu": CPU, "memory": MEMORY}
POLICY = FleetPolicy()
Progress = Callable[[float], Any]


class WhatIfRun:
    """The cluster under a strategy, moved step by step."""

    def __init__(
        self,
        cluster: WhatIfCluster,
        history: UsageHistory,
        strategy: WhatIfStrategy,
        queue: BatchQueue,
        seed: int,
    ) -> None:
        self._cluster, self._history, self._strategy, self._queue = cluster, history, strategy, queue
        self._rng = np.random.default_rng(seed)
        self._tasks = RunningTasks()
        self._read_nodes(cluster)
        self._lending = Lending(cluster, strategy)
        self._room = self._read_rules(cluster, strategy)
        self._pools = holding.pools(cluster, strategy)
        self._suppressed = SuppressedTiers(
            cluster, self._pools if strategy.protection.has_agent else (), strategy
        )
        self._asked = np.array([(k.cpu_milli, k.memory_bytes) for k in queue.kinds], np.int64)
        self._estimates = demand.estimates(queue.kinds, self._load_policy)
        self._task_weight = np.array([float(shares_of_milli(k.cpu_milli)) for k in queue.kinds])
        services = cluster.services
        self._weight_on = per_node(services.node, services.weight, self._count)
        self._curves = contention.bounds(strategy.protection)
        self.added = Adder(
            self._capacity, services.workload, len(services.workloads), services.node, self._system_bytes
        )
        self.whys = self._lending.whys()
        """Meanings of the terms of what is lent, in words."""

    def _read_nodes(self, cluster: WhatIfCluster) -> None:
        nodes, services = cluster.nodes, cluster.services
        self._count = len(nodes.objects)
        self._capacity, self._capacity_bytes = nodes.cpu_milli, nodes.memory_bytes
        beyond = nodes.system[:, CPU] - POLICY.system_share_of_use * nodes.pods_milli
        self._system_base = np.where(np.isnan(beyond), POLICY.system_base_milli, np.maximum(beyond, 0.0))
        told = nodes.system[:, MEMORY]
        self._system_bytes = np.where(np.isnan(told), POLICY.system_memory_bytes, told)
        on_node = np.bincount(services.node, minlength=self._count)
        self._pods_free = np.where(takes_batch(nodes.objects), nodes.pods - on_node, 0)

    def _read_rules(self, cluster: WhatIfCluster, strategy: WhatIfStrategy) -> NodeRoom:
        self._load_policy = policy = LoadAwarePolicy.of(strategy.load_aware or LOAD_UNAWARE)
        table = NodeLoadRulesTable(policy)
        rules = [table.of(node) for node in cluster.nodes.objects]
        limits = [[UNLIMITED if each is None else each for each in rule.limits] for rule in rules]
        has_limits = strategy.load_aware is not None
        self._limits = np.where(has_limits, np.array(limits, np.int64).T, UNLIMITED)
        capacity = np.array([rule.capacity for rule in rules], np.int64).T
        self._load_capacity = capacity
        return NodeRoom(
            free=np.zeros((2, self._count), np.int64),
            pods=self._pods_free,
            below_limit=self._limits.copy(),
            left=capacity.copy(),
            capacity=np.maximum(capacity, 1).astype(np.float64),
            weights=policy.weights,
            dominant_weight=policy.args.dominant_resource_weight,
        )

    # Time

    def run(self, steps: int, progress: Progress | None = None) -> Adder:
        """Move through so many steps of the history, which starts over at its end."""
        history = self._history
        use = history.at(0)
        self._take_report(self._first_report(use))
        for step in range(steps):
            use = history.at(step % history.steps)
            self._take_report(self._step(step, use))
            if progress is not None:
                progress((step + 1) / steps)
        return self.added

    def _first_report(self, use: StepUse) -> UseReport:
        services = per_node(self._cluster.services.node, use.cpu_milli, self._count)
        memory = per_node(self._cluster.services.node, use.memory_bytes, self._count)
        system = self._system_base + POLICY.system_share_of_use * np.minimum(services, self._capacity)
        return UseReport(
            np.stack([use.cpu_milli, use.memory_bytes], axis=1),
            np.stack([services + system, memory + self._system_bytes], axis=1),
            np.stack([system, self._system_bytes], axis=1),
        )

    def _step(self, step: int, use: StepUse) -> UseReport:
        services, queue, step_s = self._cluster.services, self._queue, self._history.step_s
        wanted_pods = np.minimum(use.cpu_milli, services.limit_milli)
        wanted = per_node(services.node, wanted_pods, self._count)
        own_bytes = per_node(services.node, use.memory_bytes, self._count)
        rounds = max(round(step_s / ROUND_S), 1)
        round_s, now_s = step_s / rounds, step * step_s
        sums = np.zeros((5, self._count))  # services, system, batch, requested, wanted by batch
        evicted, lost_milli_s = np.zeros(self._count), 0.0
        for number in range(rounds):
            at_s = now_s + number * round_s
            queue.arrive(at_s, at_s + round_s)
            self._place(at_s)
            queue.note(at_s)
            gone, lost = self._evict(own_bytes)
            evicted += gone
            lost_milli_s += lost
            sums += round_s * self._share(wanted, at_s, round_s)
        means = sums / step_s
        batch_bytes = self._tasks.on_nodes(self._tasks.used_bytes, self._count)
        self.added.step(
            (now_s + step_s) / 3600,
            StepFigures(
                services=means[0], system=means[1], batch=means[2], requested=means[3], wanted=means[4],
                lent=self._terms,
                services_bytes=own_bytes, batch_bytes=batch_bytes, evicted=evicted,
                lost_milli_s=lost_milli_s, waiting=queue.length,
            ),
            step_s,
        )  # fmt: skip
        self.added.latency(self._latency(wanted_pods, wanted), step_s)
        return UseReport(
            np.stack([wanted_pods, use.memory_bytes], axis=1),
            np.stack([means[:3].sum(axis=0), own_bytes + batch_bytes + self._system_bytes], axis=1),
            np.stack([means[1], self._system_bytes], axis=1),
        )

    # Reclaim and place

    def _take_report(self, report: UseReport) -> None:
        """Let what is lent, and how much each node may take, follow from a new report."""
        self._terms = self._lending.decide(report)
        self._lent = self._terms.amounts
        room, names = self._room, self._load_policy.names
        used = np.zeros((len(names), self._count), np.int64)
        young = self._tasks.placed_s >= self._now_s() - self._history.step_s
        tasks = self._tasks
        for index, name in enumerate(names):
            column = _LOAD_COLUMNS.get(name)
            if column is None:
                continue
            had = tasks.granted if column == CPU else tasks.used_bytes
            excess = np.maximum(self._estimates[tasks.kind, index] - had, 0.0) * young
            used[index] = report.used[:, column] + tasks.on_nodes(excess, self._count)
        room.below_limit = self._limits - used
        room.left = self._load_capacity - used

    def _now_s(self) -> float:
        return self._history.step_s * len(self.added.series.hour)

    def _place(self, now_s: float) -> None:
        queue, room, tasks = self._queue, self._room, self._tasks
        if not any(queue.waiting):
            return
        asked = self._asked[tasks.kind].astype(np.float64)
        held = np.stack([tasks.on_nodes(asked[:, each], self._count) for each in (0, 1)])
        room.free = self._lent - held.astype(np.int64)
        room.pods = self._pods_free - np.bincount(tasks.node, minlength=self._count)
        for kind in self._rng.permutation(len(queue.kinds)).tolist():
            rows = placement.place(
                room, self._asked[kind], self._estimates[kind], queue.waiting[kind], self._rng
            )
            if rows.size:
                tasks.start(rows, kind, queue.take(kind, rows.size), now_s)

    # Protect

    def _share(self, wanted: F64, now_s: float, elapsed_s: float) -> F64:
        """Give CPU out for a while from now on; return services', system's and batch's CPU, and what batch requested
        and wanted, (5, nodes). All services of a node are one participant with their joint weight."""
        tasks, count = self._tasks, self._count
        wants = tasks.wants(now_s, elapsed_s)
        tier = tasks.on_nodes(wants, count)
        system = self._system_base + POLICY.system_share_of_use * np.minimum(wanted + tier, self._capacity)
        available = np.maximum(self._capacity - system, 0.0)
        allowed = self._suppressed.run(np.minimum(wanted, available), system, tier, elapsed_s)
        granted = contention.share_cpu(
            np.concatenate((wanted, wants)),
            np.concatenate((np.maximum(self._weight_on, 2.0), self._task_weight[tasks.kind])),
            np.arange(count + tasks.count) >= count,
            np.concatenate((np.arange(count), tasks.node)),
            available,
            allowed,
            self._strategy.protection,
        )
        self._granted, self._system = granted[:count], system
        requested = tasks.on_nodes(self._asked[tasks.kind, 0].astype(np.float64), count)
        self._batch = tasks.on_nodes(granted[count:], count)
        self._queue.ended(tasks.progress(granted[count:], elapsed_s))
        return np.stack([granted[:count], system, self._batch, requested, tier])

    def _evict(self, own_bytes: F64) -> tuple[F64, float]:
        """Evict for memory; return tasks by node, (nodes,), and the milli-core-seconds thrown away."""
        tasks, count = self._tasks, self._count
        gone = np.zeros(count)
        if BE_MEMORY not in self._strategy.evictions or not tasks.count:
            return gone, 0.0
        used = own_bytes + self._system_bytes + tasks.on_nodes(tasks.used_bytes, count)
        release = holding.memory_release(self._pools, self._capacity_bytes, used)
        if not release.any():
            return gone, 0.0
        goes = eviction.largest_of_nodes(tasks.node, tasks.used_bytes.astype(np.int64), release)
        for kind in np.unique(tasks.kind[goes]).tolist():
            self._queue.put_back(kind, tasks.of(goes & (tasks.kind == kind)))
        lost = float(tasks.consumed[goes].sum())
        gone = np.bincount(tasks.node[goes], minlength=count).astype(np.float64)
        tasks.keep(~goes)
        return gone, lost

    def _latency(self, demand_milli: F64, wanted: F64) -> LatencyFigures:
        """Return response times of all services with what was given out last, and without batch."""
        services, node = self._cluster.services, self._cluster.services.node
        granted = _within(demand_milli, services.weight, node, wanted, self._granted)
        available = np.maximum(self._capacity - self._system, 0.0)
        now = self._reachable(granted, available, beside_batch=True)
        alone_system = self._system_base + POLICY.system_share_of_use * np.minimum(wanted, self._capacity)
        available = np.maximum(self._capacity - alone_system, 0.0)
        granted = _within(demand_milli, services.weight, node, wanted, np.minimum(wanted, available))
        ones = np.ones_like(demand_milli)
        alone = contention.latency(
            demand_milli, self._reachable(granted, available, beside_batch=False), ones
        ).p99
        own = self._granted + self._system
        load, occupied = own / self._capacity, self._batch / self._capacity
        base = contention.latency(demand_milli, now, ones).p99 * services.service_time_ms
        growth = contention.slowdown(load, occupied, self._strategy.protection)
        low, high = (
            (growth, growth)
            if self._curves is None
            else (contention.slowdown_by(curve, load, occupied) for curve in self._curves)
        )
        return LatencyFigures(
            p99=base * growth[node],
            low=base * low[node],
            high=base * high[node],
            alone=alone * services.service_time_ms,
            requests=demand_milli / services.service_time_ms,
        )

    def _reachable(self, granted: F64, available: F64, *, beside_batch: bool) -> F64:
        """Return what each service could get; unprotected, batch is a rival as any other."""
        services, tasks, count = self._cluster.services, self._tasks, self._count
        rivals, weights = per_node(services.node, granted, count), self._weight_on
        if beside_batch and self._strategy.protection is Protection.NONE:
            rivals = rivals + self._batch
            weights = weights + tasks.on_nodes(self._task_weight[tasks.kind], count)
        return contention.reachable(
            granted, services.weight, services.limit_milli, services.node, rivals, weights, available
        )


def _within(demand_milli: F64, weight: F64, node: Index, wanted: F64, given: F64) -> F64:
    """Return what each service gets of what its node's services have together, (services,)."""
    short = np.flatnonzero((given < wanted - 1e-6)[node])
    if not short.size:
        return demand_milli
    granted = demand_milli.copy()
    granted[short] = contention.water_fill(demand_milli[short], weight[short], node[short], given)
    return granted
