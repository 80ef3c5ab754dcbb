"""Choose the rules by which a node is judged: the policy's thresholds, or the node's own. Source:
behaviour/scheduler I3.
"""

import logging

import msgspec

from koordinator.api import labels
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node
from koordinator.api.errors import KoordinatorError
from koordinator.api.quantity import ResourceList
from koordinator.scheduler.plugins.load_aware import load
from koordinator.scheduler.plugins.load_aware.args import LoadAwarePolicy, UsageAggregation, vector
from koordinator.scheduler.table.recent import Recent

log = logging.getLogger(__name__)

PLAIN_MAX = 256
"""Sizes of nodes whose rules are remembered."""

Vector = tuple[int, ...]


class NodeLoadRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which a node is judged. `limits` are the highest usages within the thresholds (None: no
    threshold), of the node's usage or of a percentile of it; `prod_limits`, if there are any, hold for prod pods
    instead. Thresholds are in percent, 0 is off.
    """

    capacity: Vector
    aggregation: UsageAggregation | None
    is_aggregated: bool
    thresholds: Vector
    prod_thresholds: Vector
    limits: load.Limits
    prod_limits: load.Limits
    has_limits: bool
    has_prod_limits: bool


def rules_of(node: Node, policy: LoadAwarePolicy) -> NodeLoadRules:
    """Return what the policy and the node's own annotation say about it."""
    own, names = _own_thresholds(node), policy.names
    thresholds, aggregated, prod = (
        policy.usage_thresholds,
        policy.aggregated_thresholds,
        policy.prod_thresholds,
    )
    aggregation = policy.filter_aggregation
    if own.usage_thresholds:
        thresholds = vector(names, own.usage_thresholds)
    if own.prod_usage_thresholds:
        prod = vector(names, own.prod_usage_thresholds)
    by = own.aggregated_usage
    if by is not None and by.usage_thresholds and by.usage_aggregation_type:
        aggregated = vector(names, by.usage_thresholds)
        aggregation = UsageAggregation(by.usage_aggregation_type, by.usage_aggregated_duration or 0.0)
    capacity = load.read_vector(node_capacity(node), names)
    thresholds = thresholds if aggregated is None else aggregated
    return NodeLoadRules(
        capacity=capacity,
        aggregation=aggregation,
        is_aggregated=aggregated is not None,
        thresholds=thresholds,
        prod_thresholds=prod,
        limits=load.limits(capacity, thresholds),
        prod_limits=load.limits(capacity, prod),
        has_limits=any(thresholds),
        has_prod_limits=any(prod),
    )


class NodeLoadRulesTable:
    """The rules of nodes of a policy. Nodes alike share theirs: most have no annotation of their own, and a cluster has
    few sizes of them."""

    def __init__(self, policy: LoadAwarePolicy) -> None:
        self._policy = policy
        self._plain: Recent[NodeLoadRules] = Recent(PLAIN_MAX)

    def of(self, node: Node) -> NodeLoadRules:
        """Return the thresholds as `rules_of` does."""
        annotations = node.metadata.annotations
        if labels.USAGE_THRESHOLDS in annotations or labels.NODE_RAW_ALLOCATABLE in annotations:
            return rules_of(node, self._policy)
        key = tuple(node.status.allocatable.items())
        return self._plain.get(key, lambda: rules_of(node, self._policy))


def node_capacity(node: Node) -> ResourceList:
    """Allocatable as it was before amplification, so that a node is not believed larger than it is."""
    try:
        raw = node_annotations.RAW_ALLOCATABLE.read(node.metadata.annotations)
    except KoordinatorError:
        raw = None  # malformed: the plain amounts count, as documented
    return {**node.status.allocatable, **raw} if raw else node.status.allocatable


def _own_thresholds(node: Node) -> node_annotations.UsageThresholds:
    """Return what the node's annotation says; a malformed one is ignored, as documented."""
    try:
        found = node_annotations.USAGE_THRESHOLDS.read(node.metadata.annotations, f"Node {node.key}")
    except KoordinatorError as error:
        log.warning("annotation ignored: %s", error, extra={"node": node.key})
        found = None
    return found or node_annotations.UsageThresholds()
