"""Keeps Batch resources on every node: gathers what changed, decides for all of it at once, writes patches.

Reports of many nodes arrive together; all that wait are calculated in one go over arrays (`batch`), then
written one by one.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api.core import Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy, retry_after_s
from koordinator.cluster.supervise import Guard, supervise
from koordinator.cluster.workqueue import WorkQueue
from koordinator.manager.colocation_config import NodeStrategies, NodeStrategy
from koordinator.manager.noderesource import account, batch, decide, prepare, zones
from koordinator.manager.noderesource.account import MetricFacts, NodeFacts, PodFacts
from koordinator.manager.parts import Shared
from koordinator.manager.slo_configs import Part

log = logging.getLogger(__name__)

BATCH_NODES_MAX = 512  # nodes decided in one go; bounds the pause of the event loop to some 30 ms
CONCURRENT_WRITES_MAX = 16
SWEEP_S = 30.0  # how often expired reports are looked for; small against degradeTimeMinutes
RETRY = BackoffPolicy(initial_s=1.0, max_s=30.0)


class NodePlan(msgspec.Struct, frozen=True):
    """What one node should say. `withdrawn` tells why it must have no Batch resources."""

    name: str
    calculated: dict[str, int | None]
    zones: dict[str, dict[str, int]]
    withdrawn: str
    strategy: NodeStrategy


class NodeResourceController:
    """The loop of the leader."""

    def __init__(self, shared: Shared) -> None:
        factory = shared.factory
        self.guard = Guard("controller noderesource")
        self.write_count = 0
        self.calculate_count = 0
        self._cluster = shared.cluster
        self._strategies = NodeStrategies(lambda: shared.configs.colocation)
        self._backoff = Backoff(RETRY, shared.rng)
        self._queue: WorkQueue[str] = WorkQueue()
        self._nodes = factory.informer(Node)
        self._metrics = factory.informer(NodeMetric)
        self._topologies = factory.informer(NodeResourceTopology)
        self._pods = factory.informer(Pod)
        self._pods_of: dict[str, dict[str, PodFacts]] = {}
        self._node_facts: dict[str, NodeFacts] = {}
        self._metric_facts: dict[str, MetricFacts] = {}
        self._reported_s: dict[str, float] = {}
        self._degraded: set[str] = set()
        self._written_s: dict[str, float] = {}
        self._zones_written_s: dict[str, float] = {}
        self._writes = asyncio.Semaphore(CONCURRENT_WRITES_MAX)
        shared.metrics.queues.watch("noderesource", self._queue)
        self._wire()
        shared.configs.on_change(Part.COLOCATION, self._on_config)

    # Following the cluster

    def _wire(self) -> None:
        self._nodes.add_handler(self._on_node, lambda _, node: self._on_node(node), self._on_node_gone)
        self._metrics.add_handler(self._on_metric, lambda _, m: self._on_metric(m), self._on_metric_gone)
        self._pods.add_handler(self._on_pod, lambda _, pod: self._on_pod(pod), self._on_pod_gone)
        self._topologies.add_handler(lambda nrt: self._queue.add(nrt.metadata.name))

    def _on_config(self) -> None:
        self._strategies.clear()
        self.enqueue_all()

    def enqueue_all(self) -> None:
        """Look at every node again."""
        for node in self._nodes.objects.values():
            self._queue.add(node.metadata.name)

    def _on_node(self, node: Node) -> None:
        self._node_facts[node.metadata.name] = account.node_facts(node)
        self._queue.add(node.metadata.name)

    def _on_node_gone(self, node: Node) -> None:
        name = node.metadata.name
        for known in (self._node_facts, self._written_s, self._zones_written_s):
            known.pop(name, None)
        self._degraded.discard(name)
        self._strategies.forget(name)

    def _on_metric(self, metric: NodeMetric) -> None:
        name = metric.metadata.name
        status = metric.status
        if status.update_time is None:
            self._on_metric_gone(metric)
            return
        self._reported_s[name] = clock.parse_rfc3339(status.update_time)
        self._metric_facts[name] = account.metric_facts(status)
        self._queue.add(name)

    def _on_metric_gone(self, metric: NodeMetric) -> None:
        name = metric.metadata.name
        for known in (self._reported_s, self._metric_facts, self._written_s):
            known.pop(name, None)
        self._queue.add(name)

    def _on_pod(self, pod: Pod) -> None:
        node = pod.spec.node_name
        if not node:
            return
        facts = account.pod_facts(pod)
        if facts is None:
            self._on_pod_gone(pod)
        else:
            self._pods_of.setdefault(node, {})[pod.key] = facts

    def _on_pod_gone(self, pod: Pod) -> None:
        pods = self._pods_of.get(pod.spec.node_name)
        if pods is not None:
            pods.pop(pod.key, None)
            if not pods:
                del self._pods_of[pod.spec.node_name]

    # Working

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._nodes, self._metrics, self._pods, self._topologies):
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(supervise(self._step, self._backoff, self.guard), name="noderesource")
            group.create_task(supervise(self._sweep, self._backoff, self.guard), name="noderesource sweep")

    async def _sweep(self) -> float:
        """Queue the nodes whose last report has become too old: no event tells that."""
        now_s = self._cluster.clock.now()
        oldest_s = now_s - self._strategies.shortest_degrade_s()
        for name in self._node_facts:
            if name not in self._degraded and self._reported_s.get(name, 0.0) < oldest_s:
                self._queue.add(name)
        return SWEEP_S

    async def _step(self) -> float:
        names = [await self._queue.get()]
        while len(self._queue) and len(names) < BATCH_NODES_MAX:
            names.append(await self._queue.get())
        try:
            plans = self.plan(names)
            await asyncio.gather(*(self._carry_out(plan) for plan in plans))
        finally:
            for name in names:
                self._queue.done(name)
        return 0.0

    def plan(self, names: Sequence[str]) -> list[NodePlan]:
        """What each node should say now; nodes that are gone, or while no config is known, are left out."""
        now_s = self._cluster.clock.now()
        plans: list[NodePlan] = []
        ready: dict[batch.ReclaimPolicy, list[tuple[str, NodeStrategy]]] = {}
        for name in names:
            node = self._nodes.get(name)
            strategy = self._strategies.of(node) if node is not None else None
            if node is None or strategy is None:
                continue
            reason = decide.withdrawal(strategy, self._reported_s.get(name), now_s)
            if reason:
                self._degraded.add(name)
                plans.append(NodePlan(name, dict.fromkeys(prepare.BATCH), {}, reason, strategy))
            else:
                self._degraded.discard(name)
                ready.setdefault(strategy.reclaim, []).append((name, strategy))
        for policy, members in ready.items():
            plans += self._calculate(members, policy)
        return plans

    def _calculate(
        self, members: Sequence[tuple[str, NodeStrategy]], policy: batch.ReclaimPolicy
    ) -> Iterable[NodePlan]:
        self.calculate_count += len(members)
        inputs = [
            decide.NodeInputs(
                self._node_facts[name],
                self._metric_facts[name],
                list(self._pods_of.get(name, {}).values()),
            )
            for name, _ in members
        ]
        results = decide.calculate(inputs, policy)
        for (name, strategy), known, result in zip(members, inputs, results, strict=True):
            topology = self._topologies.get(name)
            per_zone = (
                {}
                if topology is None
                else zones.zone_amounts(
                    topology.zones,
                    known.node.reserved,
                    known.metrics.system_usage,
                    result.pods,
                    result.dangling,
                    policy,
                )
            )
            yield NodePlan(name, dict(result.amounts), per_zone, "", strategy)

    # Writing

    async def _carry_out(self, plan: NodePlan) -> None:
        async with self._writes:
            try:
                if plan.zones:
                    await self._write_zones(plan)
                await self._write_node(plan)
                self._queue.forget(plan.name)
            except errors.NotFound:
                self._queue.forget(plan.name)  # gone since; its deletion is on the way to us
            except errors.ApiError as error:
                self.guard.failed(error)
                pause_s = retry_after_s(error)
                if pause_s > 0:
                    self._queue.add_after(plan.name, pause_s)
                else:
                    self._queue.add_rate_limited(plan.name)

    async def _write_node(self, plan: NodePlan) -> None:
        node = self._nodes.get(plan.name)
        if node is None or not node.status.allocatable or not node.status.capacity:
            return
        target = prepare.node_target(node, plan.calculated)
        now_s = self._cluster.clock.now()
        is_due = now_s - self._written_s.get(plan.name, -np.inf) > plan.strategy.update_threshold_s
        if not is_due and not prepare.needs_sync(node, target, plan.strategy.diff_threshold):
            return
        patch = prepare.status_patch(node, target)
        if patch:
            await self._cluster.patch(Node, plan.name, patch, subresource="status")
            self.write_count += 1
        self._written_s[plan.name] = now_s
        if plan.withdrawn and "status" in patch:
            log.warning("batch resources withdrawn", extra={"node": plan.name, "reason": plan.withdrawn})

    async def _write_zones(self, plan: NodePlan) -> None:
        topology = self._topologies.get(plan.name)
        if topology is None:
            return
        updated, changed = zones.zones_target(topology.zones, plan.zones, plan.strategy.diff_threshold)
        now_s = self._cluster.clock.now()
        is_due = now_s - self._zones_written_s.get(plan.name, -np.inf) > plan.strategy.update_threshold_s
        if changed or (is_due and updated != topology.zones):
            patch: dict[str, Any] = {
                # Zones are one list: only its very version that we read may be replaced.
                "metadata": {"resourceVersion": topology.metadata.resource_version},
                "zones": [msgspec.to_builtins(zone) for zone in updated],
            }
            await self._cluster.patch(NodeResourceTopology, plan.name, patch)
            self._zones_written_s[plan.name] = now_s
