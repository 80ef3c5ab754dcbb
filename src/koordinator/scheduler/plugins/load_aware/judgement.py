"""Judge nodes by their load: the thresholds of the policy or the node's own, and in words and figures what is known
about a node and what would change the verdict. Pure. Source: behaviour/scheduler I3."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import labels, resource_vector
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node
from koordinator.api.errors import KoordinatorError
from koordinator.api.quantity import ResourceList
from koordinator.scheduler.plugin.framework import Relief
from koordinator.scheduler.plugins.load_aware import load
from koordinator.scheduler.plugins.load_aware.args import LoadAwarePolicy, UsageAggregation, vector
from koordinator.scheduler.plugins.load_aware.load import NodeLoad, PodContribution, Vector
from koordinator.scheduler.table.columns import Recent
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

PLAIN_MAX = 256
"""Sizes of nodes whose rules are remembered."""


class NodeLoadRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which a node is judged. `limits` are the highest usages within the thresholds (None: no threshold),
    of the node's usage or of a percentile of it; `prod_limits`, if there are any, hold for prod pods instead.
    Thresholds are in percent, 0 is off."""

    capacity: Vector
    aggregation: UsageAggregation | None
    thresholds: Vector
    prod_thresholds: Vector
    limits: load.Limits
    prod_limits: load.Limits
    has_limits: bool
    has_prod_limits: bool


def rules_of(node: Node, policy: LoadAwarePolicy) -> NodeLoadRules:
    """Return what the policy and the node's own annotation say about it."""
    own, names = _own_thresholds(node), policy.names
    thresholds, aggregated = policy.usage_thresholds, policy.aggregated_thresholds
    prod, aggregation = policy.prod_thresholds, policy.filter_aggregation
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
        # What is lent changes often, and no rule is about it.
        key = tuple(map(node.status.allocatable.get, self._policy.names))
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
        return found or node_annotations.UsageThresholds()
    except KoordinatorError as error:
        log.warning("annotation ignored: %s", error, extra={"node": node.key})
        return node_annotations.UsageThresholds()


NEAR_NODES_MAX = 3
"""Nodes for which it is told how much usage would have to go."""
MANY_NODES = 10
"""Besides the threshold that opens one node, the one that opens so many is told."""


class JudgedNode(msgspec.Struct, frozen=True):
    """A node as a pod is judged there: what is used (with what is not measured yet), what of it, the pod's own
    estimate, all in the order of the names, and the thresholds in percent (0: off)."""

    names: Sequence[str]
    used: Sequence[int]
    capacity: Vector
    estimate: Vector
    thresholds: Vector
    limits: load.Limits
    of_what: str

    def percent(self, index: int) -> int:
        return load.percent_of(self.used[index] + self.estimate[index], self.capacity[index])

    def over(self) -> list[int]:
        """Resources whose threshold would be exceeded."""
        return [
            index
            for index, limit in enumerate(self.limits)
            if limit is not None and self.used[index] + self.estimate[index] > limit
        ]


def judged(
    names: Sequence[str], load: NodeLoad, rules: NodeLoadRules, estimate: Vector, *, is_prod: bool
) -> JudgedNode | None:
    """None when nothing was measured. Source: behaviour/scheduler I5."""
    if load.report is None or load.report.node_usage is None:
        return None
    if is_prod and rules.has_prod_limits:
        used, limits = load.existing_prod(), (rules.prod_thresholds, rules.prod_limits)
        return JudgedNode(names, used, rules.capacity, estimate, *limits, "usage of prod pods")
    used, of_what = load.existing(), "usage"
    if rules.aggregation is not None:
        used, of_what = load.existing_aggregated(rules.aggregation), f"{rules.aggregation.type} usage"
    return JudgedNode(names, used, rules.capacity, estimate, rules.thresholds, rules.limits, of_what)


