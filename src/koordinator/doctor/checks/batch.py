"""Do nodes lend what they should: Batch resources where they are due, and none where they are not?"""

from collections.abc import Iterator

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.core import Node
from koordinator.api.node_metric import NodeMetric
from koordinator.api.quantity import QuantityError
from koordinator.doctor.checks import config
from koordinator.doctor.checks.reports import NEW_NODE_S, interval_s
from koordinator.doctor.finding import Finding, some_of
from koordinator.doctor.snapshot import ClusterSnapshot, seconds
from koordinator.manager.config import colocation_config
from koordinator.manager.noderesource import decide, rows
from koordinator.manager.noderesource.decide import Withdrawal

SETTLE_S = 90.0
"""What the manager has time for until its answer shows on the node: a sweep every 30 s, and retries."""
_MANAGER = (
    "koordinator doctor --check components --check leases --check access    # is the manager at work?",
)


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield nodes without Batch resources and why; nodes that still have some although they must not.

    Nothing can be said while the configuration is not understood, which is a finding of its own.
    """
    if snapshot.colocation is None:
        return
    lending = _lending(snapshot)
    yield from _without(lending)
    yield from _with(lending)
    yield from _nobody_lends(snapshot)


class Lending(msgspec.Struct):
    """Names of nodes by what is wrong with what they lend."""

    withdrawn: dict[str, list[str]] = {}
    """By the reason, in words."""
    absent: list[str] = []
    left_over: list[str] = []
    exhausted: list[str] = []


def _lending(snapshot: ClusterSnapshot) -> Lending:
    found = Lending()
    for node in snapshot.nodes:
        name = node.metadata.name
        offered = _offered(node)
        reason, words = withdrawal(snapshot, node)
        is_off = reason is Withdrawal.DISABLED
        if offered is None:
            if reason is Withdrawal.NONE:
                if _is_settled(snapshot, node):
                    found.absent.append(name)
            elif not is_off and not (reason is Withdrawal.MISSING and _is_new(snapshot, node)):
                found.withdrawn.setdefault(words, []).append(name)
        elif is_off or (reason is not Withdrawal.NONE and _is_overdue(snapshot, node)):
            found.left_over.append(name)
        elif offered == 0 and reason is Withdrawal.NONE:
            found.exhausted.append(name)
    return found


def _without(lending: Lending) -> Iterator[Finding]:
    """Yield nodes that should lend and do not."""
    for problem, names in sorted(lending.withdrawn.items()):
        yield Finding.error(
            ("Node", names),
            f"Batch resources withdrawn: {problem}",
            why="nobody knows how busy the node is, so nothing more is lent; batch pods wait",
            do=(
                "koordinator doctor --check reports    # the cause, as far as objects tell it",
                f"kubectl describe node {sorted(names)[0]}    # the manager's events",
            ),
        )
    if lending.absent:
        yield Finding.error(
            ("Node", lending.absent),
            "no Batch resources although co-location is on and the report is recent",
            why="the manager has not written them",
            do=_MANAGER,
        )


def _with(lending: Lending) -> Iterator[Finding]:
    """Yield nodes that lend what they should not, or nothing."""
    if lending.left_over:
        yield Finding.error(
            ("Node", lending.left_over),
            "still offers Batch resources, which the configuration or the age of its report forbids",
            why="batch pods are placed on resources that nobody vouches for; the manager should have removed them",
            do=_MANAGER,
        )
    if exhausted := lending.exhausted:
        yield Finding.notice(
            ("Node", exhausted),
            "lends nothing now: services and system use more than cpuReclaimThresholdPercent leaves",
            do=(f"kubectl get nodemetric {sorted(exhausted)[0]} -o yaml    # what uses it",),
        )


def _offered(node: Node) -> int | None:
    """Batch CPU in milli-cores, None when there is no such entry."""
    raw = node.status.allocatable.get(resources.BATCH_CPU)
    try:
        return None if raw is None else quantity.value(raw)
    except QuantityError:
        return None


def _report_age_s(snapshot: ClusterSnapshot, node: Node) -> float | None:
    metric = snapshot.find(NodeMetric, node.metadata.name)
    reported_s = seconds(metric.status.update_time) if metric is not None else None
    return None if reported_s is None else snapshot.now_s - reported_s


def _strategy(snapshot: ClusterSnapshot, node: Node) -> colocation_config.NodeStrategy:
    merged = snapshot.colocation
    assert merged is not None, "the check ends without a configuration"
    return colocation_config.resource_strategy(merged, colocation_config.node_strategy(merged, node))


def withdrawal(snapshot: ClusterSnapshot, node: Node) -> tuple[Withdrawal, str]:
    """Return why a node must not lend, by the manager's own decision, and in words; NONE when it may."""
    strategy = _strategy(snapshot, node)
    metric = snapshot.find(NodeMetric, node.metadata.name)
    reading = rows.reading_of(metric.status) if metric is not None else rows.NO_READING
    reason = decide.withdrawal(
        is_enabled=strategy.enabled,
        degrade_s=strategy.degrade_s,
        reported_s=reading.updated_s,
        now_s=snapshot.now_s,
        problem=reading.problem,
        has_node=reading.report.has_node,
    )
    words = {
        Withdrawal.MISSING: "there is no report",
        Withdrawal.EXPIRED: f"no report for more than {strategy.degrade_s / 60:g} minutes (degradeTimeMinutes)",
        Withdrawal.REJECTED: f"the report cannot be true: {reading.problem}",
        Withdrawal.EMPTY: "the report says nothing of the node",
    }
    return reason, words.get(reason, "")


def _is_new(snapshot: ClusterSnapshot, node: Node) -> bool:
    metric = snapshot.find(NodeMetric, node.metadata.name)
    return snapshot.age_s(node) < NEW_NODE_S + interval_s(metric)


def _is_settled(snapshot: ClusterSnapshot, node: Node) -> bool:
    """Return whether the manager had time since the node came."""
    return snapshot.age_s(node) > NEW_NODE_S + SETTLE_S


def _is_overdue(snapshot: ClusterSnapshot, node: Node) -> bool:
    """Return whether the manager had time since the report became too old."""
    age_s = _report_age_s(snapshot, node)
    return age_s is None or age_s > _strategy(snapshot, node).degrade_s + SETTLE_S


def _nobody_lends(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Switched off altogether: fine, but then batch pods cannot be placed anywhere."""
    off = [node.metadata.name for node in snapshot.nodes if not config.lends(snapshot, node)]
    if off and len(off) == len(snapshot.nodes) and snapshot.slo_config is not None:
        yield Finding.notice(
            ("Node", off),
            "co-location is off",
            do=('set colocation-config to {"enable": true} in slo-controller-config to lend resources',),
        )
    elif off:
        yield Finding.notice(("Node", off), f"co-location is off there: {some_of(off)}")
