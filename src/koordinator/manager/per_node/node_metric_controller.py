"""One NodeMetric per node, telling the node agent what to report (behaviour/manager 4).

The status is the agent's alone; the object lives and dies with its node.
"""

from typing import Any

import msgspec

from koordinator.api import duration, slo_config
from koordinator.api.core import Node
from koordinator.api.node_metric import AggregatePolicy, MetricCollectPolicy, NodeMetric, NodeMetricSpec
from koordinator.api.slo_config import ColocationConfig, ColocationStrategy
from koordinator.manager.config import colocation_config
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.config.node_entries import REMEMBERED_MAX
from koordinator.manager.config.slo_configs import ConfigSection
from koordinator.manager.metrics import FAILED, SUCCEEDED
from koordinator.manager.parts import ManagerContext
from koordinator.manager.per_node.node_objects import NodeObjects, ObjectUpdate

_PARSED = "getNodeMetricCollectPolicy"


def wanted_spec(state: ColocationState, node: Node, old: NodeMetricSpec | None) -> NodeMetricSpec:
    """Return the collect policy of a node: that of its strategy, or the defaults while co-location is off.

    While the last configuration could not be used, an existing policy stays as it is.
    """
    if state.error and old is not None:
        return old
    return policy_spec(state.config, colocation_config.node_strategy(state.config, node))


def is_usable(config: ColocationConfig, strategy: ColocationStrategy) -> bool:
    """Return whether a node's strategy says how to measure: it is on, and its values are valid."""
    return not (colocation_config.is_disabled(config, strategy) or slo_config.colocation_problems(strategy))


def policy_spec(config: ColocationConfig, strategy: ColocationStrategy) -> NodeMetricSpec:
    """Return the spec under a strategy, or under the defaults if that is not usable."""
    if not is_usable(config, strategy):
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

    def __init__(self, shared: ManagerContext) -> None:
        counter = shared.metrics.nodemetric_reconciles
        self._objects = NodeObjects(
            shared, NodeMetric, _Rules(shared), name="nodemetric", noun="NodeMetric", reconciles=counter
        )
        shared.configs.on_change(ConfigSection.COLOCATION, self._objects.sweep.begin)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._objects.run()


class _Rules:
    """The rules for the NodeMetric of a node."""

    def __init__(self, shared: ManagerContext) -> None:
        self._configs = shared.configs
        self._parses = shared.metrics.nodemetric_parses
        self._known: dict[int, tuple[ColocationStrategy, NodeMetricSpec]] = {}
        """By the identity of the strategy, which nodes share; it is kept so that no other can have it."""
        self._known_config: ColocationConfig | None = None

    def is_ready(self) -> bool:
        return self._configs.is_known

    def matters(self, old: Node, new: Node) -> bool:
        before, after = old.metadata, new.metadata
        return before.labels != after.labels or _override(old) != _override(new)

    def spec(self, node: Node) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self._wanted(node))
        return found

    def update(self, node: Node, obj: NodeMetric) -> ObjectUpdate | None:
        """While the last configuration could not be used, an existing policy stays as it is."""
        if self._configs.colocation.error and obj.spec.metric_collect_policy is not None:
            return None
        wanted = self._wanted(node)
        return None if wanted == obj.spec else ObjectUpdate({"spec": msgspec.to_builtins(wanted)})

    def worked_out(self, node: Node, obj: NodeMetric | None) -> None:
        strategy = self._configs.strategies.of(node)
        is_good = not self._configs.colocation.error and not slo_config.colocation_problems(strategy)
        self._parses.inc(SUCCEEDED if is_good else FAILED, _PARSED)

    def _wanted(self, node: Node) -> NodeMetricSpec:
        strategies = self._configs.strategies
        if self._known_config is not strategies.config or len(self._known) > REMEMBERED_MAX:
            self._known_config = strategies.config
            self._known.clear()
        strategy = strategies.of(node)
        known = self._known.get(id(strategy))
        if known is None:
            known = self._known[id(strategy)] = (strategy, policy_spec(strategies.config, strategy))
        return known[1]


def _override(node: Node) -> str | None:
    return node.metadata.annotations.get(slo_config.NODE_COLOCATION_STRATEGY.key)
