"""Do all nodes report how busy they are, believably, and lend what they should: Batch resources where they are due, and
none where they are not?"""

from collections.abc import Iterable, Iterator

import msgspec

from koordinator.api import node_metric, quantity, resources
from koordinator.api.core import Node, Pod
from koordinator.api.meta import find_condition
from koordinator.api.node_metric import NodeMetric
from koordinator.api.quantity import QuantityError
from koordinator.api.slo import NodeSLO
from koordinator.clock import parse_rfc3339_or
from koordinator.doctor.checks import config
from koordinator.doctor.checks.components import pod_trouble
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.manager.config import colocation_config
from koordinator.manager.noderesource import decide, rows
from koordinator.manager.noderesource.decide import Withdrawal

NEW_NODE_S = 120.0
"""Time that a new node has until its first report (the report interval comes on top)."""
SKEW_S_MAX = 30.0
MISSED_REPORTS_MAX = 3
AGENT_INTERVAL_S_MIN = 30
TIMES_CAPACITY_MAX = 2.0
"""Usage above that many times the capacity was not measured, it is nonsense."""

_NO_REPORT = (
    "without a recent report a node offers no batch resources, and its load is unknown to the scheduler"
)


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield nodes without NodeMetric or report, with an old one, with one from the future, with absurd figures."""
    missing, silent, late, early, absurd = [], [], [], [], []
    for node in snapshot.nodes:
        name = node.metadata.name
        metric = snapshot.find(NodeMetric, name)
        is_new = _is_new(snapshot, node)
        reported_s = _reported_s(metric)
        if metric is None:
            if not is_new:
                missing.append(name)
        elif reported_s is None:
            if not is_new and snapshot.age_s(metric) > NEW_NODE_S + interval_s(metric):
                silent.append(node)
        elif reported_s > snapshot.now_s + SKEW_S_MAX:
            early.append(name)
        elif snapshot.now_s - reported_s > MISSED_REPORTS_MAX * interval_s(metric):
            late.append(node)
        if metric is not None and (problem := nonsense(metric, node)):
            absurd.append((name, problem))
    if missing:
        yield Finding.error(
            ("Node", missing),
            "no NodeMetric",
            why=_NO_REPORT,
            do=("koordinator doctor --check components --check leases    # the manager creates them",),
        )
    yield from _by_cause(snapshot, FindingSeverity.ERROR, silent, "never reported")
    yield from _by_cause(snapshot, FindingSeverity.WARNING, late, "no longer reports")
    if early:
        yield Finding.warning(
            ("NodeMetric", early),
            "its report has a time in the future",
            why="the node's clock is ahead, or this machine's is behind: the age of reports is unknown, "
            "so a node that stops reporting offers batch resources for longer",
            do=(f"synchronise the clock of {some_of(early)} (chronyc tracking)",),
        )
    for problem in sorted({problem for _, problem in absurd}):
        yield Finding.warning(
            ("NodeMetric", [name for name, each in absurd if each == problem]),
            problem,
            why="if the manager rejects the report, it withdraws the node's batch resources; if it accepts "
            "it, the node offers a wrong amount",
            do=("kubectl get nodemetric NAME -o yaml", _logs(snapshot)),
        )
    yield from _policies(snapshot)


def _reported_s(metric: NodeMetric | None) -> float | None:
    return parse_rfc3339_or(metric.status.update_time, None) if metric is not None else None


def interval_s(metric: NodeMetric | None) -> float:
    """Return how often the node agent reports: as it is asked to, but not more often than it lets itself be asked."""
    policy = metric.spec.metric_collect_policy if metric is not None else None
    asked = policy.report_interval_seconds if policy is not None else None
    return float(max(asked or node_metric.REPORT_INTERVAL_S, AGENT_INTERVAL_S_MIN))


def _by_cause(
    snapshot: ClusterSnapshot, severity: FindingSeverity, nodes: Iterable[Node], problem: str
) -> Iterator[Finding]:
    """Yield one finding per cause, with the remedy of that cause."""
    causes: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        causes.setdefault(_cause(snapshot, node), []).append(node.metadata.name)
    for (cause, step), names in sorted(causes.items()):
        yield Finding.of(
            severity,
            ("Node", names),
            f"{problem}: {cause}" if cause else problem,
            why=_NO_REPORT,
            do=(step.replace("NODE", sorted(names)[0]),),
        )


def _cause(snapshot: ClusterSnapshot, node: Node) -> tuple[str, str]:
    """Return why a node does not report, as far as objects tell, and what to do."""
    ready = find_condition(node.status.conditions, "Ready")
    if ready is not None and ready.status != "True":
        return "the node is not ready", "kubectl describe node NODE"
    agents = snapshot.installation.get(ComponentName.KOORDLET)
    if agents is None:
        return "", _logs(snapshot)
    here = [pod for pod in agents.pods if pod.spec.node_name == node.metadata.name]
    if not here:
        return _why_no_agent(node), f"kubectl -n {snapshot.namespace} describe daemonset koordlet"
    trouble = next((words for pod in here if (words := pod_trouble(pod))), "")
    if trouble:
        return f"its koordlet is not running: {trouble}", _logs(snapshot)
    return "although koordlet runs on the node", _logs(snapshot, here[0])


def _why_no_agent(node: Node) -> str:
    taints = [f"{each.key}:{each.effect}" for each in node.spec.taints]
    words = f" (taints: {some_of(taints)})" if taints else ""
    return (
        f"no koordlet pod is on the node{words}; see nodeSelector, affinity and tolerations of the DaemonSet"
    )


def _logs(snapshot: ClusterSnapshot, pod: Pod | None = None) -> str:
    which = pod.metadata.name if pod is not None else "-l koord-app=koordlet"
    return f"kubectl -n {snapshot.namespace} logs {which} --tail=50"


def nonsense(metric: NodeMetric, node: Node) -> str:
    """Return what no node can measure: what the manager rejects, and usage far above the node's capacity."""
    if problem := rows.reading_of(metric.status).problem:
        return f"the report cannot be true: {problem}"
    info = metric.status.node_metric
    if info is None:
        return "the report has no usage of the node" if metric.status.update_time else ""
    for name, text in sorted(info.node_usage.resources.items()):
        try:
            used = quantity.of(text).milli
            capacity = quantity.of(node.status.capacity.get(name, "0")).milli
        except QuantityError as error:
            return f"usage of {name} is not a quantity: {error}"
        if capacity and used > TIMES_CAPACITY_MAX * capacity:
            return f"usage of {name} is above {TIMES_CAPACITY_MAX:g} times the node's capacity"
    return ""


