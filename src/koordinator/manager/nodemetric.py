"""One NodeMetric per node, telling the node agent what to report (spec 02 §4).

The status is the agent's alone; the object lives and dies with its node.
"""

import msgspec

from koordinator.api import duration, slo_config
from koordinator.api.core import Node
from koordinator.api.node_metric import AggregatePolicy, MetricCollectPolicy, NodeMetric, NodeMetricSpec
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.manager import colocation_config
from koordinator.manager.colocation_config import ColocationState
from koordinator.manager.parts import Shared
from koordinator.manager.slo_configs import Part

WORKERS = 4


def wanted_spec(state: ColocationState, node: Node, old: NodeMetricSpec | None) -> NodeMetricSpec:
    """The collect policy of a node: that of its strategy, or the defaults while co-location is off.

    While the last configuration could not be used, an existing policy stays as it is.
    """
    if state.error and old is not None:
        return old
    strategy = colocation_config.node_strategy(state.config, node)
    if colocation_config.is_disabled(state.config, strategy) or slo_config.colocation_problems(strategy):
        strategy = slo_config.DEFAULT_COLOCATION_STRATEGY
    policy = strategy.metric_aggregate_policy
    return NodeMetricSpec(
        metric_collect_policy=MetricCollectPolicy(
            aggregate_duration_seconds=strategy.metric_aggregate_duration_seconds,
            report_interval_seconds=strategy.metric_report_interval_seconds,
            node_aggregate_policy=None
            if policy is None
            else AggregatePolicy(durations=[duration.text_of(s) for s in policy.durations]),
            node_memory_collect_policy=strategy.metric_memory_collect_policy,
        )
    )


class NodeMetricController:
    """Creates, corrects and deletes NodeMetric objects."""

    def __init__(self, shared: Shared) -> None:
        self._cluster = shared.cluster
        self._configs = shared.configs
        self._nodes = shared.factory.informer(Node)
        self._metrics = shared.factory.informer(NodeMetric)
        self._controller: Controller[str] = Controller("nodemetric", self._reconcile, workers=WORKERS)
        shared.metrics.queues.watch("nodemetric", self._controller.queue)
        self._nodes.add_handler(self._add_node, self._on_node, self._add_node)
        self._metrics.add_handler(self._add_metric, self._on_metric, self._add_metric)
        shared.configs.on_change(Part.COLOCATION, self._on_config)

    def _add_node(self, node: Node) -> None:
        self._controller.queue.add(node.metadata.name)

    def _on_node(self, old: Node, new: Node) -> None:
        before, after = old.metadata, new.metadata
        if (
            before.labels != after.labels
            or before.annotations != after.annotations
            or old.status.allocatable != new.status.allocatable
        ):
            self._add_node(new)

    def _add_metric(self, metric: NodeMetric) -> None:
        self._controller.queue.add(metric.metadata.name)

    def _on_metric(self, old: NodeMetric, new: NodeMetric) -> None:
        if old.spec != new.spec:
            self._add_metric(new)

    def _on_config(self) -> None:
        for node in self._nodes.objects.values():
            self._add_node(node)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run([self._nodes, self._metrics])

    async def _reconcile(self, name: str) -> None:
        node, metric = self._nodes.get(name), self._metrics.get(name)
        if node is None:
            if metric is not None:
                await self._delete(name)
            return
        state = self._configs.colocation
        if not (state.available or state.error):
            return  # every node is queued again once a configuration is known
        spec = wanted_spec(state, node, metric.spec if metric is not None else None)
        if metric is None:
            body = {"metadata": {"name": name}, "spec": msgspec.to_builtins(spec)}
            try:
                await self._cluster.create(NodeMetric, body)
            except errors.AlreadyExists:
                self._controller.queue.add_rate_limited(name)  # our cache is behind
        elif spec != metric.spec:
            await self._cluster.patch(NodeMetric, name, {"spec": msgspec.to_builtins(spec)})

    async def _delete(self, name: str) -> None:
        try:
            await self._cluster.delete(NodeMetric, name)
        except errors.NotFound:
            return