def facts(found: JudgedNode) -> Iterator[str]:
    """Yield a line per resource that the node has and that is measured or limited."""
    for index, name in enumerate(found.names):
        capacity = found.capacity[index]
        if not capacity:
            continue
        own, there, whole = (
            resource_vector.readable_cell(name, amount)
            for amount in (found.estimate[index], found.used[index], capacity)
        )
        limit = f"threshold {found.thresholds[index]}%" if found.thresholds[index] else "no threshold"
        yield (
            f"{name}: {found.percent(index)}% {found.of_what} with this pod, {limit} "
            f"({there} used, {own} estimated for the pod, of {whole})"
        )


def reliefs(nodes: Iterable[tuple[int, str, JudgedNode]]) -> list[Relief]:
    """Return the threshold that opens one node and the one that opens many, and how much usage has to go where least is
    too much. `nodes`: (row, name, how the pod is judged there)."""
    refused = [(row, name, found, found.over()) for row, name, found in nodes]
    refused = [each for each in refused if each[3]]
    return [*_thresholds(refused), *_less_usage(refused)]


Refused = tuple[int, str, JudgedNode, list[int]]


def _thresholds(refused: Sequence[Refused]) -> Iterator[Relief]:
    """For the resource that alone is over on most nodes; nothing above 100 %."""
    alone = Counter(over[0] for _, _, _, over in refused if len(over) == 1)
    if not alone:
        return
    index = alone.most_common(1)[0][0]
    needed = sorted(
        (found.percent(index), row, found.names[index], found.of_what)
        for row, _, found, over in refused
        if over == [index] and found.percent(index) <= 100
    )
    for position in dict.fromkeys((0, min(MANY_NODES, len(needed)) - 1)) if needed else ():
        percent, _, name, of_what = needed[position]
        rows = tuple(row for least, row, _, _ in needed if least <= percent)
        yield Relief("threshold", f"raise the {name} threshold of {of_what} to at least {percent}%", rows)


def _less_usage(refused: Sequence[Refused]) -> Iterator[Relief]:
    def excess(each: Refused) -> float:
        _, _, found, over = each
        return max(_excess(found, index) / found.capacity[index] for index in over)

    for row, name, found, over in sorted(refused, key=excess)[:NEAR_NODES_MAX]:
        if any(_excess(found, index) > found.used[index] for index in over):
            continue  # even an idle node would be too small
        parts = [
            f"{found.names[i]} by {resource_vector.readable_amount(found.names[i], _excess(found, i))}"
            for i in over
        ]
        yield Relief("usage", f"lower the {found.of_what} of {' and '.join(parts)} on {name}", (row,))


def _excess(found: JudgedNode, index: int) -> int:
    limit = found.limits[index]
    assert limit is not None, found.names[index]
    return found.used[index] + found.estimate[index] - limit


def describe(load: NodeLoad, pods: Mapping[str, PodInfo], names: Sequence[str]) -> dict[str, Any]:
    """Return the pods that count, oldest first, and with a report the sums and who is in them.

    `pods` are those on the node by uid; `names` are the resources of the vectors.

    Source: behaviour/scheduler I7.
    """
    assigned = [(found.since_s, pod) for uid, pod in pods.items() if (found := load.pod(uid)) is not None]
    assigned.sort(key=lambda each: (each[0], each[1].key))
    body: dict[str, Any] = {
        "pods": [{"timestamp": clock.rfc3339(since_s), "pod": pod.pod} for since_s, pod in assigned]
    }
    if load.report is None:
        return body
    sums = {
        "prodUsage": load.prod_usage,
        "nodeDelta": load.node_delta,
        "prodDelta": load.prod_delta,
        "nodeEstimated": load.node_estimated,
    }
    for name, amounts in sums.items():
        body[name] = {
            resource: resource_vector.amount_text(resource, amount)
            for resource, amount in zip(names, amounts, strict=True)
        }
    shares = [(pod.key, load.share(uid)) for uid, pod in pods.items()]

    def who(part: Callable[[PodContribution], Sequence[int]]) -> list[str]:
        return sorted(key for key, share in shares if share is not None and any(part(share)))

    body["nodeDeltaPods"] = who(lambda share: share.node_delta)
    body["prodDeltaPods"] = who(lambda share: share.prod_delta)
    body["nodeEstimatedPods"] = who(lambda share: share.estimated)
    return body