def _policies(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    if not snapshot.knows(NodeSLO):
        return
    missing = [
        node.metadata.name
        for node in snapshot.nodes
        if snapshot.find(NodeSLO, node.metadata.name) is None and snapshot.age_s(node) > NEW_NODE_S
    ]
    if missing:
        yield Finding.error(
            ("Node", missing),
            "no NodeSLO",
            why="the node agent uses only its built-in policy, without suppression of batch pods",
            do=("koordinator doctor --check components --check leases    # the manager creates them",),
        )


SETTLE_S = 90.0
"""Time that the manager has until its answer shows on the node: a sweep every 30 s, and retries."""
_MANAGER = ("koordinator doctor --check components --check leases --check access    # does the manager run?",)


def check_lending(snapshot: ClusterSnapshot) -> Iterator[Finding]:
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
        is_off = reason in (Withdrawal.DISABLED, Withdrawal.LENT_WHOLE)
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
            f"batch resources withdrawn: {problem}",
            why="the node's load is unknown, so it offers no batch resources; batch pods stay Pending",
            do=(
                "koordinator doctor --check reports    # shows the cause",
                f"kubectl describe node {sorted(names)[0]}    # the manager's events",
            ),
        )
    if lending.absent:
        yield Finding.error(
            ("Node", lending.absent),
            "no batch resources, although co-location is on and the report is recent",
            why="the manager has not written them",
            do=_MANAGER,
        )


def _with(lending: Lending) -> Iterator[Finding]:
    """Yield nodes that lend what they should not, or nothing."""
    if lending.left_over:
        yield Finding.error(
            ("Node", lending.left_over),
            "still offers batch resources, although co-location is off or its report is too old",
            why="batch pods are placed on resources that may not exist; the manager should have withdrawn them",
            do=_MANAGER,
        )
    if exhausted := lending.exhausted:
        yield Finding.notice(
            ("Node", exhausted),
            "offers no batch resources now: services and system use more than cpuReclaimThresholdPercent allows",
            do=(f"kubectl get nodemetric {sorted(exhausted)[0]} -o yaml    # shows the usage",),
        )


def _offered(node: Node) -> int | None:
    """Batch CPU in milli-cores, None when there is no such entry."""
    raw = node.status.allocatable.get(resources.BATCH_CPU)
    try:
        return None if raw is None else quantity.value(raw)
    except QuantityError:
        return None


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
        is_lent_whole=decide.is_in_batch_phase(node),
    )
    words = {
        Withdrawal.MISSING: "there is no report",
        Withdrawal.EXPIRED: f"no report for more than {strategy.degrade_s / 60:g} minutes (degradeTimeMinutes)",
        Withdrawal.REJECTED: f"the report cannot be true: {reading.problem}",
        Withdrawal.EMPTY: "the report has no data of the node",
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
    reported_s = _reported_s(snapshot.find(NodeMetric, node.metadata.name))
    old_s = _strategy(snapshot, node).degrade_s + SETTLE_S
    return reported_s is None or snapshot.now_s - reported_s > old_s


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
