"""Mid resources of many nodes at once: from API objects to the rows of `mid`, and back (spec 02 §7)."""

from collections.abc import Sequence

import msgspec
import numpy as np

from koordinator.api import pod_resources, priority, resources
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.api.priority import PriorityClass
from koordinator.manager.colocation_config import NodeStrategy
from koordinator.manager.noderesource import account, decide
from koordinator.manager.noderesource.account import ZERO, Amount, NodeFacts
from koordinator.manager.noderesource.mid import MidInputs, MidPolicy, mid_allocatable

DEGRADED = "degrade node resource because of abnormal nodeMetric, reason: degradedByMidResource"

AMOUNT_MAX = 2**60
"""Thousandths that a row holds at most (some 10^15 bytes): sums of all columns stay within int64."""

_COUNTED_PHASES = ("Running", "Pending")
_NOT_SERVICES = (PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE)


class MidMetrics(msgspec.Struct, frozen=True):
    """What the formula needs of a NodeMetric status, in thousandths."""

    system_usage: Amount  # with applications of prod priority outside of pods
    node_usage: Amount | None  # None when cpu or memory is not reported
    reclaimable: Amount
    has_report: bool


class MidNode(msgspec.Struct, frozen=True):
    """What is known of one node; `service_request` sums `service_request` over its pods."""

    node: NodeFacts
    metrics: MidMetrics
    service_request: Amount


def withdrawal(strategy: NodeStrategy, reported_s: float | None, now_s: float) -> str:
    """Why a node must have no Mid resources; empty when it may have some. Static mode is no exception."""
    if not strategy.enabled:
        return decide.DISABLED
    if reported_s is None or now_s > reported_s + strategy.degrade_s:
        return DEGRADED
    return ""


def node_facts(node: Node) -> NodeFacts:
    """Capacity and reservation of a node.

    Raises: ProtocolError when the node has no allocatable yet; its Mid resources stay as they are.
    """
    if not node.status.allocatable:
        raise ProtocolError(
            f"Node {node.key}", "status.allocatable", "is empty; the kubelet has yet to report"
        )
    return account.node_facts(node)


def metrics(status: NodeMetricStatus) -> MidMetrics:
    """The report of the node agent; a missing prediction counts as 0."""
    info = status.node_metric
    system = account.amount_of(info.system_usage.resources) if info is not None else ZERO
    for app in status.host_application_metric:
        if priority.of_name(app.priority) is PriorityClass.PROD:
            usage = account.amount_of(app.usage.resources)
            system = (system[0] + usage[0], system[1] + usage[1])
    used = info.node_usage.resources if info is not None else {}
    predicted = status.prod_reclaimable_metric
    return MidMetrics(
        system_usage=system,
        node_usage=account.amount_of(used) if resources.CPU in used and resources.MEMORY in used else None,
        reclaimable=ZERO if predicted is None else account.amount_of(predicted.resource.resources),
        has_report=info is not None,
    )


def service_request(pod: Pod) -> Amount:
    """What a pod keeps from being unallocated: its request, 0 when it has ended or is lent to."""
    if pod.status.phase not in _COUNTED_PHASES or priority.default(pod) in _NOT_SERVICES:
        return ZERO
    return account.amount_of(pod_resources.wire_requests(pod))


def calculate(nodes: Sequence[MidNode], policy: MidPolicy) -> list[dict[str, int]]:
    """Mid resources of nodes that share a policy: name -> thousandths, in the order given."""
    if not nodes:
        return []
    rows = np.array([_row(known) for known in nodes], np.int64)
    capacity, reserved, request, usage, reclaimable, flags = rows.transpose(1, 0, 2)
    has_usage, has_report = flags.astype(np.bool_).T
    inputs = MidInputs(capacity, reserved, request, usage, reclaimable, has_usage, has_report)
    return [
        {resources.MID_CPU: cpu * 1000, resources.MID_MEMORY: memory}
        for cpu, memory in mid_allocatable(inputs, policy).tolist()
    ]


def _row(known: MidNode) -> tuple[Amount, ...]:
    found, metric = known.node, known.metrics
    reserved = (
        max(found.reserved[0], metric.system_usage[0]),
        max(found.reserved[1], metric.system_usage[1]),
    )
    usage = metric.node_usage or ZERO
    amounts = (found.capacity, reserved, known.service_request, usage, metric.reclaimable)
    flags = (int(metric.node_usage is not None), int(metric.has_report))
    return (*(_bounded(amount) for amount in amounts), flags)


def _bounded(amount: Amount) -> Amount:
    """No node's report, however absurd, may spoil the calculation of the others."""
    return max(-AMOUNT_MAX, min(amount[0], AMOUNT_MAX)), max(-AMOUNT_MAX, min(amount[1], AMOUNT_MAX))
